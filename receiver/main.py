"""Start of a receiver: join the coordinator, allocate the state, connect the queues, serve passes."""

from __future__ import annotations

import numpy as np

from receiver import accumulate_cpu, check, update_cpu
from receiver.engine import ReceiverEngine, require_memory
from streamdsb import frame
from streamdsb.jit import compile_kernels
from streamdsb.join import Origin
from streamdsb.links import accept_receivers, listen, shm_receivers
from streamdsb.messages import Compiling, Listening, Resolved
from streamdsb.queues import FrameReceiver, shm
from streamdsb.worker import Control, run_worker, say_hello


def work(origin: Origin, control: Control) -> None:
    """Be the receiver of the run that `control` leads to, until it is over."""
    member = say_hello("receiver", origin, control)
    control.send(Compiling(what="checks, accumulation, update and queues"))
    compile_kernels(
        *frame.KERNELS, *shm.KERNELS, *check.KERNELS, *accumulate_cpu.KERNELS, *update_cpu.KERNELS
    )
    resolved, field_bytes = control.expect(Resolved)
    config = member.config.with_n(resolved.n)
    require_memory(config)
    receivers: list[FrameReceiver]
    if config.stream.transport == "shm":
        receivers = shm_receivers(config, origin.queues)
    else:
        with listen(origin.data_host, 0) as server:
            control.send(Listening(host=origin.data_host, port=server.getsockname()[1]))
            receivers = accept_receivers(config, member.run, server, origin.token)
    field = np.frombuffer(field_bytes, np.int32) if field_bytes else None
    ReceiverEngine(config, member.run, field, receivers, control).run()


def main(origin: Origin) -> int:
    """Run a receiver to its end; the exit status."""
    return run_worker(origin, work)
