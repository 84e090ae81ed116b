"""What the user sees while a run goes on."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Protocol

from tqdm import tqdm

from streamdsb.config import Config
from streamdsb.layout import PAYLOAD_BYTES


class Display(Protocol):
    """Where a run tells how far it is."""

    def say(self, text: str) -> None:
        """A line of plain text."""

    def start(self, config: Config, first_pass: int) -> None:
        """The first pass is about to be released."""

    def show_frames(self, pass_index: int, frames: int) -> None:
        """So many frames of a pass have been added."""

    def show_energy(self, best_two_energy: int) -> None:
        """A pass is over; the lowest 2E of the run so far."""

    def close(self) -> None: ...


class SilentDisplay:
    """Says nothing."""

    def say(self, text: str) -> None: ...

    def start(self, config: Config, first_pass: int) -> None: ...

    def show_frames(self, pass_index: int, frames: int) -> None: ...

    def show_energy(self, best_two_energy: int) -> None: ...

    def close(self) -> None: ...


class _StandardError:
    """Standard error; what cannot be written there is not worth ending a run for."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()


class TerminalDisplay:
    """Lines on standard error and a bar with rate and time left; without a terminal, a line now and then."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._out: Any = _StandardError()

    def say(self, text: str) -> None:
        tqdm.write(text, file=self._out)
        self._out.flush()

    def start(self, config: Config, first_pass: int) -> None:
        self._frames_per_pass = config.layout.frames_per_pass
        self._updates = config.solver.updates
        self._energy = ""
        self._bar = tqdm(
            total=config.layout.payload_per_pass * (config.solver.updates + 1),
            initial=config.layout.payload_per_pass * first_pass,
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=0.25 if sys.stderr.isatty() else 10.0,
            desc=f"pass {first_pass}",
            file=self._out,
        )

    def show_frames(self, pass_index: int, frames: int) -> None:
        bar = self._bar  # another thread may close it meanwhile
        if bar is not None:
            position = (pass_index * self._frames_per_pass + frames) * PAYLOAD_BYTES
            bar.set_description_str(f"pass {pass_index}/{self._updates}", refresh=False)
            bar.update(position - bar.n)

    def show_energy(self, best_two_energy: int) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"best 2E {best_two_energy}", refresh=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
