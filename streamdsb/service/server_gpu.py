"""The servers whose workers are on a GPU: `launch` and `proxy`.

Both have the packet loop of every server, its rings in pinned memory, and a thread that brings models to the
device: a model is used once it is there, and its place is taken again only when every request admitted with
it is answered.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from streamdsb import cuda
from streamdsb.errors import RunFailed, UserError
from streamdsb.service import driver
from streamdsb.service.config import ServiceConfig
from streamdsb.service.gpu import DeviceStore, ResidentWorkers, kernel_of, mapped_array
from streamdsb.service.models import Format, Model
from streamdsb.service.rings import ARRIVED, REPLY_BYTES, STOP, UPLOADED, WORK_BYTES, Rings, make_rings
from streamdsb.service.server import Server, compile_for
from streamdsb.service.store import FORMAT, PLACES, TOTAL, XI_BITS, N, Store
from streamdsb.service.worker_launch import Lanes, work


def _device_rings(config: ServiceConfig) -> Rings:
    """Rings that the device asked for reads and writes; UserError if it is not there."""
    try:
        cuda.use_device(config.device)
    except UserError as error:
        raise UserError(f"server {config.server} needs a GPU: {error}") from None
    return make_rings(mapped_array)


def model_at(store: Store, place: int) -> Model:
    """The complete model at a place of the store."""
    row = store.table[place]
    xi = float(np.uint32(row[XI_BITS]).view(np.float32))
    return Model(int(row[N]), Format(int(row[FORMAT])), store.models[place, : row[TOTAL]].tobytes(), xi)


class GpuServer(Server):
    """A server that keeps its models on a device."""

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config, _device_rings(config))

    def _start_workers(self) -> None:
        cuda.use_device(self.config.device)
        self.upload_event = os.eventfd(0, os.EFD_CLOEXEC)
        self._models = DeviceStore(PLACES)
        self._start_solving()
        self._spawn(self._upload)

    def _start_solving(self) -> None:
        """Have what solves wait at the rings."""
        raise NotImplementedError

    def _upload(self) -> None:
        """Bring models to the device as they become complete."""
        cuda.use_device(self.config.device)
        while os.eventfd_read(self.upload_event) and not self.rings.control[STOP]:
            place = int(self.rings.control[ARRIVED]) - 1
            self._models.upload(place, model_at(self.store, place))
            self.rings.control[UPLOADED] = place + 1
            if self.reply_event >= 0:
                os.eventfd_write(self.reply_event, 1)


class ProxyServer(GpuServer):
    """Solves in worker blocks that stay on the GPU and read and write the packet loop's rings."""

    def _start_solving(self) -> None:
        self._workers = ResidentWorkers(self.rings, self._models, self.config.workers)
        self._workers.start()

    def check(self) -> None:
        """RunFailed if a part of the server has ended on its own, or the device reports a fault."""
        super().check()
        self._workers.check()

    def _stop_workers(self) -> None:
        if hasattr(self, "_workers"):
            self._workers.stop()


class LaunchServer(GpuServer):
    """Solves with one kernel launch a request, on config.streams streams."""

    def _start_solving(self) -> None:
        self.work_event = os.eventfd(0, os.EFD_CLOEXEC)
        self.reply_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        driver.connect()
        self._lanes = LaunchLanes(self._models, self.config.streams)
        arguments = self.rings, self._lanes.lanes, self.work_event, self.reply_event
        compile_for(work, arguments)
        self._spawn(launch_requests, self.config.device, *arguments)

    def _stop_workers(self) -> None:
        if hasattr(self, "_lanes"):
            self._lanes.finish()


def launch_requests(device: int, *arguments: Any) -> None:
    """`work` of the launch server on the calling thread; RunFailed if the driver reports a fault."""
    cuda.use_device(device)
    cuda.free_memory()  # makes the device's context this thread's
    if status := work(*arguments):
        raise RunFailed(f"a launch had a device fault: {driver.describe(status)}")


class LaunchLanes:
    """Streams of the current device, each with room for one request; `lanes` is what compiled code gets."""

    def __init__(self, store: DeviceStore, count: int) -> None:
        import cupy

        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]
        self._items = cuda.zeros((count, WORK_BYTES), np.uint8)
        self._replies = cuda.zeros((count, REPLY_BYTES), np.uint8)
        self._store = store
        self._kernel, shared = kernel_of("solve_batch")
        rows = np.arange(count)
        items = self._items.data.ptr + rows * WORK_BYTES
        replies = self._replies.data.ptr + rows * REPLY_BYTES
        values = np.stack([items, replies, np.full(count, store.address.data.ptr)], axis=1).astype(np.int64)
        self._values = values  # the kernel's parameters, which the driver reads at every launch
        where = cuda.address(values) + 8 * np.arange(3 * count).reshape(count, 3)
        self.lanes = Lanes(
            np.array([stream.ptr for stream in self._streams], np.int64),
            items.astype(np.int64),
            replies.astype(np.int64),
            mapped_array((count, REPLY_BYTES), np.uint8),
            where.astype(np.int64),
            np.full(count, -1, np.int64),
            int(self._kernel.kernel.ptr),
            shared,
        )
        cuda.settle()

    def finish(self) -> None:
        """Wait for what is on its way; RunFailed if the device reports a fault."""
        for stream in self._streams:
            while not cuda.check_stream(stream, "a launch"):
                time.sleep(1e-4)
