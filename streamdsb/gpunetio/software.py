"""The software network card: send and receive queues in plain device memory, and a kernel for card and link.

The kernels of queue kind `gpunetio` run on it unchanged, on a machine with a GPU and no network card.  It
loses, repeats and delays frames at chosen rates, and drops those that the receiver has no room for.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdsb import cuda
from streamdsb.control_words import ControlWords
from streamdsb.errors import RunFailed
from streamdsb.gpunetio.keys import SOFTWARE_MAC
from streamdsb.gpunetio.queue import (
    GPUNETIO_QUEUE,
    SEND_STATE_WORDS,
    SLOT_BYTES,
    address_words,
    check_faults,
    frame_picoseconds,
    source_address,
)
from streamdsb.hashing import Domain, key_of
from streamdsb.layout import MAX_QUEUES
from streamdsb.queues.feedback_line import FeedbackLine
from streamdsb.queues.peer import BURST_FRAMES, PLACE_BYTES


def _words(*names: str) -> np.dtype:
    return np.dtype([(name, "u8") for name in names])


_SEND = _words("wqe_addr", "wqe_mask", "wqe_pi", "doorbell", "cqe_addr", "cqe_mask", "cqe_ci", "key")
_RECEIVE = _words("pkt_addr", "pkt_num", "max_pkt_sz", "cqe_addr", "cqe_ci", "posted", "strides")
_COUNTERS = ("lost", "repeated", "dropped")
_STATE = ("locked", "taken", "arrived", "posted", "notified", "chunks", "finished", *_COUNTERS)
_WIRE = _words("from", "to", "key", "lose", "repeat", "delay", "fail", *_STATE)
JOB = np.dtype([("wires", "u8"), ("stop", "u8"), ("stopped", "u8"), ("wire", _WIRE, MAX_QUEUES)])
"""struct Job of gpunetio_wire.cu."""

_DESCRIPTOR_BYTES = 64
_THREADS = 256
_BLOCKS_A_QUEUE = 4
_BLOCKS_A_MULTIPROCESSOR = 2
"""As many as find registers and shared memory beside a block of the receive kernel."""

_STRIDES = 64
"""Slots that go back to the card together."""


@dataclass(frozen=True)
class LinkFaults:
    """What becomes of frames on the link, each as a share of them from 0 to 1.

    fail: completions of sends on a queue after which all report an error; None for never.
    """

    lose: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    fail: int | None = None
    seed: int = 1


class SoftwareRing:
    """The queues of sender and receiver on one software card; the receiver's are on the current device.

    slots: frames that a queue's ring holds, a power of two; window: frames that may be on the way, a multiple
    of 64; places: bursts of a queue that may be composed at once, a power of two; pace_gbps: of all queues.
    sender: the device of sender and card; None for the receiver's.  It can write into the other's memory.
    """

    kind = "SoftwareQueue"
    fields = GPUNETIO_QUEUE
    is_here = True

    def __init__(
        self,
        queues: int,
        slots: int,
        window: int,
        faults: LinkFaults | None = None,
        places: int = 32,
        pace_gbps: float | None = None,
        sender: int | None = None,
    ) -> None:
        import cupy

        self._sender_device = sender
        self.queues = queues
        self.window = window
        self.places = slots // BURST_FRAMES
        self.lines = [FeedbackLine() for _ in range(queues)]
        self.receiving = threading.Event()
        self._ring_slots = slots
        self._staging_places = places
        self._frame_ps = frame_picoseconds(pace_gbps, queues)
        self._frames = cuda.zeros((queues, slots * SLOT_BYTES), np.uint8)
        self._arrivals = cuda.zeros((queues, slots), np.uint64)
        self._receivers = self._make_receivers()
        self._faults = ControlWords(np.dtype([("fault", "u8", MAX_QUEUES)]))
        self._control = ControlWords(np.dtype([("stop", "u8")]))
        with self.on_sender():
            self._staging = cuda.zeros((queues, places * PLACE_BYTES), np.uint8)
            self._descriptors = cuda.zeros((queues, places * BURST_FRAMES * _DESCRIPTOR_BYTES), np.uint8)
            self._completions = cuda.zeros((queues, places), np.uint64)
            self._states = cuda.zeros((queues, SEND_STATE_WORDS), np.uint64)
            self._senders = self._make_senders()
            self._job = self._make_job(faults or LinkFaults())
            self._kernel = cuda.load("gpunetio_wire.cu", "wire")
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._is_on = False
        self.spared = _BLOCKS_A_QUEUE * queues // _BLOCKS_A_MULTIPROCESSOR

    def on_sender(self) -> AbstractContextManager[object]:
        """Within it, the device of sender and card is current."""
        import cupy

        return nullcontext() if self._sender_device is None else cupy.cuda.Device(self._sender_device)

    def _make_receivers(self) -> Any:
        queues = np.zeros(self.queues, _RECEIVE)
        for index, queue in enumerate(queues):
            queue["pkt_addr"], queue["pkt_num"] = _at(self._frames, index), self._ring_slots
            queue["max_pkt_sz"], queue["posted"] = SLOT_BYTES, self._ring_slots
            queue["cqe_addr"] = _at(self._arrivals, index)
            queue["strides"] = min(_STRIDES, self._ring_slots // 2)
        return cuda.upload(queues)

    def _make_senders(self) -> Any:
        queues = np.zeros(self.queues, _SEND)
        for index, queue in enumerate(queues):
            queue["wqe_addr"] = _at(self._descriptors, index)
            queue["wqe_mask"] = self._staging_places * BURST_FRAMES - 1
            queue["cqe_addr"], queue["cqe_mask"] = _at(self._completions, index), self._staging_places - 1
        return cuda.upload(queues)

    def _make_job(self, faults: LinkFaults) -> Any:
        job = np.zeros((), JOB)
        job["wires"], job["stop"] = self.queues, self._control.address
        for queue in range(self.queues):
            wire = job["wire"][queue]
            wire["from"], wire["to"] = self._sender(queue), self._receiver(queue)
            wire["key"] = key_of(MAX_QUEUES * faults.seed + queue, Domain.RANDOM_COUPLINGS)
            for name in ("lose", "repeat", "delay"):
                wire[name] = round(65_536 * getattr(faults, name))
            wire["fail"] = 0 if faults.fail is None else faults.fail + 1
        return cuda.upload(job)

    def _sender(self, queue: int) -> int:
        return int(self._senders.data.ptr) + _SEND.itemsize * queue

    def _receiver(self, queue: int) -> int:
        return int(self._receivers.data.ptr) + _RECEIVE.itemsize * queue

    @property
    def slots(self) -> int:
        """The address of the first slot of queue 0; those of the other queues follow."""
        return int(self._frames.data.ptr)

    def queue(self, index: int) -> tuple[int, ...]:
        """The fields of GPUNETIO_QUEUE for one queue."""
        return (
            self._faults.address + 8 * index,
            self._receiver(index),
            _at(self._frames, index),
            self._ring_slots,
            self._sender(index),
            _at(self._staging, index),
            self._staging_places,
            _at(self._states, index),
            0,
            *address_words(SOFTWARE_MAC, source_address(SOFTWARE_MAC, index)),
            self._frame_ps,
        )

    def start(self, beside: int | None) -> None:
        """Switch the card on, after the kernels that use it: all their blocks have to be resident.

        Launched before them, it keeps blocks of theirs off its multiprocessors, and none of a later kernel
        starts before all of an earlier one have.  beside: shared memory of a multiprocessor, in bytes, that
        those kernels asked for, or None; the card's waits for their end if it asks for another division of
        the L1.
        """
        if beside is not None:
            with self.on_sender():
                cuda.carve_out(self._kernel, beside)
        with self.on_sender(), self._stream:
            self._kernel((_BLOCKS_A_QUEUE * self.queues,), (_THREADS,), (self._job,))
        self._is_on = True

    def check(self) -> None:
        """RunFailed if a kernel reported a fault of the card, or the card itself has ended."""
        check_faults(self._faults["fault"][: self.queues])
        if self._is_on and cuda.check_stream(self._stream, "the software card"):
            raise RunFailed("the software card ended by itself")

    def stop(self) -> None:
        """Switch the card off, after the kernels that use it have ended."""
        self._control["stop"] = 1
        deadline = time.monotonic() + 5
        while not cuda.check_stream(self._stream, "the software card"):
            if time.monotonic() > deadline:
                raise RunFailed("the software card did not end within 5 s of being stopped")
            time.sleep(1e-4)

    def counters(self) -> dict[str, int]:
        """Frames lost and repeated on the link, and dropped for want of a free slot; once the card is off."""
        wires = np.frombuffer(self._job.get().tobytes(), JOB)[0]["wire"]
        return {name: int(wires[name].sum()) for name in _COUNTERS}

    def free(self) -> None:
        """Give the device memory back; nothing can be asked any more."""
        del self._frames, self._arrivals, self._staging, self._descriptors, self._completions, self._states
        del self._receivers, self._senders, self._job


def _at(array: Any, row: int) -> int:
    """The device address of a row of a two-dimensional array."""
    return int(array.data.ptr) + row * array.shape[1] * array.dtype.itemsize
