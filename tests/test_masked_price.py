"""A plan's price: shares add up, the promise is kept, and the statement says unit, both numbers and what is open."""

import math

import numpy as np
import pytest

from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort, mu_of_epsilon, run_mu
from hushrec.errors import ParameterError
from hushrec.protocols.masked.encoding import decode_sum, mean_sums
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.wording import EXACT_SUMS, NOT_COVERED

PLAN = make_plan(
    [
        [Block("counts", (1682,), 8.0, 0.19), Block("moments", (324,), 15.0, 0.01)],
        [Block("bias", (1682, 1), 5.0, 0.14), Block("curvature", (2,), 300.0, 0.01)],
        [Block("prior", (495,), 12.0, 0.05)],
    ]
)
COHORT = Cohort(943, survivors=2 / 3, corrupt=0.1)


@pytest.mark.parametrize("epsilon", [0.5, 1, 8, 16.0])
def test_all_rounds_together_cost_what_was_promised(epsilon: float) -> None:
    """Nearly all of ε is used and none of it is exceeded; the zCDP bound is a little above."""
    priced = price_plan(PLAN, epsilon=epsilon, delta=1e-6, cohort=COHORT)
    statement = priced.statement()
    assert 0.9999 * epsilon < statement["spent"] <= epsilon * (1 + 1e-9)
    assert statement["epsilon"] < statement["epsilon_zcdp"] < 1.1 * epsilon
    assert [len(codes) for codes in priced.codes] == [2, 2, 1]


def test_the_statement_has_both_numbers_and_what_is_not_covered() -> None:
    """ε = 8: 18.65 for one rating or profile replaced; the list of what is open is there, δ and rounds too."""
    statement = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=COHORT).statement()
    assert (statement["epsilon"], statement["delta"], statement["rounds"]) == (8.0, 1e-6, 3)
    assert round(statement["item_level"], 2) == 18.65
    assert "whole profile against a device that sends zeros" in statement["unit"]
    assert statement["not_covered"] == list(NOT_COVERED)
    assert (statement["smallest_cohort"], statement["most_corrupt"]) == (629, 63)


def test_a_reserve_pays_for_retries() -> None:
    """A fifth of μ² is kept: the rounds cost the rest; the last one can be repeated, and then the first one not."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=COHORT, reserve=0.2)
    accountant = priced.accountant()
    assert accountant.spent() == pytest.approx(0.8 * run_mu(8, 1e-6) ** 2, rel=1e-4)
    accountant.compose(priced.table_sent(2))
    assert accountant.spent() < priced.mu_squared
    accountant.compose(priced.table_sent(0))
    assert accountant.spent() > priced.mu_squared


def test_repeats_cost_no_budget_and_no_accuracy() -> None:
    """Eight rounds cost what the one that they replace costs, and the mean of their sums has its noise."""
    once, divided = (
        price_plan(plan, epsilon=8, delta=1e-6, cohort=COHORT, reserve=0.2) for plan in (PLAN, PLAN.repeated(8))
    )
    assert divided.accountant().spent() == pytest.approx(once.accountant().spent(), rel=1e-4)
    assert divided.accountant().epsilon(1e-6) <= 8
    for index, codes in enumerate(once.codes):
        for place, code in enumerate(codes):
            whole = decode_sum(code, np.zeros(code.size, np.uint32), 700)
            part = divided.codes[8 * index][place]
            mean = mean_sums([{"block": decode_sum(part, np.zeros(part.size, np.uint32), 700)}] * 8)["block"]
            assert mean.noise_variance == pytest.approx(whole.noise_variance, rel=0.01)


def test_a_person_with_a_budget_of_their_own_pays_that() -> None:
    """With k = μ(1)/μ(8) all rounds cost ε = 1."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=COHORT)
    spent, fraction = TableAccountant(), mu_of_epsilon(1, 1e-6) / mu_of_epsilon(8, 1e-6)
    for index in range(len(PLAN.rounds)):
        spent.compose(priced.table_sent(index, fraction))
    assert spent.epsilon(1e-6) == pytest.approx(1.0, rel=1e-3)


def test_without_noise_the_statement_says_so() -> None:
    """ε = ∞ covers nothing but the masks."""
    statement = price_plan(PLAN, epsilon=math.inf, delta=1e-6, cohort=COHORT).statement()
    assert statement["epsilon"] == statement["item_level"] == statement["spent"] == math.inf
    assert EXACT_SUMS in statement["not_covered"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 2e-4}, "delta"),
        ({"reserve": 1.0}, "reserve"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": 99.0, "delta": 1e-30}, "lower epsilon"),  # exp(99) times the distances is too much
        ({"epsilon": 1e-12}, "Raise epsilon"),  # the computed cost exceeds it by rounding errors
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(changed: dict[str, float], name: str) -> None:
    """One sentence that names the parameter."""
    with pytest.raises(ParameterError, match=name):
        price_plan(PLAN, **({"epsilon": 8, "delta": 1e-6, "cohort": COHORT} | changed))


@pytest.mark.parametrize("epsilon", [16.0, 32.0])
def test_the_second_epsilon_is_proven_for_large_fleets_too(epsilon: float) -> None:
    """Distances of all draws of 6,040 devices, 200,000 numbers each, are paid from the reserved part of δ."""
    plan = make_plan([[Block("audience", (25_000, 8), 5.0, 1.0)]])
    statement = price_plan(plan, epsilon=epsilon, delta=1e-6, cohort=Cohort(6_040)).statement()
    assert 2 * epsilon < statement["item_level"] < 100
