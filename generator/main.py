"""Start of a generator: join the coordinator, open the couplings, connect the queues, serve passes."""

from __future__ import annotations

from generator.engine import GeneratorEngine
from generator.source import open_source
from streamdsb.channel import Channel
from streamdsb.join import Origin, say_hello
from streamdsb.links import connect_senders, shm_senders
from streamdsb.messages import Listening, Opened, Resolved
from streamdsb.queues import FrameSender
from streamdsb.worker import Control, run_worker


def work(origin: Origin, channel: Channel) -> None:
    """Be the generator of the run that `channel` leads to, until it is over."""
    welcome = say_hello("generator", origin, channel)
    source = open_source(welcome.config.problem)
    channel.send(Opened(n=source.n))
    config = welcome.config.with_n(channel.expect(Resolved)[0].n)
    senders: list[FrameSender]
    if config.stream.transport == "shm":
        senders = shm_senders(config, origin.queues)
    else:
        listening, _ = channel.expect(Listening)
        senders = connect_senders(config, welcome.run, listening.host, listening.port, origin.token)
    control = Control(channel)
    control.start()
    GeneratorEngine(config, welcome.run, source, senders, control).run()


def main(origin: Origin) -> int:
    """Run a generator to its end; the exit status."""
    return run_worker(origin, work)
