"""The commands, as a user runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamdsb import native
from streamdsb.service.server import Server
from validation import oracle_solve

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-P", "-c", "from streamdsb.cli import main; main()"]


def test_serve_starts_without_configuration_and_stops_cleanly() -> None:
    if not native.AVAILABLE:
        pytest.skip("the server needs Linux")
    with subprocess.Popen(
        [*COMMAND, "serve", "--set", "listen=127.0.0.1:0", "--counters"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=20)
    assert "127.0.0.1:" in lines[1]
    assert "received 0 (+0)" in lines[2]
    assert (process.returncode, errors) == (0, "")
    assert "stopped; no frames" in rest


def test_request(server: Server, tmp_path: Path) -> None:
    couplings = np.array([[0, 50, -7], [50, 0, 20], [-7, 20, 0]], np.int8)
    np.save(tmp_path / "J.npy", couplings)
    np.save(tmp_path / "h.npy", np.array([3, -30, 1]))
    np.save(tmp_path / "noise.npy", np.array([[0, 0.25], [0.25, 0]]))
    done = subprocess.run(
        [*COMMAND, "request", str(tmp_path / "J.npy"), "--field", str(tmp_path / "h.npy"), "--to",
         server.address, "--seed", "9", "--spins", str(tmp_path / "s.npy")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    reference = oracle_solve.solve(couplings, np.array([3, -30, 1]), replicas=8, updates=100, seed=9)
    assert done.stdout.startswith(f"2E {reference.two_energy}  replica {reference.replica} ")
    assert np.array_equal(np.load(tmp_path / "s.npy"), reference.spins)
    done = subprocess.run(
        [*COMMAND, "request", str(tmp_path / "noise.npy"), "--to", server.address],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("quantized with scale 508; largest error 0 in J")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["request", "nosuch.npy"], "nosuch.npy: cannot be read"),
        (["request", "{J}", "--to", "127.0.0.1:1", "--replicas", "0"], "replicas is 0"),
        (["request", "{J}", "--to", "127.0.0.1:1", "--seed", "-1"], "seed is -1"),
        (["request", "{J}", "--to", "127.0.0.1:1", "--dt", "0"], "dt is 0.0"),
        (["serve", "--set", "workers=0"], "workers is '0'"),
        (["serve", "--set", "server=fpga"], "server is 'fpga'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "J.npy", 1 - np.eye(3, dtype=np.int8))
    arguments = [argument.format(J=tmp_path / "J.npy") for argument in arguments]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
