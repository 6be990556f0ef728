"""Attacks by a malicious server, which publishes item vectors of its own choice.

The error of a rating r is e = r − u·v. A server that chooses v can make u·v nearly zero, and errors are then ratings.
Devices refuse tables of zeros and of implausible norms. The attacks in this module try several crafted tables, some of
which devices accept.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.attacks.marking import MarkingServer, can_mark
from hushrec.audit.attacks.value import read_last_report
from hushrec.audit.devices import make_device, report_of
from hushrec.audit.findings import Finding
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, take_apart
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.statistics import auc, mean_interval, rate_at
from hushrec.audit.value_scores import ValueScore
from hushrec.engines.gradient import GradientProblem
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import ItemVectors, Terms
from hushrec.protocols.gradient.plausible import LARGEST_ITEM_NORM, SMALLEST_ITEM_NORM
from hushrec.protocols.gradient.protocols import GradientProtocol

MARKED = 400  # number of items to mark
CLAIM = "none: a malicious server is not covered; devices refuse tables of absurd norm"


class CraftedTable(Protocol):
    """A way to choose the item vectors to send to one victim, given the victim's reports so far (`seen`)."""

    @property
    def name(self) -> str: ...

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray: ...


@dataclass(frozen=True)
class AllZero:
    """A table of zeros, which devices refuse."""

    name: str = "malicious V = 0"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        return np.zeros((terms.n_items, terms.n_factors))


@dataclass(frozen=True)
class TinyRows:
    """A table of random directions with nearly the smallest norm that devices accept."""

    name: str = "malicious V, tiny rows"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        return _unit_rows(rng.standard_normal((terms.n_items, terms.n_factors))) * (SMALLEST_ITEM_NORM * 1.01)


@dataclass(frozen=True)
class LoudRow:
    """A table of zeros except for one row of nearly the largest norm that devices accept; devices refuse the table."""

    name: str = "malicious V, one loud row"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        table = np.zeros((terms.n_items, terms.n_factors))
        table[:1] = _unit_rows(rng.standard_normal((1, terms.n_factors))) * LARGEST_ITEM_NORM * 0.99
        return table


@dataclass(frozen=True)
class OrthogonalRows:
    """A table of unit rows orthogonal to the victim's user vector, as estimated from the reports so far."""

    name: str = "malicious V, orthogonal rows"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        if seen.direction is None:
            return TinyRows().vectors(terms, seen, rng=rng)
        rows = rng.standard_normal((terms.n_items, terms.n_factors))
        rows -= np.outer(rows @ seen.direction, seen.direction)
        return _unit_rows(rows)


CRAFTED: tuple[CraftedTable, ...] = (AllZero(), TinyRows(), LoudRow(), OrthogonalRows())


def _unit_rows(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def attack_devices(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rounds: int, rng: np.random.Generator
) -> list[Finding]:
    """Return one finding per crafted table: how much it reveals of the victims' ratings in `rounds` rounds.

    Each attack runs against new devices that hold the victims' ratings.
    """
    protocol, levels = observation.protocol, observation.levels
    return [_attack(table, problem, protocol, levels, victims, rounds, rng) for table in CRAFTED]


def attack_by_marks(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rng: np.random.Generator
) -> list[Finding]:
    """Return how well a malicious `MarkingServer` recovers which of some random items the victims rated, and how.

    Return an empty list if the run has too few factors or rounds for this attack.
    """
    if not can_mark(problem.terms):
        return []
    areas, rates, shares, blind = [], [], [], []
    levels = observation.levels
    score = ValueScore.on(problem.values, levels)
    for user in victims:
        server = _mark(problem, int(user), rng)
        asked = ~np.isnan(server.scores)
        items, ratings = problem.profile(user)
        rated = np.zeros(problem.n_items, dtype=bool)
        rated[items] = True
        areas.append(auc(server.scores[asked], rated[asked]))
        rates.append(rate_at(server.scores[asked], rated[asked]) if rated[asked].any() else np.nan)
        if asked[items].any() and not problem.model.learns_from_pairs:
            guess, known = server.ratings(levels)[items], asked[items]
            exact = np.abs(guess - ratings)[known] < levels.reach  # False for a guess of "not rated" (NaN)
            shares.append(score.share(guess[known], ratings[known]) if levels.continuous else float(np.mean(exact)))
            blind.append(score.chance(ratings[known]))
    common: dict[str, Any] = {"protocol": observation.protocol.name, "name": "malicious V, marked rows", "claim": CLAIM}
    found = []
    if np.isfinite(areas).any():
        found.append(
            Finding(
                target="existence",
                metric="auc",
                value=float(np.nanmean(areas)),
                auc=float(np.nanmean(areas)),
                tpr_at_1pct_fpr=float(np.nanmean(rates)),
                interval=mean_interval(np.array(areas), rng=rng),
                chance=0.5,
                **common,
            )
        )
    if shares:
        found.append(
            Finding(
                target="value",
                metric=score.metric,
                value=float(np.mean(shares)),
                interval=mean_interval(np.array(shares), rng=rng),
                chance=float(np.mean(blind)),
                **common,
            )
        )
    return found


def _mark(problem: GradientProblem, user: int, rng: np.random.Generator) -> MarkingServer:
    """Run a `MarkingServer` against a new device of one user and return the server.

    The loop ends when all marks are read or the run has no more rounds.
    """
    items = np.sort(rng.choice(problem.n_items, min(MARKED, problem.n_items), replace=False))
    server = MarkingServer(problem.terms, items, rng=rng)
    device = make_device(problem, user, seed=problem.seed + 4)
    for round_number in range(1, min(server.n_rounds, problem.terms.max_rounds) + 1):
        announcement = server.announce(round_number)
        server.receive(announcement, report_of(device, announcement))
    return server


def _attack(
    table: CraftedTable,
    problem: GradientProblem,
    protocol: GradientProtocol,
    levels: RatingLevels,
    victims: IntArray,
    rounds: int,
    rng: np.random.Generator,
) -> Finding:
    score = ValueScore.on(problem.values, levels)
    shares, blind = [], []
    rounds = min(rounds, problem.terms.max_rounds)
    for user in victims:
        items, ratings = problem.profile(user)
        guess = _read(table, problem, protocol, levels, int(user), rounds, rng)
        shares.append(score.share(guess[items], ratings))
        blind.append(score.chance(ratings))
    return Finding(
        protocol=protocol.name,
        name=table.name,
        target="value",
        metric=score.metric,
        value=float(np.mean(shares)),
        interval=mean_interval(np.array(shares), rng=rng),
        chance=float(np.mean(blind)),
        claim=CLAIM,
    )


def _read(
    table: CraftedTable,
    problem: GradientProblem,
    protocol: GradientProtocol,
    levels: RatingLevels,
    user: int,
    rounds: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the ratings that a server with this table recovers from one victim, `(n_items,)`; NaN without a guess."""
    terms = problem.terms
    device = make_device(problem, user, seed=problem.seed + 1)
    seen = Trace(())
    for round_number in range(1, rounds + 1):
        announcement = ItemVectors(terms, round_number, table.vectors(terms, seen, rng=rng))
        try:
            report = report_of(device, announcement)
        except RemoteProtocolError:
            return np.full(terms.n_items, np.nan)
        if report is not None:
            seen = Trace((*seen.parts, take_apart(announcement, report, seen.direction)))
    return read_last_report(seen, protocol, terms, levels)
