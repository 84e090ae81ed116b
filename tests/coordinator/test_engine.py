"""What the coordinator does about faults at moments that cannot be hit from outside."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coordinator.engine
import generator.symmetry
from coordinator import peers as peers_module
from receiver.engine_cpu import CpuReceiver
from streamdsb import worker
from streamdsb.errors import Interrupted, RunFailed, UserError
from streamdsb.run_directory import RECORDS
from tests.harness import config_of, expected_records, prepared, run_in_threads

HANG_S = 60.0
CONFIG = config_of(n=300, updates=6)


def during_update(monkeypatch: pytest.MonkeyPatch, pass_index: int, fault: Callable[[], object]) -> None:
    """Let `fault` happen in the middle of the update of a pass."""
    advance = CpuReceiver.advance

    def with_fault(self: CpuReceiver, k: int) -> None:
        if k == pass_index:
            fault()
        advance(self, k)

    monkeypatch.setattr(CpuReceiver, "advance", with_fault)


def test_a_generator_that_dies_during_an_update_does_not_cost_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the state after the update would be saved as the one before it."""
    with prepared(CONFIG, tmp_path / "run") as (engine, peers, directory):

        def kill() -> None:
            peers.of_role("generator")[0].channel.shutdown()
            assert peers.trouble.wait(HANG_S)

        during_update(monkeypatch, 2, kill)
        with pytest.raises(RunFailed, match=r"the generator .* has closed its connection"):
            engine.run_passes(directory)
        assert engine.next_pass == 3
        engine.save_before_leaving(directory)
    records = (tmp_path / "run" / RECORDS).read_text()
    assert records == "".join(expected_records(CONFIG).splitlines(keepends=True)[:3])


@pytest.mark.parametrize("signals", [1, 2])
def test_no_state_is_saved_that_may_be_of_either_side_of_an_update(
    signals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that does not come to an end with its update does not hold up an interrupt."""
    if signals == 1:
        monkeypatch.setattr(peers_module, "_PATIENCE_S", 0.2)
    goes_on = threading.Event()
    with prepared(CONFIG, tmp_path / "run") as (engine, peers, directory):

        def interrupt() -> None:
            for _ in range(signals):
                peers.interrupt(2)
            assert goes_on.wait(HANG_S)

        during_update(monkeypatch, 2, interrupt)
        with pytest.raises(Interrupted, match="stopped by SIGINT"):
            engine.run_passes(directory)
        with pytest.raises(RunFailed, match="the receiver has not finished pass 2"):
            engine.save_before_leaving(directory)
        goes_on.set()
    assert (tmp_path / "run" / RECORDS).read_text().count("\n") == 2


def test_the_search_for_what_is_not_symmetric_may_take_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.engine, "_MARGIN_S", 0.0)
    monkeypatch.setattr("generator.engine._BUSY_S", 0.1)
    first_asymmetry = generator.symmetry.first_asymmetry

    def slowly(source: Any) -> tuple[int, int, int]:
        time.sleep(2)
        return first_asymmetry(source)

    monkeypatch.setattr(generator.symmetry, "first_asymmetry", slowly)
    couplings = np.ones((300, 300), np.int8)
    couplings[200, 7] = -1
    np.save(tmp_path / "J.npy", couplings)
    problem = {"path": str(tmp_path / "J.npy")}
    config = config_of("file", 300, problem=problem, stream={"timeout_s": 0.5})
    with pytest.raises(UserError, match=r"J\[7, 200\] is \+1"):
        run_in_threads(config, tmp_path / "run")


def test_couplings_that_take_too_long_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_threads(config_of(n=100), tmp_path / "compiled")
    monkeypatch.setattr(coordinator.engine, "_START_TIMEOUT_S", 2.0)
    monkeypatch.setattr(worker, "_LAST_RESORT_S", HANG_S)
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Slow:\n"
        "    n = 100\n"
        "    def fill(self, rows, column_block, out):\n"
        "        time.sleep(3)\n"
    )
    path = f"{tmp_path}/slow.py:Slow"
    words = f"the generator to compile .* problem.source python, problem.path {path}"
    with pytest.raises(RunFailed, match=words):
        run_in_threads(config_of("python", 100, problem={"path": path}), tmp_path / "run")
