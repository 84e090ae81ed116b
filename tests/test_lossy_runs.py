"""Runs over real UDP sockets whose frames are lost, repeated, reordered and altered on purpose.

Whatever happens on the way, the records are the same bytes.
"""

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generator.resend import LossyFeeder
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.probe import PROBE_PASS
from streamdsb.queues.ethernet import EthernetReceiver, require_usable
from streamdsb.queues.udp import UdpReceiver, UdpSender
from tests.harness import config_of, expected_records, run_in_threads


@dataclass
class Mischief:
    """What happens to the frames of one end, each with its chance."""

    seed: int = 0
    lose: float = 0.0
    repeat: float = 0.0
    hold: float = 0.0
    alter: float = 0.0
    held: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def happen(self, frames: np.ndarray) -> list[np.ndarray]:
        """What is sent instead of `frames`; the run begins in any case."""
        out: list[np.ndarray] = []
        for frame in frames:
            if int(frame[2]) >> 32 == PROBE_PASS:
                out.append(frame)
                continue
            if self.rng.random() < self.lose:
                continue
            frame = frame.copy()
            if self.rng.random() < self.alter:
                bit = self.rng.randrange(14 * 8, 4096 * 8)
                frame[bit // 64] ^= np.uint64(1 << (bit % 64))
            if self.rng.random() < self.hold:
                self.held.append(frame)
            else:
                out += [frame] * (1 + (self.rng.random() < self.repeat))
        if self.held and self.rng.random() < 0.5:
            out.insert(self.rng.randrange(len(out) + 1), self.held.pop(0))
        return out


def tamper(monkeypatch: pytest.MonkeyPatch, there: Mischief, back: Mischief) -> None:
    """Let these happen to all frames that UDP queues send from now on."""
    commit, answer = UdpSender.commit, UdpReceiver.answer

    def commit_some(self: UdpSender, count: int) -> None:
        frames = self.acquire()
        assert frames is not None
        sent = there.happen(frames[:count])
        there.held += sent[len(frames) :]
        sent = sent[: len(frames)]
        for i, frame in enumerate(sent):
            frames[i] = frame
        commit(self, len(sent))

    def answer_some(self: UdpReceiver, frames: np.ndarray) -> None:
        for frame in back.happen(frames):
            answer(self, frame[None])

    monkeypatch.setattr(UdpSender, "commit", commit_some)
    monkeypatch.setattr(UdpReceiver, "answer", answer_some)


def lossy_run(n: int = 3000, updates: int = 4, **stream: int | float) -> Config:
    return config_of(
        n=n, updates=updates, replicas=3, stream={"transport": "udp", "burst_frames": 64, **stream}
    )


def timings(out: Path) -> dict[str, int]:
    """The sums of what timings.jsonl counts."""
    lines = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    keys = ("resent", "duplicated", "corrupt", "late", "overrun", "restarted")
    return {key: sum(line[key] for line in lines) for key in keys}


@pytest.mark.parametrize(
    ("name", "chances"),
    [
        ("nothing", {}),
        ("one in a thousand lost", {"lose": 0.001}),
        ("one in a hundred lost", {"lose": 0.01}),
        ("one in ten lost", {"lose": 0.1}),
        ("repeated", {"repeat": 0.1}),
        ("held back", {"hold": 0.1}),
        ("altered", {"alter": 0.05}),
        ("all of it", {"lose": 0.05, "repeat": 0.05, "hold": 0.05, "alter": 0.05}),
    ],
)
@pytest.mark.parametrize("queues", [1, 4])
def test_records_do_not_depend_on_the_link(
    name: str, chances: dict[str, float], queues: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, Mischief(1, **chances), Mischief(2, **chances))
    config = lossy_run(queues=queues)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    counts = timings(tmp_path / "run")
    if any(kind in chances for kind in ("lose", "hold", "alter")):
        assert counts["resent"] > 0, counts
    assert (counts["corrupt"] > 0) == ("alter" in chances), counts
    if "repeat" in chances:
        assert counts["duplicated"] > 0, counts


@pytest.mark.parametrize("window", [1, 7, 100])
def test_any_window(window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chances = {"lose": 0.02, "repeat": 0.02, "alter": 0.02}
    tamper(monkeypatch, Mischief(3, **chances), Mischief(4, **chances))
    config = lossy_run(n=300, updates=1, window_frames=window)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)


def test_two_column_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts of frames that are sent again may hold frames of both."""
    tamper(monkeypatch, Mischief(5, lose=0.05, hold=0.05), Mischief(6, lose=0.05))
    config = config_of(n=32_300, replicas=1, updates=1, stream={"transport": "udp"})
    undisturbed = config_of(n=32_300, replicas=1, updates=1)
    assert run_in_threads(config, tmp_path / "a") == run_in_threads(undisturbed, tmp_path / "b")


def let_senders_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them have many times more frames on the way than the receiver has said that it takes."""
    begin = LossyFeeder.__init__

    def begin_in_a_hurry(self: LossyFeeder, *arguments: Any) -> None:
        begin(self, *arguments)
        self._window *= 4

    monkeypatch.setattr(LossyFeeder, "__init__", begin_in_a_hurry)


def test_frames_from_beyond_the_window_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_senders_hurry(monkeypatch)
    tamper(monkeypatch, Mischief(9, lose=0.02), Mischief())
    config = lossy_run(n=1000, updates=2, window_frames=64, timeout_s=10.0)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    counts = timings(tmp_path / "run")
    assert counts["overrun"] > 0, counts
    assert counts["restarted"] == 0


def udp_drops(end: UdpReceiver) -> int:
    """Datagrams that came while the socket's buffer was full."""
    port = end._socket.getsockname()[1]
    lines = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(words[-1]) for words in lines if int(words[1].rpartition(":")[2], 16) == port)


