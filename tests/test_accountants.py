"""What events cost: by hand, against other libraries, and refused where there is no price."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from hushrec.budget.accountants import (
    RatingAccountant,
    SelectionAccountant,
    TableAccountant,
    ValueAccountant,
)
from hushrec.budget.events import (
    BlockSent,
    GradientsSent,
    PermanentDraw,
    RatingsPerturbed,
    SelectionSent,
    TablesElsewhere,
    TableSent,
    gradient_rho,
)
from hushrec.budget.gaussian import epsilon_of_mu
from hushrec.errors import ParameterError, UnknownEvent

EVENTS = [
    PermanentDraw(8.0, 20, capped=False),
    SelectionSent(4.0),
    GradientsSent(3, 1.5),
    RatingsPerturbed(2.0),
    TableSent((BlockSent(100, 16, 10, 0.0),)),
]


def gaussian_epsilon(rho: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism whose cost in zCDP is rho = μ²/2."""
    return epsilon_of_mu(math.sqrt(2 * rho), delta)


def composed(accountant: Any, *events: Any) -> Any:
    """The accountant after these events."""
    for event in events:
        accountant.compose(event)
    return accountant


def test_selections_are_priced_by_hand_over_two_epochs() -> None:
    """Epoch one: 1 round of 4 under 8, h = 20; two: 3 rounds of 4 under 6, H = 30. Spent 4 + 6 of 8 + 6 committed."""
    accountant = composed(SelectionAccountant(), PermanentDraw(8.0, 20, capped=False), SelectionSent(4.0))
    composed(accountant, PermanentDraw(6.0, 30, capped=True), *[SelectionSent(4.0)] * 3)
    assert accountant.spent() == 10.0
    assert accountant.charged() == 14.0
    assert accountant.item_level() == pytest.approx(4 / 20 + 6 / 30)
    assert (accountant.rounds, accountant.permanent_draws, accountant.capped_draws) == (4, 2, 1)


def test_drawn_bits_cost_nothing_until_something_is_sent() -> None:
    """The draw commits epsilon_p and spends nothing; an accountant without events has spent nothing."""
    assert (SelectionAccountant().spent(), SelectionAccountant().charged()) == (0.0, 0.0)
    accountant = composed(SelectionAccountant(), PermanentDraw(8.0, 20, capped=False))
    assert (accountant.spent(), accountant.charged(), accountant.item_level()) == (0.0, 8.0, 0.0)


def test_rounds_never_cost_more_than_their_permanent_bits() -> None:
    """100 rounds of 4 under 8 cost 8."""
    accountant = composed(SelectionAccountant(), PermanentDraw(8.0, 20, capped=False), *[SelectionSent(4.0)] * 100)
    assert accountant.spent() == 8.0


def test_a_selection_without_permanent_bits_has_no_price() -> None:
    """It is refused, and nothing changes."""
    accountant = SelectionAccountant()
    with pytest.raises(UnknownEvent, match="a SelectionSent"):
        accountant.compose(SelectionSent(4.0))
    assert accountant == SelectionAccountant()


@pytest.mark.parametrize("kind", [SelectionAccountant, ValueAccountant, RatingAccountant, TableAccountant])
def test_every_accountant_refuses_what_it_cannot_price(kind: Any) -> None:
    """Each of our events is priced by exactly one accountant, the others refuse it, and all refuse a stranger."""
    priced = {
        SelectionAccountant: EVENTS[:2],
        ValueAccountant: EVENTS[2:3],
        RatingAccountant: EVENTS[3:4],
        TableAccountant: EVENTS[4:],
    }[kind]
    for event in [*EVENTS, "stranger"]:
        if event in priced:
            composed(kind(), *priced)
        else:
            accountant = kind()
            with pytest.raises(UnknownEvent, match=f"{kind.__name__} .* {type(event).__name__}"):
                accountant.compose(event)
            assert accountant == kind()


@pytest.mark.parametrize("kind", [SelectionAccountant, ValueAccountant, RatingAccountant, TableAccountant])
def test_a_copy_is_equal_and_apart(kind: Any) -> None:
    """All totals are copied; composing the copy leaves the original alone."""
    places = {SelectionAccountant: 0, ValueAccountant: 2, RatingAccountant: 3, TableAccountant: 4}
    event = EVENTS[places[kind]]
    accountant = composed(kind(), event)
    copy = accountant.copy()
    assert copy == accountant
    copy.compose(event)
    assert copy != accountant


def test_tables_of_a_copy_cost_budget_and_distance_and_are_not_counted() -> None:
    """The distance of their noise is paid from delta, as that of the device's own tables."""
    accountant = composed(TableAccountant(), TablesElsewhere(1.5, 1e-9), TablesElsewhere(0.5, 2e-9))
    assert accountant == TableAccountant(0, 2.0, 1.0, pytest.approx(3e-9))
    assert accountant.epsilon(1e-6) == math.inf > TableAccountant(0, 2.0, 1.0).epsilon(1e-6)


