"""Frames over links that may lose them: a plain sender of datagrams, and whole passes, in one run.

The plain pair sends the same frames in the same batches with sendmmsg, receives them with recvmmsg and does
nothing else.  A pass over the link synthesizes random couplings, writes and verifies checksums, keeps the
window and accumulates.  All are two processes on this machine; rates are bytes of payload a second, the
median of several turns taken alternately, since the speed of a shared host drifts.  For the passes that lose
frames, a part of them, drawn anew each time, is made unreadable on its way out.

Datagrams go over the loopback interface; raw Ethernet frames over a pair of virtual interfaces in a network
namespace of this process, or also over the loopback interface where it may not make one.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import select
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from generator.resend import LossyFeeder
from generator.send import send_pass, serve_until_acknowledged
from generator.source import RandomCouplings
from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from receiver.recv import LossyQueueIntake, receive_pass
from receiver.window import Window
from streamdsb.errors import UserError
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import FRAME_BYTES, PAYLOAD_BYTES, Layout
from streamdsb.machine import describe_machine
from streamdsb.payload_checksum import checksums, write_checksums
from streamdsb.queues import datagrams, ethernet, udp
from streamdsb.queues.base import LossyReceiver, LossySender
from streamdsb.queues.ethernet import EthernetReceiver, EthernetSender
from streamdsb.queues.udp import SEGMENTS, UdpReceiver, UdpSender
from validation.bench_check import cost_of_window
from validation.provenance import provenance

_RUN, _QUEUE, _WINDOW, _BURST, _TIMEOUT_S = 1, 0, 4096, 256, 60.0
_TURNS = 5
_LOST = 0.01
_CLONE_NEWNET = 0x4000_0000

Figures = dict[str, Any]


class _LosingUdpSender(UdpSender):
    """A sender on whose link a part of all frames becomes unreadable."""

    _gaps: Iterator[int] | None = None

    def lose(self, part: float) -> None:
        """Lose this part of all frames from now on; what it takes to draw them is not to be measured."""
        self._gaps = cycle(np.random.default_rng().geometric(part, 1 << 16).tolist())
        self._next = next(self._gaps) - 1

    def commit(self, count: int) -> None:
        if self._gaps is not None:
            while self._next < count:
                self._out.frames[self._next, 1] = 0
                self._next += next(self._gaps)
            self._next -= count
        super().commit(count)


class _Link(Protocol):
    """What both the plain pair and the queue send their frames over."""

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """Two sockets, from the first to the second."""

    def address(self, frames: np.ndarray) -> None:
        """Make frames that the second socket takes."""

    def ends(self, lost: float) -> tuple[LossySender, LossyReceiver]:
        """Both ends of a queue."""


class _Udp:
    def sockets(self) -> tuple[socket.socket, socket.socket]:
        ends = [udp.open_socket("127.0.0.1", _WINDOW) for _ in range(2)]
        for own, other in (ends, ends[::-1]):
            udp.connect_socket(own, "127.0.0.1", other.getsockname()[1])
        return ends[0], ends[1]

    def address(self, frames: np.ndarray) -> None:
        """Nothing to do: the sockets are connected."""

    def ends(self, lost: float) -> tuple[LossySender, LossyReceiver]:
        sending, receiving = self.sockets()
        receiver = UdpReceiver(receiving, _BURST)
        receiver.window = min(_WINDOW, receiver.window)
        sender = _LosingUdpSender(sending, _BURST, receiver.window)
        if lost:
            sender.lose(lost)
        return sender, receiver


class _Ethernet:
    def __init__(self, first: str, second: str, medium: str) -> None:
        self.medium = medium
        self._first, self._second = first, second
        self._first_mac, self._second_mac = ethernet.mac_of(first), ethernet.mac_of(second)

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        sending = ethernet.open_socket(self._first, self._second_mac, _RUN, _QUEUE, ethernet.BACK)
        receiving = ethernet.open_socket(self._second, self._first_mac, _RUN, _QUEUE, ethernet.FORWARD)
        datagrams.widen(receiving, 2 * _WINDOW * FRAME_BYTES)
        return sending, receiving

    def address(self, frames: np.ndarray) -> None:
        write_headers(frames, int(FrameType.TILE), _RUN, 0, 0, 0, 0, _QUEUE, 0)
        ethernet.Address(self._second_mac, self._first_mac).write(frames, len(frames))

    def ends(self, lost: float) -> tuple[LossySender, LossyReceiver]:
        receiver = EthernetReceiver(self._second, self._first_mac, _RUN, _QUEUE, _BURST, _WINDOW)
        return EthernetSender(self._first, self._second_mac, _RUN, _QUEUE, _BURST, _WINDOW), receiver


def _ethernet() -> _Ethernet | None:
    """What raw frames go over; None where the system does not permit it."""
    try:
        if _enter_own_network():
            return _Ethernet("first", "second", "veth")
        ethernet.require_usable("lo")
        return _Ethernet("lo", "lo", "lo")
    except UserError as error:
        print(f"without ethernet: {error}")
        return None


def _enter_own_network() -> bool:
    """Leave the machine's network for one of this process alone, where two interfaces are a link."""
    if shutil.which("ip") is None or ctypes.CDLL(None).unshare(_CLONE_NEWNET):
        return False
    for command in (
        "ip link set dev lo up",
        "ip link add first mtu 9000 type veth peer second mtu 9000",
        "ip link set dev first up",
        "ip link set dev second up",
    ):
        subprocess.run(command.split(), check=True)
    return True


