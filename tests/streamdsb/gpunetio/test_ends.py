"""How two processes with cards meet, and the way back between them, over real connections."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from streamdsb.config import make_config
from streamdsb.errors import UserError
from streamdsb.feedback import FeedbackReader, FeedbackWriter
from streamdsb.gpunetio import ends
from streamdsb.gpunetio.ends import AnswerEnd, CardEndpoint, FeedbackEnd, mac_of
from streamdsb.links import accept_receivers, connect_senders, listen

MACS = {"0000:17:00.0": "b8:ce:f6:01:02:03", "0000:18:00.0": "b8:ce:f6:0a:0b:0c"}
CONFIG = make_config(
    {
        "problem": {"n": 1000},
        "stream": {"transport": "gpunetio", "queues": 2, "window_frames": 1024},
        "generator": {"backend": "cuda", "nic": "17:00.0"},
        "receiver": {"backend": "cuda", "nic": "0000:18:00.0"},
    }
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for nic, mac in MACS.items():
        folder = tmp_path / "sys/bus/pci/devices" / nic / "net/eth1"
        folder.mkdir(parents=True)
        (folder / "address").write_text(mac + "\n")
    return tmp_path


def test_address_of_a_card(root: Path) -> None:
    assert mac_of("17:00.0", root) == bytes.fromhex("b8cef6010203")
    with pytest.raises(
        UserError, match=r"^no network interface is at PCI address 0000:19:00\.0; 'streamdsb doct"
    ):
        mac_of("0000:19:00.0", root)


def meet(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[FeedbackEnd], list[AnswerEnd]]:
    def endpoint(*arguments: Any) -> CardEndpoint:
        return CardEndpoint(*arguments, root)

    monkeypatch.setattr(ends, "CardEndpoint", endpoint)
    with listen("127.0.0.1", 0) as server, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept_receivers, CONFIG, 7, server, "token", threading.Event())
        senders = connect_senders(CONFIG, 7, *server.getsockname(), "token")
        receivers = accepting.result(timeout=20)
    return cast(list[FeedbackEnd], senders), cast(list[AnswerEnd], receivers)


def test_what_is_said_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = meet(root, monkeypatch)
    assert [line.peer.hex(":") for line in ours] == 2 * [MACS["0000:18:00.0"]]
    assert [line.window for line in ours] == [1024, 1024]
    assert ours[0].feedback() is None
    for queue, (line, back) in enumerate(zip(ours, theirs, strict=True)):
        writer, reader = FeedbackWriter(7, queue), FeedbackReader(7, queue, 500)
        for first in (3, 400):
            back.answer(writer.resend(0, 3, np.array([[first, 2]])))
        missing: list[int] = []
        deadline = time.monotonic() + 10
        while len(missing) < 2:
            assert time.monotonic() < deadline
            frames = line.feedback()
            if frames is not None:
                missing += [int(said.missing[0, 0]) for said in reader.read(frames, 0)]
        assert missing == [3, 400]
        assert line.feedback() is None
        line.close()
        back.close()


def test_answers_without_room_are_lost_and_never_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line, *_), (back, *_) = meet(root, monkeypatch)
    frame = FeedbackWriter(7, 0).pass_ack(0, 500)
    for _ in range(20_000):  # 80 MB, more than any socket holds
        back.answer(frame)
    frames = line.feedback()
    assert frames is not None
    assert np.array_equal(frames[0, :512], frame[0])
