"""The state of one receiver between two passes, on disk: written beside, renamed, verified on load.

A file is a line of JSON (the Header), then positions and momenta, float32 (B, rows), then the best signs,
uint64 (ceil(n / 64),), all little-endian, then XXH64 of everything before it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from streamdsb.errors import UserError
from streamdsb.layout import Layout, RowRange

FOLDER = "checkpoints"
_SUFFIX = ".checkpoint"
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


def path_of(run_directory: Path, next_pass: int) -> Path:
    """Where the checkpoint before `next_pass` of a run stands."""
    return run_directory / FOLDER / f"pass-{next_pass:010d}{_SUFFIX}"


def find_checkpoints(run_directory: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run_directory / FOLDER).glob(f"pass-*{_SUFFIX}"), reverse=True)


def save(path: Path, checkpoint: Checkpoint) -> int:
    """Write `checkpoint` to `path` and forget all but the last two of its run; the bytes written.

    Raises UserError if the disk does not take it; what stood there before still stands.
    """
    partial = path.with_suffix(".partial")
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
        for old in find_checkpoints(path.parent.parent)[_KEPT:]:
            old.unlink()
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return size


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


def load_first_usable(paths: list[Path], n: int, replicas: int, rows: RowRange) -> Checkpoint:
    """The first of `paths` that is whole and holds these rows of this problem's size.

    Raises UserError with the reason for each if none is.
    """
    reasons = []
    for path in paths:
        try:
            checkpoint = load(path)
        except Damaged as damage:
            reasons.append(str(damage))
            continue
        header = checkpoint.header
        found = (header.n, header.replicas, header.first_row, header.last_row)
        if found == (n, replicas, rows.start, rows.stop):
            return checkpoint
        reasons.append(f"{path}: n, replicas and rows are {found}")
    raise UserError(f"no usable checkpoint: {'; '.join(reasons) or 'there is none'}")


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