def test_noisy_ratings_add_up() -> None:
    """Perturbing the same rating twice costs the sum."""
    accountant = composed(RatingAccountant(), RatingsPerturbed(2.0), RatingsPerturbed(0.5))
    assert accountant.spent() == 2.5
    assert accountant.perturbations == 2


def test_the_price_of_gradients_is_worked_by_hand() -> None:
    """Two gradients (3, 4) and (0, 1) at noise variance 0.5: (25 + 1) / (2 · 0.5) = 26; prices add up."""
    rho = gradient_rho(np.array([[3.0, 4.0], [0.0, 1.0]]), 0.5)
    assert rho == 26.0
    assert gradient_rho(np.empty((0, 2)), 0.5) == 0.0
    accountant = composed(ValueAccountant(), GradientsSent(2, rho), GradientsSent(1, 0.5))
    assert (accountant.spent(), accountant.gradients) == (26.5, 3)


@pytest.mark.parametrize("rho", [1e-3, 0.02, 0.5, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_dp_accounting_inverts_the_same_curve(rho: float, delta: float) -> None:
    """Google's own search for the epsilon of a Gaussian of deviation 1/√(2 rho) finds our number."""
    oracle = gaussian_mechanism.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)
    assert gaussian_epsilon(rho, delta) == pytest.approx(oracle, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("rho", [0.02, 0.5, 5.0])
def test_dp_accounting_finds_the_same_epsilon_from_the_privacy_loss(rho: float) -> None:
    """The other accountant: a privacy loss distribution, both orders of the pair, the larger; on a grid of 1e-3."""
    distribution = privacy_loss_distribution.from_gaussian_mechanism(
        1 / math.sqrt(2 * rho), value_discretization_interval=1e-3
    )
    orders = (distribution._pmf_remove, distribution._pmf_add)
    oracle = max(order.get_epsilon_for_delta(1e-6) for order in orders)
    assert gaussian_epsilon(rho, 1e-6) == pytest.approx(oracle, abs=1e-3)


def test_gradients_composed_one_by_one_cost_what_dp_accounting_says() -> None:
    """Ten Gaussians of rho 0.05 cost one of 0.5, also in Google's composition."""
    accountant = composed(ValueAccountant(), *[GradientsSent(1, 0.05)] * 10)
    one = privacy_loss_distribution.from_gaussian_mechanism(math.sqrt(10), value_discretization_interval=1e-4)
    assert gaussian_epsilon(accountant.rho, 1e-6) == pytest.approx(
        one.self_compose(10).get_epsilon_for_delta(1e-6), abs=2e-3
    )


@pytest.mark.parametrize("rho", [1e-4, 0.5, 8.0, 300.0])
@pytest.mark.parametrize("delta", [0.01, 1e-6, 1e-12])
def test_the_curve_is_inverted_exactly_and_rounded_up(rho: float, delta: float) -> None:
    """Put back into Theorem 8 of Balle and Wang, epsilon gives delta, and never more."""
    epsilon, mu = gaussian_epsilon(rho, delta), math.sqrt(2 * rho)
    log_second = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
    back = math.exp(stats.norm.logcdf(mu / 2 - epsilon / mu)) - math.exp(log_second)
    assert back == pytest.approx(delta, rel=1e-6) or (epsilon == 0 and back < delta)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_an_enormous_price_is_still_a_number() -> None:
    """One round of scaled gradients costs 1e5 and more: epsilon is a little above rho, without overflow."""
    for rho in (1e5, 1e9):
        assert rho < gaussian_epsilon(rho, 1e-6) < rho + 2 * math.sqrt(rho * math.log(1e6))
    assert gaussian_epsilon(0.0, 1e-6) == 0.0
    assert gaussian_epsilon(1e-12, 1e-3) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_event_needs_a_positive_epsilon(epsilon: float) -> None:
    """All events that carry an epsilon."""
    makers: list[Any] = [lambda: PermanentDraw(epsilon, 3, capped=True), lambda: SelectionSent(epsilon)]
    for make in [*makers, lambda: RatingsPerturbed(epsilon)]:
        with pytest.raises(ParameterError, match=f"epsilon .* got {epsilon}"):
            make()


def test_an_event_refuses_counts_without_meaning() -> None:
    """No bits are drawn from nothing; losses are finite and not negative. Neither value is shown."""
    with pytest.raises(ParameterError, match="n_protected"):
        PermanentDraw(8.0, 0, capped=False)
    for n_gradients, rho in ((-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)):
        with pytest.raises(ParameterError, match="n_gradients"):
            GradientsSent(n_gradients, rho)


def test_what_depends_on_ratings_is_not_printed() -> None:
    """How many were rated, how many gradients were real, what they cost: in no repr of an event or accountant."""
    assert repr(PermanentDraw(8.0, 77, capped=False)) == "PermanentDraw(epsilon=8.0, capped=False)"
    assert repr(GradientsSent(77, 77.5)) == "GradientsSent()"
    for accountant in (SelectionAccountant(rounds=7777), ValueAccountant(7777), RatingAccountant(7777)):
        assert "7777" not in repr(accountant).split(" at ")[0]
