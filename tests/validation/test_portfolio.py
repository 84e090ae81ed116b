"""The portfolio example: its Ising model is the objective, and all days share couplings and scale."""

import itertools

import numpy as np
import pytest

from streamdsb.service.quantize import ising_of_qubo
from validation.portfolio import Objective, greedy, make_market, quantized_models


def test_the_ising_model_is_the_objective() -> None:
    market, objective = make_market(8, 3, 5), Objective(0.5, 0.01, 3)
    for day in range(3):
        J, h, offset = ising_of_qubo(*objective.qubo(market, day))  # noqa: N806
        constant = objective.penalty * objective.target**2
        for bits in itertools.product([0, 1], repeat=8):
            x = np.array(bits)
            s = 2 * x - 1
            energy = -0.5 * s @ J @ s - h @ s + offset + constant
            assert energy == pytest.approx(objective.value(market, day, x), abs=1e-9)


def test_days_share_couplings_and_scale() -> None:
    market, objective = make_market(20, 4, 5), Objective(0.5, 0.01, 3)
    made = quantized_models(market, objective)
    assert made.field.shape == (4, 20)
    J, h, _ = ising_of_qubo(*objective.qubo(market, 3))  # noqa: N806
    assert np.abs(J - made.couplings / made.scale).max() <= made.coupling_error
    assert np.abs(h - made.field[3] / made.scale).max() <= made.field_error


def test_greedy_stops_at_a_choice_that_one_more_asset_does_not_improve() -> None:
    market, objective = make_market(30, 1, 2), Objective(0.5, 0.01, 5)
    x = greedy(market, objective, 0)
    value = objective.value(market, 0, x)
    assert 0 < x.sum() < 30
    for asset in np.flatnonzero(x == 0):
        assert objective.value(market, 0, x + (np.arange(30) == asset)) >= value
