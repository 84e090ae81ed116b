"""What the coordinator makes of events: who ended how, and when an interrupt ends a wait."""

import signal
import subprocess
import sys
import threading

import pytest

from coordinator import peers as module
from coordinator.peers import Peers, TurnedAway, describe_end
from streamdsb.errors import Interrupted


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (signal.SIGRTMIN + 6, "SIGRTMIN+6"), (signal.SIGRTMIN, "SIGRTMIN")]
)
def test_the_signal_that_killed_is_named(number: int, name: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process.send_signal(number)
    process.wait()
    assert describe_end(process) == f"was killed by signal {int(number)} ({name})"


def test_an_interrupt_ends_a_wait_at_once() -> None:
    peers = Peers()
    peers.interrupt(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        peers.next(60, "anything")


def test_a_held_interrupt_ends_the_wait_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HOLD_S", 0.2)
    peers = Peers()
    peers.interrupt(signal.SIGTERM)
    with peers.interrupts_held(), pytest.raises(Interrupted):
        peers.next(60, "anything")


def test_a_second_interrupt_is_not_held() -> None:
    peers = Peers()
    threading.Timer(0.1, peers.interrupt, (signal.SIGINT,)).start()
    threading.Timer(0.2, peers.interrupt, (signal.SIGINT,)).start()
    with peers.interrupts_held(), pytest.raises(Interrupted):
        peers.next(60, "anything")


def test_a_held_interrupt_lets_the_wait_end_and_ends_the_next() -> None:
    peers = Peers()
    peers.admits = True
    peers.interrupt(signal.SIGINT)
    peers.announce(TurnedAway(reason="a stranger"))
    with peers.interrupts_held():
        _, message, _ = peers.next(60, "anything")
    assert message == TurnedAway(reason="a stranger")
    with pytest.raises(Interrupted):
        peers.next(60, "anything")
