"""Is a run what it says it is?  Accounting, planted ground states, checksums, energies, the whole course.

Sizes are worked out here from their formulas; couplings, spins, energies and records come from
validation.oracle, so that next to nothing is taken on trust from the code that made the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from streamdsb.config import Config
from streamdsb.errors import UserError
from streamdsb.run_directory import BEST_SPINS, CONFIG, FINAL_SPINS, RECORDS, SUMMARY, TIMINGS
from validation import oracle
from validation.compare import parse_record
from validation.recompute import EXPLICIT_N, can_recompute, couplings_of, energies_of, field_of
from validation.run_files import Energy, RunFiles, Volumes

REPLAY_PRODUCTS = 200_000_000_000
"""Most products J_ij s_j, n * n * B * (K + 1), for which the oracle solves the whole problem again."""

_BLOCK_COLUMNS = 32_256
_PAYLOAD_BYTES = 4_032


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; passed is None where it does not apply or could not be looked at."""

    name: str
    passed: bool | None
    text: str

    def __str__(self) -> str:
        verdict = {True: "ok", False: "FAIL", None: "-"}[self.passed]
        return f"{verdict:<4}  {self.name:<8}  {self.text}"


def validate(directory: Path) -> list[Check]:
    """All checks of a run directory, in the order of CHECKS, each with its result in words.

    Raises UserError if `directory` does not hold a run; whatever else is wrong is a check that fails.
    """
    if not any(os.path.exists(directory / name) for name in (CONFIG, RECORDS)):
        raise UserError(f"{directory} is not a run directory: it holds neither {CONFIG} nor {RECORDS}")
    run = RunFiles(directory)
    return [_apply(name, look, run) for name, look in CHECKS.items()]


def lines(checks: Iterable[Check]) -> list[str]:
    """A line for each check."""
    return [str(check) for check in checks]


def passed(checks: Iterable[Check]) -> bool:
    """True if no check failed; one that does not apply is no failure."""
    return all(check.passed is not False for check in checks)


class _Mismatch(Exception):
    """A check has failed; the text says where."""


class _NotApplicable(Exception):
    """A check has nothing to say; the text says why."""


