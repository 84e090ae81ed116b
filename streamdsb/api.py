"""Running from Python."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamdsb.config import Config, load_config, make_config
from streamdsb.errors import UserError
from streamdsb.standard_streams import open_missing

if TYPE_CHECKING:
    from coordinator.main import RunResult


def run(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    progress: bool = False,
) -> RunResult:
    """Run a configuration on this machine, with a generator and a receiver in processes of their own.

    config: a YAML file, or the same keys as nested dicts, or a Config.
    out: the run directory to write; without it only the returned values remain.
    progress: show on standard error what `streamdsb run` shows.

    Returns a RunResult: energies int64 (K + 1, B) of 2E in each pass, spins int8 (n,) of ±1 with the
    lowest energy of the run, records (the lines of records.jsonl), summary, directory (None without out).
    Raises UserError for what cannot be run and RunFailed for a run that did not finish; in the main thread
    Ctrl-C ends the run and raises Interrupted, which is a RunFailed and no KeyboardInterrupt.
    """
    open_missing()
    _import_packages()
    from coordinator.main import run_here
    from coordinator.progress import SilentDisplay, TerminalDisplay

    if isinstance(config, str | Path):
        config = load_config(Path(config))
    elif not isinstance(config, Config):
        config = make_config(config)
    display = TerminalDisplay() if progress else SilentDisplay()
    if out is not None:
        return run_here(config, Path(out), overwrite, display)
    with tempfile.TemporaryDirectory(prefix="streamdsb-") as folder:
        result = run_here(config, Path(folder) / "run", overwrite, display)
    return dataclasses.replace(result, directory=None)


def _import_packages() -> None:
    """Import the packages beside this one, whatever a folder of the user's holds under their names."""
    home = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(home))
    try:
        for name in ("coordinator", "generator", "receiver"):
            found = importlib.import_module(name).__file__
            if found is None or Path(found).resolve().parent.parent != home:
                raise UserError(
                    f"a module {name} was imported from {found}, but streamdsb.run needs its own package of"
                    " that name; rename yours"
                )
    finally:
        sys.path.remove(str(home))
