"""Start of a receiver: join the coordinator, allocate the state, connect the queues, serve passes."""

from __future__ import annotations

import numpy as np

from receiver.engine import ReceiverEngine, require_memory
from streamdsb.channel import Channel
from streamdsb.join import Origin, say_hello
from streamdsb.links import accept_receivers, listen, shm_receivers
from streamdsb.messages import Listening, Resolved
from streamdsb.queues import FrameReceiver
from streamdsb.worker import Control, run_worker


def work(origin: Origin, channel: Channel) -> None:
    """Be the receiver of the run that `channel` leads to, until it is over."""
    welcome = say_hello("receiver", origin, channel)
    resolved, field_bytes = channel.expect(Resolved)
    config = welcome.config.with_n(resolved.n)
    require_memory(config)
    receivers: list[FrameReceiver]
    if config.stream.transport == "shm":
        receivers = shm_receivers(config, origin.queues)
    else:
        with listen(origin.data_host, 0) as server:
            channel.send(Listening(host=origin.data_host, port=server.getsockname()[1]))
            receivers = accept_receivers(config, welcome.run, server, origin.token)
    field = np.frombuffer(field_bytes, np.int32) if field_bytes else None
    control = Control(channel)
    control.start()
    ReceiverEngine(config, welcome.run, field, receivers, control).run()


def main(origin: Origin) -> int:
    """Run a receiver to its end; the exit status."""
    return run_worker(origin, work)
