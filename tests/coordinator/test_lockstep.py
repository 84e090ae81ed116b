"""Ranks whose signs part are named."""

import pytest

from coordinator.lockstep import require_equal
from streamdsb.errors import RunFailed


@pytest.mark.parametrize(
    ("digests", "words"),
    [
        (["a", "b"], "after pass 7, the signs of rank 1 differ from those of rank 0"),
        (["a", "b", "a", "b", "c"], "after pass 7, the signs of ranks 1, 3, 4 differ from those of rank 0"),
    ],
)
def test_ranks_with_other_signs_are_named(digests: list[str], words: str) -> None:
    require_equal(7, ["a"] * len(digests))
    with pytest.raises(RunFailed) as caught:
        require_equal(7, digests)
    assert str(caught.value) == words
