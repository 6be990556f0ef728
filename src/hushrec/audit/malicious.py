"""Attacks by a malicious server, which publishes item vectors of its own choice.

The error of a rating r is e = r − u·v. A server that chooses v can make u·v nearly zero, and errors are then ratings.
Devices refuse tables of zeros and of implausible norms. The attacks in this module try several crafted tables, some of
which devices accept.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.attacks.value import read_reports
from hushrec.audit.devices import report_of
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.marking import MarkingServer, can_mark
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace
from hushrec.audit.value_scores import ValueScore
from hushrec.engines.gradient import GradientProblem
from hushrec.engines.reference import make_client
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import ItemVectors, Terms
from hushrec.protocols.gradient.plausible import LARGEST_ITEM_NORM, SMALLEST_ITEM_NORM

MARKED = 400  # number of items to mark
CLAIM = "none: a malicious server is not covered; devices refuse tables of absurd norm"

# Return the item vectors to send to one victim, given the victim's reports so far.
Craft = Callable[[Terms, Trace, np.random.Generator], FloatArray]


def all_zero(terms: Terms, seen: Trace, rng: np.random.Generator) -> FloatArray:
    """Return item vectors of zeros, which devices refuse."""
    return np.zeros((terms.n_items, terms.n_factors))


def tiny_rows(terms: Terms, seen: Trace, rng: np.random.Generator) -> FloatArray:
    """Return item vectors with random directions and nearly the smallest norm that devices accept."""
    return _unit_rows(rng.standard_normal((terms.n_items, terms.n_factors))) * (SMALLEST_ITEM_NORM * 1.01)


def loud_row(terms: Terms, seen: Trace, rng: np.random.Generator) -> FloatArray:
    """Return item vectors of zeros, except one of nearly the largest norm that devices accept; devices refuse them."""
    table = np.zeros((terms.n_items, terms.n_factors))
    table[:1] = _unit_rows(rng.standard_normal((1, terms.n_factors))) * LARGEST_ITEM_NORM * 0.99
    return table


def orthogonal_rows(terms: Terms, seen: Trace, rng: np.random.Generator) -> FloatArray:
    """Return item vectors of norm 1 orthogonal to the victim's user vector, as estimated from the reports so far.

    Before the first report, return the result of `tiny_rows`.
    """
    if seen.direction is None:
        return tiny_rows(terms, seen, rng)
    rows = rng.standard_normal((terms.n_items, terms.n_factors))
    rows -= np.outer(rows @ seen.direction, seen.direction)
    return _unit_rows(rows)


CRAFTED: dict[str, Craft] = {
    "malicious V = 0": all_zero,
    "malicious V, tiny rows": tiny_rows,
    "malicious V, one loud row": loud_row,
    "malicious V, orthogonal rows": orthogonal_rows,
}


def _unit_rows(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def attack_devices(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rounds: int, rng: np.random.Generator
) -> list[Finding]:
    """Return findings on how well a malicious server recovers the victims' ratings, one per entry of `CRAFTED`.

    An entry is a way to compute malicious item vectors, which the server publishes for `rounds` rounds. The metric is
    `ValueScore.metric`, such as the fraction of ratings that are guessed exactly.
    """
    score, rounds = ValueScore.on(problem.values, observation.levels), min(rounds, problem.terms.max_rounds)
    findings = []
    for name, craft in CRAFTED.items():
        shares, blind = [], []
        for user in victims:
            items, ratings = problem.profile(user)
            guess = _read(craft, problem, observation, int(user), rounds, rng)
            shares.append(score.share(guess[items], ratings))
            blind.append(score.chance(ratings))
        subject = Subject(observation.protocol.name, name, "value", CLAIM)
        findings.append(subject.mean(score.metric, np.array(shares), np.mean(blind), rng=rng))
    return findings


def _read(
    craft: Craft, problem: GradientProblem, observation: Observation, user: int, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """Return one victim's ratings as recovered by a server that publishes item vectors from `craft`, `(n_items,)`.

    An item without a guess is NaN. If the device refuses the item vectors, all items are NaN.
    """
    terms = problem.terms
    device = make_client(replace(problem, seed=problem.seed + 1), user)
    seen = Trace(())
    for round_number in range(1, rounds + 1):
        announcement = ItemVectors(terms, round_number, craft(terms, seen, rng))
        try:
            seen = seen.followed_by(announcement, report_of(device, announcement))
        except RemoteProtocolError:
            return np.full(terms.n_items, np.nan)
    return read_reports(seen, observation.protocol, terms, observation.levels)


def attack_by_marks(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rng: np.random.Generator
) -> list[Finding]:
    """Return findings on how well a `MarkingServer` recovers items and ratings; none if `can_mark` returns False."""
    if not can_mark(problem.terms):
        return []
    cases, shares, blind = [], [], []
    levels = observation.levels
    score = ValueScore.on(problem.values, levels)
    for user in victims:
        server = _mark(problem, int(user), rng)
        marked = ~np.isnan(server.scores)
        items, ratings = problem.profile(user)
        rated = np.isin(np.arange(problem.n_items), items)
        cases.append((server.scores[marked], rated[marked]))
        if marked[items].any() and not problem.model.learns_from_pairs:
            guess, known = server.ratings(levels)[items], marked[items]
            exact = np.abs(guess - ratings)[known] < levels.reach  # False for a guess of "not rated" (NaN)
            shares.append(score.share(guess[known], ratings[known]) if levels.continuous else float(np.mean(exact)))
            blind.append(score.chance(ratings[known]))
    subject = Subject(observation.protocol.name, "malicious V, marked rows", "existence", CLAIM)
    found = subject.mean_area(cases, rng=rng)
    if shares:
        found.append(replace(subject, target="value").mean(score.metric, np.array(shares), np.mean(blind), rng=rng))
    return found


def _mark(problem: GradientProblem, user: int, rng: np.random.Generator) -> MarkingServer:
    """Run a `MarkingServer` against a new device of one user, until all marks are read or the rounds end; return it."""
    items = np.sort(rng.choice(problem.n_items, min(MARKED, problem.n_items), replace=False))
    server = MarkingServer(problem.terms, items, rng=rng)
    device = make_client(replace(problem, seed=problem.seed + 4), user)
    for round_number in range(1, min(server.n_rounds, problem.terms.max_rounds) + 1):
        announcement = server.announce(round_number)
        server.receive(announcement, report_of(device, announcement))
    return server
