"""Whole runs between two cards, each opened by its own end; their rings are those of the software card."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from receiver.engine_cuda import CudaReceiver
from streamdsb.errors import RunFailed
from streamdsb.gpunetio import ends, library, ring, runs, software
from streamdsb.gpunetio.ends import CardEndpoint
from streamdsb.gpunetio.library import CardQueue
from streamdsb.gpunetio.software import LinkFaults, SoftwareRing
from tests import cuda_on_host
from tests.harness import config_of, expected_records, run_in_threads

MACS = {"0000:17:00.0": "b8:ce:f6:01:02:03", "0000:18:00.0": "b8:ce:f6:0a:0b:0c"}
CONFIG = config_of(
    "random",
    300,
    updates=4,
    stream={"transport": "gpunetio", "queues": 2, "slots": 512, "window_frames": 128},
    generator={"backend": "cuda", "nic": "17:00.0", "device": 1},
    receiver={"backend": "cuda", "nic": "0000:18:00.0"},
)

pytestmark = pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")


class StandIn:
    """What a run asks of library.Card, given queues of a software card that both ends have in common."""

    def __init__(self, nic: str, link: SoftwareRing) -> None:
        self.log = [nic]
        self.mac = bytes.fromhex(
            next(mac for full, mac in MACS.items() if full.endswith(nic)).replace(":", "")
        )
        self._link = link
        self._made = 0

    def _queue(self, handle: Any, memory: Any) -> CardQueue:
        index, self._made = self._made, self._made + 1
        return CardQueue(handle(index), software._at(memory, index), memory.shape[1], 0, True, False)

    def receive_queue(self, slots: int, slot_bytes: int, consistent: bool) -> CardQueue:
        self.log.append("receives")
        return self._queue(self._link._receiver, self._link._frames)

    def send_queue(self, descriptors: int, nbytes: int) -> CardQueue:
        self.log.append("sends")
        return self._queue(self._link._sender, self._link._staging)

    def steer(self) -> None:
        self.log.append("steers")
        self._link.start(None)

    def steered(self, queue: int) -> int:
        return 5 + queue

    def close(self) -> None:
        self.log.append("closed")
        if "steers" in self.log:
            self._link.stop()


class Apart(dict[int, Any]):
    """Another process finds nothing of what this one opened."""

    def get(self, run: int, otherwise: Any = None) -> Any:
        return None


@pytest.fixture
def cards(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The cards that a run opens; of the link between them, its LinkFaults may be given."""
    cuda_on_host.install(monkeypatch)
    sys.modules["cupy"].cuda.Device = lambda *_: SimpleNamespace(compute_capability="90")
    for nic, mac in MACS.items():
        folder = tmp_path / "sys/bus/pci/devices" / nic / "net/eth1"
        folder.mkdir(parents=True)
        (folder / "address").write_text(mac + "\n")
    link = SoftwareRing(2, 512, 128, getattr(request, "param", None), places=ring.PLACES)
    opened: list[StandIn] = []

    def open_card(nic: str, device: int) -> StandIn:
        opened.append(StandIn(nic, link))
        return opened[-1]

    monkeypatch.setattr(ends, "open_card", open_card)
    monkeypatch.setattr(ends, "CardEndpoint", lambda *arguments: CardEndpoint(*arguments, tmp_path))
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setattr(ring._CardEnd, "kind", SoftwareRing.kind)
    return opened


@pytest.mark.parametrize("apart", [True, False])
def test_two_cards(
    cards: list[StandIn], apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if apart:
        monkeypatch.setattr(runs, "_here", Apart())
    assert run_in_threads(CONFIG, tmp_path / "run") == expected_records(CONFIG)
    assert [card.log for card in cards] == [
        ["0000:18:00.0", "receives", "receives", "steers", "closed"],
        ["17:00.0", "sends", "sends", "closed"],
    ]


@pytest.mark.parametrize("cards", [LinkFaults(fail=1)], indirect=True)
@pytest.mark.parametrize("apart", [True, False])
def test_a_fault_of_a_card_ends_the_run_by_its_name(
    cards: list[StandIn], apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if apart:
        monkeypatch.setattr(runs, "_here", Apart())
    # the sender looks at completions only when it sends, so the error may show passes later
    config = CONFIG.model_copy(update={"solver": CONFIG.solver.model_copy(update={"updates": 60})})
    with pytest.raises(RunFailed, match=r"^generator: queue [01]: the card could not send: a completion"):
        run_in_threads(config, tmp_path / "run")
    assert [card.log[-1] for card in cards] == ["closed", "closed"]


def test_what_the_card_counted_is_told(
    cards: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(receiver: CudaReceiver, pass_index: int) -> tuple[float, float]:
        raise RunFailed("no frame came")

    monkeypatch.setattr(CudaReceiver, "receive_pass", fail)
    with pytest.raises(RunFailed, match=r"^receiver: no frame came; .* steered to each queue: 5, 6$"):
        run_in_threads(CONFIG, tmp_path / "run")
