"""Attacks on model `fm`, a factorization machine.

A gradient of this model is e (1, u), where e is the error and u the person's taste vector: its first entry is the error
itself. Without the prior term, a report is the matrix X = e (1, u)ᵀ + noise, with one row per item. The first singular
vector of X, divided by its first entry, is (1, u), which gives e. Every rating then follows up to the person's bias w,
because r = e + w + x_j · (1, u), where the row x_j of item j is public.

In each round the bias changes by a multiple of the mean error over all rated items. Protocols `plain` and `isgld`
report all of these errors, so the attack can add up the changes from the first round on. Of the biases close
to this sum, the attack chooses the one that brings the ratings closest to the values that people can give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.findings import EXACT, Finding, Subject
from hushrec.audit.judge import abs_cosines, judge_existence
from hushrec.audit.observation import MaybeReport, Observation
from hushrec.audit.observed_run import Truth, item_popularity, record
from hushrec.audit.rank_one import first_direction, without_prior
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.run import Audit, check_people, describe
from hushrec.data.ratings import Ratings
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.messages import ItemVectors
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

PEOPLE = 50  # largest number of people to attack by default
SURE = 20.0  # log odds of the item with the largest error of a person
RECENT = 60  # number of last reports that share one direction, over which ratings are averaged
BIASES = np.linspace(-0.5, 0.5, 201)  # candidates for the bias, relative to the sum of its changes
WIDE = np.linspace(-2.5, 2.5, 1001)  # candidates for a bias whose changes are not known


class MachineParts(NamedTuple):
    """What an attack recovers from one report of model `fm`; u is the person's taste vector."""

    items: IntArray
    errors: FloatArray
    direction: FloatArray  # (1, u)
    values: FloatArray  # the ratings minus the person's bias


@dataclass(frozen=True, eq=False)
class MachineReading:
    """What an attack recovers about one person: ratings, mean |error| of each item, and taste vector u.

    The attack uses the last report or, if devices select items at random, the last `RECENT` reports.
    """

    ratings: FloatArray = field(repr=False)  # (n_items,), NaN for items not in these reports
    sizes: FloatArray = field(repr=False)  # (n_items,), mean |error|; 0 for items not in these reports
    taste: FloatArray = field(repr=False)  # u


def take_apart(
    model: FactorizationMachine, announcement: ItemVectors, report: MaybeReport, direction: FloatArray | None = None
) -> MachineParts | None:
    """Return the decomposition of a report along `direction`, by default the report's first singular vector.

    Return None for an empty report, or for a direction whose first entry is 0.
    """
    if report is None or len(report.items) == 0:
        return None
    rows, _ = without_prior(announcement, report)
    direction = first_direction(rows) if direction is None else direction
    if abs(direction[0]) < 1e-9:
        return None
    direction = direction / direction[0]
    errors = rows @ direction / (direction @ direction)
    public = model.item_rows(announcement.item_vectors.astype(np.float64))[report.items]
    return MachineParts(report.items, errors, direction, errors + public @ direction)


def read_reports(
    model: FactorizationMachine,
    announcements: Sequence[ItemVectors],
    reports: Sequence[MaybeReport],
    levels: RatingLevels,
    *,
    follows_bias: bool,
) -> MachineReading:
    """Return the ratings, the mean |error| of each item and the taste vector that one person's reports reveal.

    `levels` holds the ratings that people can give. Set `follows_bias` if every report holds all rated items. The
    attack then takes the errors from the last report, and estimates the person's bias from the earlier reports.
    Otherwise a report holds a few rated and many unrated items. The attack then averages over the last `RECENT`
    reports, for which it assumes the same taste vector.
    """
    pairs = list(zip(announcements, reports, strict=True))
    direction = None if follows_bias else pooled(pairs[-RECENT:])
    parts = [take_apart(model, announcement, report, direction) for announcement, report in pairs]
    n_items = announcements[0].terms.n_items
    seen = [(announcement, one) for (announcement, _), one in zip(pairs, parts, strict=True) if one is not None]
    if not seen:
        return MachineReading(np.full(n_items, np.nan), np.zeros(n_items), np.zeros(model.item_width - 1))
    late = seen[-1:] if follows_bias else seen[-RECENT:]
    sizes = _means([(one.items, np.abs(one.errors)) for _, one in late], n_items)
    values = _means([(one.items, one.values) for _, one in late], n_items)
    near = followed_bias(seen[:-1]) if follows_bias else 0.0
    reported = ~np.isnan(values)
    bias = likely_bias(values[reported], sizes[reported], near, levels, wide=not follows_bias)
    return MachineReading(levels.nearest(values + bias), np.nan_to_num(sizes), late[-1][1].direction[1:])


def pooled(pairs: Sequence[tuple[ItemVectors, MaybeReport]]) -> FloatArray | None:
    """Return the common direction (first singular vector) of the reports in `pairs`, or None if all are empty."""
    rows = [without_prior(announcement, report)[0] for announcement, report in pairs if report is not None]
    return first_direction(np.concatenate(rows)) if rows else None


