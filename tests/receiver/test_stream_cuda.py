"""The persistent kernels together: whole runs against the oracle, and frames that must not be added."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from receiver.check import Count
from receiver.update_cpu import Dynamics
from streamdsb.errors import RunFailed
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import Layout, RowRange
from validation import oracle

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("queues", [1, 2, 8])
@pytest.mark.parametrize("replicas", [1, 8, 33])
@pytest.mark.parametrize("n", [2, 65, 1000, 4097])
@pytest.mark.parametrize("source", ["random", "mattis"])
def test_records_are_the_oracles(source: str, n: int, replicas: int, queues: int) -> None:
    from validation.bench_cuda import Loop

    couplings = getattr(oracle, f"{source}_couplings")(n, 42)
    expected = oracle.solve(couplings, replicas=replicas, updates=4, seed=42).records
    with Loop(n, replicas, 4, source, queues, ring_bytes=1 << 22) as loop:
        got = [loop.record(k) for k in range(5)]
    assert [json.loads(line) for line in got] == [json.loads(line) for line in expected]
    assert got == expected


class Feeder:
    """A receive kernel on one queue whose ring the test writes."""

    def __init__(self, n: int, places: int = 8) -> None:
        from receiver.accumulate_cuda import ReceiveKernel
        from receiver.update_cuda import CudaState
        from streamdsb.queues.peer import PLACE_BYTES, PeerRing

        self.n = n
        self.layout = Layout(n, 1, 1)
        rows = RowRange(0, n)
        self.ring = PeerRing.allocate(1, places * PLACE_BYTES)
        self.state = CudaState(self.layout, rows, Dynamics(3, np.float32(0.1), np.float32(1.1)), 1, None)
        self.kernel = ReceiveKernel(self.layout, (rows,), 7, 0, self.ring, self.state)
        self.burst = 0
        self.kernel.start()

    def tile(self, index: int, **header: int) -> np.ndarray:
        """The frame of row `index`, all couplings +1; `header` overrides what its header says."""
        frame = empty_frames(1)
        fields = {"run": 7, "pass_index": 0, "sequence": index, "row": index, "block": 0, "queue": 0} | header
        kind = fields.pop("kind", FrameType.TILE)
        write_headers(frame, int(kind), *fields.values(), 0 if kind is FrameType.PASS_END else self.n)
        if kind is FrameType.TILE:
            frame[0, 8 : 8 + self.n // 64] = np.uint64(0xFFFFFFFFFFFFFFFF)
        return frame

    def send(self, *frames: np.ndarray) -> None:
        """Write one burst from the host: slots, then the ready word."""
        import cupy

        slots, ready, _, places, *_ = self.ring.queue(0)
        stream = cupy.cuda.Stream(non_blocking=True)
        data = np.concatenate(frames)
        place = self.burst % places
        word = np.array([(self.burst + 1) << 8 | len(data)], np.uint64)
        for to, value in ((slots + place * 64 * 4096, data), (ready + 8 * place, word)):
            cupy.cuda.runtime.memcpyAsync(to, value.ctypes.data, value.nbytes, 1, stream.ptr)
            stream.synchronize()
        self.burst += 1

    def end(self, pass_index: int = 0) -> None:
        self.send(self.tile(self.n, kind=FrameType.PASS_END, pass_index=pass_index))

    def counts(self) -> dict[str, int]:
        return {
            reason.name: int(value)
            for reason, value in zip(Count, self.kernel.counts[0], strict=True)
            if value
        }

    def expected(self) -> np.ndarray:
        """Mismatches of a row of +1 with the signs: the -1 among them."""
        spins = oracle.spins_of(self.state.host_signs, self.n)
        return np.broadcast_to((spins < 0).sum(axis=1)[:, None], (1, self.n))


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    feeder = Feeder(128)
    yield feeder
    feeder.kernel.stop()


REJECTED = {
    "DUPLICATE": {"sequence": 2, "row": 2},
    "FOREIGN_RUN": {"run": 8},
    "WRONG_PASS": {"pass_index": 1},
    "WRONG_QUEUE": {"queue": 1},
    "MISPLACED": {"row": 4},
    "MALFORMED": {"kind": FrameType.RESEND},
}


@pytest.mark.parametrize("reason", REJECTED)
def test_bad_frame_is_counted_and_never_added(feeder: Feeder, reason: str) -> None:
    frames = [feeder.tile(row) for row in range(128)]
    frames.insert(5, feeder.tile(5, **REJECTED[reason]))
    for first in range(0, 129, 50):
        feeder.send(*frames[first : first + 50])
    feeder.end()
    feeder.kernel.wait_drained(1, timeout=5)
    assert feeder.counts() == {"ACCEPTED": 128, reason: 1}
    np.testing.assert_array_equal(feeder.state.counts.get(), feeder.expected())


def test_gap_is_counted(feeder: Feeder) -> None:
    feeder.send(*(feeder.tile(row) for row in range(60)))
    feeder.send(*(feeder.tile(row) for row in range(64, 128)))
    feeder.end()
    feeder.kernel.wait_drained(1, timeout=5)
    assert feeder.counts() == {"ACCEPTED": 124, "MISSING": 4}
    assert feeder.kernel.sent == [128]


def test_ring_goes_round_and_places_come_back(feeder: Feeder) -> None:
    import cupy

    for pass_index in range(20):
        for first in (0, 64):
            feeder.send(*(feeder.tile(row, pass_index=pass_index) for row in range(first, first + 64)))
        feeder.end(pass_index)
        feeder.kernel.wait_drained(pass_index + 1, timeout=5)
    _, _, credit, places, *_ = feeder.ring.queue(0)
    words = np.empty(places, np.uint64)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.memcpyAsync(words.ctypes.data, credit, words.nbytes, 2, stream.ptr)
    stream.synchronize()
    feeder.kernel.stop()
    assert sorted(words.tolist()) == list(range(60, 60 + places))


def test_silence_is_a_named_error(feeder: Feeder) -> None:
    feeder.send(*(feeder.tile(row) for row in range(64)))
    with pytest.raises(RunFailed, match=r"no frame came for 0\.5 s: queue 0: 64 accepted"):
        feeder.kernel.wait_drained(1, timeout=0.5)
