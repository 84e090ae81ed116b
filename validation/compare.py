"""Where two runs part: their records compared byte for byte, and the first difference in words."""

import json
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from streamdsb.errors import UserError

KEYS = ["pass", "best_two_energy", "best_replica", "two_energy", "checksum"]


@dataclass(frozen=True)
class Record:
    """What a line of records.jsonl says, as far as two runs can part in it."""

    pass_number: int
    two_energy: list[int]
    checksum: str


@dataclass(frozen=True)
class RecordFile:
    """The lines of a records.jsonl; `partial` is what a crash may leave after the last line end."""

    path: Path
    lines: list[bytes]
    partial: bytes


@dataclass(frozen=True)
class Difference:
    """The first line, counted from 0, in which two record files differ.

    A record is None where the line is none; `replica` is the first whose energy differs, if there is one.
    """

    line: int
    a: Record | None
    b: Record | None

    @property
    def replica(self) -> int | None:
        if self.a is None or self.b is None:
            return None
        pairs = enumerate(zip(self.a.two_energy, self.b.two_energy, strict=False))
        return next((replica for replica, (a, b) in pairs if a != b), None)


@dataclass(frozen=True)
class Comparison:
    """Two record files side by side: whether they are equal, and if not, where they part."""

    a: RecordFile
    b: RecordFile

    @cached_property
    def difference(self) -> Difference | None:
        for line, (a, b) in enumerate(zip(self.a.lines, self.b.lines, strict=False)):
            record = parse_record(a)
            if a != b or record is None:
                return Difference(line, record, parse_record(b))
        return None

    @property
    def equal(self) -> bool:
        """Equal byte for byte, apart from a partial last line; two files without a record are not equal."""
        return self.difference is None and len(self.a.lines) == len(self.b.lines) > 0

    def lines(self) -> list[str]:
        """The result in plain sentences."""
        return [*self._verdict(), *self._partial_lines()]

    def _verdict(self) -> list[str]:
        if self.difference is not None:
            return self._parting(self.difference)
        in_a, in_b = len(self.a.lines), len(self.b.lines)
        if in_a == in_b == 0:
            return [f"Neither {self.a.path} nor {self.b.path} holds a record, so nothing was compared."]
        if in_a == in_b:
            return [f"The records are equal byte for byte: {_passes(in_a)}."]
        return [
            f"The runs are not equally long: {self._sides(_passes(in_a), _passes(in_b))}.",
            f"Equal byte for byte as far as both go: {_passes(min(in_a, in_b))}.",
        ]

    def _parting(self, difference: Difference) -> list[str]:
        k, a, b = difference.line, difference.a, difference.b
        before = [f"Equal byte for byte before that: {_passes(k)}."] if k else []
        if a is None or b is None:
            bad = self.a if a is None else self.b
            return [f"Line {k + 1} of {bad.path} is not a record: {_excerpt(bad.lines[k])}.", *before]
        if a.pass_number != b.pass_number:
            return [f"Line {k + 1} is pass {self._sides(a.pass_number, b.pass_number)}.", *before]
        return [f"The records part at pass {a.pass_number}.", *before, *self._what_differs(difference, a, b)]

    def _what_differs(self, difference: Difference, a: Record, b: Record) -> list[str]:
        if len(a.two_energy) != len(b.two_energy):
            return [f"The number of replicas is {self._sides(len(a.two_energy), len(b.two_energy))}."]
        same = a.checksum == b.checksum
        digits = f"{a.checksum} in both" if same else self._sides(a.checksum, b.checksum)
        checksums = f"The checksum after the pass is {digits}."
        if (replica := difference.replica) is not None:
            energies = self._sides(a.two_energy[replica], b.two_energy[replica])
            return [
                f"Replica {replica} is the first whose energy differs: 2E = {energies}.",
                checksums,
                "The signs that entered the pass were the same, so the problems or the coupling sums differ."
                if difference.line
                else "It is the first pass, so the problems, sums or initial states differ.",
            ]
        if not same:
            return ["Every energy of the pass is the same.", checksums, "So the update after it differs."]
        return ["Its energies and checksum are the same, but the text of the line is not."]

    def _sides(self, a: object, b: object) -> str:
        return f"{a} in {self.a.path} and {b} in {self.b.path}"

    def _partial_lines(self) -> list[str]:
        return [
            f"The last line of {file.path} is cut off, as by a crash, and ignored: {_excerpt(file.partial)}."
            for file in (self.a, self.b)
            if file.partial
        ]


def compare(a: str | PathLike[str], b: str | PathLike[str]) -> Comparison:
    """Compare the records of two runs, each a run directory or a records.jsonl.

    Raises UserError if there is no such file. The result's `equal` and `lines()` are what most callers want.
    """
    return Comparison(read_records(a), read_records(b))


def read_records(path: str | PathLike[str]) -> RecordFile:
    """The record lines of a run directory or of a records.jsonl; UserError if there are none to read."""
    file = Path(path)
    if file.is_dir():
        file = file / "records.jsonl"
    try:
        *lines, partial = file.read_bytes().split(b"\n")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot read {file} ({reason}): give a run directory or a records.jsonl") from error
    return RecordFile(file, lines, partial)


def parse_record(line: bytes) -> Record | None:
    """The record in a line of records.jsonl, or None if the line is not one."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or list(fields) != KEYS:
        return None
    energies, digits = fields["two_energy"], fields["checksum"]
    if not isinstance(fields["pass"], int) or not isinstance(energies, list) or not isinstance(digits, str):
        return None
    return Record(fields["pass"], energies, digits)


def _passes(count: int) -> str:
    return "1 pass" if count == 1 else f"{count} passes"


def _excerpt(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:60] + "...")
