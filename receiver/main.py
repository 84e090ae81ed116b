"""Start of a receiver: join the coordinator, allocate the state, connect the queues, serve passes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from receiver import accumulate_cpu, check, update_cpu, window
from receiver.base import Receiver
from receiver.engine import ReceiverEngine
from receiver.engine_cpu import CpuReceiver, require_memory
from streamdsb import frame, payload_checksum
from streamdsb.checkpoint import Checkpoint, load_first_usable
from streamdsb.config import Config
from streamdsb.gpunetio.library import require_for
from streamdsb.jit import compile_kernels
from streamdsb.join import Origin
from streamdsb.layout import RowRange
from streamdsb.links import accept_receivers, listen, shm_receivers
from streamdsb.messages import Compiling, Listening, Resolved, Restored
from streamdsb.queues import FrameReceiver, ethernet, shm, udp
from streamdsb.worker import Control, run_worker, say_hello


def work(origin: Origin, control: Control) -> None:
    """Be the receiver of the run that `control` leads to, until it is over."""
    member = say_hello("receiver", origin, control)
    on_gpu = member.config.receiver.backend == "cuda"
    if member.config.stream.transport == "gpunetio":
        require_for(member.config.receiver.nic or "")
    what = "checks, accumulation, update and queues"
    kernels = []
    if on_gpu:
        control.send(Compiling(what=f"{what} for the GPU"))
    else:
        kernels += [*frame.KERNELS, *check.KERNELS, *accumulate_cpu.KERNELS, *update_cpu.KERNELS]
    if member.config.stream.transport == "shm":
        kernels += shm.KERNELS
    if member.config.stream.is_lossy:
        kernels += [*udp.KERNELS, *ethernet.KERNELS, *window.KERNELS, *payload_checksum.KERNELS]
    compile_kernels(*kernels, announce=lambda: control.send(Compiling(what=what)))
    resolved, field_bytes = control.expect(Resolved)
    config = member.config.with_n(resolved.n)
    field = np.frombuffer(field_bytes, np.int32) if field_bytes else None
    restored = _restore(config, resolved, control)
    first_pass = restored.header.next_pass if restored else 0
    if on_gpu:
        receiver: Receiver = _prepare_gpu(config, member.run, field, first_pass, origin, control)
    else:
        require_memory(config)
        receivers = _open_queues(config, member.run, origin, control)
        receiver = CpuReceiver(config, member.run, field, receivers, control.cancelled)
    engine = ReceiverEngine(config, receiver, control)
    if restored is not None:
        engine.restore_checkpoint(restored)
    engine.run()


def _restore(config: Config, resolved: Resolved, control: Control) -> Checkpoint | None:
    """The newest usable of the checkpoints that the coordinator names, if it names any."""
    if not resolved.checkpoints:
        return None
    paths = [Path(path) for path in resolved.checkpoints]
    checkpoint = load_first_usable(paths, config.n, config.solver.replicas, RowRange(0, config.n))
    control.send(Restored(next_pass=checkpoint.header.next_pass, input_hash=checkpoint.header.input_hash))
    return checkpoint


def _open_queues(config: Config, run: int, origin: Origin, control: Control) -> list[FrameReceiver]:
    if config.stream.transport == "shm":
        return shm_receivers(config, origin.queues)
    with listen(origin.data_host, 0) as server:
        control.send(Listening(host=origin.data_host, port=server.getsockname()[1]))
        return accept_receivers(config, run, server, origin.token, control.cancelled)


def _prepare_gpu(
    config: Config, run: int, field: np.ndarray | None, first_pass: int, origin: Origin, control: Control
) -> Receiver:
    from receiver.engine_cuda import CudaReceiver, require_device_memory
    from streamdsb import cuda
    from streamdsb.queues.peer import PeerRing

    cuda.use_device(config.receiver.device)
    require_device_memory(config)
    if config.stream.transport == "gpunetio":
        return _prepare_card(config, run, field, first_pass, origin, control)
    on_host = config.stream.transport != "peer"
    ring = PeerRing.allocate(config.stream.queues, config.stream.device_ring_mib << 20, host_sends=on_host)
    receivers: list[FrameReceiver] = []
    if on_host:
        receivers = _open_queues(config, run, origin, control)
    else:
        control.send(ring.export())
    return CudaReceiver(config, run, field, ring, receivers, control.cancelled, first_pass)


def _prepare_card(
    config: Config, run: int, field: np.ndarray | None, first_pass: int, origin: Origin, control: Control
) -> Receiver:
    from streamdsb.gpunetio.ends import AnswerEnd
    from streamdsb.gpunetio.runs import CardCudaReceiver, open_queues

    # before the generator is let in: it may be in this process, and share them
    queues = open_queues(config, run)
    answers = cast(list[AnswerEnd], _open_queues(config, run, origin, control))
    return CardCudaReceiver(config, run, field, queues, control.cancelled, first_pass, answers)


def main(origin: Origin) -> int:
    """Run a receiver to its end; the exit status."""
    return run_worker(origin, work)
