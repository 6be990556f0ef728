"""What a budget means for one person: `explain_budget` and `hushrec budget`."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from hypothesis import given
from hypothesis import strategies as st

from hushrec.errors import ImpossibleBudget, ParameterError
from hushrec.protocols.gradient.meaning import SelectionBudget, belief, explain_budget

ML_100K: dict[str, Any] = {
    "n_rated": 85,
    "n_items": 1682,
    "reports_per_client": 85.0,
    "epsilon_i": 4.0,
    "epsilon_p": 8.0,
    "epsilon_g": 4.0,
    "rounds": 100,
}


def make(**changes: Any) -> SelectionBudget:
    """The budget of ML-100K's mean person, with changes."""
    return SelectionBudget(**(ML_100K | changes))


def test_on_movielens_few_of_the_reported_items_are_real() -> None:
    """At epsilon_i = 4 a bit survives with probability 0.51 and 4.5 of 85 reported items are rated."""
    meaning = explain_budget(make())
    assert round(meaning.bit_survives, 2) == 0.51
    assert round(meaning.real_among_them, 1) == 4.5
    assert meaning.items_sent == pytest.approx(85)
    assert round(meaning.real_by_chance, 1) == 4.3


@pytest.mark.parametrize("epsilon_p", [40.0, 36.0, 30.0])
def test_the_belief_is_bayes_rule_over_all_that_can_be_seen(epsilon_p: float) -> None:
    """Enumerated: no sequence of three rounds moves the belief further than `belief` says, and two reach it."""
    budget = make(n_rated=4, n_items=12, reports_per_client=5.0, epsilon_i=20.0, epsilon_p=epsilon_p, rounds=3)
    found = budget.probabilities()
    f, p, q = found.prob_randomize, found.prob_send_zero, found.prob_send_one

    def likelihood(seen: tuple[int, ...], permanent_one: float) -> float:
        ones = math.prod(q if bit else 1 - q for bit in seen)
        zeros = math.prod(p if bit else 1 - p for bit in seen)
        return permanent_one * ones + (1 - permanent_one) * zeros

    beliefs = []
    for seen in itertools.product((0, 1), repeat=3):
        rated, unrated = likelihood(seen, 1 - f / 2) * budget.prior, likelihood(seen, f / 2) * (1 - budget.prior)
        beliefs.append(rated / (rated + unrated))
    assert max(beliefs) == pytest.approx(belief(budget, rounds=3), rel=1e-12)
    assert min(beliefs) == pytest.approx(belief(budget, rounds=3, sent=False), rel=1e-12)


@given(
    rated=st.integers(1, 300),
    reports=st.floats(1, 300),
    epsilon_i=st.floats(0.01, 50),
    rounds=st.integers(1, 1000),
    prior=st.floats(0.001, 0.999),
)
def test_no_number_of_rounds_moves_the_odds_beyond_the_permanent_budget(
    rated: int, reports: float, epsilon_i: float, rounds: int, prior: float
) -> None:
    """The odds change by at most exp(epsilon_p / 2h), up and down, whatever the server sees."""
    budget = make(
        n_rated=rated,
        reports_per_client=reports,
        epsilon_i=epsilon_i,
        epsilon_p=2 * epsilon_i,
        rounds=rounds,
        prior=prior,
    )
    meaning = explain_budget(budget)
    bound = budget.epsilon_p / (2 * rated) * (1 + 1e-9) + 1e-9
    before = math.log(prior / (1 - prior))
    for after in (meaning.belief_after_one_round, meaning.belief_after_all_rounds, meaning.belief_never_sent):
        if 1e-6 < after < 1 - 1e-6:  # nearer to certainty, 1 − after has too few digits
            assert abs(math.log(after / (1 - after)) - before) <= bound
    assert meaning.belief_never_sent <= prior <= meaning.belief_after_one_round * (1 + 1e-12)
    assert meaning.smallest_epsilon_p <= 2 * epsilon_i * (1 + 1e-12)


def test_the_cost_of_all_rounds_stops_at_the_permanent_budget() -> None:
    """One round costs epsilon_i, many cost epsilon_p, one rating the h-th part."""
    assert explain_budget(make(rounds=1)).epsilon_all_rounds == 4
    assert explain_budget(make(rounds=2)).epsilon_all_rounds == 8
    meaning = explain_budget(make(rounds=1000))
    assert meaning.epsilon_all_rounds == 8
    assert meaning.epsilon_one_rating == pytest.approx(8 / 85)


