"""A picture of a run: the energies of its replicas and the rate of its stream, pass by pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.summary import planted_two_energy
from streamdsb.config import Config, load_config
from streamdsb.errors import UserError
from streamdsb.run_directory import CONFIG, RECORDS, REPORT, TIMINGS, read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (1500, 1050)
"""Width and height of the picture, in pixels."""

_DPI = 150
_MOST_LINES = 64
_MOST_POINTS = 4000
_REPLICA, _BEST, _PLANTED, _RATE, _INK, _FAINT = (
    "#9db7d5",
    "#0b3d91",
    "#c2410c",
    "#0f766e",
    "#1f2933",
    "#7b8794",
)


def report(directory: Path, output: Path | None = None) -> Path:
    """Draw the run in `directory`, finished or not, as the PNG `output`, or report.png in it; its path.

    Above, 2E of each replica, the lowest so far and the planted ground state if there is one; below, the
    payload received a second. Raises UserError if there is no whole pass yet, if a file cannot be read or
    written, or if matplotlib is missing.
    """
    records, timings = read_lines(directory / RECORDS), read_lines(directory / TIMINGS)
    config = load_config(directory / CONFIG)
    if not records or not timings:
        raise UserError(f"{directory}: no pass is over yet, so there is nothing to plot")
    try:
        energies = np.array([record["two_energy"] for record in records], dtype=np.int64)
        rates = np.array([timing["payload_bytes"] / timing["receive_s"] for timing in timings]) / 1e9
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise UserError(
            f"{directory}: {RECORDS} or {TIMINGS} has a line without the values to plot"
        ) from None
    path = directory / REPORT if output is None else output
    try:
        _draw(config, energies, rates, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _draw(config: Config, energies: NDArray[np.int64], rates: NDArray[np.float64], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("a report needs matplotlib; get it with: pip install 'streamdsb[plot]'") from None
    figure = Figure(figsize=(SIZE[0] / _DPI, SIZE[1] / _DPI), dpi=_DPI, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    upper.set_title(_title(config), loc="left", pad=24, fontsize=13, fontweight="bold", color=_INK)
    upper.text(0, 1.025, _subtitle(config, energies), transform=upper.transAxes, fontsize=9.5, color=_FAINT)
    _draw_energies(upper, config, energies)
    _draw_rates(lower, rates)
    if len(energies) == 1:
        lower.set_xlim(-0.5, 0.5)
    for axes in (upper, lower):
        _style(axes)
    figure.savefig(path, format="png", facecolor="white")


def _title(config: Config) -> str:
    problem, solver = config.problem, config.solver
    name = {"mattis": "Mattis couplings", "random": "Random ±1 couplings"}.get(problem.source)
    if name is None:
        name = "Couplings of " + Path(str(problem.path)).name
    field = ", with a field" if problem.field else ""
    solved = f"{_count(solver.replicas, 'replica')}, {_count(solver.updates, 'update')}"
    return f"{name}, n = {config.n:,}{field}: {solved}"


def _subtitle(config: Config, energies: NDArray[np.int64]) -> str:
    passes, due = len(energies), config.solver.updates + 1
    lowest = energies.min(axis=1)
    first = int(lowest.argmin())
    extent = _count(passes, "pass") if passes == due else f"UNFINISHED: {passes:,} of {due:,} passes"
    reached = "" if lowest[first] != planted_two_energy(config) else ", the planted ground state"
    return f"{extent}; lowest 2E = {lowest[first]:,}, first in pass {first:,}{reached}".replace(
        "-", "\N{MINUS SIGN}"
    )


def _count(count: int, what: str) -> str:
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{count:,} {what if count == 1 else plural}"


def _draw_energies(axes: Axes, config: Config, energies: NDArray[np.int64]) -> None:
    passes, replicas = energies.shape
    shown = _thin(passes)
    marker = "o" if passes == 1 else None
    scale, unit = _scale(float(np.abs(energies).max()))
    every = -(-replicas // _MOST_LINES)
    axes.plot(shown, energies[shown, ::every] / scale, color=_REPLICA, lw=0.6, marker=marker, ms=4, alpha=0.7)
    axes.plot(
        [], [], color=_REPLICA, lw=1.2, label="each replica" if every == 1 else f"every {every}th replica"
    )
    best = np.minimum.accumulate(energies.min(axis=1))
    axes.plot(shown, best[shown] / scale, color=_BEST, lw=2, marker=marker, ms=6, label="lowest so far")
    planted = planted_two_energy(config)
    if planted is not None:
        axes.axhline(planted / scale, color=_PLANTED, lw=1.2, ls=(0, (5, 3)), label="planted ground state")
    axes.set_ylabel(f"2E{unit}")
    axes.margins(y=0.08)
    axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=_INK)


def _draw_rates(axes: Axes, rates: NDArray[np.float64]) -> None:
    shown = _thin(len(rates))
    axes.plot(shown, rates[shown], color=_RATE, lw=1, marker="o" if len(rates) <= 60 else None, ms=3.5)
    median = float(np.median(rates))
    axes.axhline(median, color=_RATE, lw=1, ls=(0, (2, 2)), alpha=0.7, label=f"median {median:.3g} GB/s")
    axes.set_ylim(0, 1.35 * float(rates.max()))
    axes.set_ylabel("received, GB/s")
    axes.set_xlabel("pass")
    axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=_INK)


def _style(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(color="#e4e7eb", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cbd2d9")
    axes.margins(x=0.01)


def _thin(count: int) -> NDArray[Any]:
    """Indices of the passes to draw, first and last included: all, or as many as a picture can show."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(np.int64))


def _scale(largest: float) -> tuple[float, str]:
    """A power of 1000 that brings `largest` to a few digits, and what to add to the label."""
    power = 3 * (max(0, len(str(int(largest))) - 1) // 3)
    return 10.0**power, "" if power == 0 else f" / $10^{{{power}}}$"
