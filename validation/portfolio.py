"""Mean-variance portfolios with a target number of assets, chosen again whenever expected returns move.

    python -m validation.portfolio --plot portfolio.png
    python -m validation.portfolio --to 127.0.0.1:8686 --assets 128 --days 250

Each day chooses x in {0, 1}^n that minimizes

    q x' S x - mu' x + penalty (1' x - k)^2

with a four-factor covariance S, which stays, and expected returns mu that follow an AR(1) process. As an
Ising model only the field depends on mu: the couplings are loaded once, and each day is one request. J and
all the fields are quantized to int8 and int16 with one common scale. A greedy choice is shown beside it.

The penalty gives all couplings the same sign, so that all spins answer together; the usual gain, meant for
couplings of random signs, lets them swing in step. The gain here is 3 over the largest eigenvalue, with a
small time step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamdsb.errors import StreamdsbError, UserError
from streamdsb.service.client import Client
from streamdsb.service.config import make_service_config
from streamdsb.service.limits import max_replicas
from streamdsb.service.quantize import Quantized, ising_of_qubo, quantize
from streamdsb.service.replies import Replies
from streamdsb.service.servers import make_server


@dataclass(frozen=True)
class Market:
    """Covariance (n, n) and expected returns (days, n), both of a year."""

    covariance: np.ndarray
    returns: np.ndarray


@dataclass(frozen=True)
class Objective:
    """q x' S x - mu' x + penalty (1' x - target)^2."""

    risk_aversion: float
    penalty: float
    target: int

    def qubo(self, market: Market, day: int) -> tuple[np.ndarray, np.ndarray]:
        """Q (n, n) and c (n,) of a day, without the constant penalty * target^2."""
        quadratic = self.risk_aversion * market.covariance + self.penalty
        return quadratic, -market.returns[day] - 2 * self.penalty * self.target

    def value(self, market: Market, day: int, x: np.ndarray) -> float:
        """The objective of a choice x of 0 and 1, (n,)."""
        risk = x @ market.covariance @ x
        return float(
            self.risk_aversion * risk - market.returns[day] @ x + self.penalty * (x.sum() - self.target) ** 2
        )


def make_market(assets: int, days: int, seed: int) -> Market:
    """Four factors with market-like loadings, specific risk of 15 to 35 % a year, AR(1) expected returns."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal([1.0, 0.0, 0.0, 0.0], [0.3, 0.5, 0.5, 0.5], (assets, 4))
    covariance = loadings @ np.diag([0.16, 0.08, 0.06, 0.05]) ** 2 @ loadings.T
    covariance += np.diag(rng.uniform(0.15, 0.35, assets) ** 2)
    persistence, spread = 0.95, 0.06
    returns = np.empty((days, assets))
    returns[0] = rng.normal(0.06, spread, assets)
    for day in range(1, days):
        noise = rng.normal(0, spread * np.sqrt(1 - persistence**2), assets)
        returns[day] = 0.06 + persistence * (returns[day - 1] - 0.06) + noise
    return Market(covariance, returns)


def quantized_models(market: Market, objective: Objective) -> Quantized:
    """The couplings, and a field for each day (days, n), with one scale."""
    days = [ising_of_qubo(*objective.qubo(market, day)) for day in range(len(market.returns))]
    return quantize(days[0][0], np.stack([field for _, field, _ in days]))


def greedy(market: Market, objective: Objective, day: int) -> np.ndarray:
    """Add the asset that lowers the objective most until none does; int (n,) of 0 and 1."""
    x = np.zeros(market.returns.shape[1], int)
    q, penalty = objective.risk_aversion, objective.penalty
    while True:
        over = x.sum() - objective.target
        gain = q * (2 * market.covariance @ x + np.diagonal(market.covariance))
        gain = np.where(x == 1, np.inf, gain - market.returns[day] + penalty * (2 * over + 1))
        if gain.min() >= 0:
            return x
        x[int(np.argmin(gain))] = 1


@contextmanager
def _address(given: str | None) -> Iterator[str]:
    """The server to ask: the one given, or one started here."""
    if given is not None:
        yield given
        return
    with make_server(make_service_config({"listen": "127.0.0.1:0"})) as server:
        yield server.address


def draw(
    values: np.ndarray, rivals: np.ndarray, chosen: np.ndarray, target: int, replies: Replies, path: Path
) -> None:
    """Objective, number of assets, the assets held and the round trip, day by day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, figsize=(8, 9), sharex=True, height_ratios=[2, 1, 2, 1])
    axes[0].plot(values, label="dSB, on the service")
    axes[0].plot(rivals, label="greedy", linewidth=1)
    axes[0].set_ylabel("objective")
    axes[0].legend()
    axes[1].plot(chosen.sum(axis=1), drawstyle="steps-mid")
    axes[1].axhline(target, color="gray", linewidth=0.8)
    axes[1].set_ylabel("assets held")
    axes[2].imshow(chosen.T, aspect="auto", cmap="Greys", interpolation="nearest")
    axes[2].set_ylabel("asset")
    axes[3].plot(replies.round_trip_ns / 1e6, linewidth=0.8)
    axes[3].set(ylabel="round trip, ms", xlabel="day", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def main() -> None:
    """Choose a portfolio a day through a request service, and say how good and how fast that was."""
    parser = argparse.ArgumentParser(prog="python -m validation.portfolio", description=main.__doc__)
    parser.add_argument("--to", metavar="ADDRESS", help="a running server (default: start one here)")
    parser.add_argument("--assets", type=int, default=128)
    parser.add_argument("--days", type=int, default=250)
    parser.add_argument("--target", type=int, help="assets to hold (default: a tenth)")
    parser.add_argument("--risk-aversion", type=float, default=0.5)
    parser.add_argument("--penalty", type=float, default=0.003)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    given = parser.parse_args()
    if not 2 <= given.assets <= 704 or given.days < 1:
        raise UserError(
            f"--assets is {given.assets} and --days {given.days}, but 2 to 704 and 1 or more are possible"
        )
    market = make_market(given.assets, given.days, given.seed)
    target = given.target if given.target is not None else max(1, given.assets // 10)
    objective = Objective(given.risk_aversion, given.penalty, target)
    made = quantized_models(market, objective)
    print(f"quantized with scale {made.scale:.5g}: largest error {made.coupling_error:.2g} in J,"
          f" {made.field_error:.2g} in h")  # fmt: skip
    with _address(given.to) as address, Client(address) as client:
        largest = np.abs(np.linalg.eigvalsh(made.couplings.astype(np.float64))).max()
        model = client.load(made.couplings, xi=3 / largest)
        replies = client.solve_many(
            model,
            made.field,
            seeds=range(given.days),
            replicas=min(32, max_replicas(given.assets)),
            steps=given.steps,
            dt=0.25,
            window=1,
        )
    chosen = (replies.spins > 0).astype(int)
    values = np.array([objective.value(market, day, x) for day, x in enumerate(chosen)])
    rivals = np.array(
        [objective.value(market, day, greedy(market, objective, day)) for day in range(given.days)]
    )
    held = chosen.sum(axis=1)
    print(f"{given.days} days, {given.assets} assets, target {target}: {held.min()} to {held.max()} held")
    print(f"objective {values.mean():.4f} on average, greedy {rivals.mean():.4f};"
          f" at least as good on {np.mean(values <= rivals + 1e-12):.0%} of the days")  # fmt: skip
    print(f"round trip {np.median(replies.round_trip_ns) / 1e6:.2f} ms (median)")
    if given.plot is not None:
        draw(values, rivals, chosen, target, replies, given.plot)
        print(f"plot written to {given.plot}")


if __name__ == "__main__":
    try:
        main()
    except StreamdsbError as error:
        print(f"portfolio: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