def test_a_cap_counts_as_the_number_of_ratings() -> None:
    """With H = 600 the numbers are those of H, the unit names it, and the count is covered."""
    meaning = explain_budget(make(profile_cap=600))
    assert meaning.epsilon_one_rating == pytest.approx(8 / 600)
    assert "up to 600 ratings" in meaning.unit
    assert "how many items a person rated" not in meaning.not_covered
    assert "how many items a person rated" in explain_budget(make()).not_covered


def test_ratings_beyond_the_cap_are_sent_like_unrated_ones() -> None:
    """85 ratings under a cap of 20: 20 count with q*, 65 with p*."""
    budget = make(profile_cap=20)
    found = budget.probabilities()
    expected = 20 * found.prob_send_rated + 65 * found.prob_send_unrated
    assert explain_budget(budget).real_among_them == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon_g", "outside"), [(4, 0.98), (1, 0.63), (0.25, 0.22), (0.0625, 0.06), (0, 0)])
def test_epsilon_g_says_how_many_real_errors_give_themselves_away(epsilon_g: float, outside: float) -> None:
    """P(|X| ≥ α) = 1 − exp(−epsilon_g): 98, 63, 22, 6 % and none."""
    assert round(explain_budget(make(epsilon_g=epsilon_g)).real_errors_outside_fakes, 2) == outside


def test_the_smallest_budget_that_works_works_and_less_does_not() -> None:
    """An inverse: at the named epsilon_p there is an answer, just below there is none."""
    smallest = explain_budget(make()).smallest_epsilon_p
    assert np.isfinite(explain_budget(make(epsilon_p=smallest)).belief_never_sent)
    with pytest.raises(ImpossibleBudget, match="epsilon_p"):
        explain_budget(make(epsilon_p=smallest * 0.999))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds must"),
        ({"prior": 1.0}, "prior must"),
        ({"epsilon_g": -1.0}, "epsilon_g must"),
        ({"n_rated": 0}, "rated must"),
        ({"profile_cap": 0}, "profile_cap must"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    """One sentence with the name and what was given."""
    with pytest.raises(ParameterError) as caught:
        make(**changes)
    assert message in str(caught.value)


def test_the_command_speaks_plainly_in_eighty_columns() -> None:
    """The defaults are MovieLens 100K's; unit and what is not covered are there."""
    outcome = run("budget")
    assert outcome.code == 0
    assert "85.0 items; 4.5 are really rated" in outcome.out
    assert "profile-level" in outcome.out
    assert "the smallest epsilon_p that works       7.588 (here 8)" in outcome.out
    assert "98% of a person's real errors" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_command_prints_json_and_draws(tmp_path: Path) -> None:
    """All numbers as JSON; the plot is an SVG file that names its axes."""
    outcome = run("budget", "--rated", 20, "--items", 400, "--plot", tmp_path / "b.svg", "--json")
    found = json.loads(outcome.out)
    assert 0 < found["probabilities"]["prob_send_zero"] < found["probabilities"]["prob_send_one"] < 1
    assert found["n_rated"] == 20
    svg = (tmp_path / "b.svg").read_text("utf-8")
    assert svg.count("<svg") == 1
    assert "belief that one item is rated" in svg


def test_the_command_refuses_an_impossible_budget_in_one_sentence(tmp_path: Path) -> None:
    """Exit 1 with the smallest epsilon_p that works; a plot that cannot be written is one sentence too."""
    outcome = run("budget", "--epsilon-p", 5)
    assert outcome.code == 1
    assert outcome.err.startswith("hushrec: epsilon_p must be at least 7.58751")
    outcome = run("budget", "--plot", tmp_path / "nowhere" / "b.svg")
    assert outcome.code == 1
    assert "must be writable" in outcome.err


def test_a_one_class_model_has_no_fakes_to_explain() -> None:
    """Its rated items give themselves away by their sign, and epsilon_g is refused."""
    outcome = run("budget", "--model", "bpr")
    assert outcome.code == 0
    assert "opposite directions" in outcome.out.replace("\n    ", " ")
    assert "epsilon_g" not in outcome.out
    outcome = run("budget", "--model", "bpr", "--epsilon-g", 4)
    assert (outcome.code, outcome.out) == (1, "")
    assert "epsilon_g must not be given" in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_command_says_where_the_budget_of_masked_is_explained() -> None:
    """In its help, and to a user who names a model of `masked`."""
    for outcome in (run("budget", "--help"), run("budget", "--model", "gp")):
        said = " ".join((outcome.out + outcome.err).split())
        assert "masked" in said
        assert "`hushrec train` prints" in said
        assert "docs/choose-a-budget.md" in said
