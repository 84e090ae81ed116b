"""Whole runs with GPUs: the oracle's records, and an end with a cause when something goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from streamdsb.config import Config
from streamdsb.errors import UserError
from tests.harness import config_of, expected_records, run_in_threads, sentence_of, written_config

pytestmark = pytest.mark.gpu

CUDA = {"backend": "cuda"}


def on_one_gpu(*arguments: Any, queues: int = 4, **keys: Any) -> Config:
    stream = {"transport": "peer", "queues": queues} | keys.pop("stream", {})
    return config_of(*arguments, **keys, stream=stream, generator=CUDA, receiver=CUDA)


@pytest.mark.parametrize("source", ["random", "mattis"])
@pytest.mark.parametrize("n", [2, 64, 1000, 4097])
def test_one_gpu(source: str, n: int, tmp_path: Path) -> None:
    config = on_one_gpu(source, n, replicas=8, updates=20)
    assert run_in_threads(config, tmp_path) == expected_records(config)


@pytest.mark.parametrize("ring", [1, 64])
def test_ring_that_is_smaller_than_a_pass(ring: int, tmp_path: Path) -> None:
    config = on_one_gpu("random", 5000, queues=1, stream={"device_ring_mib": ring})
    assert run_in_threads(config, tmp_path) == expected_records(config)


def test_checkpoints_beside_resident_kernels(tmp_path: Path) -> None:
    config = on_one_gpu("random", 5000, updates=10, checkpoint={"every": 2})
    assert run_in_threads(config, tmp_path) == expected_records(config)


def test_a_field(tmp_path: Path) -> None:
    field = np.random.default_rng(3).integers(-(2**31), 2**31 - 1, 1000).astype(np.int32)
    config = on_one_gpu("random", 1000)
    assert run_in_threads(config, tmp_path, field) == expected_records(config, field)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("burst_frames", [1, 100, 256, 8192])
def test_cpu_to_gpu(transport: str, burst_frames: int, tmp_path: Path) -> None:
    stream = {"transport": transport, "burst_frames": burst_frames, "queues": 3, "device_ring_mib": 2}
    config = config_of("random", 3000, updates=3, stream=stream, receiver=CUDA)
    assert run_in_threads(config, tmp_path) == expected_records(config)


@pytest.mark.multi_gpu
def test_two_gpus(tmp_path: Path) -> None:
    config = config_of(
        "random",
        4097,
        stream={"transport": "peer", "queues": 4},
        generator=CUDA | {"device": 1},
        receiver=CUDA,
    )
    command = run_command(tmp_path, config)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 0, err
    assert (tmp_path / "run" / "records.jsonl").read_text() == expected_records(config)


def test_device_that_is_not_there(tmp_path: Path) -> None:
    config = config_of("random", 1000, receiver=CUDA | {"device": 1000})
    with pytest.raises(UserError, match=r"CUDA device 1000 was asked for; this machine has devices 0 to"):
        run_in_threads(config, tmp_path)


# --- processes that are interrupted -----------------------------------------------------------------


def run_command(folder: Path, config: Config) -> subprocess.Popen[str]:
    program = "from streamdsb.cli import main; main()"
    arguments = ["run", str(written_config(folder, config)), "--out", str(folder / "run")]
    command = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_records(folder: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    records = folder / "run" / "records.jsonl"
    while not records.exists() or records.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_ends_soon(process: subprocess.Popen[str], folder: Path, children: list[psutil.Process]) -> str:
    started = time.monotonic()
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - started < 8
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]
    text = (folder / "run" / "records.jsonl").read_text()
    assert text.endswith("\n")
    return err


# long enough to be interrupted: some 0.2 s a pass
LONG = {"n": 1_000_000, "replicas": 8, "updates": 1000}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_while_kernels_run(number: signal.Signals, tmp_path: Path) -> None:
    process = run_command(tmp_path, on_one_gpu("random", **LONG))
    wait_for_records(tmp_path, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    err = assert_ends_soon(process, tmp_path, children)
    assert process.returncode == 130
    assert number.name in sentence_of(err)


def test_the_gpu_process_is_killed(tmp_path: Path) -> None:
    process = run_command(tmp_path, on_one_gpu("random", **LONG))
    wait_for_records(tmp_path, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    children[0].kill()
    err = assert_ends_soon(process, tmp_path, children)
    assert process.returncode == 1
    assert "was killed by signal 9 (SIGKILL)" in sentence_of(err)


def test_generator_that_falls_silent_is_named(tmp_path: Path) -> None:
    config = config_of("random", 200_000, updates=1000, stream={"timeout_s": 2.0}, receiver=CUDA)
    process = run_command(tmp_path, config)
    wait_for_records(tmp_path, 1)
    children = psutil.Process(process.pid).children(recursive=True)
    (generator,) = [child for child in children if "generator" in child.cmdline()]
    generator.send_signal(signal.SIGSTOP)
    err = assert_ends_soon(process, tmp_path, [])
    assert process.returncode == 1
    assert "for 2 s" in sentence_of(err)


FAULT = """
import numpy as np
from receiver.accumulate_cuda import ReceiveKernel
from streamdsb.errors import RunFailed
from validation.bench_cuda import Loop

queue = type(Loop(2, 1, 1, "random", 1).ring).queue
type(Loop(2, 1, 1, "random", 1).ring).queue = lambda ring, q: (queue(ring, q)[0] + 4, *queue(ring, q)[1:])
loop = Loop(1000, 1, 1, "random", 1)
loop.receiver.start()
loop.generator.start()
loop.generator.release(1)
try:
    loop.receiver.wait_drained(1, timeout=20)
except RunFailed as error:
    print(error, flush=True)
import os
os._exit(3)
"""


def test_device_fault_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FAULT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "kernel stopped with a device fault: cudaErrorMisalignedAddress" in done.stdout
