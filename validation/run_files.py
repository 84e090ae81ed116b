"""The files of a run, read by somebody who takes nothing on trust: whole lines, every key, every type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamdsb.config import Config, load_config
from streamdsb.errors import UserError
from streamdsb.npy_file import load_npy
from streamdsb.run_directory import BEST_SPINS, CONFIG, FINAL_SPINS, RECORDS, SUMMARY, TIMINGS
from validation import oracle

Natural = Annotated[int, Field(ge=0, lt=2**63)]


class Record(BaseModel):
    """A line of records.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    pass_index: Natural = Field(alias="pass")
    best_two_energy: int
    best_replica: Natural
    two_energy: Annotated[list[int], Field(min_length=1)]
    checksum: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class _Open(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Timing(_Open):
    """What is checked of a line of timings.jsonl."""

    pass_index: Natural = Field(alias="pass")
    receive_s: Annotated[float, Field(ge=0)]
    payload_bytes: Natural
    gbps: Annotated[float, Field(ge=0)]
    frames: Natural
    dropped: Natural
    duplicated: Natural
    rejected: Natural
    corrupt: Natural = 0
    late: Natural = 0
    overrun: Natural = 0


class Volumes(_Open):
    """The sizes that a summary gives; bytes of payload."""

    passes: Natural
    payload_per_pass: Natural
    payload_total: Natural
    frames_per_pass: Natural


class Energy(_Open):
    """The energies that a summary gives."""

    best_two_energy: int
    best_pass: Natural
    final_two_energy: list[int]


class Summary(_Open):
    """What is checked of summary.json."""

    status: Literal["completed", "failed"]
    cause: str | None
    problem: dict[str, Any]
    solver: dict[str, Any]
    volumes: Volumes
    energy: Energy | None


class RunFiles:
    """A run directory's files, read when they are asked for; UserError if one is missing or malformed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def config(self) -> Config:
        config = load_config(self._directory / CONFIG)
        if config.problem.n is None:
            raise UserError(f"{CONFIG}: problem.n is missing")
        return config

    @cached_property
    def record_lines(self) -> list[bytes]:
        """The lines of records.jsonl, at least one, without line ends."""
        found = _split_lines(self._directory / RECORDS)
        if not found:
            raise UserError(f"{RECORDS} is empty")
        return found

    @cached_property
    def records(self) -> list[Record]:
        """At least one."""
        return _parse_lines(Record, RECORDS, self.record_lines)

    @cached_property
    def timings(self) -> list[Timing]:
        return _parse_lines(Timing, TIMINGS, _split_lines(self._directory / TIMINGS))

    @cached_property
    def summary(self) -> Summary | None:
        """None if there is none: the run goes on, or was ended without a chance to write it."""
        if not (self._directory / SUMMARY).exists():
            return None
        return _parse(Summary, SUMMARY, _read(self._directory / SUMMARY))

    @property
    def completed(self) -> bool:
        return self.summary is not None and self.summary.status == "completed"

    @property
    def lowest_two_energy(self) -> int:
        """The lowest energy of the whole run, according to its records."""
        return min(record.best_two_energy for record in self.records)

    @cached_property
    def best_spins(self) -> NDArray[np.int8]:
        """The spins of the lowest energy, int8 (n,) of ±1."""
        spins = self._load(BEST_SPINS, np.int8, (self.config.n,))
        if not np.all(np.abs(spins) == 1):
            raise UserError(f"{BEST_SPINS} holds a value that is neither +1 nor -1")
        return spins

    @cached_property
    def final_bitmaps(self) -> NDArray[np.uint8]:
        """The sign bitmaps after the last pass, uint8 (B, 8 ceil(n / 64))."""
        return self._load(FINAL_SPINS, np.uint8, (self.config.solver.replicas, 8 * -(-self.config.n // 64)))

    def final_spins(self) -> Iterator[NDArray[np.int8]]:
        """The spins after the last pass, int8 (n,) of ±1, of one replica after another."""
        return (oracle.spins_of(bitmap.view("<u8"), self.config.n) for bitmap in self.final_bitmaps)

    def _load(self, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
        array = load_npy(self._directory / name)
        if array.dtype != dtype or array.shape != shape:
            raise UserError(f"{name} is {array.dtype} {array.shape}, but {np.dtype(dtype)} {shape} is due")
        return array


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.name} cannot be read: {error.strerror or error}") from None


def _split_lines(path: Path) -> list[bytes]:
    *whole, partial = _read(path).split(b"\n")
    if partial:
        raise UserError(f"{path.name}: line {len(whole) + 1} is cut off")
    return whole


M = TypeVar("M", bound=BaseModel)


def _parse_lines(model: type[M], name: str, texts: Sequence[bytes]) -> list[M]:
    return [_parse(model, f"{name}, line {index + 1}", text) for index, text in enumerate(texts)]


def _parse(model: type[M], where: str, text: bytes) -> M:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"{where}: {key}{first['msg'][:1].lower()}{first['msg'][1:]}") from None