def followed_bias(seen: Sequence[tuple[ItemVectors, MachineParts]]) -> float:
    """Return the person's bias after some rounds: the sum over rounds of step size × data weight × mean error.

    `seen` holds, for each round from the first on, the announcement and what the attack recovered from the report.
    """
    return sum(
        announcement.terms.step_size(announcement.round_number)
        * announcement.terms.data_weight
        * float(one.errors.mean())
        for announcement, one in seen
    )


def _means(parts: Sequence[tuple[IntArray, FloatArray]], n_items: int) -> FloatArray:
    """Return the mean of each item's numbers in `parts`, `(n_items,)`; NaN for items without numbers."""
    total, counts = np.zeros(n_items), np.zeros(n_items)
    for items, numbers in parts:
        total[items] += numbers
        counts[items] += 1
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def likely_bias(values: FloatArray, sizes: FloatArray, near: float, levels: RatingLevels, *, wide: bool) -> float:
    """Return the bias close to `near` that brings values + bias closest to ratings that people can give (`levels`).

    `values` are recovered ratings minus the bias, one per item, and `sizes` the mean |error| of each item. With `wide`,
    the search range is larger and some values may come from fake errors. Values with larger errors, which are more
    likely real, then get more weight, and common ratings are preferred.
    """
    tried = near + (WIDE if wide else BIASES)
    weights = sizes**2 if wide else np.ones(len(values))
    shifted = values[:, None] + tried
    off = np.abs(shifted - levels.nearest(shifted))
    usual = np.log(levels.shares)[levels.indices(shifted)] if wide else np.zeros_like(shifted)
    return float(tried[np.argmin(weights @ (off**2 - 0.01 * usual))])


def audit_machines(ratings: Ratings, settings: list[Settings], *, n_victims: int | None = None) -> Audit:
    """Return the audit of model `fm` under each of `settings`.

    `n_victims` is the number of people to attack, by default 50 but at most half of all people.
    """
    findings: list[Finding] = []
    for chosen in settings:
        problem = task_problem(chosen.make_task(ratings), chosen)
        rng = np.random.default_rng([chosen.seed, 6])
        people = rng.permutation(problem.active_users)
        count = check_people(len(people), min(PEOPLE, len(people) // 2) if n_victims is None else n_victims)
        victims = np.sort(people[:count])
        popularity = item_popularity(problem, people[count:])
        observation, truth, _ = record(problem, victims, victims[:1], popularity)
        findings += attack_machine(problem.model, observation, truth, rng)
    columns = {chosen.protocol: chosen for chosen in settings}
    shape = {name: settings[0].options[name] for name in ("rounds", "factors")}
    return Audit(findings, {}, {**describe(ratings, columns, count), **shape})


def attack_machine(
    model: FactorizationMachine, observation: Observation, truth: Truth, rng: np.random.Generator
) -> list[Finding]:
    """Return the findings of the attacks on items, ratings and taste vectors in one recorded run."""
    name, claim = "first entries of gradients", "which items are rated stays on the device"
    follows = observation.protocol.selection is None
    found = [
        read_reports(model, observation.announcements, reports, observation.levels, follows_bias=follows)
        for reports in observation.reports
    ]
    sizes = np.array([np.where(np.isnan(one.ratings), one.sizes, one.sizes + follows) for one in found])
    scale = np.maximum(sizes.max(axis=1, keepdims=True), 1e-12)
    odds = np.tile(observation.popularity_odds, (len(found), 1))
    both = odds + SURE * sizes / scale
    findings = []
    for own_name, scores in (("popularity", odds), (name, sizes), (f"{name} + popularity", both)):
        subject = Subject(observation.protocol.name, own_name, "existence", claim)
        findings += judge_existence(subject, scores, truth, rng)
    pairs = [(one.ratings, row, rated) for one, row, rated in zip(found, truth.ratings, truth.rated, strict=True)]
    reach = observation.levels.reach
    shares = np.array([np.mean(np.abs(own[rated] - row[rated]) < reach) for own, row, rated in pairs])
    chance = np.mean([np.unique(row[rated], return_counts=True)[1].max() / rated.sum() for _, row, rated in pairs])
    reported = [(own[at], row[at]) for own, row, rated in pairs for at in [rated & ~np.isnan(own)] if at.any()]
    of_reported = np.array([np.mean(np.abs(own - row) < reach) for own, row in reported])
    subject = Subject(observation.protocol.name, name, "value", "a rating's value stays on the device")
    for metric, measured in ((EXACT, shares), ("share_exact_of_reported", of_reported)):
        if len(measured):
            findings.append(subject.mean(metric, measured, chance, rng=rng))
    tastes = truth.user_vectors[:, 1:]
    cosines = abs_cosines(np.array([one.taste for one in found]), tastes)
    strangers = abs_cosines(np.roll(tastes, 1, axis=0), tastes)
    subject = Subject(observation.protocol.name, name, "model", "the user vector stays on the device")
    return [*findings, subject.mean("mean_abs_cosine", cosines, strangers.mean(), rng=rng)]
