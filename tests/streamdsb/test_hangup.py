"""A process that imports for long ends with its coordinator all the same."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SLOW_IMPORT = """
import sys, time
from streamdsb.hangup import exits_on_hangup
with exits_on_hangup(int(sys.argv[1])):
    print("importing", flush=True)
    time.sleep({seconds})
print("imported", flush=True)
sys.stdin.read()
"""


def start(seconds: float) -> tuple[subprocess.Popen[str], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", SLOW_IMPORT.format(seconds=seconds), str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    return process, ours


def test_ends_when_the_other_end_is_closed_meanwhile() -> None:
    process, connection = start(seconds=1000)
    connection.close()
    assert process.wait(60) == 1
    process.communicate()


def test_what_the_other_end_says_changes_nothing() -> None:
    process, connection = start(seconds=0.5)
    with connection:
        connection.sendall(b"welcome")
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_lets_the_process_alone_afterwards() -> None:
    process, connection = start(seconds=0)
    assert process.stdout is not None
    assert process.stdout.readline() == "imported\n"
    connection.close()
    process.communicate(timeout=60)  # it waits for the end of its input, long after the hangup
    assert process.returncode == 0
