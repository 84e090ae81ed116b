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
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamdsb.checkpoint import FOLDER
from streamdsb.errors import UserError

CONFIG = "config.yaml"
RECORDS = "records.jsonl"
TIMINGS = "timings.jsonl"
SUMMARY = "summary.json"
BEST_SPINS = "best_spins.npy"
FINAL_SPINS = "final_spins.npy"
REPORT = "report.png"
_ALL = (CONFIG, RECORDS, TIMINGS, SUMMARY, BEST_SPINS, FINAL_SPINS, REPORT)


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
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path} is a file, but a run needs a directory")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise UserError(
                f"--out {path} exists and is not empty; name another directory or add --overwrite"
            )
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in (*_ALL, FOLDER))
        if strangers:
            raise UserError(
                f"--out {path}: --overwrite replaces a run, but {strangers[0]} in it is not part of one"
            )
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        raise UserError(f"--out {path}: {parent} is not writable")


class _Lines:
    """A file of lines, each written whole or not at all."""

    def __init__(self, path: Path, keep: int) -> None:
        """Append to `path` after its first `keep` lines; what follows them goes."""
        self._path = path
        lines = path.read_bytes().splitlines(keepends=True)[:keep] if keep else []
        if len(lines) < keep or (lines and not lines[-1].endswith(b"\n")):
            raise UserError(f"{path}: {len(lines)} whole lines, but the checkpoint continues after {keep}")
        self._size = sum(len(line) for line in lines)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, self._size)

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, "no space left on device")
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise _write_error(self._path, error) from None
        self._size += len(data)

    def close(self) -> None:
        os.close(self._file)


class RunDirectory:
    """Writes a run's directory; every method raises UserError if the disk does not take it."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        check_free(path, overwrite)
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            for name in _ALL:
                (path / name).unlink(missing_ok=True)
            self.forget_checkpoints()
            self._open_lines(keep=0)
        except OSError as error:
            raise _write_error(path, error) from None

    @classmethod
    def resume(cls, path: Path, passes: int) -> RunDirectory:
        """Go on in an existing directory after its first `passes` records."""
        directory = cls.__new__(cls)
        directory.path = path
        try:
            directory._lock = _lock(path)
            directory._open_lines(passes)
        except OSError as error:
            raise _write_error(path, error) from None
        return directory

    def _open_lines(self, keep: int) -> None:
        self._records = _Lines(self.path / RECORDS, keep)
        self._timings = _Lines(self.path / TIMINGS, keep)

    def forget_checkpoints(self) -> None:
        """Remove all checkpoints: the run is complete, or a new one takes its place."""
        shutil.rmtree(self.path / FOLDER, ignore_errors=True)

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
        self._records.close()
        self._timings.close()
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
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    lines = text.split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path}: a line is not JSON: {error}") from None


def _lock(path: Path) -> int:
    """A descriptor that keeps other processes from writing the run in `path` while it is open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{path}: another process is writing this run") from None
    return descriptor


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written: {error.strerror or error}")
