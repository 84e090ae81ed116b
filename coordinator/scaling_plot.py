"""A picture of the model of several receivers: what a pass takes, and where more of them stop paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.plan import duration_text
from coordinator.scaling import Network, PassTime, most_that_pay
from streamdsb.errors import UserError
from streamdsb.layout import MAX_N, MAX_RECEIVERS, Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (1800, 825)
"""Width and height of the picture, in pixels."""

_DPI = 150
_SIZES = (100_000, 1_000_000, 10_000_000, MAX_N)
_PARTS: tuple[tuple[str, str, Callable[[PassTime], float]], ...] = (
    ("stream", "#0f766e", lambda time: time.stream_s),
    ("sign exchange", "#c2410c", lambda time: time.exchange_s),
    ("update", "#9db7d5", lambda time: time.update_s),
    ("whole pass", "#0b3d91", lambda time: time.total_s),
)
_SHADES = ("#9db7d5", "#5b8ac0", "#2b5fa6", "#0b3d91")
_INK = "#1f2933"


def plot_scaling(layout: Layout, receivers: Sequence[int], network: Network, path: Path) -> None:
    """Draw the PNG `path`: the parts of a pass of `layout`, and whole passes for n from 10^5 to 10^8.

    receivers: those of the table, marked on the left.  Raises UserError if matplotlib is missing or the
    file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib; get it with: pip install 'streamdsb[plot]'") from None
    figure = Figure(figsize=(SIZE[0] / _DPI, SIZE[1] / _DPI), dpi=_DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_parts(left, layout, receivers, network)
    _draw_sizes(right, layout, network)
    for axes in (left, right):
        _style(axes)
    try:
        figure.savefig(path, format="png", facecolor="white")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}") from None


def _counts() -> list[int]:
    """1, 2, 4, ... receivers."""
    return [1 << power for power in range(MAX_RECEIVERS.bit_length())]


def _draw_parts(axes: Axes, layout: Layout, receivers: Sequence[int], network: Network) -> None:
    counts = _counts()
    times = [PassTime.of(layout, count, network) for count in counts]
    for name, color, part in _PARTS:
        seconds = [part(time) or float("nan") for time in times]
        axes.plot(counts, seconds, color=color, lw=2.2 if name == "whole pass" else 1.4, label=name)
    chosen = [PassTime.of(layout, count, network).total_s for count in receivers]
    axes.plot(list(receivers), chosen, "o", color=_PARTS[-1][1], ms=5)
    most = most_that_pay(layout, network)
    if most < MAX_RECEIVERS:
        axes.axvline(most, color=_INK, lw=1, ls=(0, (4, 3)), label=f"twice as many as {most:,} do not pay")
    axes.set_title(f"n = {layout.n:,}, {layout.replicas} replicas", loc="left", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)


def _draw_sizes(axes: Axes, layout: Layout, network: Network) -> None:
    counts = _counts()
    for n, color in zip(_SIZES, _SHADES, strict=True):
        sized = replace(layout, n=n)
        seconds = [PassTime.of(sized, count, network).total_s for count in counts]
        most = most_that_pay(sized, network)
        at = PassTime.of(sized, most, network).total_s
        axes.plot(counts, seconds, color=color, lw=1.8, label=f"n = {n:,}: {most:,}, {duration_text(at)}")
        axes.plot([most], [at], "D", color=color, ms=6)
    axes.set_title("Where twice as many receivers stop paying", loc="left", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)


def _style(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([1 << power for power in range(0, 17, 4)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value):,}")
    axes.set_xlabel("receivers")
    axes.set_ylabel("seconds a pass")
    axes.grid(color="#e4e7eb", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
