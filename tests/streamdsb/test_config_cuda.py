"""What the GPU backend needs of a configuration, and what it refuses."""

import pytest

from streamdsb.config import make_config
from streamdsb.errors import UserError

CUDA = {"backend": "cuda"}
PEER = {"transport": "peer"}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"stream": PEER},
            "stream.transport peer needs generator.backend cuda and receiver.backend cuda, not cpu and cpu",
        ),
        ({"generator": CUDA}, "generator.backend cuda needs stream.transport peer or gpunetio, not shm"),
        (
            {"receiver": CUDA, "solver": {"replicas": 65}},
            "receiver.backend cuda takes solver.replicas from 1 to 64, not 65",
        ),
        (
            {
                "stream": PEER,
                "generator": CUDA,
                "receiver": CUDA,
                "problem": {"source": "file", "path": "a.npy"},
            },
            "generator.backend cuda makes problem.source mattis or random, not file;"
            " use generator.backend cpu with stream.transport shm",
        ),
    ],
)
def test_what_does_not_go_together_is_named(sections: dict[str, dict[str, object]], sentence: str) -> None:
    with pytest.raises(UserError, match=r"^configuration: ") as refusal:
        make_config({"problem": {"n": 100}} | sections)
    assert str(refusal.value) == f"configuration: {sentence}"


def test_generator_and_receiver_share_a_process_on_one_gpu_only() -> None:
    sections = {"problem": {"n": 100}, "stream": PEER, "receiver": CUDA}
    assert make_config(sections | {"generator": CUDA}).shares_process
    assert not make_config(sections | {"generator": CUDA | {"device": 1}}).shares_process
    assert not make_config({"problem": {"n": 100}, "receiver": CUDA}).shares_process
