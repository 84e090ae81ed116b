"""A queue in memory that two processes of one machine share: a ring of bursts and a doorbell each way.

The ring is an anonymous file and the doorbells are a socket pair, both handed to the processes by
inheritance: nothing has a name, so nothing can be left behind, and the death of one end shows at once
as the end of the other's socket.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import tempfile
from dataclasses import dataclass

import numpy as np

from streamdsb.channel import PeerGone
from streamdsb.intrinsics import full_fence, load_acquire, store_release
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES, FRAME_WORDS
from streamdsb.queues.base import Capabilities

# words of the control page; what one end writes often stands on a cache line of its own
_COMMITTED, _RECEIVER_SLEEPS, _RELEASED, _SENDER_SLEEPS, _COUNTS = 0, 8, 16, 24, 32
_CONTROL_BYTES = 4096


@kernel("boolean(uint64[::1], int64, uint64, int64)")
def _publish(control: np.ndarray, index: int, value: np.uint64, sleeper: int) -> bool:
    """Store control[index] = value; True if the other end sleeps and its doorbell has to be rung."""
    store_release(control, index, value)
    full_fence()
    if load_acquire(control, sleeper) == np.uint64(0):
        return False
    store_release(control, sleeper, np.uint64(0))
    return True


@kernel("boolean(uint64[::1], int64, int64, uint64)")
def _fall_asleep(control: np.ndarray, sleeper: int, index: int, unless_not: np.uint64) -> bool:
    """Announce sleep; False, and awake again, if control[index] is no longer `unless_not`."""
    store_release(control, sleeper, np.uint64(1))
    full_fence()
    if load_acquire(control, index) == unless_not:
        return True
    store_release(control, sleeper, np.uint64(0))
    return False


@kernel("uint64(uint64[::1], int64)")
def _read(control: np.ndarray, index: int) -> np.uint64:
    return load_acquire(control, index)


@kernel("void(uint64[::1], int64, uint64)")
def _write(control: np.ndarray, index: int, value: np.uint64) -> None:
    store_release(control, index, value)


KERNELS = (_publish, _fall_asleep, _read, _write)


@dataclass(frozen=True)
class ShmLink:
    """The file descriptors of one queue: its ring and the two ends of its doorbell."""

    ring: int
    sender_bell: int
    receiver_bell: int

    @classmethod
    def create(cls, burst_frames: int, ring_bursts: int) -> ShmLink:
        """Allocate a ring; raises OSError if there is no room for it."""
        size = _CONTROL_BYTES + burst_frames * ring_bursts * FRAME_BYTES
        if hasattr(os, "memfd_create"):
            ring = os.memfd_create("streamdsb-ring")
        else:
            with tempfile.TemporaryFile() as file:
                ring = os.dup(file.fileno())
        try:
            os.ftruncate(ring, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(ring, 0, size)
        except OSError:
            os.close(ring)
            raise
        sender, receiver = socket.socketpair()
        return cls(ring, sender.detach(), receiver.detach())

    def close(self) -> None:
        """Close the descriptors in the process that created them, once the others have inherited theirs."""
        for descriptor in (self.ring, self.sender_bell, self.receiver_bell):
            os.close(descriptor)


class _ShmEnd:
    capabilities = Capabilities(lossless=True, ordered=True, copies_padding=False)
    poll_events = select.POLLIN

    def __init__(self, ring: int, bell: int, burst_frames: int, ring_bursts: int, peer: str) -> None:
        self._bursts = ring_bursts
        self._peer = peer
        self._memory = mmap.mmap(ring, _CONTROL_BYTES + burst_frames * ring_bursts * FRAME_BYTES)
        os.close(ring)
        self._control = np.frombuffer(self._memory, np.uint64, _CONTROL_BYTES // 8)
        frames = np.frombuffer(self._memory, np.uint64, offset=_CONTROL_BYTES)
        self._frames = frames.reshape(ring_bursts, burst_frames, FRAME_WORDS)
        self._bell = socket.socket(fileno=bell)
        self._bell.setblocking(False)
        self._done = 0
        self._gone = False

    def fileno(self) -> int:
        return self._bell.fileno()

    def close(self) -> None:
        self._bell.close()

    def _ring_bell(self) -> None:
        try:
            self._bell.send(b"!")
        except BlockingIOError:
            pass
        except OSError:
            self._gone = True

    def _swallow_bells(self) -> None:
        try:
            self._gone = self._gone or not self._bell.recv(64)
        except BlockingIOError:
            pass
        except OSError:
            self._gone = True
        if self._gone:
            raise PeerGone(f"{self._peer} is gone from the queue")


class ShmSender(_ShmEnd):
    """The generator's end of a ring in shared memory."""

    def acquire(self) -> np.ndarray | None:
        if self._done - int(_read(self._control, _RELEASED)) == self._bursts:
            return None
        return self._frames[self._done % self._bursts]

    def commit(self, count: int) -> None:
        self._control[_COUNTS + self._done % self._bursts] = count
        self._done += 1
        if _publish(self._control, _COMMITTED, np.uint64(self._done), _RECEIVER_SLEEPS):
            self._ring_bell()

    def arm(self) -> bool:
        full = np.uint64(self._done - self._bursts) if self._done >= self._bursts else None
        return full is not None and _fall_asleep(self._control, _SENDER_SLEEPS, _RELEASED, full)

    def disarm(self) -> None:
        _write(self._control, _SENDER_SLEEPS, np.uint64(0))
        self._swallow_bells()


class ShmReceiver(_ShmEnd):
    """The receiver's end of a ring in shared memory."""

    @property
    def memory(self) -> np.ndarray:
        """All of the ring, uint8, for a receiver that page-locks it."""
        return np.frombuffer(self._memory, np.uint8)

    def receive(self) -> np.ndarray | None:
        if int(_read(self._control, _COMMITTED)) == self._done:
            return None
        slot = self._done % self._bursts
        count = min(int(self._control[_COUNTS + slot]), self._frames.shape[1])
        return self._frames[slot, :count]

    def release(self) -> None:
        self._done += 1
        if _publish(self._control, _RELEASED, np.uint64(self._done), _SENDER_SLEEPS):
            self._ring_bell()

    def arm(self) -> bool:
        return bool(_fall_asleep(self._control, _RECEIVER_SLEEPS, _COMMITTED, np.uint64(self._done)))

    def disarm(self) -> None:
        _write(self._control, _RECEIVER_SLEEPS, np.uint64(0))
        self._swallow_bells()
