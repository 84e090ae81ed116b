"""The state of one receiver between two passes, on disk: written beside, renamed, verified on load.

A file is a line of JSON (the Header), then positions and momenta, float32 (B, rows), then the best signs,
uint64 (ceil(n / 64),), all little-endian, then XXH64 of everything before it.  Of several receivers each
writes its own rows; together the files of a pass are one state, which any other receivers can take over.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from streamdsb.errors import UserError
from streamdsb.layout import Layout, RowRange

FOLDER = "checkpoints"
_SUFFIX, _PARTIAL = ".checkpoint", ".partial"
_KEPT = 2
_CHUNK_BYTES = 8 << 20
_DIGEST_BYTES = 8
_HEADER_MAX_BYTES = 4096


class Damaged(Exception):
    """A checkpoint that cannot be used, and why."""


class Header(BaseModel):
    """What a checkpoint belongs to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    streamdsb_checkpoint: int = 1
    next_pass: int
    n: int
    replicas: int
    first_row: int
    last_row: int
    input_hash: str
    """Of the problem, so that the state is never continued with another."""
    best_pass: int
    best_replica: int
    best_two_energy: int


@dataclass(frozen=True)
class Checkpoint:
    """A state that pass `header.next_pass` can start from."""

    header: Header
    positions: np.ndarray
    """float32 (B, rows)"""
    momenta: np.ndarray
    """float32 (B, rows)"""
    best_signs: np.ndarray
    """uint64 (ceil(n / 64),)"""


def path_of(run_directory: Path, next_pass: int, rows: RowRange | None = None) -> Path:
    """Where the checkpoint before `next_pass` of a run stands; rows: of one receiver among several."""
    part = "" if rows is None else f".rows-{rows.start}-{rows.stop}"
    return run_directory / FOLDER / f"pass-{next_pass:010d}{part}{_SUFFIX}"


def find_checkpoints(run_directory: Path) -> list[Path]:
    """The checkpoint files of a run, the newest first."""
    return sorted((run_directory / FOLDER).glob(f"pass-*{_SUFFIX}"), reverse=True)


def strangers_among_checkpoints(run_directory: Path) -> list[str]:
    """What lies in the folder of a run's checkpoints and is none, whole or half written; with the folder."""
    folder = run_directory / FOLDER
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [
        f"{FOLDER}/{name}"
        for name in names
        if not (name.startswith("pass-") and name.endswith((_SUFFIX, _PARTIAL)))
    ]


def _pass_of(path: Path) -> str:
    """The part of the name that files of one pass share."""
    return path.name.partition(".")[0]


def _rows_in_name(path: Path, n: int) -> RowRange:
    found = re.search(r"\.rows-(\d+)-(\d+)\.", path.name)
    return RowRange(int(found[1]), int(found[2])) if found else RowRange(0, n)


