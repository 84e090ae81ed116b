"""The processes of a run on this machine: started with their ends of the queues, ended without orphans."""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from coordinator.peers import Peer, Peers, describe_end
from streamdsb.channel import Channel, PeerGone
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.links import TOKEN_VARIABLE
from streamdsb.machine import available_memory
from streamdsb.messages import Hello
from streamdsb.queues.shm import ShmLink

_START_TIMEOUT_S = 60.0
_LOOK_UP_S = 0.1
_PATIENCE_S = 2.0


def launch_generator(config: Config, peers: Peers) -> list[tuple[int, int]]:
    """Start a generator alone and add it to `peers`; the (ring, doorbell) descriptors of this end."""
    links = _create_links(config)
    process: subprocess.Popen[bytes] | None = None
    try:
        queues = [(link.ring, link.sender_bell) for link in links]
        process, channel = _start("generator", queues, secrets.token_hex(16))
        for link in links:
            os.close(link.sender_bell)
        peers.add(Peer(_first_words("generator", process, channel, peers), channel, process))
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    return [(link.ring, link.receiver_bell) for link in links]


def launch(config: Config, peers: Peers) -> None:
    """Start a receiver and a generator, joined by the queues of `config`, and add them to `peers`."""
    links = _create_links(config)
    token = secrets.token_hex(16)
    started: list[tuple[str, subprocess.Popen[bytes], Channel]] = []
    try:
        if config.shares_process:
            started += _start_pair(token)
        else:
            for role in ("receiver", "generator"):
                bells = [link.receiver_bell if role == "receiver" else link.sender_bell for link in links]
                queues = [(link.ring, bell) for link, bell in zip(links, bells, strict=True)]
                started.append((role, *_start(role, queues, token)))
        # closed before anybody is waited for: a bell that we kept open would hide the death of an end
        _close(links)
        for role, process, channel in started:
            peers.add(Peer(_first_words(role, process, channel, peers), channel, process))
    except BaseException:
        _close(links)
        for _, process, _ in started:
            process.kill()
            process.wait()
        raise


def _close(links: list[ShmLink]) -> None:
    while links:
        links.pop().close()


def _create_links(config: Config) -> list[ShmLink]:
    stream = config.stream
    if stream.transport != "shm":
        return []
    size, available = stream.queues * stream.ring_bytes, available_memory()
    if size > available:
        raise UserError(
            f"stream.queues {stream.queues}, stream.burst_frames {stream.burst_frames} and stream.ring_bursts"
            f" {stream.ring_bursts} make {size / 1e9:.1f} GB of shared memory, but {available / 1e9:.1f} GB"
            " are available; lower one of them"
        )
    try:
        return [ShmLink.create(stream.burst_frames, stream.ring_bursts) for _ in range(stream.queues)]
    except OSError as error:
        raise UserError(
            f"no room for {size / 1e6:.0f} MB of shared memory ({error.strerror}); lower stream.queues,"
            f" stream.burst_frames or stream.ring_bursts"
        ) from None


def _start(role: str, queues: list[tuple[int, int]], token: str) -> tuple[subprocess.Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = [theirs.fileno(), *(descriptor for pair in queues for descriptor in pair)]
        arguments = [str(theirs.fileno()), *(f"{ring}:{bell}" for ring, bell in queues)]
        process = _python(role, arguments, descriptors, token)
    return process, Channel(ours, f"the {role} (pid {process.pid})")


def _start_pair(token: str) -> list[tuple[str, subprocess.Popen[bytes], Channel]]:
    """A receiver and a generator in one process."""
    pairs = {role: socket.socketpair() for role in ("receiver", "generator")}
    descriptors = [theirs.fileno() for _, theirs in pairs.values()]
    try:
        process = _python("coordinator.pair", [str(fileno) for fileno in descriptors], descriptors, token)
    finally:
        for _, theirs in pairs.values():
            theirs.close()
    return [
        (role, process, Channel(ours, f"the {role} (pid {process.pid})")) for role, (ours, _) in pairs.items()
    ]


def _python(module: str, arguments: list[str], descriptors: list[int], token: str) -> subprocess.Popen[bytes]:
    # what a terminal sends to all is left to the coordinator, which tells its processes
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        return subprocess.Popen(
            # -P: a receiver.py in the user's folder must not be taken for ours
            [sys.executable, "-P", "-m", module, *arguments],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, TOKEN_VARIABLE: token},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_words(role: str, process: subprocess.Popen[bytes], channel: Channel, peers: Peers) -> Hello:
    """What a process that was just started says; whatever troubles the run meanwhile is raised."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not select.select([channel], [], [], _LOOK_UP_S)[0]:
        remaining = deadline - time.monotonic()
        if peers.trouble.is_set() or remaining <= 0:
            peers.next(0.0, f"the {role} (pid {process.pid}) to say hello")
    channel.set_timeout(_START_TIMEOUT_S)
    try:
        return channel.expect(Hello)[0]
    except PeerGone:
        raise RunFailed(
            f"the {role} (pid {process.pid}) {describe_end(process)} before it said hello"
        ) from None


def end_processes(peers: Peers) -> None:
    """See to it that no process of ours is left: wait a little, then ask, then kill."""
    processes = [peer.process for peer in peers.members if peer.process is not None]
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    for peer in peers.members:
        peer.channel.shutdown()
        peer.channel.close()
