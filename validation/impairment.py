"""UDP queues whose frames get lost and overtake each other on purpose, in processes that are told so.

A process impairs what it sends over UDP queues if `entered` made its environment.  It stands for a network
emulator where the system has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from streamdsb.probe import PROBE_PASS
from streamdsb.queues.udp import UdpReceiver, UdpSender

_VARIABLE = "STREAMDSB_IMPAIRMENT"
_HOOK = "from validation.impairment import impair_udp\nimpair_udp()\n"


def entered(folder: Path, loss: float, hold: float, seed: int) -> dict[str, str]:
    """The environment of processes that lose a share of all frames, and let others overtake a share of them.

    folder: where the module is written that Python imports as it starts.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HOOK)
    search = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    rates = {"loss": loss, "hold": hold, "seed": seed}
    return {**os.environ, "PYTHONPATH": search, _VARIABLE: json.dumps(rates)}


def impair_udp(environment: Mapping[str, str] = os.environ) -> None:
    """Impair all UDP queues of this process from now on, as its environment says."""
    rates = json.loads(environment[_VARIABLE])
    commit, answer = UdpSender.commit, UdpReceiver.answer
    draws = np.random.default_rng([rates["seed"], os.getpid()])
    held: dict[int, np.ndarray] = {}

    def is_spared(frames: np.ndarray) -> bool:
        return len(frames) > 0 and int(frames[0, 2]) >> 32 == PROBE_PASS

    def commit_some(self: UdpSender, count: int) -> None:
        frames = self.acquire()
        if frames is None or is_spared(frames[:count]):
            commit(self, count)
            return
        draw = draws.random(count)
        late = held.pop(id(self), frames[:0])
        held[id(self)] = frames[:count][draw > 1 - rates["hold"]].copy()
        kept = frames[:count][(draw > rates["loss"]) & (draw <= 1 - rates["hold"])]
        sent = np.concatenate([kept, late])[: len(frames)]
        frames[: len(sent)] = sent
        commit(self, len(sent))

    def answer_some(self: UdpReceiver, frames: np.ndarray) -> None:
        if is_spared(frames) or draws.random() >= rates["loss"]:
            answer(self, frames)

    UdpSender.commit = commit_some  # type: ignore[method-assign]
    UdpReceiver.answer = answer_some  # type: ignore[method-assign]
