"""Frames that get lost, come twice or do not belong: none of them changes a record."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import generator.main
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.frame import headers_of
from streamdsb.queues import FrameSender
from streamdsb.queues.base import Capabilities
from tests.harness import config_of, expected_records, run_in_threads


class TamperedSender:
    """A sender whose frames are changed on their way into the queue."""

    def __init__(self, inner: FrameSender, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._inner = inner
        self._change = change
        self._room = np.zeros((0, 512), np.uint64)
        self.capabilities: Capabilities = inner.capabilities

    def acquire(self) -> np.ndarray | None:
        frames = self._inner.acquire()
        if frames is None:
            return None
        self._room = frames
        return frames[: len(frames) // 2]

    def commit(self, count: int) -> None:
        changed = self._change(self._room[:count].copy())
        self._room[: len(changed)] = changed
        if len(changed):
            self._inner.commit(len(changed))

    def arm(self) -> bool:
        return self._inner.arm()

    def disarm(self) -> None:
        self._inner.disarm()

    def fileno(self) -> int:
        return self._inner.fileno()

    @property
    def poll_events(self) -> int:
        return self._inner.poll_events

    def close(self) -> None:
        self._inner.close()


def tampered(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Let the next run's frames be changed by `change`, burst by burst."""
    for name in ("shm_senders", "connect_senders"):
        original = getattr(generator.main, name)
        monkeypatch.setattr(
            generator.main,
            name,
            lambda *arguments, original=original: [
                TamperedSender(sender, change) for sender in original(*arguments)
            ],
        )


def is_tile(frames: np.ndarray) -> np.ndarray:
    return headers_of(frames)["type"] == 1


TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def small_run(transport: str) -> Config:
    return config_of(n=500, updates=4, stream={"transport": transport, "queues": 2, "burst_frames": 64})


@TRANSPORTS
def test_frames_that_come_twice_are_added_once(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(monkeypatch, lambda frames: np.concatenate([frames[is_tile(frames)], frames]))
    config = small_run(transport)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    timings = (tmp_path / "run" / "timings.jsonl").read_text().splitlines()
    assert all('"duplicated":500' in line for line in timings)


@TRANSPORTS
@pytest.mark.parametrize("field", ["run", "pass", "queue", "row", "version"])
def test_frames_that_do_not_belong_are_not_added(
    field: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_strangers(frames: np.ndarray) -> np.ndarray:
        strangers = frames[is_tile(frames)].copy()
        headers_of(strangers)[field] += 1
        strangers[:, 8:] = ~strangers[:, 8:]
        return np.concatenate([strangers, frames])

    tampered(monkeypatch, with_strangers)
    config = small_run(transport)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    timings = (tmp_path / "run" / "timings.jsonl").read_text().splitlines()
    assert all('"rejected":500' in line for line in timings)


@TRANSPORTS
def test_a_gap_ends_the_run_with_its_name(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_some(frames: np.ndarray) -> np.ndarray:
        headers = headers_of(frames)
        lost = (headers["pass"] == 2) & (headers["row"] >= 300) & (headers["row"] < 310) & is_tile(frames)
        return frames[~lost]

    tampered(monkeypatch, without_some)
    config = small_run(transport)
    with pytest.raises(RunFailed, match=r"pass 2, queue 1: 234 of 244 frames were added.*10 missing"):
        run_in_threads(config, tmp_path / "run")
    whole = "".join(line + "\n" for line in expected_records(config).splitlines()[:2])
    assert (tmp_path / "run" / "records.jsonl").read_text() == whole


@TRANSPORTS
def test_reordered_frames_end_the_run(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(monkeypatch, lambda frames: frames[::-1])
    with pytest.raises(RunFailed, match=r"pass 0, queue \d: .* missing, .* duplicate"):
        run_in_threads(small_run(transport), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "a run without a pass leaves nothing"


@TRANSPORTS
def test_a_queue_that_falls_silent_is_named(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_end(frames: np.ndarray) -> np.ndarray:
        return frames[is_tile(frames) | (headers_of(frames)["queue"] == 0)]

    tampered(monkeypatch, without_the_end)
    stream = {"transport": transport, "queues": 2, "burst_frames": 64, "timeout_s": 1}
    with pytest.raises(RunFailed, match=r"queue 1: no frame came for 1 s \(stream.timeout_s\)"):
        run_in_threads(config_of(n=500, stream=stream), tmp_path / "run")
