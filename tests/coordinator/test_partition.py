"""Which rank does what: all rows are dealt, in whole groups, to the first ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.partition import Partition
from streamdsb.errors import UserError
from tests.harness import config_of


@given(n=st.integers(1, 10_000), size=st.integers(1, 300))
def test_every_row_belongs_to_one_receiver(n: int, size: int) -> None:
    rows = Partition.of(config_of(n=n), size).rows
    assert len(rows) == min(size, -(-n // 64))
    assert [part.start for part in rows] == [0, *(part.stop for part in rows[:-1])]
    assert rows[-1].stop == n
    assert all(len(part) and part.start % 64 == 0 for part in rows)
    groups = [-(-len(part) // 64) for part in rows]
    assert max(groups) - min(groups) <= 1


def test_what_each_rank_is_said_to_do() -> None:
    assert Partition.of(config_of(n=65), 3).lines(["a", "b", "c"]) == [
        "rank 0 on a: receiver of rows 0 to 63 with a generator of its own; keeps the records",
        "rank 1 on b: receiver of rows 64 to 64 with a generator of its own",
        "rank 2 on c: idle, as n = 65 has 2 groups of 64 rows",
    ]
    two = Partition.of(config_of(n=1000, receivers=2), 3)
    assert two.lines(["a", "a", "a"])[2] == "rank 2 on a: idle, as receivers is 2"


def test_more_receivers_than_ranks() -> None:
    with pytest.raises(UserError, match="receivers is 3, but 1 rank was started; start 3 with mpiexec -n 3"):
        Partition.of(config_of(n=1000, receivers=3), 1)
