"""Runs over real UDP sockets whose frames are lost, repeated, reordered and altered on purpose.

Whatever happens on the way, the records are the same bytes.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.probe import PROBE_PASS
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
    return {key: sum(line[key] for line in lines) for key in ("resent", "duplicated", "corrupt", "late")}


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
