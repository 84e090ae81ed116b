"""Kinds of option values that several commands take, refused before any work begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class Positive(click.FloatRange):
    """A number that can be divided by; NaN, which is in no range, is refused like what is outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        return (
            number if number == number else self.fail(f"nan is not in {self._describe_range()}.", param, ctx)
        )


class OutputFile(click.Path):
    """A file to be written at the end of some work: its folder has to be there and writable now."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.absolute().parent
        if not folder.is_dir():
            self.fail(f"{path}: there is no folder {folder}", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"{path}: the folder {folder} cannot be written to", param, ctx)
        return path