def save(path: Path, checkpoint: Checkpoint) -> int:
    """Write `checkpoint` to `path` and forget all but the last two of its run; the bytes written.

    Raises UserError if the disk does not take it; what stood there before still stands.
    """
    partial = path.with_suffix(_PARTIAL)
    try:
        path.parent.mkdir(exist_ok=True)
        with open(partial, "wb") as file:
            digest = xxhash.xxh64()
            for chunk in _chunks(checkpoint):
                digest.update(chunk)
                file.write(chunk)
            file.write(digest.intdigest().to_bytes(_DIGEST_BYTES, "little"))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(partial, path)
        _sync_folder(path.parent)
        _forget_all_but_last(path.parent.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return size


def _forget_all_but_last(run_directory: Path) -> None:
    found = find_checkpoints(run_directory)
    kept = sorted({_pass_of(path) for path in found})[-_KEPT:]
    for path in found:
        if _pass_of(path) not in kept:
            path.unlink(missing_ok=True)  # other receivers forget them too


def load(path: Path) -> Checkpoint:
    """Map and verify a checkpoint; raises Damaged if anything about it is not as it was written.

    The arrays are read-only views of the file, perhaps unaligned, and take no memory of their own.
    """
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise Damaged(f"{path}: is empty") from None
    body, stored = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    digest = xxhash.xxh64()
    for start in range(0, len(body), _CHUNK_BYTES):
        digest.update(body[start : start + _CHUNK_BYTES])
    if digest.intdigest() != int.from_bytes(stored, "little"):
        raise Damaged(f"{path}: its checksum does not fit its content")
    line, _, _ = bytes(body[:_HEADER_MAX_BYTES]).partition(b"\n")
    try:
        header = Header.model_validate_json(line)
    except ValidationError as error:
        raise Damaged(f"{path}: not a checkpoint of this version: {error.errors()[0]['msg']}") from None
    arrays = body[len(line) + 1 :]
    rows = header.last_row - header.first_row
    state_bytes = 4 * header.replicas * rows
    words = Layout(header.n, header.replicas, 1).bitmap_words
    if len(arrays) != 2 * state_bytes + 8 * words:
        raise Damaged(f"{path}: {len(arrays)} bytes of state, but its header announces another size")
    states = np.frombuffer(arrays, np.float32, 2 * header.replicas * rows).reshape(2, header.replicas, rows)
    best_signs = np.frombuffer(arrays, np.uint64, offset=2 * state_bytes)
    return Checkpoint(header, states[0], states[1], best_signs)


def load_first_usable(paths: Sequence[Path], n: int, replicas: int, rows: RowRange) -> Checkpoint:
    """The state of `rows` in the first pass of `paths`, the newest first, whose files hold all of it.

    Raises UserError with the reason for each if none does.
    """
    reasons: list[str] = []
    for _, files in itertools.groupby(paths, _pass_of):
        parts = [part for path in files if (part := _load_part(path, n, replicas, rows, reasons))]
        if parts and (whole := _join(parts, rows)):
            return whole
        if parts:
            reasons.append(f"before pass {parts[0].header.next_pass}: some rows are in no file")
    raise UserError(f"no usable checkpoint: {'; '.join(reasons) or 'there is none'}")


def newest_usable(run_directory: Path, n: int, replicas: int) -> list[Path]:
    """The files of the newest pass that can be gone on from; empty if the run has no checkpoint yet.

    Raises UserError with the reason for each if none can be used.
    """
    found = find_checkpoints(run_directory)
    if not found:
        return []
    next_pass = load_first_usable(found, n, replicas, RowRange(0, n)).header.next_pass
    return [path for path in found if _pass_of(path) == _pass_of(path_of(run_directory, next_pass))]


def _load_part(path: Path, n: int, replicas: int, rows: RowRange, reasons: list[str]) -> Checkpoint | None:
    """What a file holds if it has some of `rows`; None otherwise, and why in `reasons` if it is damaged."""
    named = _rows_in_name(path, n)
    if named.stop <= rows.start or rows.stop <= named.start:
        return None
    try:
        part = load(path)
    except Damaged as damage:
        reasons.append(str(damage))
        return None
    found = (part.header.n, part.header.replicas)
    if found != (n, replicas):
        reasons.append(f"{path}: n and replicas are {found}")
        return None
    return part


def _join(parts: Sequence[Checkpoint], rows: RowRange) -> Checkpoint | None:
    """The state of `rows` out of `parts` of one pass; None if some of it is in none of them."""
    for part in parts:
        if (part.header.first_row, part.header.last_row) == (rows.start, rows.stop):
            return part
    header = parts[0].header.model_copy(update={"first_row": rows.start, "last_row": rows.stop})
    states = np.empty((2, header.replicas, len(rows)), np.float32)
    at = rows.start
    for part in sorted(parts, key=lambda part: part.header.first_row):
        first, stop = part.header.first_row, min(part.header.last_row, rows.stop)
        if first > at or part.header.next_pass != header.next_pass:
            return None
        if stop <= at:
            continue
        theirs, ours = slice(at - first, stop - first), slice(at - rows.start, stop - rows.start)
        states[0, :, ours], states[1, :, ours] = part.positions[:, theirs], part.momenta[:, theirs]
        at = stop
    return Checkpoint(header, states[0], states[1], parts[0].best_signs) if at == rows.stop else None


def _chunks(checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
    yield checkpoint.header.model_dump_json().encode() + b"\n"
    for array in (checkpoint.positions, checkpoint.momenta, checkpoint.best_signs):
        data = np.ascontiguousarray(array).data.cast("B")
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
