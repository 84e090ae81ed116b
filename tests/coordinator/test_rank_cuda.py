"""What a rank on a GPU is given, as far as no GPU is needed to tell."""

import pytest

from coordinator import rank_cuda
from coordinator.rank_cuda import PartConfig, device_of
from streamdsb.layout import RowRange
from tests.harness import config_of


def test_the_layout_of_a_rank_is_that_of_its_rows() -> None:
    config = config_of(n=1000, stream={"queues": 2})
    part = PartConfig.of(config, RowRange(64, 320))
    assert part.layout == config.layout.of(RowRange(64, 320))
    assert part.layout.queue_rows == (RowRange(64, 192), RowRange(192, 320))
    assert (part.n, part.xi, part.solver, part.problem) == (1000, config.xi, config.solver, config.problem)


@pytest.mark.parametrize(
    ("count", "first", "devices"),
    [(1, 0, [0, 0, 0, 0]), (2, 0, [0, 1, 0, 0]), (4, 1, [1, 2, 1, 3]), (2, 1, [1, 0, 1, 1])],
)
def test_ranks_of_a_host_take_its_gpus_in_turn(
    count: int, first: int, devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_cuda.cuda, "device_count", lambda: count)
    monkeypatch.setattr(rank_cuda, "_bus_of", str)
    config = config_of(n=1000, receiver={"backend": "cuda", "device": first})
    found = [device_of(config, rank, "aaba") for rank in range(4)]
    assert found == [(device, str(device)) for device in devices]
