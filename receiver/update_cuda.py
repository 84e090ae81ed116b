"""Dynamics on the GPU: the twin of update_cpu, with positions, momenta, counts and signs in device memory."""

from __future__ import annotations

import numpy as np

from receiver.update_cpu import Dynamics
from streamdsb import cuda
from streamdsb.hashing import Domain, key_of
from streamdsb.layout import GROUP_ROWS, Layout, RowRange
from streamdsb.packing import pack_couplings

_THREADS = 128
STATES = np.dtype(
    [
        (name, "u8")
        for name in (
            *("x", "y", "counts", "signs", "field"),
            *("n", "first_row", "rows", "sign_stride"),
        )
    ]
)
"""struct States of update.cuh."""


class CudaState:
    """Positions, momenta, float32 (B, rows), counts, int32 (B, rows), and signs, uint64 (B, ceil(n / 64)).

    All arrays are on the current device; everything is allocated and compiled here, nothing later.  The
    resident receive kernel makes the updates; `update_alone` makes one where no such kernel runs.
    """

    def __init__(
        self, layout: Layout, rows: RowRange, dynamics: Dynamics, seed: int, field: np.ndarray | None
    ) -> None:
        import cupyx

        shape = (layout.replicas, len(rows))
        self.dynamics = dynamics
        first_word = rows.start // GROUP_ROWS
        self._own_words = slice(first_word, first_word + -(-len(rows) // GROUP_ROWS))
        self.positions = cuda.empty(shape, np.float32)
        self.momenta = cuda.empty(shape, np.float32)
        self.counts = cuda.empty(shape, np.int32)
        self.signs = cuda.zeros((layout.replicas, layout.bitmap_words), np.uint64)
        self.host_signs: np.ndarray = cupyx.zeros_pinned(self.signs.shape, np.uint64)
        """The sign bitmaps on the host, uint64 (B, ceil(n / 64)), as they were initialised."""
        self._field = None
        if field is not None:
            self._field = cuda.empty(len(rows), np.int32)
            self._field.set(np.ascontiguousarray(field[rows.start : rows.stop], np.int32))
        self.pointers = self._pointers(layout, rows)
        words = -(-len(rows) // GROUP_ROWS)
        blocks = min(-(-words // (_THREADS // 32)), 4 * cuda.multiprocessors())
        self._grid = (max(blocks, 1), layout.replicas)
        keys = key_of(seed, Domain.INITIAL_POSITIONS), key_of(seed, Domain.INITIAL_MOMENTA)
        initialise = cuda.load("update.cu", "initialise")
        initialise(self._grid, (_THREADS,), (cuda.upload(self.pointers), *keys))
        self.signs.get(out=self.host_signs)
        cuda.settle()

    def free(self) -> None:
        """Give the device memory back; what is on the host stays."""
        del self.positions, self.momenta, self.counts, self.signs, self._field

    @property
    def nbytes(self) -> int:
        """Device memory of the state."""
        arrays = (self.positions, self.momenta, self.counts, self.signs, self._field)
        return sum(array.nbytes for array in arrays if array is not None)

    def to_host(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of positions and momenta, float32 (B, rows); the resident kernel may run meanwhile."""
        import cupy

        with cupy.cuda.Stream(non_blocking=True):
            return self.positions.get(), self.momenta.get()

    def restore(self, positions: np.ndarray, momenta: np.ndarray) -> None:
        """Continue from these positions and momenta, float32 (B, rows); no kernel may run yet."""
        self.positions.set(np.ascontiguousarray(positions))
        self.momenta.set(np.ascontiguousarray(momenta))
        self.host_signs[:, self._own_words] = pack_couplings(positions > 0)
        self.signs.set(self.host_signs)
        cuda.settle()

    def _pointers(self, layout: Layout, rows: RowRange) -> np.ndarray:
        states = np.zeros((), STATES)
        for name, array in (
            ("x", self.positions),
            ("y", self.momenta),
            ("counts", self.counts),
            ("signs", self.signs),
            ("field", self._field),
        ):
            states[name] = array.data.ptr if array is not None else 0
        states["n"], states["first_row"], states["rows"] = layout.n, rows.start, len(rows)
        states["sign_stride"] = layout.bitmap_words
        return states

    def update_alone(self, k: int) -> np.ndarray:
        """These rows' share of 2E, int64 (B,), from the counts of pass k; then update k, if there is one.

        The counts are zero again afterwards.
        """
        replicas = self.signs.shape[0]
        energies = cuda.zeros(replicas, np.int64)
        moves = k < self.dynamics.updates
        decay = self.dynamics.detuning(k) if moves else np.float32(0)
        arguments = (cuda.upload(self.pointers), energies, np.uint32(replicas), np.uint32(moves))
        kernel = cuda.load("update.cu", "update")
        kernel(self._grid[:1], (_THREADS,), (*arguments, self.dynamics.xi, self.dynamics.dt, decay))
        cuda.settle()
        return np.asarray(energies.get())
