import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamdsb
from streamdsb.errors import UserError
from validation import oracle
from validation.validate import CHECKS, Check, lines, passed, validate

SOURCE = """
from streamdsb import columns_of, pack_couplings

class Alternating:
    n = 130

    def fill(self, rows, column_block, out):
        parity = columns_of(self.n, column_block) % 2
        out[:] = [pack_couplings(parity[None] == row % 2)[0] for row in range(rows.start, rows.stop)]

class Failing(Alternating):
    calls = 0

    def fill(self, rows, column_block, out):
        self.calls += 1
        if self.calls > 60:
            raise RuntimeError("no more")
        super().fill(rows, column_block, out)
"""


def do_run(out: Path, updates: int = 20, **problem) -> Path:
    solver = {"replicas": 3, "updates": updates, "seed": 7}
    streamdsb.run({"problem": problem, "solver": solver, "stream": {"queues": 1, "burst_frames": 64}}, out)
    return out


@pytest.fixture(scope="module")
def mattis(tmp_path_factory) -> Path:
    return do_run(tmp_path_factory.mktemp("mattis") / "run", source="mattis", n=100, seed=11)


@pytest.fixture(scope="module")
def with_field(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("field")
    np.save(folder / "h.npy", np.random.default_rng(2).integers(-9, 10, 130))
    return do_run(folder / "run", source="random", n=130, seed=3, field=str(folder / "h.npy"))


def verdicts(directory: Path) -> dict[str, bool | None]:
    return {check.name: check.passed for check in validate(directory)}


def failing(directory: Path) -> set[str]:
    return {name for name, verdict in verdicts(directory).items() if verdict is False}


def text_of(name: str, directory: Path) -> str:
    return next(check.text for check in validate(directory) if check.name == name)


# --- runs as they should be -----------------------------------------------------------------------


def test_a_planted_run_passes_every_check(mattis):
    checks = validate(mattis)
    assert [check.name for check in checks] == list(CHECKS)
    assert all(check.passed is True for check in checks)
    assert passed(checks)
    assert lines(checks)[0] == "ok    files     configuration, records, timings and spins are whole"
    assert text_of("planted", mattis).startswith("ground state reached: 2E = -9,900 = -n (n - 1)")
    assert text_of("padding", mattis) == "the 28 bits beyond row 99 are 0 in every replica"


def test_a_random_run_with_a_field_has_nothing_planted(with_field):
    checks = validate(with_field)
    assert passed(checks)
    assert [check.name for check in checks if check.passed is None] == ["planted"]


def test_the_best_spins_may_be_minus_eta(tmp_path):
    """Both signs occur among a few runs, and both are the ground state."""
    said = set()
    for seed in range(1, 12):
        run = tmp_path / str(seed)
        streamdsb.run(
            {"problem": {"source": "mattis", "n": 64, "seed": seed}, "solver": {"replicas": 1}}, run
        )
        assert verdicts(run)["planted"] is True
        said.add(text_of("planted", run).split()[-1])
        if len(said) == 2:
            break
    assert said == {"eta", "-eta"}


def save_matrix(folder: Path, form: str, couplings: np.ndarray) -> dict[str, str]:
    plus = couplings > 0
    path = folder / "couplings.npy"
    if form == "shards":
        path = folder / "shards"
        path.mkdir()
        np.save(path / "0.npy", couplings[:64])
        np.save(path / "1.npy", plus[64:100])
        np.save(path / "2.npy", np.packbits(plus[100:], axis=1))
    elif form == "int8":
        np.save(path, couplings)
    elif form == "bool":
        np.save(path, plus)
    else:
        np.save(path, np.packbits(plus, axis=1, bitorder=form))
    return {"path": str(path), "bit_order": "little" if form == "little" else "big"}


@pytest.mark.parametrize("form", ["int8", "bool", "big", "little", "shards"])
def test_couplings_from_a_file(tmp_path, form):
    couplings = oracle.random_couplings(131, 4)
    run = do_run(tmp_path / "run", source="file", **save_matrix(tmp_path, form, couplings))
    result = verdicts(run)
    assert result.pop("planted") is None
    assert set(result.values()) == {True}
    save_matrix_over(tmp_path, form, oracle.random_couplings(131, 5))
    assert failing(run) == {"energies", "replay"}
    save_matrix_over(tmp_path, form, oracle.random_couplings(129, 4))
    result = verdicts(run)
    assert result["energies"] is None
    assert "has changed since the run" in text_of("energies", run)


def save_matrix_over(folder: Path, form: str, couplings: np.ndarray) -> None:
    shutil.rmtree(folder / "shards", ignore_errors=True)
    save_matrix(folder, form, couplings)


def test_couplings_from_a_class(tmp_path):
    (tmp_path / "source.py").write_text(SOURCE)
    run = do_run(tmp_path / "run", source="python", path=f"{tmp_path}/source.py:Alternating")
    assert failing(run) == set()
    assert "asked through the run's own code" in text_of("energies", run)
    (tmp_path / "source.py").unlink()
    assert verdicts(run)["energies"] is None
    assert "source.py" in text_of("energies", run)


def test_large_mattis_energies_come_from_the_overlap(tmp_path):
    run = do_run(tmp_path / "run", updates=4, source="mattis", n=20_001)
    assert "from the overlap with eta" in text_of("energies", run)
    assert verdicts(run)["energies"] is True
    assert verdicts(run)["replay"] is None
    flip_best_spin(run)
    assert failing(run) == {"planted", "energies"}


def test_large_mattis_energies_with_a_field(tmp_path):
    np.save(tmp_path / "h.npy", np.random.default_rng(2).integers(-9, 10, 20_001))
    run = do_run(tmp_path / "run", updates=1, source="mattis", n=20_001, field=str(tmp_path / "h.npy"))
    assert verdicts(run)["energies"] is True
    np.save(tmp_path / "h.npy", np.random.default_rng(3).integers(-9, 10, 20_001))
    assert failing(run) == {"energies"}


def test_large_random_energies_are_not_recomputed(tmp_path):
    run = do_run(tmp_path / "run", updates=1, source="random", n=20_001)
    assert failing(run) == set()
    assert verdicts(run)["energies"] is None
    assert "n is 20,001" in text_of("energies", run)


# --- runs that were tampered with -----------------------------------------------------------------


def edit_line(name: str, index: int, **fields) -> Callable[[Path], None]:
    """Replace fields of a line; a function is applied to what is there."""

    def edit(run: Path) -> None:
        texts = (run / name).read_text().splitlines()
        line = json.loads(texts[index])
        for key, value in fields.items():
            line[key] = value(line[key]) if callable(value) else value
        texts[index] = json.dumps(line, separators=(",", ":"))
        (run / name).write_text("".join(text + "\n" for text in texts))

    return edit


def edit_summary(section: str | None = None, **fields) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        summary = json.loads((run / "summary.json").read_text())
        (summary if section is None else summary[section]).update(fields)
        (run / "summary.json").write_text(json.dumps(summary))

    return edit


def edit_text(name: str, edit: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(edit((run / name).read_text())) and None


def drop_line(name: str, index: int) -> Callable[[Path], None]:
    def drop(text: str) -> str:
        texts = text.splitlines(keepends=True)
        del texts[index]
        return "".join(texts)

    return edit_text(name, drop)


def turn_keys_round(run: Path) -> None:
    texts = (run / "records.jsonl").read_text().splitlines()
    texts[9] = json.dumps(dict(reversed(json.loads(texts[9]).items())), separators=(",", ":"))
    (run / "records.jsonl").write_text("".join(text + "\n" for text in texts))


def flip_final_bit(bit: int) -> Callable[[Path], None]:
    def flip(run: Path) -> None:
        bitmaps = np.load(run / "final_spins.npy")
        bitmaps[1, bit // 8] ^= 1 << bit % 8
        np.save(run / "final_spins.npy", bitmaps)

    return flip


def flip_best_spin(run: Path) -> None:
    spins = np.load(run / "best_spins.npy")
    spins[50] = -spins[50]
    np.save(run / "best_spins.npy", spins)


def add_four_to_replica_2(energies: list[int]) -> list[int]:
    return [*energies[:2], energies[2] + 4]


TAMPERINGS = {
    "an energy in the middle": (edit_line("records.jsonl", 9, two_energy=add_four_to_replica_2), {"replay"}),
    "an energy in the end": (
        edit_line("records.jsonl", -1, two_energy=add_four_to_replica_2),
        {"summary", "energies", "replay"},
    ),
    "best energy": (edit_line("records.jsonl", 9, best_two_energy=-9896), {"records", "replay"}),
    "best replica": (edit_line("records.jsonl", 9, best_replica=1), {"records", "replay"}),
    "a replica less": (edit_line("records.jsonl", 9, two_energy=lambda e: e[:2]), {"records", "replay"}),
    "checksum in the middle": (edit_line("records.jsonl", 9, checksum="0" * 16), {"replay"}),
    "checksum in the end": (edit_line("records.jsonl", -1, checksum="0" * 16), {"checksum", "replay"}),
    "a pass number": (edit_line("records.jsonl", 9, **{"pass": 25}), {"passes"}),
    "spaces in a record": (
        edit_text("records.jsonl", lambda text: text.replace(":8,", ": 8,")),
        {"records", "replay"},
    ),
    "keys in another order": (turn_keys_round, {"records", "replay"}),
    "a record dropped": (drop_line("records.jsonl", 9), {"passes"}),
    "a record twice": (edit_text("records.jsonl", lambda t: t + t.splitlines(True)[-1]), {"passes"}),
    "a record cut off": (edit_text("records.jsonl", lambda text: text[:-9]), {"files"}),
    "a record that is none": (edit_text("records.jsonl", lambda t: t.replace("pass", "pas", 1)), {"files"}),
    "no records": (edit_text("records.jsonl", lambda text: ""), {"files"}),
    "a timing dropped": (drop_line("timings.jsonl", 9), {"passes", "volumes"}),
    "frames": (edit_line("timings.jsonl", 9, frames=99), {"frames"}),
    "dropped frames": (edit_line("timings.jsonl", 9, dropped=1), {"frames"}),
    "rejected frames": (edit_line("timings.jsonl", 9, rejected=1), {"frames"}),
    "late frames of a queue that brings all in order": (
        edit_line("timings.jsonl", 9, rejected=2, late=2),
        {"frames"},
    ),
    "duplicated frames": (edit_line("timings.jsonl", 9, duplicated=1), set()),
    "payload": (edit_line("timings.jsonl", 9, payload_bytes=403_201 * 4), {"volumes", "rates"}),
    "endless payload": (edit_line("timings.jsonl", 9, payload_bytes=10**400), {"files"}),
    "seconds": (edit_line("timings.jsonl", 9, receive_s=lambda s: 1.1 * s), {"rates"}),
    "rate": (edit_line("timings.jsonl", 9, gbps=lambda rate: 1.1 * rate), {"rates"}),
    "summary's volume": (edit_summary("volumes", payload_total=1), {"volumes"}),
    "summary's frames": (edit_summary("volumes", frames_per_pass=1), {"volumes"}),
    "summary's energy": (edit_summary("energy", best_two_energy=-9904), {"summary"}),
    "summary's pass": (edit_summary("energy", best_pass=0), {"summary"}),
    "summary's seed": (edit_summary("solver", seed=8), {"summary"}),
    "status": (edit_summary(status="failed", cause="the disk was full"), {"outcome"}),
    "no summary": (lambda run: (run / "summary.json").unlink(), {"outcome"}),
    "a summary cut off": (edit_text("summary.json", lambda text: text[:99]), {"files"}),
    "solver seed": (
        edit_text("config.yaml", lambda text: text.replace("seed: 7", "seed: 8")),
        {"summary", "replay"},
    ),
    "problem seed": (
        edit_text("config.yaml", lambda text: text.replace("seed: 11", "seed: 12")),
        {"summary", "planted", "energies", "replay"},
    ),
    "no configuration": (lambda run: (run / "config.yaml").unlink(), {"files"}),
    "a final bit": (flip_final_bit(42), {"checksum", "energies"}),
    "a padding bit": (flip_final_bit(100), {"checksum", "padding"}),
    "the last padding bit": (flip_final_bit(127), {"checksum", "padding"}),
    "a best spin": (flip_best_spin, {"planted", "energies"}),
    "no best spins": (lambda run: (run / "best_spins.npy").unlink(), {"files"}),
    "no final spins": (lambda run: (run / "final_spins.npy").unlink(), {"files"}),
    "final spins cut off": (lambda run: (run / "final_spins.npy").write_bytes(b"\x93NUMPY"), {"files"}),
    "zeros for best spins": (
        lambda run: np.save(run / "best_spins.npy", np.zeros(100, np.int8)),
        {"files"},
    ),
    "too many best spins": (
        lambda run: np.save(run / "best_spins.npy", np.ones(101, np.int8)),
        {"files"},
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_found_by_the_right_check(mattis, tmp_path, what):
    tamper, due = TAMPERINGS[what]
    copy = shutil.copytree(mattis, tmp_path / "copy")
    tamper(copy)
    checks = validate(copy)
    assert {check.name for check in checks if check.passed is False} == due, "\n".join(lines(checks))
    assert passed(checks) is (not due)


def test_a_wrong_field_changes_the_energies(with_field, tmp_path):
    copy = shutil.copytree(with_field, tmp_path / "copy")
    field = with_field.parent / "h.npy"
    np.save(tmp_path / "h.npy", -np.load(field))
    edit_text("config.yaml", lambda text: text.replace(str(field), str(tmp_path / "h.npy")))(copy)
    assert failing(copy) == {"summary", "energies", "replay"}


def test_words_of_a_failure(mattis, tmp_path):
    copy = shutil.copytree(mattis, tmp_path / "copy")
    drop_line("records.jsonl", 9)(copy)
    edit_line("timings.jsonl", 3, dropped=2)(copy)
    flip_final_bit(100)(copy)
    said = lines(validate(copy))
    assert "FAIL  passes    line 10 of records.jsonl is pass 10, not pass 9" in said
    assert "FAIL  frames    pass 3: 2 frames were dropped" in said
    assert "FAIL  padding   final_spins.npy: bit 100 of replica 1 is set, but n is 100" in said


# --- runs that did not finish ---------------------------------------------------------------------


def test_a_run_that_failed(tmp_path):
    (tmp_path / "source.py").write_text(SOURCE)
    with pytest.raises(UserError, match="no more"):
        do_run(tmp_path / "run", updates=500, source="python", path=f"{tmp_path}/source.py:Failing")
    assert failing(tmp_path / "run") == {"outcome", "passes"}
    assert "the run failed: " in text_of("outcome", tmp_path / "run")
    assert "no more" in text_of("outcome", tmp_path / "run")
    result = verdicts(tmp_path / "run")
    assert result["checksum"] is None
    assert result["energies"] is None
    assert result["replay"] is True


def test_a_run_that_was_killed(mattis, tmp_path):
    """What such a run leaves: whole passes, one of them without its timing, and nothing from its end."""
    copy = shutil.copytree(mattis, tmp_path / "copy")
    for name in ("summary.json", "best_spins.npy", "final_spins.npy"):
        (copy / name).unlink()
    for _ in range(3):
        drop_line("records.jsonl", -1)(copy)
    edit_text("timings.jsonl", lambda text: "".join(text.splitlines(True)[:17]))(copy)
    assert failing(copy) == {"outcome", "passes"}
    assert text_of("passes", copy) == "records.jsonl has 18 of 21 passes"
    assert "killed" in text_of("outcome", copy)


def test_what_is_no_run_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        validate(tmp_path)
    with pytest.raises(UserError, match="is not a run directory"):
        validate(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run directory"):
        validate(tmp_path / ("a" * 300))


def test_a_check_that_does_not_apply_is_no_failure():
    assert passed([Check("a", True, ""), Check("b", None, "not checked: why")])
    assert not passed([Check("a", True, ""), Check("b", False, "")])
    assert str(Check("b", None, "not checked: why")) == "-     b         not checked: why"


def test_frames_that_a_lossy_link_spoiled_or_delayed(tmp_path: Path) -> None:
    """What came again and was added once is no fault of the run; what was refused for another reason is."""
    config = {"problem": {"source": "random", "n": 300}, "stream": {"transport": "udp"}}
    streamdsb.run(config, tmp_path / "run")
    edit_line("timings.jsonl", 3, rejected=6, late=3, corrupt=2, overrun=1)(tmp_path / "run")
    checks = validate(tmp_path / "run")
    assert passed(checks), "\n".join(lines(checks))
    assert "6 were corrupt, late or overrun and came again" in "\n".join(lines(checks))
    edit_line("timings.jsonl", 3, rejected=7)(tmp_path / "run")
    assert "1 frames were rejected" in "\n".join(lines(validate(tmp_path / "run")))
