"""A server that chooses what it publishes, within what a device accepts.

An error is e = r − u·v. Whoever chooses v chooses u·v: make it nearly zero, and errors are ratings. A device refuses
V = 0 and absurd norms; what else passes is tried here.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.attacks.marking import MarkingServer, can_mark
from hushrec.audit.attacks.value import read_last_upload
from hushrec.audit.devices import make_device, profile, upload_of
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

MARKED = 400
CLAIM = "none: a malicious server is not covered; devices refuse tables of absurd norm"


class CraftedTable(Protocol):
    """A way to choose the public table V for one victim, from what the victim sent so far."""

    @property
    def name(self) -> str: ...

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray: ...


@dataclass(frozen=True)
class AllZero:
    """V = 0, which devices refuse."""

    name: str = "malicious V = 0"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        return np.zeros((terms.n_items, terms.n_factors))


@dataclass(frozen=True)
class TinyRows:
    """Random directions of the smallest norm that passes."""

    name: str = "malicious V, tiny rows"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        return _unit_rows(rng.standard_normal((terms.n_items, terms.n_factors))) * (SMALLEST_ITEM_NORM * 1.01)


@dataclass(frozen=True)
class LoudRow:
    """Zero but for one row of the largest norm, which devices refuse too."""

    name: str = "malicious V, one loud row"

    def vectors(self, terms: Terms, seen: Trace, *, rng: np.random.Generator) -> FloatArray:
        table = np.zeros((terms.n_items, terms.n_factors))
        table[:1] = _unit_rows(rng.standard_normal((1, terms.n_factors))) * LARGEST_ITEM_NORM * 0.99
        return table


@dataclass(frozen=True)
class OrthogonalRows:
    """Rows of ordinary norm at right angles to the direction that the victim's first upload gave away."""

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
    """Every crafted table against fresh devices of the victims, for a few rounds: the share of ratings read."""
    protocol, levels = observation.protocol, observation.levels
    return [_attack(table, problem, protocol, levels, victims, rounds, rng) for table in CRAFTED]


def attack_by_marks(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rng: np.random.Generator
) -> list[Finding]:
    """Attack fresh devices by a server that marks random items: which are rated, and how.

    Return no finding where no direction is free for a mark, or where marks cannot tell rated from unrated items.
    """
    if not can_mark(problem.terms):
        return []
    areas, rates, shares, blind = [], [], [], []
    levels = observation.levels
    score = ValueScore.on(problem.values, levels)
    for user in victims:
        server = _mark(problem, int(user), rng)
        asked = ~np.isnan(server.scores)
        items, ratings = profile(problem, int(user))
        rated = np.zeros(problem.n_items, dtype=bool)
        rated[items] = True
        areas.append(auc(server.scores[asked], rated[asked]))
        rates.append(rate_at(server.scores[asked], rated[asked]) if rated[asked].any() else np.nan)
        if asked[items].any() and not problem.model.learns_from_pairs:
            guess, known = server.ratings(levels)[items], asked[items]
            exact = np.abs(guess - ratings)[known] < levels.reach  # those that do not seem rated are misses
            shares.append(score.share(guess[known], ratings[known]) if levels.continuous else float(np.mean(exact)))
            blind.append(score.chance(ratings[known]))
    common: dict[str, Any] = {
        "protocol": observation.protocol.name,
        "name": "malicious V, marked rows",
        "claim": CLAIM,
    }
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
    """A fresh device answers until every block of marks is read, or the rounds are over."""
    items = np.sort(rng.choice(problem.n_items, min(MARKED, problem.n_items), replace=False))
    server = MarkingServer(problem.terms, items, rng=rng)
    device = make_device(problem, user, seed=problem.seed + 4)
    for round_number in range(1, min(server.n_rounds, problem.terms.max_rounds) + 1):
        announcement = server.announce(round_number)
        server.receive(announcement, upload_of(device, announcement))
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
        items, ratings = profile(problem, int(user))
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
    """Return the ratings that the server reads from the victim's reports; NaN where it learns nothing."""
    terms = problem.terms
    device = make_device(problem, user, seed=problem.seed + 1)
    seen = Trace(())
    for round_number in range(1, rounds + 1):
        announcement = ItemVectors(terms, round_number, table.vectors(terms, seen, rng=rng))
        try:
            upload = upload_of(device, announcement)
        except RemoteProtocolError:
            return np.full(terms.n_items, np.nan)
        if upload is not None:
            seen = Trace((*seen.parts, take_apart(announcement, upload, seen.direction)))
    return read_last_upload(seen, protocol, terms, levels)
