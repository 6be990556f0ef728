"""The price of selections, by adding up every outcome for every profile of small catalogues."""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from hushrec.budget.accountants import SelectionAccountant
from hushrec.budget.calibrate import SelectionProbabilities, calibrate_selection, smallest_epsilon_p
from hushrec.budget.events import PermanentDraw, SelectionSent

Likelihoods = npt.NDArray[np.float64]


def likelihoods(
    profile: tuple[int, ...], n_items: int, rounds: int, found: SelectionProbabilities[float]
) -> Likelihoods:
    """P(S¹ … S^T | profile) for all 2^(m T) outcomes, summed over all 2^m permanent vectors."""
    flip = found.prob_randomize / 2
    bits = np.array(list(itertools.product((0, 1), repeat=n_items)))  # (2^m, m)
    truth = np.isin(np.arange(n_items), profile)
    permanent = np.where(bits == truth, 1 - flip, flip).prod(axis=1)  # P(B' | B)
    send = np.where(bits == 1, found.prob_send_one, found.prob_send_zero)  # P(selected | B')
    one_round = np.array([np.where(chosen == 1, send, 1 - send).prod(axis=1) for chosen in bits])  # (outcomes, 2^m)
    joint = permanent[None, :]
    for _ in range(rounds):
        joint = (joint[:, None, :] * one_round[None, :, :]).reshape(-1, len(bits))
    return joint.sum(axis=1)


def largest_loss(
    profiles: Iterable[tuple[int, ...]], n_items: int, rounds: int, found: SelectionProbabilities[float]
) -> float:
    """The largest log-likelihood ratio of any outcome between any two profiles."""
    logs = np.log([likelihoods(profile, n_items, rounds, found) for profile in profiles])
    return float(max(np.max(first - second) for first, second in itertools.permutations(logs, 2)))


def priced(epsilon_i: float, epsilon_p: float, n_rated: int, rounds: int) -> float:
    """What the accountant says."""
    accountant = SelectionAccountant()
    accountant.compose(PermanentDraw(epsilon_p, n_rated, capped=False))
    for _ in range(rounds):
        accountant.compose(SelectionSent(epsilon_i))
    return accountant.spent()


CASES = [
    (n_items, n_rated, rounds)
    for n_items in (2, 3, 4, 5)
    for n_rated in range(1, n_items)
    for rounds in (1, 2, 3)
    if n_items * rounds <= 12
]


@pytest.mark.parametrize(("n_items", "n_rated", "rounds"), CASES)
@pytest.mark.parametrize(("epsilon_i", "share"), [(0.5, 0.0), (2.0, 0.0), (2.0, 0.5), (2.0, 1.0), (6.0, 1.0)])
def test_no_outcome_of_any_rounds_costs_more_than_the_accountant_says(
    n_items: int, n_rated: int, rounds: int, epsilon_i: float, share: float
) -> None:
    """All profiles of length h, all outcomes of T rounds: at most min(T epsilon_i, epsilon_p); at T = 1 exact."""
    z = 0.3 * n_items
    smallest = smallest_epsilon_p(n_rated, n_items, z, epsilon_i)
    epsilon_p = smallest * (1 + 1e-6) * (1 - share) + 2 * epsilon_i * share
    found = calibrate_selection(n_rated, n_items, z, epsilon_i, epsilon_p)
    loss = largest_loss(itertools.combinations(range(n_items), n_rated), n_items, rounds, found)
    assert loss <= priced(epsilon_i, epsilon_p, n_rated, rounds) * (1 + 1e-9)
    if rounds == 1:
        differing_pairs = min(n_rated, n_items - n_rated)
        assert loss == pytest.approx(epsilon_i * differing_pairs / n_rated, rel=1e-9)


def test_many_rounds_come_close_to_the_price_of_the_permanent_bits() -> None:
    """Two items, one rated, up to six rounds at epsilon_i = 6: the cost tends to epsilon_p = 12 from below."""
    found = calibrate_selection(1, 2, 1.0, 6.0, 12.0)
    losses = [largest_loss([(0,), (1,)], 2, rounds, found) for rounds in (1, 2, 4, 6)]
    assert losses == sorted(losses)
    assert 11.999 < losses[-1] <= 12.0


def test_one_replaced_rating_costs_the_price_divided_by_the_ratings() -> None:
    """Profiles that differ in one rating: at most the accountant's item level, over three rounds."""
    found = calibrate_selection(2, 4, 1.5, 2.0, 4.0)
    for rounds in (1, 2, 3):
        accountant = SelectionAccountant()
        accountant.compose(PermanentDraw(4.0, 2, capped=False))
        for _ in range(rounds):
            accountant.compose(SelectionSent(2.0))
        loss = largest_loss([(0, 1), (0, 2)], 4, rounds, found)
        assert loss <= accountant.item_level() * (1 + 1e-9)
    assert largest_loss([(0, 1), (0, 2)], 4, 1, found) == pytest.approx(2.0 / 2)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(("n_items", "cap"), [(4, 2), (5, 2), (5, 3)])
def test_a_cap_covers_all_profiles_up_to_it(n_items: int, cap: int, rounds: int) -> None:
    """Calibrated from H: any two profiles of 0 to H ratings, adding and removing included, cost what H ratings cost."""
    found = calibrate_selection(cap, n_items, 0.4 * n_items, 2.0, 3.5)
    profiles = [p for size in range(cap + 1) for p in itertools.combinations(range(n_items), size)]
    loss = largest_loss(profiles, n_items, rounds, found)
    assert loss <= priced(2.0, 3.5, cap, rounds) * (1 + 1e-9)


def test_without_a_cap_one_added_rating_can_cost_more_than_a_whole_profile() -> None:
    """From 20 to 21 ratings of 1682 at epsilon_p = 8, f changes for every bit: permanent bits can cost 8.98.

    Bits are independent, so the largest loss is the sum of each bit's; a replaced rating costs 8/20.
    """
    flip, next_flip = (calibrate_selection(h, 1682, 85.0, 4.0, 8.0).prob_randomize / 2 for h in (20, 21))
    unchanged = max(abs(np.log(flip / next_flip)), abs(np.log((1 - flip) / (1 - next_flip))))
    added = max(np.log((1 - next_flip) / flip), np.log((1 - flip) / next_flip))
    assert 1681 * unchanged + added == pytest.approx(8.98, abs=0.01)


def test_likelihoods_add_up_to_one() -> None:
    """The enumeration itself: probabilities of all outcomes, and of single selections as calibrated."""
    found = calibrate_selection(2, 4, 1.5, 2.0, 4.0)
    one = likelihoods((0, 1), 4, 1, found)
    outcomes = np.array(list(itertools.product((0, 1), repeat=4)))
    assert one.sum() == pytest.approx(1)
    selected = one @ outcomes
    assert selected[:2] == pytest.approx(found.prob_send_rated)
    assert selected[2:] == pytest.approx(found.prob_send_unrated)
    assert selected.sum() == pytest.approx(1.5)
