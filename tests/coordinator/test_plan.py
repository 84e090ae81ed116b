"""What a run will cost: volumes by the formula, words for people, and nothing that is allocated."""

import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.plan import Plan, bytes_text, duration_text
from streamdsb.cli import main
from tests.harness import config_of, run_command


@pytest.mark.parametrize(
    ("n", "payload", "frames"),
    [
        (100_000, 1_612_800_000, 400_000),
        (1_000_000, 129_024_000_000, 32_000_000),
        (10_000_000, 12_539_520_000_000, 3_110_000_000),
        (100_000_000, 1_250_323_200_000_000, 310_100_000_000),
    ],
)
def test_volumes(n: int, payload: int, frames: int) -> None:
    plan = Plan.of(config_of("mattis", n, replicas=8, updates=20))
    assert (plan.payload_per_pass, plan.frames_per_pass, plan.passes) == (payload, frames, 21)
    assert plan.matrix == n * n // 8
    assert plan.receiver_memory > 8 * n * 12


def test_a_receiver_on_a_gpu_takes_gpu_memory() -> None:
    on_gpu = {
        "stream": {"transport": "peer"},
        "generator": {"backend": "cuda"},
        "receiver": {"backend": "cuda"},
    }
    plan = Plan.of(config_of("mattis", 10_000_000, replicas=8, **on_gpu))
    state = 8 * 10_000_000 * 12 + 9 * 156_250 * 8
    assert plan.gpu_memory == state + (64 << 20)
    assert "GPU memory 1.04 GB for the receiver, 67.1 MB of it for frames" in plan.lines()


def test_nothing_is_allocated_for_the_largest_run() -> None:
    tracemalloc.start()
    "".join(Plan.of(config_of("mattis", 100_000_000, replicas=1024)).lines())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_command(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("plan") / "run.yaml"
    path.write_text("problem: {source: mattis, n: 10000000}\n")
    status, out, err = run_command("plan", path)
    assert status == 0, err
    assert "12.5 TB a pass in 3,110,000,000 frames" in out
    assert "400 Gb/s" in out


def test_memory_is_what_processes_were_seen_to_take() -> None:
    plan = Plan.of(config_of("mattis", 1_000_000, replicas=8))
    assert plan.lines()[-1] == (
        "memory 266 MB for the receiver, 169 MB for the generator, 4.19 MB of it shared; before that, if they"
        " have to compile, up to 245 MB and 205 MB"
    )


@pytest.mark.parametrize("option", ["--rate", "--latency-us", "--bandwidth", "--update-rate"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "1e-310", "1e16", "fast"])
def test_rates_that_are_none(option: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("problem: {source: mattis, n: 10000000}\n")
    result = CliRunner().invoke(main, ["plan", str(path), "--receivers", "2", option, value])
    assert result.exit_code == 2
    assert option in result.output
    assert value in result.output or str(float(value)) in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("value", ["1e-9", "1e15"])
def test_the_lowest_and_the_highest_rate(value: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("problem: {source: mattis, n: 100000000}\nsolver: {updates: 2147483647}\n")
    options = [
        text for name in ("--rate", "--latency-us", "--bandwidth", "--update-rate") for text in (name, value)
    ]
    result = CliRunner().invoke(main, ["plan", str(path), "--receivers", "1,65536", *options])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_612_800_000, "1.61 GB"),
        (12.5e12, "12.5 TB"),
        (1e18, "1 EB"),
        (2.7e18, "2.7 EB"),
        (2.7e24, "2.7 YB"),
    ],
)
def test_bytes_in_words(size: float, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.23 ms"),
        (0.9994, "999 ms"),
        (0.9999, "1 s"),
        (45.6, "45.6 s"),
        (725, "12 min 5 s"),
        (12_000, "3 h 20 min"),
        (190_800, "2 d 5 h"),
        (3_599.6, "59 min 59 s"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
