"""A receiving rank on a GPU: which one, its receiver of some rows, and a generator in the same process.

The ranks of a host take its GPUs in turn; where there are more ranks than GPUs, some share one, and their
resident kernels, of different processes, only take turns.  Signs go from rank to rank through host memory,
which any MPI takes: the update writes those of a rank's own rows there, MPI brings the others, and one copy
takes all to the device before the next pass is released.  NCCL would need room for kernels of its own beside
those that are resident, which are given all there is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import numpy as np

from coordinator.partition import Gpu
from coordinator.peers import Peer, Peers
from coordinator.progress import Display
from receiver.accumulate_cuda import ReceiveKernel
from receiver.engine_cuda import CudaReceiver, require_device_memory
from receiver.feed_cuda import HostFeed
from receiver.update_cpu import Dynamics
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.channel import Channel
from streamdsb.config import Config
from streamdsb.errors import UserError
from streamdsb.join import Origin
from streamdsb.layout import Layout, RowRange
from streamdsb.messages import DeviceRing, Hello, Opened, Resolved
from streamdsb.queues import FrameReceiver
from streamdsb.queues.peer import PeerRing
from streamdsb.worker import Control, run_worker, say_hello

_HOST_TO_DEVICE = 1


def device_of(config: Config, rank: int, hosts: Sequence[str]) -> Gpu:
    """The GPU of a receiving rank, counted from receiver.device on; raises UserError if its host has none.

    hosts: of all ranks, those that receive first.
    """
    try:
        count = cuda.device_count()
    except UserError as error:
        raise UserError(f"there is no GPU for this rank: {error}") from None
    number = (config.receiver.device + list(hosts[:rank]).count(hosts[rank])) % count
    return Gpu(number, _bus_of(number))


def _bus_of(number: int) -> str:
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(number))


class PartConfig(Config):
    """A configuration whose layout is that of one receiver's rows."""

    own_rows: tuple[int, int]

    @classmethod
    def of(cls, config: Config, rows: RowRange) -> PartConfig:
        return cls.model_construct(**dict(config), own_rows=(rows.start, rows.stop))

    @property
    def layout(self) -> Layout:
        return super().layout.of(RowRange(*self.own_rows))


class CudaPartReceiver(CudaReceiver):
    """Holds the state of some rows on the current device; the signs of the others come from the host."""

    def __init__(
        self,
        config: PartConfig,
        run: int,
        field: np.ndarray | None,
        ring: PeerRing,
        receivers: Sequence[FrameReceiver],
        cancelled: threading.Event,
        first_pass: int,
    ) -> None:
        import cupy
        import cupyx

        self._timeout_s = config.stream.timeout_s
        self._first_pass = first_pass
        self._layout = config.layout
        self._cancelled = cancelled
        self._ring = ring
        self._lossy = None
        dynamics = Dynamics(config.solver.updates, config.xi, np.float32(config.solver.dt))
        self._state = CudaState(self._layout, self._layout.rows, dynamics, config.solver.seed, field)
        self._kernel = ReceiveKernel(
            self._layout, self._layout.queue_rows, run, first_pass, ring, self._state
        )
        self._feed = HostFeed(receivers, ring) if receivers else None
        self._signs = self._state.host_signs
        self._next_signs: np.ndarray = cupyx.zeros_pinned(self._signs.shape, np.uint64)
        self._before = self._kernel.counts
        self._after: np.ndarray | None = self._before
        self._copies = cupy.cuda.Stream(non_blocking=True)

    def take_signs(self) -> None:
        """Take the sign bitmaps of all rows, as they are on the host, to the device.

        The resident kernel may run, as long as no frame of the next pass can come.
        """
        import cupy

        source, size = cuda.address(self._signs), self._signs.nbytes
        target = self._state.signs.data.ptr
        cupy.cuda.runtime.memcpyAsync(target, source, size, _HOST_TO_DEVICE, self._copies.ptr)
        self._copies.synchronize()


def open_receiver(
    config: PartConfig,
    run: int,
    field: np.ndarray | None,
    receivers: Sequence[FrameReceiver],
    peers: Peers,
    device: int,
    first_pass: int,
) -> CudaPartReceiver:
    """The receiver of some rows on `device`; the ring in its memory is told to a generator that writes there.

    receivers: the queues of a generator that sends through the host, else none.  Raises UserError if the
    device has not enough memory.
    """
    cuda.use_device(device)
    require_device_memory(config)
    stream = config.stream
    ring = PeerRing.allocate(stream.queues, stream.device_ring_mib << 20, host_sends=bool(receivers))
    if not receivers:
        peers.send(ring.export())
    return CudaPartReceiver(config, run, field, ring, receivers, peers.trouble, first_pass)


class GeneratorInside:
    """A Supply: a thread of this rank that makes frames on the GPU of its receiver."""

    def __init__(self, device: int) -> None:
        self._device = device

    def join(self, peers: Peers, display: Display) -> None:
        ours, theirs = socket.socketpair()
        origin = Origin(theirs, "this rank", "", "")
        threading.Thread(target=run_worker, args=(origin, self._generate), daemon=True).start()
        channel = Channel(ours, "the generator")
        peers.add(Peer(channel.expect(Hello)[0], channel))

    def open_queues(self, config: Config, run: int, peers: Peers) -> list[FrameReceiver]:
        return []

    def _generate(self, origin: Origin, control: Control) -> None:
        from generator.engine_cuda import CudaGeneratorEngine

        member = say_hello("generator", origin, control)
        cuda.use_device(self._device)
        control.send(Opened(n=member.config.n))
        resolved, _ = control.expect(Resolved)
        assert resolved.rows is not None
        config = PartConfig.of(member.config, RowRange(*resolved.rows))
        ring = PeerRing.open(control.expect(DeviceRing)[0])
        CudaGeneratorEngine(config, member.run, ring, control, resolved.first_pass).run()
