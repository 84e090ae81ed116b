"""The host library, built against a stand-in for DOCA that keeps account of what comes and goes, and how."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import ETHERTYPE
from streamdsb.gpunetio import library
from streamdsb.gpunetio.library import FOLDER, Card
from streamdsb.gpunetio.queue import GPUNETIO_QUEUE
from streamdsb.gpunetio.ring import CardReceiver, CardSender
from tests import cuda_on_host

NIC, GPU = "0000:17:00.0", "0000:18:00.0"
STAND_IN = Path(__file__).parent / "doca_on_host"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("library") / "library.so"
    sources = [*map(str, sorted((FOLDER / "host").glob("*.cpp"))), str(STAND_IN / "doca_on_host.cpp")]
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    command = ["g++", *options, f"-I{STAND_IN}", f"-I{FOLDER / 'host'}", *sources, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    loaded = library.load(path)
    loaded.on_host_violation.restype = ctypes.c_char_p
    loaded.on_host_log.restype = ctypes.c_char_p
    return loaded


def reset(built: ctypes.CDLL, fail_at: int = 0, always: str = "") -> None:
    built.on_host_reset(fail_at, always.encode())


def use_card(built: ctypes.CDLL, consistent: bool = True) -> None:
    """Everything that a run does with a card."""
    with Card(NIC, GPU, 0x88B5, built) as card:
        assert card.mac.hex() == "b8cef6010203"
        for _ in range(2):
            queue = card.receive_queue(512, 4096, consistent)
            assert queue.nbytes == 512 * 4096
            assert queue.key == 0x04030201
        sender = card.send_queue(4096, 100_000)
        assert sender.nbytes == 131_072
        assert sender.handle
        assert sender.memory
        card.steer()
        assert card.steered(1) == 5


@needs_compiler
def test_a_card_that_works(built: ctypes.CDLL) -> None:
    reset(built)
    use_card(built)
    assert built.on_host_live() == 0
    assert built.on_host_violation() == b""
    rules = [[built.on_host_steered(rule, byte) for byte in (0, 12, 13)] for rule in range(3)]
    assert rules == [[0x02, 0x88, 0xB5], [0x12, 0x88, 0xB5], [0, 0, 0]]


@needs_compiler
@pytest.mark.parametrize("consistent", [True, False])
def test_whatever_fails_everything_is_taken_down_in_order(built: ctypes.CDLL, consistent: bool) -> None:
    reset(built)
    use_card(built, consistent)
    calls = built.on_host_calls()
    assert calls > 80
    failed = 0
    for fail_at in range(1, calls + 1):
        reset(built, fail_at)
        said = ""
        try:
            use_card(built, consistent)
        except RunFailed as error:
            said = str(error)
            failed += 1
        if said:
            assert re.match(
                r"doca_\w+ for .*(0000:17:00.0|0000:18:00.0).* failed: Driver call failure", said
            ), said
        log = built.on_host_log().decode()
        assert built.on_host_violation() == b"", f"{fail_at}\n{log}"
        assert built.on_host_live() == 0, f"{fail_at}\n{log}"
    assert failed > calls // 2


@needs_compiler
def test_without_dmabuf_memory_is_reached_through_peermem(built: ctypes.CDLL) -> None:
    reset(built, always="doca_gpu_dmabuf_fd")
    with Card(NIC, GPU, 0x88B5, built) as card:
        assert not card.send_queue(64, 4096).by_dmabuf
    reset(built, always="doca_mmap_start")
    with (
        Card(NIC, GPU, 0x88B5, built) as card,
        pytest.raises(RunFailed, match=r"neither by dmabuf .* nor by nvidia-"),
    ):
        card.send_queue(64, 4096)
    assert built.on_host_live() == 0
    reset(built)
    with Card(NIC, GPU, 0x88B5, built) as card:
        assert card.send_queue(64, 4096).by_dmabuf


@needs_compiler
def test_a_gpu_that_cannot_ring_doorbells_has_it_done(built: ctypes.CDLL) -> None:
    reset(built)
    with Card(NIC, GPU, 0x88B5, built) as card:
        assert not card.send_queue(64, 4096).proxied
    reset(built, fail_at=built.on_host_first(b"doca_ctx_start"))
    with Card(NIC, GPU, 0x88B5, built) as card:
        assert card.send_queue(64, 4096).proxied
    assert built.on_host_violation() == b""
    assert built.on_host_live() == 0


@needs_compiler
def test_what_is_refused_is_said(built: ctypes.CDLL) -> None:
    reset(built)
    with pytest.raises(RunFailed, match=r"^DOCA finds no NIC at PCI address 0000:99:00\.0 among 2 devices$"):
        Card("0000:99:00.0", GPU, 0x88B5, built)
    with (
        Card(NIC, GPU, 0x88B5, built) as card,
        pytest.raises(RunFailed, match=r"16384 descriptors, .* up to 8192$"),
    ):
        card.send_queue(16_384, 4096)
    reset(built, always="doca_flow_pipe_entry_get_status")
    with Card(NIC, GPU, 0x88B5, built) as card:
        card.receive_queue(512, 4096, True)
        with pytest.raises(RunFailed, match="was not installed by the card"):
            card.steer()
    assert built.on_host_live() == 0


@needs_compiler
def test_ends_of_queues_on_cards(built: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_on_host.install(monkeypatch)
    reset(built)
    receiver = CardReceiver(Card(NIC, GPU, ETHERTYPE, built), 2, 512, 256, 90)
    got = np.array(receiver.queue(1), GPUNETIO_QUEUE)
    assert got["slots"] == 512
    assert got["frames"] not in (0, receiver.slots)
    assert not got["send_queue"]
    assert receiver.places * receiver.queues == 8  # those of the first
    assert receiver.steered == [5, 5]
    receiver.check()
    receiver.free()
    sender = CardSender(Card(NIC, GPU, ETHERTYPE, built), 2, 256, bytes.fromhex("0a0b0c0d0e0f"), 400)
    first, second = (np.array(sender.queue(index), GPUNETIO_QUEUE) for index in range(2))
    assert first["places"] == 64
    assert first["key"] == 0x04030201
    assert first["frame_ps"] == 2 * 82_400
    assert second["state"] - first["state"] == 24
    assert second["fault"] - first["fault"] == 8
    assert not first["receive_queue"]
    assert int(second["addresses"]).to_bytes(8, "little").hex() == "0a0b0c0d0e0f12ce"
    sender.free()
    assert built.on_host_violation() == b""
    assert built.on_host_live() == 0


def test_only_cards_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = library.load
    monkeypatch.setattr(library, "load", lambda: load(tmp_path / "none.so"))
    library.require_for("software")
    with pytest.raises(UserError, match="which is not built"):
        library.require_for("0000:17:00.0")


def test_library_that_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"which is not built: missing here: make, a C\+\+ compiler \(g\+\+\), .*DOCA"
    ):
        library.load(tmp_path / "none.so")
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(UserError, match=r"cannot load .*broken\.so: .*; build it again: make -C"):
        library.load(tmp_path / "broken.so")
