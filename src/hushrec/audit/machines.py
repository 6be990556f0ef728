"""Recover items, ratings and taste from reports of model `fm`, a factorization machine.

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
from hushrec.audit.rank_one import first_direction, without_prior
from hushrec.audit.rating_levels import RatingLevels
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors

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
    """What an attack recovers about one person: ratings, mean |error| of each item, and (1, u) with the taste u.

    The errors come from the last report or, if devices select items at random, from the last `RECENT` reports.
    """

    ratings: FloatArray = field(repr=False)  # (n_items,), NaN for items not in these reports
    sizes: FloatArray = field(repr=False)  # (n_items,), mean |error|; 0 for items not in these reports
    direction: FloatArray = field(repr=False)  # (1, u); zeros if all reports are empty


def take_apart(
    model: FactorizationMachine,
    announcement: ItemVectors,
    report: GradientReport | None,
    direction: FloatArray | None = None,
) -> MachineParts | None:
    """Return what one report of model `fm` reveals: errors, taste, and ratings minus the person's bias.

    `direction` is parallel to (1, u), where u is the person's taste vector. By default it is the first singular vector
    of the report. Return None for an empty report, or for a direction whose first entry is 0.
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
    reports: Sequence[GradientReport | None],
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
        return MachineReading(np.full(n_items, np.nan), np.zeros(n_items), np.zeros(model.item_width))
    late = seen[-1:] if follows_bias else seen[-RECENT:]
    sizes = _means([(one.items, np.abs(one.errors)) for _, one in late], n_items)
    values = _means([(one.items, one.values) for _, one in late], n_items)
    near = followed_bias(seen[:-1]) if follows_bias else 0.0
    reported = ~np.isnan(values)
    bias = likely_bias(values[reported], sizes[reported], near, levels, wide=not follows_bias)
    return MachineReading(levels.nearest(values + bias), np.nan_to_num(sizes), late[-1][1].direction)


def pooled(pairs: Sequence[tuple[ItemVectors, GradientReport | None]]) -> FloatArray | None:
    """Return the first singular vector of all gradients in `pairs`, or None if all reports are empty.

    It is parallel to (1, u), where u is the person's taste vector.
    """
    rows = [without_prior(announcement, report)[0] for announcement, report in pairs if report is not None]
    return first_direction(np.concatenate(rows)) if rows else None


def followed_bias(seen: Sequence[tuple[ItemVectors, MachineParts]]) -> float:
    """Estimate the person's bias after some rounds: the sum over rounds of step size × data weight × mean error.

    `seen` holds, for each round from the first on, the announcement and what the attack recovered from the report.
    """
    return sum(
        announcement.terms.step_size(announcement.round_number)
        * announcement.terms.data_weight
        * float(one.errors.mean())
        for announcement, one in seen
    )


def _means(parts: Sequence[tuple[IntArray, FloatArray]], n_items: int) -> FloatArray:
    """Return the mean number of each item over `parts`, `(n_items,)`; NaN for an item in no part.

    A part has some items, and a number for each of these items.
    """
    total, counts = np.zeros(n_items), np.zeros(n_items)
    for items, numbers in parts:
        total[items] += numbers
        counts[items] += 1
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def likely_bias(values: FloatArray, sizes: FloatArray, near: float, levels: RatingLevels, *, wide: bool) -> float:
    """Return the bias close to `near` that brings `values` + bias closest to ratings that people can give (`levels`).

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