def main(n: int, output: Path | None) -> None:
    """Measure, print a table and write JSON."""
    machine = describe_machine()
    layout = Layout(n, 8, 1)
    frames = layout.frames_per_pass
    over_udp, over_ethernet = _Udp(), _ethernet()
    print(f"{machine['cpu']}, {os.cpu_count()} cores, n = {n:,}, B = 8; GB/s of payload\n")
    measures: dict[str, Callable[[], float]] = {
        "plain sendmmsg and recvmmsg": lambda: _plain_rate(over_udp, frames, 1),
        f"the same, {SEGMENTS} frames a message": lambda: _plain_rate(over_udp, frames, SEGMENTS),
        "udp": lambda: _pass_rate(over_udp, layout, 0.0),
        f"udp, {_LOST:.0%} of the frames lost": lambda: _pass_rate(over_udp, layout, _LOST),
    }
    if over_ethernet is not None:
        raw = over_ethernet
        measures[f"plain, raw frames over {raw.medium}"] = lambda: _plain_rate(raw, frames, 1)
        measures["ethernet"] = lambda: _pass_rate(raw, layout, 0.0)
    turns: dict[str, list[float]] = {}
    for _ in range(_TURNS):
        for name, measure in measures.items():
            turns.setdefault(name, []).append(measure())
    rates = {name: statistics.median(values) for name, values in turns.items()}
    for name, rate in rates.items():
        spread = f"{min(turns[name]) / 1e9:.2f} to {max(turns[name]) / 1e9:.2f}"
        print(f"  {name:44} {rate / 1e9:8.2f}   ({spread})")
    plain, _, whole, lossy, *others = rates.values()
    shares = {"udp": whole / plain}
    if others:
        shares["ethernet"] = others[1] / others[0]
    for name, share in shares.items():
        print(f"  {name + ', of its plain pair':44} {share:8.0%}")
    print(f"  {'what the loss costs of the pass time':44} {whole / lossy - 1:8.0%}\n")
    stages = dict(_stages())
    for name, rate in stages.items():
        print(f"  {name:44} {rate / 1e9:8.2f}")
    checksums_share = whole / stages["checksums alone"]
    print(f"  {'checksums, of the time of a pass over udp':44} {checksums_share:8.0%}")
    cost = cost_of_window(layout.replicas)
    check_share = cost.share(whole)
    print(f"  {'checking a frame, of the time of a pass over udp':44} {check_share:8.1%}")
    if output is not None:
        figures: Figures = {
            **provenance("streamdsb", output),
            "n": n,
            "turns": turns,
            "rates": rates,
            "shares_of_plain": shares,
            "cost_of_loss": whole / lossy - 1,
            "checksums_share_of_pass_time": checksums_share,
            "sequence_check": {**asdict(cost), "share_of_pass_time": check_share},
            "stages": stages,
        }
        output.write_text(json.dumps(figures, indent=2) + "\n")
        print(f"\nwritten to {output}")


