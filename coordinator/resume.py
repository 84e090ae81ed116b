"""What an interrupted run allows to be changed, and whether there is anything to go on with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from streamdsb.config import Config, load_config
from streamdsb.errors import UserError
from streamdsb.run_directory import CONFIG, SUMMARY


def load_began(out: Path, settings: Sequence[str]) -> Config:
    """The configuration of the interrupted run in `out`, with `settings` that change how it runs.

    Raises UserError if they change what it solves, or if the run is complete.
    """
    config = load_config(out / CONFIG, settings)
    refuse_other_problem(load_config(out / CONFIG), config)
    if is_completed(out):
        raise UserError(f"{out}: this run is complete, there is nothing to resume")
    return config


def refuse_other_problem(began: Config, wanted: Config) -> None:
    """Raise UserError naming the first key of the problem or the solver in which the two differ."""
    for section in ("problem", "solver"):
        before, now = getattr(began, section).model_dump(), getattr(wanted, section).model_dump()
        for key, value in now.items():
            if value != before[key]:
                raise UserError(
                    f"{section}.{key} is {value!r}, but the run began with {before[key]!r}; a resumed run may"
                    " change how it runs, not what it solves"
                )


def is_completed(directory: Path) -> bool:
    """True if the run in `directory` got to its end."""
    try:
        summary = json.loads((directory / SUMMARY).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "completed"
