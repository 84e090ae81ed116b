"""What every communicator does; run as a program, by each rank of an mpiexec."""

import threading
import traceback

import numpy as np

from streamdsb.communicator import Communicator, MpiRanks


def check_conformance(ranks: Communicator) -> None:
    """Every rank calls this; raises AssertionError where the communicator does not conform."""
    rank, size = ranks.rank, ranks.size
    assert 0 <= rank < size
    assert ranks.broadcast({"from": rank}) == {"from": 0}
    assert ranks.gather(("rank", rank)) == [("rank", other) for other in range(size)]
    energies = np.array([-(2**60) // size, rank], np.int64)
    assert ranks.sum(energies).tolist() == [size * (-(2**60) // size), size * (size - 1) // 2]
    assert energies[1] == rank
    wrapped = ranks.sum(np.full(3, 2**64 - 1, np.uint64))
    assert wrapped.tolist() == [2**64 - size] * 3
    counts = [7 * other + 1 for other in range(size)]
    words = np.arange(counts[rank], dtype=np.uint64) + np.uint64(2**63 + 1000 * rank)
    every = np.zeros(sum(counts), np.uint64)
    ranks.concatenate(words, counts, every)
    assert every.tolist() == [2**63 + 1000 * o + i for o in range(size) for i in range(counts[o])]
    for width in range(1, size + 1):
        part = ranks.first(width)
        assert (part is not None) == (rank < width)
        if part is not None:
            assert (part.rank, part.size) == (rank, width)
            assert part.gather(rank) == list(range(width))
    ranks.barrier()


def main() -> None:
    ranks = MpiRanks.world(threading.Event())
    try:
        check_conformance(ranks)
    except BaseException:
        traceback.print_exc()
        ranks.abort(1)
    print(f"rank {ranks.rank} conforms", flush=True)


if __name__ == "__main__":
    main()
