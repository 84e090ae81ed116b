"""Synthesis on the GPU: the persistent generate kernel, which composes frames where the queue says."""

from __future__ import annotations

import time

import numpy as np

from streamdsb import cuda
from streamdsb.control_words import ControlWords
from streamdsb.errors import RunFailed
from streamdsb.frame import ETHERTYPE_FIELD
from streamdsb.hashing import Domain, key_of
from streamdsb.layout import GROUP_ROWS, MAX_QUEUES, PAYLOAD_BYTES, Layout, RowRange, ceil_div
from streamdsb.queues.peer import PEER_QUEUE, PLACE_BYTES, DeviceRing

SOURCES = {"random": Domain.RANDOM_COUPLINGS, "mattis": Domain.MATTIS_SIGNS}
"""Coupling sources that the GPU synthesizes, and the hash domain of each."""

_THREADS = 256


def job_of(queue: np.dtype) -> np.dtype:
    """struct Job of generate.cu for a kind of queue."""
    share = np.dtype([("queue", queue), ("first_group", "u8"), ("groups", "u8")])
    return np.dtype(
        [
            ("n", "u8"),
            ("key", "u8"),
            ("first_pass", "u8"),
            ("passes", "u8"),
            ("queues", "u8"),
            ("rounds", "u8"),
            ("run", "u4"),
            ("ethertype", "u4"),
            ("control", "u8"),
            ("state", "u8"),
            ("repair", "u8"),
            ("made", "u8"),
            ("repairers", "u8"),
            ("share", share, MAX_QUEUES),
        ]
    )


JOB = job_of(PEER_QUEUE)
CONTROL = np.dtype([("stop", "u8"), ("released", "u8"), ("sent", "u8", MAX_QUEUES), ("beat", "u8")])
ORDER = np.dtype([("queue", "u8"), ("pass", "u8"), ("tile", "u8"), ("rows", "u8")])
"""Frames of one tile that are to be sent again: passes before it since the start, a bit a row."""

MOST_ORDERS = 1024
REPAIR = np.dtype(
    [
        ("permitted", "u8", MAX_QUEUES),
        ("posted", "u8", 8),
        ("filled", "u8", 8),
        ("orders", ORDER, MOST_ORDERS),
    ]
)
_STATE_BYTES = 4096
_BLOCKED = 12
"""Where this word of the kernel's State is."""

_FEWEST_BLOCKS = 3
"""One each to talk to the host, to make again what got lost, and to send."""

_BLOCKS_A_REPAIRER = 8
"""One block of so many does nothing but make again what got lost."""


def measure_rate(n: int, source: str, seed: int, ring: DeviceRing) -> float:
    """Payload bytes a second that the current device composes in the slots of `ring` alone."""
    bursts = ring.queues * ring.places
    groups = np.arange(bursts, dtype=np.uint64) % np.uint64(ceil_div(n, GROUP_ROWS))
    arrays = [cuda.empty(bursts, np.uint64) for _ in range(2)]
    arrays[0].set(groups)
    arrays[1].set(np.zeros(bursts, np.uint64))
    kernel = cuda.load("synthesize.cu", "synthesize", {"SOURCE": source})
    key = key_of(seed, SOURCES[source])
    arguments = (np.uint64(ring.slots), *arrays, np.uint64(bursts), np.uint64(n), key)
    grid = (2 * cuda.multiprocessors(),)
    seconds = cuda.event_seconds(lambda: kernel(grid, (_THREADS,), arguments), 5)
    return bursts * GROUP_ROWS * PAYLOAD_BYTES / seconds


