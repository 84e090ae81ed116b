"""A run's directory: what is in it, and how it is written so that a crash leaves whole lines.

config.yaml        the resolved configuration
records.jsonl      energies and checksum, a line a pass
timings.jsonl      seconds, bytes and frame counts, a line a pass
summary.json       problem, volumes, rates, memory, versions, machine, outcome
best_spins.npy     int8 (n,) of ±1: the lowest energy of the whole run
checkpoints/       the last two states that an interrupted run can go on from
final_spins.npy    uint8 (B, ceil(n / 64) * 8): sign bitmaps after the last pass, as checksummed
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streamdsb.checkpoint import FOLDER, find_checkpoints, strangers_among_checkpoints
from streamdsb.errors import UserError

CONFIG = "config.yaml"
RECORDS = "records.jsonl"
TIMINGS = "timings.jsonl"
SUMMARY = "summary.json"
BEST_SPINS = "best_spins.npy"
FINAL_SPINS = "final_spins.npy"
REPORT = "report.png"
_FILES = (CONFIG, RECORDS, TIMINGS, SUMMARY, BEST_SPINS, FINAL_SPINS, REPORT)
_ALL = (*_FILES, *(f".{name}.partial" for name in _FILES))
"""Everything a run writes beside its checkpoints, also what a kill may leave half-written."""


def record_line(pass_index: int, two_energy: Sequence[int], checksum: str) -> str:
    """The record of one pass, without the newline; best_replica is the lowest index among the best."""
    best = min(two_energy)
    record = {
        "pass": pass_index,
        "best_two_energy": best,
        "best_replica": two_energy.index(best),
        "two_energy": list(two_energy),
        "checksum": checksum,
    }
    return json.dumps(record, separators=(",", ":"))


def check_free(path: Path, overwrite: bool) -> None:
    """Raise UserError if `path` cannot become a run directory; an existing run only goes if told so."""
    try:
        if path.is_dir():
            _refuse_contents(path, overwrite)
        parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except OSError as error:
        raise UserError(f"--out {path}: cannot be a run directory: {error.strerror}") from None
    if not parent.is_dir():
        raise UserError(f"--out {path}: {parent} is a file, but a run needs a directory")
    if not os.access(parent, os.W_OK):
        raise UserError(f"--out {path}: {parent} is not writable")


def _refuse_contents(path: Path, overwrite: bool) -> None:
    found = sorted(entry.name for entry in path.iterdir())
    if found and not overwrite:
        raise UserError(f"--out {path} exists and is not empty; name another directory or add --overwrite")
    strangers = [name for name in found if name not in (*_ALL, FOLDER)] + strangers_among_checkpoints(path)
    if strangers:
        raise UserError(
            f"--out {path}: --overwrite replaces a run, but {strangers[0]} in it is not part of one"
        )


class _Lines:
    """A file of lines, each written whole or not at all."""

    def __init__(self, path: Path, size: int) -> None:
        """Append to `path` after its first `size` bytes; what follows them goes."""
        self._path = path
        self.size = size
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, size)

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, "no space left on device")
        except OSError as error:
            os.ftruncate(self._file, self.size)
            raise _write_error(self._path, error) from None
        self.size += len(data)

    def close(self) -> None:
        os.close(self._file)


class RunDirectory:
    """Writes a run's directory; every method raises UserError if the disk does not take it."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        check_free(path, overwrite)
        self.path = path
        try:
            self._is_ours = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _write_error(path, error) from None
        with self._locked():
            self._empty()
            self._open_lines(0, 0)

    @classmethod
    def resume(cls, path: Path, passes: int) -> RunDirectory:
        """Go on in an existing directory after its first `passes` records; what follows them goes."""
        directory = cls.__new__(cls)
        directory.path = path
        directory._is_ours = False
        with directory._locked():
            sizes = [_size_of_lines(path / name, passes) for name in (RECORDS, TIMINGS)]
            directory._open_lines(*sizes)
        return directory

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from writing this run, until `close` unless what is done within fails."""
        self._lock = _lock(self.path)
        try:
            yield
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _write_error(self.path, error) from None
            raise

    def _open_lines(self, records_size: int, timings_size: int) -> None:
        self._records = _Lines(self.path / RECORDS, records_size)
        self._timings = _Lines(self.path / TIMINGS, timings_size)

    def _empty(self) -> None:
        for name in _ALL:
            (self.path / name).unlink(missing_ok=True)
        self.forget_checkpoints()

    def forget_checkpoints(self) -> None:
        """Remove all checkpoints: the run is complete, or a new one takes its place."""
        if not strangers_among_checkpoints(self.path):
            shutil.rmtree(self.path / FOLDER, ignore_errors=True)
        for path in find_checkpoints(self.path):
            path.unlink(missing_ok=True)

    def write_config(self, text: str) -> None:
        self._write_whole(CONFIG, text.encode())

    def append_record(self, line: str) -> None:
        self._records.append(line)

    def append_timing(self, timing: dict[str, Any]) -> None:
        self._timings.append(json.dumps(timing, separators=(",", ":")))

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_whole(SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def write_spins(self, best: np.ndarray, final: np.ndarray) -> None:
        """best: int8 (n,) of ±1; final: uint8 (B, bytes) of sign bitmaps."""
        self._save(BEST_SPINS, best)
        self._save(FINAL_SPINS, final)

    def close(self) -> None:
        """End writing; a directory without a pass or a checkpoint holds no run and does not stay."""
        self._records.close()
        self._timings.close()
        try:
            if not self._records.size and not find_checkpoints(self.path):
                self._empty()
                if self._is_ours:
                    self.path.rmdir()
        except OSError as error:
            raise _write_error(self.path, error) from None
        finally:
            os.close(self._lock)

    def _save(self, name: str, array: np.ndarray) -> None:
        partial = self.path / f".{name}.partial"
        try:
            with open(partial, "wb") as file:
                np.save(file, array)
            os.replace(partial, self.path / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise _write_error(self.path / name, error) from None

    def _write_whole(self, name: str, data: bytes) -> None:
        partial = self.path / f".{name}.partial"
        try:
            partial.write_bytes(data)
            os.replace(partial, self.path / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise _write_error(self.path / name, error) from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a .jsonl file; a last line without its newline was cut off and is left out."""
    return [_object_of(line, path, k) for k, line in enumerate(_whole_lines(path))]


