"""A coupling source of one's own in five lines: J_ij = +1 where i + j is even, else -1.

The class is asked for its number of spins and for a few rows of one column block at a time:

n: the number of spins. If __init__ takes an n or a seed, problem.n and problem.seed are handed to it.
fill(rows, column_block, out): write the couplings of rows.start to rows.stop - 1 in this block into out,
uint64 (len(rows), words): column j of the block at bit j % 64 of word j // 64, 1 for +1 and 0 for -1.
columns_of and pack_couplings do that. Diagonal and padding bits are set afterwards, symmetry is checked
while the first pass goes by, and several threads may call at once.
"""

import numpy as np

from streamdsb import columns_of, pack_couplings


class Checkerboard:
    def __init__(self, n):
        self.n = n

    def fill(self, rows, column_block, out):
        i = np.arange(rows.start, rows.stop)[:, None]
        out[:] = pack_couplings(i % 2 == columns_of(self.n, column_block) % 2)