class GenerateKernel:
    """The resident generate kernel: sends `passes` passes from `first_pass` on, each once it is released.

    On a device that also runs the receive kernel, `shared_memory` is what that kernel asks for.
    """

    def __init__(
        self,
        layout: Layout,
        queue_rows: tuple[RowRange, ...],
        source: str,
        seed: int,
        run: int,
        first_pass: int,
        passes: int,
        ring: DeviceRing,
        shared_memory: int | None = None,
    ) -> None:
        import cupy

        self._kernel = cuda.load("generate.cu", "generate", {"SOURCE": source} | cuda.queue_kind(ring.kind))
        if shared_memory is not None:
            cuda.carve_out(self._kernel, shared_memory)
        self._state = cuda.zeros(_STATE_BYTES, np.uint8)
        self._control = ControlWords(CONTROL)
        self._keep = ring
        self._queues = ring.queues
        job = np.zeros((), job_of(ring.fields))
        job["n"], job["key"] = layout.n, key_of(seed, SOURCES[source])
        job["first_pass"], job["passes"], job["queues"] = first_pass, passes, ring.queues
        self._sent_a_pass = [
            ceil_div(len(rows), GROUP_ROWS) * layout.column_blocks + 1 for rows in queue_rows
        ]
        groups = [ceil_div(len(rows), GROUP_ROWS) for rows in queue_rows]
        job["rounds"] = max(groups) * layout.column_blocks + 1
        job["run"] = run
        job["ethertype"] = ETHERTYPE_FIELD
        job["control"], job["state"] = self._control.address, self._state.data.ptr
        self._blocks = max(cuda.multiprocessors() - ring.spared, _FEWEST_BLOCKS)
        self._made = None
        if ring.window:
            job["repairers"] = repairers = max(self._blocks // _BLOCKS_A_REPAIRER, 1)
            self._made = cuda.zeros(repairers * PLACE_BYTES, np.uint8)
            self._repair = ControlWords(REPAIR)
            job["repair"], job["made"] = self._repair.address, self._made.data.ptr
        for index, rows in enumerate(queue_rows):
            job["share"][index] = (ring.queue(index), rows.start // GROUP_ROWS, groups[index])
        self._job = cuda.upload(job)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cuda.settle()

    def start(self) -> None:
        """Launch the kernel; it ends after the last pass or `stop`."""
        with self._stream:
            self._kernel((self._blocks,), (_THREADS,), (self._job,))

    def release(self, passes: int) -> None:
        """Let the first `passes` passes since the start be sent."""
        self._control["released"] = passes

    @property
    def sent(self) -> list[int]:
        """Bursts submitted on each queue since the start, PASS_END included."""
        return [int(count) for count in self._control["sent"][: self._queues]]

    def wait_sent(self, passes: int) -> bool:
        """Wait up to 0.1 s a queue until `passes` passes are sent since the start; whether they are."""
        return all(
            self._control.reached("sent", passes * bursts, queue)
            for queue, bursts in enumerate(self._sent_a_pass)
        )

    def queues_that_sent(self, passes: int) -> list[bool]:
        """Whether each queue has sent `passes` passes since the start, everything once."""
        return [sent >= passes * bursts for sent, bursts in zip(self.sent, self._sent_a_pass, strict=True)]

    def permit(self, queue: int, frames: int) -> None:
        """Let a lossy queue send its first `frames` frames since the start."""
        self._repair["permitted"][queue] = frames

    def post(self, orders: np.ndarray) -> bool:
        """Order these frames again, ORDER (<= MOST_ORDERS,); False while older orders are not filled."""
        posted = int(self._repair["posted"][0])
        if int(self._repair["filled"][0]) != posted:
            return False
        self._repair["orders"][np.arange(posted, posted + len(orders)) % MOST_ORDERS] = orders
        self._repair["posted"][0] = posted + len(orders)
        return True

    @property
    def ended(self) -> bool:
        """True once the kernel has ended; RunFailed if it ended with a fault."""
        return cuda.check_stream(self._stream, "the generate kernel")

    @property
    def blocked_cycles(self) -> int:
        """Clock cycles that blocks waited for room, all together; known once the kernel has ended."""
        return int(self._state.view(np.uint64)[_BLOCKED].get())

    def stop(self) -> None:
        """End the kernel, wherever it is, and wait for it."""
        self._control["stop"] = 1
        deadline = time.monotonic() + 5
        while not self.ended:
            if time.monotonic() > deadline:
                raise RunFailed("the generate kernel did not end within 5 s of being stopped")
            time.sleep(1e-4)