@pytest.mark.parametrize("transport", ["udp", "ethernet"])
def test_frames_that_find_no_room_come_again(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the socket's buffer or the ring of a receiver that takes a nap."""
    if transport == "ethernet":
        try:
            require_usable("lo")
        except UserError as error:
            pytest.skip(str(error))
    let_senders_hurry(monkeypatch)
    kind: Any = UdpReceiver if transport == "udp" else EthernetReceiver
    receive, ends = kind.receive, list[Any]()

    def receive_late(self: Any) -> np.ndarray | None:
        ends[:] = [self]
        time.sleep(0.002)
        return receive(self)

    monkeypatch.setattr(kind, "receive", receive_late)
    lo = {"interface": "lo"}
    config = config_of(
        n=1000,
        updates=2,
        stream={"transport": transport, "window_frames": 64, "burst_frames": 64, "timeout_s": 10.0},
        generator=lo if transport == "ethernet" else {},
        receiver=lo if transport == "ethernet" else {},
    )
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    (end,) = ends
    assert (udp_drops(end) if transport == "udp" else end.dropped) > 0
    counts = timings(tmp_path / "run")
    assert counts["resent"] > 0, counts
    assert counts["restarted"] == 0


def test_a_frame_that_never_comes_ends_the_run_with_the_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = UdpSender.commit

    def commit_altered(self: UdpSender, count: int) -> None:
        frames = self.acquire()
        assert frames is not None
        is_doomed = (frames[:count, 3] == 1234) & (frames[:count, 2] >> np.uint64(32) == 2)
        frames[:count][is_doomed, 100] ^= np.uint64(1)
        commit(self, count)

    monkeypatch.setattr(UdpSender, "commit", commit_altered)
    config = lossy_run(timeout_s=1.0)
    with pytest.raises(RunFailed, match=r"stream\.timeout_s\): pass 2, queue 0: 2999 of 3000 .* corrupt\)"):
        run_in_threads(config, tmp_path / "run")
    recorded = (tmp_path / "run" / "records.jsonl").read_text()
    assert recorded.count("\n") == 2
    assert expected_records(config).startswith(recorded)


def test_a_link_that_brings_nothing_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tamper(monkeypatch, Mischief(lose=1.0), Mischief())
    with pytest.raises(RunFailed, match=r"queue 0: .*1 s \(stream\.timeout_s\)"):
        run_in_threads(lossy_run(timeout_s=1.0), tmp_path / "run")


def test_a_link_that_brings_nothing_back_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, Mischief(lose=0.1), Mischief(lose=1.0))
    with pytest.raises(RunFailed, match=r"queue 0: .*1 s \(stream\.timeout_s\)"):
        run_in_threads(lossy_run(timeout_s=1.0, window_frames=100), tmp_path / "run")


def test_a_spent_budget_ends_the_run_with_the_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, Mischief(8, alter=0.9), Mischief())
    with pytest.raises(RunFailed, match=r"pass 0, queue 0: .* corrupt.*\(stream\.resend_budget\)"):
        run_in_threads(lossy_run(resend_budget=0.0, window_frames=1000), tmp_path / "run")
