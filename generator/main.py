"""Start of a generator: join the coordinator, open the couplings, connect the queues, serve passes."""

from __future__ import annotations

from typing import cast

from generator import matrix_file, resend, symmetry, synthesize_cpu
from generator.engine import GeneratorEngine
from generator.source import open_source
from streamdsb import frame, payload_checksum
from streamdsb.config import Config
from streamdsb.gpunetio.library import require_for
from streamdsb.jit import compile_kernels
from streamdsb.join import Origin
from streamdsb.layout import RowRange
from streamdsb.links import connect_senders, shm_senders
from streamdsb.messages import Compiling, DeviceRing, Listening, Opened, Resolved
from streamdsb.queues import FrameSender, ethernet, shm, udp
from streamdsb.worker import Control, run_worker, say_hello


def work(origin: Origin, control: Control) -> None:
    """Be the generator of the run that `control` leads to, until it is over."""
    member = say_hello("generator", origin, control)
    if member.config.generator.backend == "cuda":
        _work_on_gpu(member.config, member.run, origin, control)
        return
    kernels = [*frame.KERNELS, *shm.KERNELS, *synthesize_cpu.KERNELS, *symmetry.KERNELS, *matrix_file.KERNELS]
    if member.config.stream.is_lossy:
        kernels += [*udp.KERNELS, *ethernet.KERNELS, *payload_checksum.KERNELS, *resend.KERNELS]
    compile_kernels(*kernels, announce=lambda: control.send(Compiling(what="synthesis and queues")))
    source = open_source(member.config.problem)
    control.send(Opened(n=source.n))
    resolved, _ = control.expect(Resolved)
    config = member.config.with_n(resolved.n)
    senders: list[FrameSender]
    if config.stream.transport == "shm":
        senders = shm_senders(config, origin.queues)
    else:
        listening, _ = control.expect(Listening)
        senders = connect_senders(config, member.run, listening.host, listening.port, origin.token)
    rows = RowRange(*resolved.rows) if resolved.rows else None
    GeneratorEngine(config, member.run, source, senders, control, rows).run()


def _work_on_gpu(config: Config, run: int, origin: Origin, control: Control) -> None:
    from generator.engine_cuda import CudaGeneratorEngine
    from streamdsb import cuda
    from streamdsb.queues.peer import PeerRing

    over_cards = config.stream.transport == "gpunetio"
    if over_cards:
        require_for(config.generator.nic or "")
    control.send(Compiling(what="synthesis for the GPU"))
    cuda.use_device(config.generator.device)
    control.send(Opened(n=config.n))
    resolved, _ = control.expect(Resolved)
    if over_cards:
        _send_over_cards(config, run, resolved.first_pass, origin, control)
        return
    ring = PeerRing.open(control.expect(DeviceRing)[0])
    try:
        CudaGeneratorEngine(config, run, ring, control, resolved.first_pass).run()
    finally:
        ring.close()


def _send_over_cards(config: Config, run: int, first_pass: int, origin: Origin, control: Control) -> None:
    from streamdsb.gpunetio.ends import FeedbackEnd
    from streamdsb.gpunetio.runs import make_generator

    listening, _ = control.expect(Listening)
    lines = cast(
        list[FeedbackEnd], connect_senders(config, run, listening.host, listening.port, origin.token)
    )
    try:
        make_generator(config, run, lines, control, first_pass).run()
    finally:
        for line in lines:
            line.close()


def main(origin: Origin) -> int:
    """Run a generator to its end; the exit status."""
    return run_worker(origin, work)
