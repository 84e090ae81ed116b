"""Which rank does what: all rows are dealt, in whole groups, to the first ranks."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.main import run_here
from coordinator.partition import Gpu, Partition, refuse_what_ranks_cannot
from coordinator.progress import SilentDisplay
from streamdsb.config import load_config
from streamdsb.errors import UserError
from tests.harness import config_of, written_config


@given(n=st.integers(1, 10_000), size=st.integers(1, 300))
def test_every_row_belongs_to_one_receiver(n: int, size: int) -> None:
    rows = Partition.of(config_of(n=n), size).rows
    assert len(rows) == min(size, -(-n // 64))
    assert [part.start for part in rows] == [0, *(part.stop for part in rows[:-1])]
    assert rows[-1].stop == n
    assert all(len(part) and part.start % 64 == 0 for part in rows)
    groups = [-(-len(part) // 64) for part in rows]
    assert max(groups) - min(groups) <= 1


@given(n=st.integers(1, 10_000), receivers=st.integers(1, 100), data=st.data())
def test_every_receiver_has_one_generator(n: int, receivers: int, data: st.DataObject) -> None:
    generators = data.draw(st.integers(1, receivers))
    config = config_of(n=n, receivers=receivers, generators=generators, stream={"transport": "tcp"})
    partition = Partition.of(config, receivers + generators)
    served = [rank for part in partition.served for rank in part]
    assert served == list(range(len(partition.rows)))
    for rank in range(receivers + generators):
        for receiver in partition.served_by(rank):
            assert rank >= receivers
            assert partition.generator_of(receiver) == rank
    sizes = [len(part) for part in partition.served]
    assert len(sizes) == min(generators, len(partition.rows))
    assert 0 < max(sizes) - min(sizes) + 1 <= 2


def _said(size: int, **keys: Any) -> list[str]:
    config = config_of(**keys)
    return Partition.of(config, size).lines(config, "abcdefgh"[:size], [None] * size)


def test_what_each_rank_is_said_to_do() -> None:
    assert _said(3, n=65, stream={"queues": 2}) == [
        "rank 0 on a: receiver of rows 0 to 63 on the CPU, 2 queues (shm) from a generator of its own; keeps"
        " the records",
        "rank 1 on b: receiver of rows 64 to 64 on the CPU, 2 queues (shm) from a generator of its own",
        "rank 2 on c: idle, as n = 65 has 2 groups of 64 rows",
    ]
    assert _said(3, n=1000, receivers=2)[2] == "rank 2 on c: idle, as receivers is 2"


def test_what_ranks_that_generate_are_said_to_do() -> None:
    tcp = {"transport": "tcp"}
    assert _said(6, n=200, receivers=3, generators=2, stream=tcp) == [
        "rank 0 on a: receiver of rows 0 to 63 on the CPU, 1 queue (tcp) from rank 3; keeps the records",
        "rank 1 on b: receiver of rows 64 to 127 on the CPU, 1 queue (tcp) from rank 4",
        "rank 2 on c: receiver of rows 128 to 199 on the CPU, 1 queue (tcp) from rank 4",
        "rank 3 on d: generator of rows 0 to 63 on the CPU, for rank 0",
        "rank 4 on e: generator of rows 64 to 199 on the CPU, for ranks 1 to 2",
        "rank 5 on f: idle, as receivers is 3 and generators is 2",
    ]
    assert "from rank 2" in _said(3, n=200, generators=1, stream=tcp)[1]


def test_ranks_on_gpus_and_those_that_share_one() -> None:
    cuda = {"backend": "cuda"}
    config = config_of(n=200, stream={"transport": "peer"}, generator=cuda, receiver=cuda)
    first = Gpu(0, "0000:17:00.0")
    lines = Partition.of(config, 3).lines(config, "aab", [first, first, first])
    assert (
        "rows 0 to 63 on GPU 0 (which 2 ranks share), 1 queue (peer) from a generator of its own" in lines[0]
    )
    assert "rows 64 to 127 on GPU 0 (which 2 ranks share), " in lines[1]
    assert "rows 128 to 199 on GPU 0, " in lines[2]
    own = [first, Gpu(0, "0000:65:00.0"), first]  # as each task sees its own
    assert "share" not in "".join(Partition.of(config, 3).lines(config, "aab", own))


@pytest.mark.parametrize(
    ("size", "keys", "words"),
    [
        (
            1,
            {"receivers": 3},
            "receivers is 3, but 1 rank was started; start 3 with mpiexec -n 3, or lower it",
        ),
        (
            4,
            {"receivers": 3, "generators": 2},
            "receivers is 3 and generators is 2, but 4 ranks were started; start 5 with mpiexec -n 5, or"
            " lower one of them",
        ),
        (
            2,
            {"generators": 2},
            "receivers is 1 and generators is 2, but 2 ranks were started; start 3 with mpiexec -n 3, or"
            " lower one of them",
        ),
        (
            5,
            {"receivers": 2, "generators": 3},
            "generators is 3, but 2 ranks receive, each from one generator; lower generators to 2 or less",
        ),
    ],
)
def test_ranks_that_do_not_suffice(size: int, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Partition.of(config_of(n=1000, **keys), size)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("transport", "generators", "words"),
    [
        ("shm", 1, "stream.transport is shm, but generators is 1"),
        ("tcp", None, "stream.transport is tcp, but receivers"),
        ("udp", None, "use shm or peer, or give ranks to generators"),
    ],
)
def test_transports_that_do_not_lead_there(transport: str, generators: int | None, words: str) -> None:
    config = config_of(n=1000, generators=generators, stream={"transport": transport})
    with pytest.raises(UserError, match=words):
        refuse_what_ranks_cannot(config)


def test_generators_have_no_section(tmp_path: Path) -> None:
    path = written_config(tmp_path, config_of(n=1000, generators=2, stream={"transport": "tcp"}))
    assert load_config(path, ["generators=3"]).generators == 3
    assert load_config(path, ["generators=null"]).generators is None
    with pytest.raises(UserError, match="generators is 0, but it should be an integer from 1 to 65536"):
        load_config(path, ["generators=0"])


def test_one_process_is_not_enough_for_a_rank_that_generates(tmp_path: Path) -> None:
    config = config_of(n=100, receivers=2, generators=1, stream={"transport": "tcp"})
    with pytest.raises(UserError, match=r"receivers is 2 and generators is 1, .* mpiexec -n 3 streamdsb run"):
        run_here(config, tmp_path / "run", False, SilentDisplay())