def _apply(name: str, look: Callable[[RunFiles], str], run: RunFiles) -> Check:
    try:
        return Check(name, True, look(run))
    except _Mismatch as mismatch:
        return Check(name, False, str(mismatch))
    except (_NotApplicable, UserError) as reason:
        return Check(name, None, f"not checked: {reason}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise _Mismatch(otherwise)


# --- accounting -----------------------------------------------------------------------------------


def _check_files(run: RunFiles) -> str:
    """What a run of its status leaves can be read."""
    due = ["config", "records", "timings", "summary"]
    try:
        for name in due:
            getattr(run, name)
        if run.completed:
            for name in ("best_spins", "final_bitmaps"):
                getattr(run, name)
    except UserError as error:
        raise _Mismatch(str(error)) from None
    spins = " and spins" if run.completed else ""
    return f"configuration, records, timings{spins} are whole"


def _check_outcome(run: RunFiles) -> str:
    """The run came to its end."""
    if run.summary is None:
        raise _Mismatch(f"there is no {SUMMARY}: the run was killed, or is still going on")
    _require(run.completed, f"the run failed: {run.summary.cause}")
    return "the run completed"


def _check_passes(run: RunFiles) -> str:
    """K + 1 records and timings, of passes 0 to K."""
    due = run.config.solver.updates + 1
    recorded = [record.pass_index for record in run.records]
    timed = [timing.pass_index for timing in run.timings]
    for name, found in ((RECORDS, recorded), (TIMINGS, timed)):
        for index, k in enumerate(found):
            _require(k == index, f"line {index + 1} of {name} is pass {k}, not pass {index}")
        _require(len(found) == due, f"{name} has {len(found):,} of {due:,} passes")
    return f"{due:,} consecutive passes for {due - 1:,} updates, in records and timings"


def _check_records(run: RunFiles) -> str:
    """Each record is consistent in itself and written in the one way a record is."""
    replicas = run.config.solver.replicas
    for record, line in zip(run.records, run.record_lines, strict=True):
        where, energies, best = f"pass {record.pass_index}", record.two_energy, min(record.two_energy)
        _require(len(energies) == replicas, f"{where}: {len(energies)} energies of {replicas} replicas")
        _require(
            record.best_two_energy == best,
            f"{where}: best_two_energy is {record.best_two_energy:,}, but the lowest 2E is {best:,}",
        )
        first = energies.index(best)
        _require(
            record.best_replica == first,
            f"{where}: best_replica is {record.best_replica}, but the first with 2E = {best:,} is {first}",
        )
        text = json.dumps(record.model_dump(by_alias=True), separators=(",", ":"))
        _require(line == text.encode(), f"{where}: the line is not {text[:60]}...")
    return f"best energy and replica agree with the energies of {replicas:,} replicas in every record"


_LOSSY = ("udp", "ethernet", "gpunetio")
"""Transports whose frames may spoil or come too late, and then come again."""


def _frames_per_pass(config: Config) -> int:
    return config.n * -(-config.n // _BLOCK_COLUMNS)


def _check_frames(run: RunFiles) -> str:
    """n ceil(n / 32256) frames a pass, nothing lost or refused."""
    due = _frames_per_pass(run.config)
    for timing in run.timings:
        where = f"pass {timing.pass_index}"
        _require(timing.frames == due, f"{where}: {timing.frames:,} frames, but the matrix has {due:,}")
        _require(timing.dropped == 0, f"{where}: {timing.dropped:,} frames were dropped")
        mended = timing.corrupt + timing.late + timing.overrun if run.config.stream.transport in _LOSSY else 0
        _require(timing.rejected == mended, f"{where}: {timing.rejected - mended:,} frames were rejected")
    counted = {
        "came twice and were added once": sum(timing.duplicated for timing in run.timings),
        "were corrupt, late or overrun and came again": sum(timing.rejected for timing in run.timings),
    }
    also = "".join(f"; {count:,} {what}" for what, count in counted.items() if count)
    return f"{due:,} in every pass, none dropped or wrongly rejected{also}"


def _check_volumes(run: RunFiles) -> str:
    """4032 bytes of payload a frame, in the timings and in the summary."""
    frames, passes = _frames_per_pass(run.config), len(run.timings)
    due = frames * _PAYLOAD_BYTES
    for timing in run.timings:
        _require(
            timing.payload_bytes == due,
            f"pass {timing.pass_index}: payload_bytes is {timing.payload_bytes:,}, but {due:,} is right",
        )
    right = Volumes(passes=passes, payload_per_pass=due, payload_total=due * passes, frames_per_pass=frames)
    if run.summary is not None:
        _require_equal("volumes", run.summary.volumes, right)
    return f"{due:,} bytes of payload a pass, {due * passes:,} in all"


def _check_rates(run: RunFiles) -> str:
    """gbps is the payload over receive_s, but for the rounding of both."""
    for timing in run.timings:
        gigabits = timing.payload_bytes * 8e-9
        rounding = 0.00051 * timing.receive_s + 0.51e-6 * timing.gbps + 1e-9
        _require(
            abs(timing.gbps * timing.receive_s - gigabits) <= rounding,
            f"pass {timing.pass_index}: {gigabits:.6g} Gb in {timing.receive_s} s is not {timing.gbps} Gb/s",
        )
    return "payload, seconds and Gb/s agree in every pass"


def _check_summary(run: RunFiles) -> str:
    """The summary repeats the configuration and the records."""
    if run.summary is None:
        raise _NotApplicable(f"there is no {SUMMARY}")
    for section in ("problem", "solver"):
        said = getattr(run.summary, section)
        for key, value in getattr(run.config, section).model_dump().items():
            # the summary gives the xi that was used, also where the configuration leaves it open
            _require(
                (key == "xi" and value is None) or _same(said.get(key), value),
                f"{section}.{key} is {said.get(key)!r} in {SUMMARY}, but {value!r} in {CONFIG}",
            )
    lowest = run.lowest_two_energy
    right = Energy(
        best_two_energy=lowest,
        best_pass=next(r.pass_index for r in run.records if r.best_two_energy == lowest),
        final_two_energy=run.records[-1].two_energy,
    )
    _require_equal("energy", run.summary.energy, right)
    return f"agrees with configuration and records: lowest 2E = {lowest:,}"


def _same(said: Any, configured: Any) -> bool:
    if isinstance(configured, float) and isinstance(said, float):
        return np.float32(said) == np.float32(configured)
    return bool(said == configured)


def _require_equal(section: str, said: Volumes | Energy | None, right: Volumes | Energy) -> None:
    for key, value in right:
        found = getattr(said, key, None)
        _require(found == value, f"{SUMMARY}: {section}.{key} is {found}, but {value} is right")


# --- spins and energies ---------------------------------------------------------------------------


def _check_planted(run: RunFiles) -> str:
    """The ground states of Mattis couplings without a field: 2E = -n (n - 1) at s = ±eta."""
    problem, n = run.config.problem, run.config.n
    if problem.source != "mattis" or problem.field is not None:
        raise _NotApplicable("only Mattis couplings without a field have a known ground state")
    ground, lowest = -n * (n - 1), run.lowest_two_energy
    _require(lowest == ground, f"the lowest 2E is {lowest:,}, but the planted ground state has {ground:,}")
    agreeing = int(np.count_nonzero(run.best_spins == oracle.mattis_spins(n, problem.seed)))
    _require(agreeing in (0, n), f"{BEST_SPINS} agrees with eta in {agreeing:,} of {n:,} spins: neither ±eta")
    sign = "eta" if agreeing else "-eta"
    return f"ground state reached: 2E = {ground:,} = -n (n - 1), and the best spins are {sign}"


def _check_checksum(run: RunFiles) -> str:
    """XXH64 of the final sign bitmaps is the checksum of the last record."""
    found = xxhash.xxh64(np.ascontiguousarray(run.final_bitmaps).data, seed=0).hexdigest()
    recorded = run.records[-1].checksum
    _require(found == recorded, f"{FINAL_SPINS} hashes to {found}, but the last record says {recorded}")
    return f"{FINAL_SPINS} hashes to {found}, as the last record says"


def _check_padding(run: RunFiles) -> str:
    """Bits of rows >= n are 0."""
    n = run.config.n
    padding = np.unpackbits(run.final_bitmaps[:, n // 8 :], axis=1, bitorder="little")[:, n % 8 :]
    bad = np.argwhere(padding)
    if len(bad):
        replica, bit = (int(index) for index in bad[0])
        raise _Mismatch(f"{FINAL_SPINS}: bit {n + bit} of replica {replica} is set, but n is {n:,}")
    return f"the {padding.shape[1]} bits beyond row {n - 1:,} are 0 in every replica"


def _check_energies(run: RunFiles) -> str:
    """2E of the best and of all final spins, recomputed exactly, are those of the records."""
    if not can_recompute(run.config):
        raise _NotApplicable(
            f"n is {run.config.n:,}, and a matrix that is not Mattis is written out up to {EXPLICIT_N:,}"
        )
    final = run.records[-1].two_energy
    names = [BEST_SPINS, *(f"replica {replica} of {FINAL_SPINS}" for replica in range(len(final)))]
    recorded = [run.lowest_two_energy, *final]
    found, how = energies_of(run.config, [run.best_spins, *run.final_spins()])
    for name, energy, right in zip(names, recorded, found, strict=False):
        _require(energy == right, f"{name} has 2E = {right:,}, but the records say {energy:,}")
    return f"2E of the best and of {len(found) - 1:,} final states recomputed exactly, {how}"


def _check_replay(run: RunFiles) -> str:
    """The oracle solves the problem again and gets every record, byte for byte."""
    solver, n = run.config.solver, run.config.n
    products = n * n * solver.replicas * (solver.updates + 1)
    if n > EXPLICIT_N or products > REPLAY_PRODUCTS:
        raise _NotApplicable(
            f"n * n * B * (K + 1) is {products:.1e}, and the oracle solves again up to {REPLAY_PRODUCTS:.0e}"
        )
    couplings, _ = couplings_of(run.config)
    passes = oracle.passes(
        couplings,
        replicas=solver.replicas,
        updates=solver.updates,
        seed=solver.seed,
        dt=solver.dt,
        xi=solver.xi,
        field=field_of(run.config.problem),
    )
    line_of = {record.pass_index: line for record, line in zip(run.records, run.record_lines, strict=True)}
    equal = 0
    for k, computed in enumerate(passes):
        if k in line_of:
            right = computed.record.encode()
            _require(line_of[k] == right, _how_they_differ(line_of[k], right))
            equal += 1
    return f"the oracle solved it again: {equal:,} records equal byte for byte"


def _how_they_differ(line: bytes, right: bytes) -> str:
    ours, theirs = parse_record(line), parse_record(right)
    if ours is None or theirs is None:
        return f"the line is {line[:60]!r}..., but the oracle's is {right[:60]!r}..."
    where = f"pass {theirs.pass_number}"
    for replica, (a, b) in enumerate(zip(ours.two_energy, theirs.two_energy, strict=False)):
        if a != b:
            return f"{where}: replica {replica} has 2E = {a:,}, but the oracle {b:,}"
    if ours.checksum != theirs.checksum:
        return f"{where}: the checksum is {ours.checksum}, but the oracle's {theirs.checksum}"
    return f"{where}: the line is {line[:60]!r}..., but the oracle's is {right[:60]!r}..."


CHECKS: dict[str, Callable[[RunFiles], str]] = {
    "files": _check_files,
    "outcome": _check_outcome,
    "passes": _check_passes,
    "records": _check_records,
    "frames": _check_frames,
    "volumes": _check_volumes,
    "rates": _check_rates,
    "summary": _check_summary,
    "planted": _check_planted,
    "checksum": _check_checksum,
    "padding": _check_padding,
    "energies": _check_energies,
    "replay": _check_replay,
}
"""Each check by name; it says what it found, or raises _Mismatch, _NotApplicable or UserError."""