def _whole_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _object_of(line: bytes, path: Path, k: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path}: line {k + 1} is {line[:60]!r}, but it should be a JSON object")
    return found


def _size_of_lines(path: Path, count: int) -> int:
    """Bytes of the first `count` lines of a run's file; raises UserError unless they are of these passes."""
    lines = _whole_lines(path)[:count]
    if len(lines) < count:
        raise UserError(f"{path}: {len(lines)} whole lines, but the checkpoint continues after {count}")
    for k, line in enumerate(lines):
        found = _object_of(line, path, k)
        if found.get("pass") != k or not all(
            fits(found.get(key)) for key, fits in _NEEDED[path.name].items()
        ):
            needed = " and ".join(_NEEDED[path.name])
            raise UserError(
                f"{path}: line {k + 1} is {line[:60]!r}, but it should be pass {k} with its {needed}"
            )
    return sum(len(line) + 1 for line in lines)


def _are_energies(value: Any) -> bool:
    return isinstance(value, list) and all(type(e) is int and abs(e) < 2**63 for e in value) and bool(value)


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


_NEEDED: dict[str, dict[str, Callable[[Any], bool]]] = {
    RECORDS: {"two_energy": _are_energies},
    TIMINGS: {"receive_s": _is_duration, "total_s": _is_duration},
}
"""What a resumed run has to know of the passes before it."""


def _lock(path: Path) -> int:
    """A descriptor that keeps other processes from writing the run in `path` while it is open."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{path}: another process is writing this run") from None
    return descriptor


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written: {error.strerror or error}")
