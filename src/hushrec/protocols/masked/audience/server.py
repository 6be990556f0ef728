"""The server side of model `audience`: learns the popularity and the audience of each item from noisy sums.

A *description* is a vector that summarizes the items that one person chose (`hushrec.models.audience` has the formula).

1. Counts give the popularity of each item; a second count, in which rare items weigh more, makes it more precise. The
   moments of people's descriptions give the K directions in which people differ most, each scaled to variance 1.
2. Audience sums give a_j, the mean description of the people who chose item j. It is shrunk toward a prediction from
   public columns and popularity.
3. With many devices, both steps are repeated with people described by the audiences of the items that they chose.

In the first pass descriptions are means of taste columns. If the catalogue has fewer than `FEWEST_COLUMNS` of these,
random columns are added, in which every item has the value 1 or −1. Even under random columns, items that are chosen
together with the same other items have similar audiences, and the second pass describes people by these audiences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models.audience import item_density
from hushrec.protocols.masked.audience import constants
from hushrec.protocols.masked.audience.plan import AUDIENCE_CLIP, COUNTS_CLIP
from hushrec.protocols.masked.audience.table import AudienceArrays, AudienceTable
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.learning import Learner
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS, curvature_of
from hushrec.protocols.masked.posteriors import pool, weighted_covariance
from hushrec.protocols.masked.sums import (
    TINY,
    ItemSum,
    audience_means,
    count_sum,
    item_sum,
    moments_of,
    popularity_of,
    unit_weights,
)
from hushrec.randomness import Purpose, SeededRandomness

MOST_OFF = 2.5  # largest factor between an estimate under noise and its expected value; estimates are clipped to it


@dataclass(frozen=True, eq=False, kw_only=True)
class Learned(AudienceArrays):
    """The arrays that an `AudienceLearner` has learned: those that it publishes, and three more."""

    count_sums: FloatArray = field(repr=False)  # all noisy counts so far, pooled, (n_items,)
    count_variances: FloatArray = field(repr=False)  # variance of the noise in `count_sums`, (n_items,)
    prior_columns: FloatArray = field(repr=False)  # predictors in the regression for an item's audience, (n_items, P)


class AudienceLearner(Learner[Learned]):
    """The `Learner` of model `audience`: estimates the popularity and the audience of each item from noisy sums."""

    def _start(self) -> Learned:
        n_items, taste = self.item_columns.n_items, self.item_columns.taste
        missing = max(constants.FEWEST_COLUMNS - taste.shape[1], 0)
        stream = SeededRandomness(0).stream(Purpose.ITEM_SIGNS)  # public: the signs are the same in every run
        signs = np.where(stream.random((n_items, missing)) < 0.5, -1.0, 1.0)
        none, nothing = np.zeros((n_items, 0)), np.zeros(0)
        return Learned(
            counts=np.ones(n_items),
            log_counts=np.zeros(n_items),
            **dict.fromkeys(("count_sums", "count_variances"), np.zeros(n_items)),
            prior_columns=np.ones((n_items, 1)),
            columns=np.concatenate([constants.TASTE_SPREAD * taste, signs], axis=1),
            **dict.fromkeys(("asked_rows", "rows", "audiences"), none),
            **dict.fromkeys(("asked_base", "asked_slope", "base", "slope"), nothing),
            places=np.zeros((0, n_items)),
            crowd=np.ones(n_items),
            features=np.zeros((0, n_items)),
        )

    def table(self) -> AudienceTable:
        published = {entry.name: getattr(self.learned, entry.name) for entry in fields(AudienceArrays)}
        weights, count_weights = self.item_weights(AUDIENCE), self.item_weights(COUNTS)
        return AudienceTable(weights=weights, count_weights=count_weights, **published)

    def item_weights(self, name: str) -> FloatArray:
        counts = self.learned.counts
        power = constants.COUNT_WEIGHT_POWER if name == COUNTS else constants.WEIGHT_POWER
        return unit_weights((counts + constants.WEIGHT_OFFSET) ** -power, counts)

    def _learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> Learned:
        share, learned = survivors / self.devices, self.learned
        if COUNTS in sums:
            learned = self._learn_counts(learned, *count_sum(sums[COUNTS], share, self.table().count_weights))
        if MOMENTS in sums:
            learned = self._learn_moments(learned, sums[MOMENTS], survivors)
        if AUDIENCE in sums:
            learned = self._learn_audience(learned, self._audience_sum(learned, sums, share))
        return learned

    def _learn_counts(self, learned: Learned, sums: FloatArray, variances: FloatArray) -> Learned:
        """Return `learned` with the popularity estimated from these counts and earlier ones, weighted by precision.

        Clipping reduces all counts of a round by about the same factor, which depends on the round's item weights. So
        the new counts are first scaled to the same total as the earlier ones.
        """
        if learned.count_variances.any():
            before, now = learned.count_sums.sum(), sums.sum()
            factor = np.clip(before / now, 1 / MOST_OFF, MOST_OFF) if min(before, now) > 0 else 1.0
            estimates = [learned.count_sums, factor * sums]
            sums, variances = pool(estimates, [learned.count_variances, factor**2 * variances])
        found = popularity_of(sums, variances, self.item_columns)
        return replace(learned, count_sums=sums, count_variances=variances, **found._asdict())

    def _learn_moments(self, learned: Learned, noisy: DecodedSum, survivors: int) -> Learned:
        """Return `learned` with the coefficients from which devices compute descriptions for the next audience block.

        `noisy` is the sum of a moments block over `survivors` devices. It gives the mean and covariance of a vector of
        W + 1 numbers per person: the shrunken mean of `columns` over the person's items, and the log of the number of
        items, less a constant. A description is the projection of this vector, less its mean, onto the K directions of
        largest variance, each scaled to variance 1. `asked_rows`, `asked_base` and `asked_slope` have the coefficients
        of the description.
        """
        length = learned.columns.shape[1] + 1
        mean, covariance = moments_of(noisy, length, survivors)
        values, vectors = np.linalg.eigh(covariance)
        scaled = vectors / np.sqrt(np.maximum(values, constants.LEAST_VARIANCE))
        chosen = scaled[:, ::-1][:, : self._next_width()]  # (W + 1, K)
        return replace(
            learned, asked_rows=learned.columns @ chosen[:-1], asked_base=-mean @ chosen, asked_slope=chosen[-1]
        )

    def _next_width(self) -> int:
        rounds = self.plan.rounds[self.round_number :]
        return next(block.shape[1] for one in rounds for block in one.blocks if block.name == AUDIENCE)

    def _audience_sum(self, learned: Learned, sums: Mapping[str, DecodedSum], share: float) -> ItemSum:
        """Return the sum of the audience block over all devices, and the mean factors by which clipping scaled it.

        `sums` are over the fraction `share` of all devices. Clipping multiplies the entries of a person with
        h items by about C₁/√h in the counts and by about C₂/√(hK) in the audience block, where C₁ and C₂ are the clips
        of the two blocks, and K is the number of columns of the audience block. The second factor divided by the first
        is about C₂/(C₁√K) for any h. The curvature block measures this ratio with noise, so the measured ratio is
        limited to the range from 1/`MOST_OFF` to `MOST_OFF` times C₂/(C₁√K).
        """
        curvature = sums[curvature_of(AUDIENCE)]
        found = item_sum(self.block(AUDIENCE), sums[AUDIENCE], curvature, self.table().weights, learned.counts, share)
        expected = AUDIENCE_CLIP / (COUNTS_CLIP * np.sqrt(found.sums.shape[1]))
        weight = np.clip(found.mean_weight, expected / MOST_OFF, expected * MOST_OFF)
        squared = np.clip(found.squared_weight, weight**2 / 10, weight**2 * 10)
        return replace(found, mean_weight=weight, squared_weight=squared)

    def _learn_audience(self, learned: Learned, noisy: ItemSum) -> Learned:
        """Return `learned` with the audience of each item, the mean description of the people who chose it.

        The result also has new item columns (`columns`), from which devices compute the moments block of the second
        pass, and new coordinates, densities and features of the items.
        """
        found = audience_means(noisy, learned.counts, learned.prior_columns)
        centred = found - np.average(found, axis=0, weights=learned.counts)
        size = np.sqrt(max(float(np.mean(np.average(centred**2, axis=0, weights=learned.counts))), TINY))
        popularity = constants.POPULARITY_SPREAD * self._popularity(learned)
        taste = constants.LATER_TASTE_SPREAD * self.item_columns.taste
        learned = replace(
            learned,
            rows=learned.asked_rows,
            base=learned.asked_base,
            slope=learned.asked_slope,
            audiences=found,
            columns=np.concatenate([centred / size, taste, popularity], axis=1),
            prior_columns=np.concatenate([learned.prior_columns, centred], axis=1),
        )
        return self._with_coordinates(learned)

    def _with_coordinates(self, learned: Learned) -> Learned:
        """Return `learned` with new coordinates (`places`), densities (`crowd`) and features of the items.

        The coordinates of an item consist of its audience, taste columns and popularity. The density of an
        item says how many of the items that people chose lie near its coordinates.
        """
        counts = learned.counts
        parts = [
            constants.AUDIENCE_SCALE * learned.audiences,
            constants.TASTE_SCALE * _unit(self.item_columns.taste, counts),
            constants.POPULARITY_SCALE * self._popularity(learned),
        ]
        places = np.ascontiguousarray(np.concatenate(parts, axis=1).T / constants.KERNEL_LENGTH)
        crowd = item_density(counts, places)
        return replace(learned, places=places, crowd=crowd, features=self._features(learned))

    def _features(self, learned: Learned) -> FloatArray:
        """Return the features of the items, `(n_features, n_items)`, from which a person's preference is computed.

        They are the first `MOST_FEATURES` principal components of the items' audiences, public attributes (taste and
        detail columns) and popularity.
        """
        counts = learned.counts
        parts = [
            constants.AUDIENCE_FEATURE * learned.audiences,
            constants.TASTE_FEATURE * _unit(self.item_columns.taste, counts),
            constants.DETAIL_FEATURE * _unit(self.item_columns.details, counts),
            constants.POPULARITY_FEATURE * self._popularity(learned),
        ]
        columns = np.concatenate(parts, axis=1)
        columns = columns - np.average(columns, axis=0, weights=counts)
        _, vectors = np.linalg.eigh(weighted_covariance(columns, counts))
        return np.ascontiguousarray((columns @ vectors[:, ::-1][:, : constants.MOST_FEATURES]).T)

    @staticmethod
    def _popularity(learned: Learned) -> FloatArray:
        """Return the expected log count of each item, `(n_items, 1)`, less the mean over items weighted by count."""
        return np.asarray(learned.log_counts - np.average(learned.log_counts, weights=learned.counts))[:, None]


def _unit(columns: FloatArray, counts: FloatArray) -> FloatArray:
    """Return `columns` divided by one number, so that their variances over items, weighted by `counts`, add up to 1."""
    return np.asarray(columns / np.sqrt(max(float(np.trace(weighted_covariance(columns, counts))), TINY)))