def _stages() -> dict[str, float]:
    """What is done to each frame besides, on one core, as payload a second."""
    layout, frames = Layout(_BURST, 1, 1), empty_frames(_BURST)
    write_headers(frames, int(FrameType.TILE), _RUN, 0, 0, 0, 0, 0, _BURST)
    write_checksums(frames)
    sums = np.empty(_BURST, np.uint32)
    rows = layout.rows
    check = FrameCheck(layout, 0, rows, _RUN, _BURST)
    window = Window(layout, 0, rows, _RUN, _BURST, _WINDOW, 1.0)

    def take(taker: FrameCheck | Window) -> Callable[[], None]:
        def once() -> None:
            taker.begin_pass(0)
            assert len(taker.accept(frames)) == _BURST

        return once

    return {
        "sequence check, lossless": _rate(take(check)),
        "window, checksums verified": _rate(take(window)),
        "checksums alone": _rate(lambda: checksums(frames, sums)),
    }


def _rate(work: Callable[[], None]) -> float:
    """Payload a second of `work` on a burst, the median of many."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return _BURST * PAYLOAD_BYTES / statistics.median(times)


def _beside(work: Callable[[Connection], None]) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    """`work` in another process, with a pipe to it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    return process, ours


def _plain_rate(link: _Link, frames: int, segments: int) -> float:
    """Frames from one process to another by the system calls alone; what got lost does not count."""
    sending, receiving = link.sockets()
    messages = datagrams.Messages(_BURST)

    def send(pipe: Connection) -> None:
        if segments > 1:
            udp.segment(sending)
        batch = datagrams.Messages(_BURST)
        link.address(batch.frames)
        whole = batch.aim(_BURST, segments)
        for _ in range(frames // _BURST):
            sent = 0
            while sent < whole:
                sent = datagrams.send(sending.fileno(), batch.headers, sent, whole)
                if sent < whole:
                    select.select([], [sending], [])
        pipe.send(None)

    received, start, last = 0, 0.0, 0.0
    process, pipe = _beside(send)
    while True:
        count = datagrams.receive(receiving.fileno(), messages.headers, messages.frames)
        if count:
            last = time.perf_counter()
            start = start or last
            received += count
        elif not select.select([receiving], [], [], 0.2)[0] and pipe.poll():
            break
    process.join()
    for end in (sending, receiving):
        end.close()
    return received * PAYLOAD_BYTES / (last - start)


def _pass_rate(link: _Link, layout: Layout, lost: float) -> float:
    """Whole passes from one process to another, the second of two."""
    sender, receiver = link.ends(lost)
    rows, cancelled = layout.rows, threading.Event()
    source = RandomCouplings(layout.n, 42)

    def send(pipe: Connection) -> None:
        feeder = LossyFeeder(0, rows, layout, _RUN, source, sender)
        with suppress(EOFError):
            while True:
                feeder.begin_pass(pipe.recv(), None)
                send_pass([feeder], _TIMEOUT_S, cancelled)
                serve_until_acknowledged([feeder], pipe.poll, cancelled)

    process, pipe = _beside(send)
    window = Window(layout, 0, rows, _RUN, _BURST, sender.window, 10.0)
    accumulator = CpuAccumulator(layout, rows)
    signs = np.random.default_rng(0).integers(0, 2**64, (layout.replicas, layout.bitmap_words), np.uint64)
    seconds = 0.0
    for k in range(2):
        window.begin_pass(k)
        accumulator.begin_pass(signs)
        start = time.perf_counter()
        pipe.send(k)
        receive_pass([LossyQueueIntake(receiver, window)], accumulator, _TIMEOUT_S, cancelled)
        seconds = time.perf_counter() - start
    pipe.close()
    process.kill()
    process.join()
    sender.close()
    receiver.close()
    return layout.payload_per_pass / seconds
