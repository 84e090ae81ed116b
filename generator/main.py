"""Start of a generator: join the coordinator, open the couplings, connect the queues, serve passes."""

from __future__ import annotations

from generator import symmetry, synthesize_cpu
from generator.engine import GeneratorEngine
from generator.source import open_source
from streamdsb import frame
from streamdsb.jit import compile_kernels
from streamdsb.join import Origin
from streamdsb.links import connect_senders, shm_senders
from streamdsb.messages import Compiling, Listening, Opened, Resolved
from streamdsb.queues import FrameSender, shm
from streamdsb.worker import Control, run_worker, say_hello


def work(origin: Origin, control: Control) -> None:
    """Be the generator of the run that `control` leads to, until it is over."""
    member = say_hello("generator", origin, control)
    control.send(Compiling(what="synthesis and queues"))
    compile_kernels(*frame.KERNELS, *shm.KERNELS, *synthesize_cpu.KERNELS, *symmetry.KERNELS)
    source = open_source(member.config.problem)
    control.send(Opened(n=source.n))
    config = member.config.with_n(control.expect(Resolved)[0].n)
    senders: list[FrameSender]
    if config.stream.transport == "shm":
        senders = shm_senders(config, origin.queues)
    else:
        listening, _ = control.expect(Listening)
        senders = connect_senders(config, member.run, listening.host, listening.port, origin.token)
    GeneratorEngine(config, member.run, source, senders, control).run()


def main(origin: Origin) -> int:
    """Run a generator to its end; the exit status."""
    return run_worker(origin, work)
