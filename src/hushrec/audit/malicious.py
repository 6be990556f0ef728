"""A server that chooses what it publishes, within what a device accepts.

An error is e = r − u·v. Whoever chooses v chooses u·v: make it nearly zero, and errors are ratings. A device refuses
V = 0 and absurd norms; what else passes is tried here.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hushrec.audit.attacks.value import likeliest_ratings
from hushrec.audit.devices import make_device, profile, upload_of
from hushrec.audit.findings import Finding
from hushrec.audit.judge import most_common
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, take_apart
from hushrec.audit.rating_grid import GRID, RATING_SHARES, recover_ratings
from hushrec.audit.statistics import mean_interval
from hushrec.client import LARGEST_ITEM_NORM, SMALLEST_ITEM_NORM
from hushrec.errors import RemoteProtocolError
from hushrec.messages import ItemVectors, Terms
from hushrec.problem import Problem
from hushrec.protocols import HIGHEST, LOWEST, DeviceProtocol, Isgld, Sdcf
from hushrec.randomness import FloatArray, IntArray

CLAIM = "none: a malicious server is not covered; devices refuse tables of absurd norm"


class CraftedTable(Protocol):
    """A way to choose V for one victim, knowing what the victim sent so far."""

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
    problem: Problem, observation: Observation, victims: IntArray, *, rounds: int, rng: np.random.Generator
) -> list[Finding]:
    """Every crafted table against fresh devices of the victims, for a few rounds: the share of ratings read."""
    return [_attack(table, problem, observation.protocol, victims, rounds, rng) for table in CRAFTED]


def _attack(
    table: CraftedTable,
    problem: Problem,
    protocol: DeviceProtocol,
    victims: IntArray,
    rounds: int,
    rng: np.random.Generator,
) -> Finding:
    shares, blind = [], []
    rounds = min(rounds, problem.terms.max_rounds)
    for user in victims:
        items, ratings = profile(problem, int(user))
        guess = _read(table, problem, protocol, int(user), rounds, rng)
        commonest = most_common(problem.values)
        whole = np.where(np.isnan(guess[items]), commonest, np.clip(np.rint(guess[items]), LOWEST, HIGHEST))
        shares.append(float(np.mean(whole == ratings)))
        blind.append(float(np.mean(ratings == commonest)))
    return Finding(
        protocol=protocol.name,
        name=f"{table.name}, {rounds} rounds" if rounds > 1 else table.name,
        target="value",
        metric="share_of_ratings_exact",
        value=float(np.mean(shares)),
        interval=mean_interval(np.array(shares), rng=rng),
        chance=float(np.mean(blind)),
        claim=CLAIM,
    )


def _read(
    table: CraftedTable, problem: Problem, protocol: DeviceProtocol, user: int, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """What the server makes of the victim's answers: a rating per item, NaN where it knows nothing."""
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
    if isinstance(protocol, Sdcf):
        return recover_ratings(seen, protocol, terms).ratings
    return _read_unhidden(seen, protocol, terms)


def _read_unhidden(seen: Trace, protocol: DeviceProtocol, terms: Terms) -> FloatArray:
    """All reported items are rated, and a = c r: c brings them onto whole numbers, or onto people's mean rating."""
    guess = np.full(terms.n_items, np.nan)
    part = seen.parts[-1]
    middle = float(part.amplitudes.mean()) / (GRID @ RATING_SHARES)
    if isinstance(protocol, Isgld):
        guess[part.items] = likeliest_ratings(part.amplitudes / middle + middle * part.scores, protocol.epsilon)
        return guess
    candidates = middle * np.exp(np.arange(-0.6, 0.6, 0.001))[:, None]
    ratings = part.amplitudes / candidates + candidates * part.scores
    misses = np.abs(ratings - np.clip(np.rint(ratings), LOWEST, HIGHEST)).mean(axis=1)
    guess[part.items] = ratings[np.argmin(misses)]
    return guess
