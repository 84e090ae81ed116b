"""What the coordinator makes of events: who ended how, and when an interrupt ends a wait."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from coordinator import peers as module
from coordinator.peers import Peer, Peers, TurnedAway, describe_end
from streamdsb.channel import Channel
from streamdsb.errors import Interrupted, RunFailed, UserError
from streamdsb.messages import PROTOCOL, Failed, Hello, Listening, Resolved, Role, Saved, Stop

pytestmark = pytest.mark.processes


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
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    peers = Peers()
    peers.interrupt(signal.SIGTERM)
    with peers.patient_with("receiver"), pytest.raises(Interrupted):
        peers.next(60, "anything")


def test_a_second_interrupt_is_not_held() -> None:
    peers = Peers()
    threading.Timer(0.1, peers.interrupt, (signal.SIGINT,)).start()
    threading.Timer(0.2, peers.interrupt, (signal.SIGINT,)).start()
    with peers.patient_with("receiver"), pytest.raises(Interrupted):
        peers.next(60, "anything")


def test_a_held_interrupt_lets_the_wait_end_and_ends_the_next() -> None:
    peers = Peers()
    peers.admits = True
    peers.interrupt(signal.SIGINT)
    peers.announce(TurnedAway(reason="a stranger"))
    with peers.patient_with("receiver"):
        _, message, _ = peers.next(60, "anything")
    assert message == TurnedAway(reason="a stranger")
    with pytest.raises(Interrupted):
        peers.next(60, "anything")


# --- peers at the other end of a socket -----------------------------------------------------------


class Pair:
    """Peers with one generator and one receiver, and the ends of both."""

    def __init__(self) -> None:
        self.peers = Peers()
        self.ends: dict[str, Channel] = {}
        self.join("generator")
        self.join("receiver")

    def join(self, role: Role) -> None:
        ours, theirs = socket.socketpair()
        hello = Hello(role=role, protocol=PROTOCOL, version="1", pid=1, host="here")
        self.peers.add(Peer(hello, Channel(ours, f"the {role}")))
        self.ends[role] = Channel(theirs, "the coordinator")


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for peer in made.peers.members:
        peer.channel.shutdown()
        made.ends[peer.hello.role].shutdown()


SAVED = Saved(next_pass=3, size=1, seconds=1.0)


def test_the_death_of_another_lets_a_patient_wait_end_and_ends_the_next(pair: Pair) -> None:
    pair.ends["generator"].shutdown()
    with pair.peers.patient_with("receiver"):
        while not pair.peers.trouble.wait(0.01):
            pass
        pair.ends["receiver"].send(SAVED)
        assert pair.peers.next(60, "the receiver")[1] == SAVED
    with pytest.raises(RunFailed, match=r"the generator .* has closed its connection"):
        pair.peers.next(60, "anything")


def test_patience_ends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    pair.ends["generator"].send(Failed(message="the tape is torn", exit_status=2))
    with pair.peers.patient_with("receiver"), pytest.raises(UserError, match="generator: the tape is torn"):
        pair.peers.next(60, "the receiver")


def test_nobody_is_patient_with_the_failure_of_the_one_that_is_awaited(pair: Pair) -> None:
    pair.ends["receiver"].send(Failed(message="out of memory", exit_status=2))
    with pair.peers.patient_with("receiver"), pytest.raises(UserError, match="receiver: out of memory"):
        pair.peers.next(60, "the receiver")


def test_what_the_thread_that_reads_meets_ends_the_run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(channel: Channel) -> None:
        raise MemoryError

    monkeypatch.setattr(Channel, "receive", fails)
    pair.join("receiver")
    with pytest.raises(RunFailed, match=r"the receiver .* MemoryError"):
        pair.peers.next(60, "anything")


def test_more_bytes_than_are_due_are_not_taken_in(pair: Pair) -> None:
    pair.peers.of_role("receiver")[0].channel.max_bytes = 10
    pair.ends["receiver"].send(SAVED, b"x" * 11)
    with pytest.raises(RunFailed, match="the receiver announced a control message of 11 bytes, over 10"):
        pair.peers.next(60, "the receiver")


def test_one_that_takes_nothing_in_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a field that is too large for the buffers of the system, nor a Stop behind it."""
    monkeypatch.setattr(module, "_STOP_S", 0.2)
    pair.peers.send(Resolved(n=10**7), "receiver", bytes(4 * 10**7))
    pair.peers.send(Listening(host="here", port=1), "generator")
    assert pair.ends["generator"].receive()[0] == Listening(host="here", port=1)
    pair.peers.interrupt(signal.SIGINT)
    with pytest.raises(Interrupted):
        pair.peers.next(60, "the receiver")
    pair.peers.call_off("stopped by SIGINT")
    assert pair.ends["generator"].receive()[0] == Stop(completed=False, cause="stopped by SIGINT")
