"""The server side of model `gp`: learns about items and people's tastes from noisy sums, and makes the public table.

The rating of item j by person i with taste u is modelled as

    r_ij = centre + b_j + x_jᵀu + N(0, noise + Var b_j),     u ~ N(m, S).

`centre` is a public constant. `noise`, the variance of a rating given taste and item, follows from the number of levels
of the rating scale (`residual_variance`). b_j is the estimated effect of the item, and Var b_j the variance of its
error. The mean m and the covariance S of tastes are learned, too. The vector x_j has, in this order: factors, audience,
quality, attributes, log-popularity, and 1. Quality is the effect b_j, centred. Its entry in u says how far a person
agrees with the average about items.

Devices compute with d instead of u, where u = m + Rd and R is the Cholesky factor of S = RRᵀ. The prior of d is
N(0, I). So the public table has rows Rᵀx_j and offsets centre + b_j + x_jᵀm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models import gp
from hushrec.models.linear import multiply
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.gp import surprise as sum_surprise
from hushrec.protocols.masked.gp.constants import CONSTANTS, LARGEST_TASTE, residual_variance
from hushrec.protocols.masked.gp.table import PublicTable
from hushrec.protocols.masked.learning import Learner
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS, MOMENTS, PRIOR, curvature_of
from hushrec.protocols.masked.posteriors import (
    RowNoise,
    best_known_directions,
    column_posterior,
    effect_posterior,
    pool,
    prior_step,
    weighted_covariance,
)
from hushrec.protocols.masked.sums import (
    TINY,
    ItemSum,
    audience_means,
    count_sum,
    deviation_of,
    item_sum,
    moments_of,
    popularity_of,
    symmetric,
    unit_weights,
)

SMALLEST_SIZE = 1e-4  # lower bound on the root mean square of a learned column, for scaling
ATTRIBUTES_FLOOR, PROFILE_FLOOR = 0.02, 0.05  # lower bounds on the variances of a description's two parts


@dataclass(frozen=True, eq=False)
class Learned:
    """The public arrays that a `GpLearner` has learned: item columns and effects, prior of tastes, popularity."""

    columns: FloatArray = field(repr=False)  # item columns: row j is x_j, (n_items, L)
    mean: FloatArray = field(repr=False)  # mean of people's tastes for these columns, (L,)
    covariance: FloatArray = field(repr=False)  # covariance of people's tastes, (L, L)
    effects: FloatArray = field(repr=False)  # item effects, (n_items,)
    effect_variances: FloatArray = field(repr=False)  # posterior variances of the effects, (n_items,)
    estimates: FloatArray = field(repr=False)  # estimates of the effects, a row for each bias or factor block
    estimate_variances: FloatArray = field(repr=False)  # variances of the noise in `estimates`, of its shape
    counts: FloatArray = field(repr=False)  # expected number of ratings of each item, (n_items,)
    log_counts: FloatArray = field(repr=False)  # expected logarithm of that number, (n_items,)
    prior_columns: FloatArray = field(repr=False)  # predictors in regressions for an item's numbers, (n_items, P)
    description_centre: FloatArray = field(repr=False)  # mean description of people, (n_taste + 1,)
    description_map: FloatArray = field(repr=False)  # whitens descriptions: mapᵀ(x − centre), (n_taste + 1, n_audience)

    @property
    def root(self) -> FloatArray:
        """The lower triangular Cholesky factor R of the covariance S = RRᵀ; a taste is u = m + Rd with d ~ N(0, I)."""
        return np.asarray(np.linalg.cholesky(self.covariance), dtype=np.float64)


class GpLearner(Learner[Learned]):
    """The `Learner` of model `gp`: estimates item effects, item columns and the prior of tastes from noisy sums."""

    def _start(self) -> Learned:
        items, taste = self.item_columns.n_items, self.item_columns.taste
        length = taste.shape[1] + 3
        variances = np.full(length, CONSTANTS.taste_variance)
        variances[1:-2] = initial_variance(taste)
        variances[-1] = CONSTANTS.level_variance
        one, none = np.ones((items, 1)), np.zeros((items, 1))
        return Learned(
            columns=np.concatenate([none, taste, none, one], axis=1),
            mean=np.zeros(length),
            covariance=np.diag(variances),
            effects=np.zeros(items),
            effect_variances=np.zeros(items),
            estimates=np.zeros((0, items)),
            estimate_variances=np.zeros((0, items)),
            counts=np.ones(items),
            log_counts=np.zeros(items),
            prior_columns=one,
            description_centre=np.zeros(taste.shape[1] + 1),
            description_map=np.zeros((taste.shape[1] + 1, 0)),
        )

    @property
    def noise(self) -> float:
        """The variance of a rating, given taste and item."""
        return residual_variance(self.item_columns.rating_levels)

    def table(self) -> PublicTable:
        learned = self.learned
        rows = multiply(np.ascontiguousarray(learned.columns), learned.root)
        spread = weighted_covariance(rows, learned.counts)
        count = self._factor_count()
        return PublicTable(
            offsets=CONSTANTS.centre + learned.effects + learned.columns @ learned.mean,
            rows=rows,
            variances=self.noise + learned.effect_variances,
            weights=self.item_weights(BIAS),
            factor_weights=self.item_weights(FACTORS),
            directions=best_known_directions(spread, self.noise, count) if count else np.zeros((len(spread), 0)),
            description_centre=learned.description_centre,
            description_map=learned.description_map,
            log_counts=learned.log_counts,
            length_squared=np.array([max(CONSTANTS.kernel_length**2 * np.trace(spread), TINY)]),
        )

    def _factor_count(self) -> int:
        """Return the number of taste directions in the factor block of the next round; 0 if it has no such block."""
        blocks = (block for one in self.plan.rounds[self.round_number :][:1] for block in one.blocks)
        return next((block.shape[1] - 1 for block in blocks if block.name == FACTORS), 0)

    def _learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> Learned:
        share = survivors / self.devices
        learned = self.learned
        if COUNTS in sums:
            learned = self._learn_counts(learned, sums[COUNTS], share)
        if MOMENTS in sums:
            learned = self._learn_moments(learned, sums[MOMENTS], survivors)
        if PRIOR in sums:  # for the columns that devices had in this round, before new columns are added
            learned = self._learn_prior(learned, sums[PRIOR], survivors)
        if BIAS in sums:
            learned = self._learn_bias(learned, self.item_sum(BIAS, sums, share))
        if AUDIENCE in sums:
            learned = self._learn_audience(learned, self.item_sum(AUDIENCE, sums, share))
        if FACTORS in sums:
            learned = self._learn_factors(learned, self.item_sum(FACTORS, sums, share))
        return learned

    # Counts and descriptions -----------------------------------------------------------------------------------

    def _learn_counts(self, learned: Learned, noisy: DecodedSum, share: float) -> Learned:
        """Return `learned` with the estimated popularity of each item, which also becomes an item column.

        `noisy` is the sum of counts over the fraction `share` of all devices.
        """
        found = popularity_of(*count_sum(noisy, share, self.item_weights(COUNTS)), self.item_columns)
        columns = learned.columns.copy()
        columns[:, -2] = CONSTANTS.column_spread * (found.log_counts - found.log_counts.mean())
        return replace(learned, columns=columns, **found._asdict())

    def _learn_moments(self, learned: Learned, noisy: DecodedSum, survivors: int) -> Learned:
        """Return `learned` with the mean and the map with which devices whiten descriptions for the audience block.

        A description has the shrunken mean of each taste column over the person's items, and the logarithm of the
        number of these items. The map takes the first principal components of these means, and the logarithm, and
        scales each to variance 1. `noisy` is the sum of a moments block over `survivors` devices.
        """
        width = len(learned.description_centre)
        centre, covariance = moments_of(noisy, width, survivors)
        count = next(block.shape[1] for block in self.plan.blocks if block.name == AUDIENCE) - 1
        values, vectors = np.linalg.eigh(covariance[:-1, :-1])
        axes = (vectors / np.sqrt(np.maximum(values, ATTRIBUTES_FLOOR)))[:, ::-1][:, :count]
        matrix = np.zeros((width, count + 1))
        matrix[:-1, :count] = axes
        matrix[-1, count] = 1 / np.sqrt(max(covariance[-1, -1], PROFILE_FLOOR))
        return replace(learned, description_centre=centre, description_map=matrix)

    # Items -----------------------------------------------------------------------------------------------------

    def surprise(self, sums: Mapping[str, DecodedSum], survivors: int) -> float:
        return sum_surprise.surprise(self, sums, survivors)

    def item_weights(self, name: str) -> FloatArray:
        counts = self.learned.counts
        if name == COUNTS:
            return np.ones_like(counts)
        weights = (counts + CONSTANTS.weight_offset) ** -CONSTANTS.weight_power
        rare = 1 + (CONSTANTS.rare_count / counts) ** 2 if name == FACTORS else 1.0
        return unit_weights(weights / rare, counts)

    def item_sum(self, name: str, sums: Mapping[str, DecodedSum], share: float) -> ItemSum:
        """Return the sum of the item block called `name`, and the effect of clipping on it, for all devices.

        `sums` are over the fraction `share` of all devices, from which the result is scaled up.
        """
        weights, counts = self.item_weights(name), self.learned.counts
        return item_sum(self.block(name), sums[name], sums[curvature_of(name)], weights, counts, share)

    def _learn_bias(self, learned: Learned, noisy: ItemSum) -> Learned:
        """Return `learned` with new estimates of the item effects, from the sums of residuals in a bias block.

        The sum of item j is about c̄ n_j times the error of the item's current effect. Here n_j is the number of
        ratings of the item, and c̄ the mean factor by which clipping scales residuals.
        """
        weight, squared = noisy.mean_weight[0, 0], noisy.squared_weight[0, 0]
        ratings = learned.counts * weight
        return self._with_estimate(
            learned,
            learned.effects + noisy.sums[:, 0] / ratings,
            (noisy.deviations / ratings) ** 2,
            self.noise * squared / (learned.counts * weight**2),
        )

    def _with_estimate(
        self, learned: Learned, estimate: FloatArray, variances: FloatArray, sampling: FloatArray
    ) -> Learned:
        """Return `learned` with one round's estimate of the item effects, averaged with those of earlier rounds.

        `variances` are those of the noise, which is independent in different rounds. `sampling` is the sampling
        variance of the ratings, which are the same in every round, so it is added once, after averaging.
        """
        estimates = np.concatenate([learned.estimates, estimate[None]])
        estimate_variances = np.concatenate([learned.estimate_variances, np.maximum(variances, TINY)[None]])
        pooled, variance = pool(list(estimates), list(estimate_variances))
        variance = variance + np.maximum(sampling, TINY)
        if self.item_columns.public is not None:
            effects, doubt = self._public_effects()
            pooled, variance = pool([pooled, effects], [variance, doubt])
        effects, effect_variances = effect_posterior(pooled, variance, learned.prior_columns)
        columns = learned.columns.copy()
        quality = columns.shape[1] - self.item_columns.taste.shape[1] - 3
        columns[:, quality] = effects - np.average(effects, weights=learned.counts)
        return replace(
            learned,
            columns=columns,
            effects=effects,
            effect_variances=effect_variances,
            estimates=estimates,
            estimate_variances=estimate_variances,
        )

    def _public_effects(self) -> tuple[FloatArray, FloatArray]:
        """Return estimates of the item effects, and their variances, from ratings that everybody may see.

        Such public ratings, for example of critics, cost no budget.
        """
        public, table = self.item_columns.public, self.table()
        assert public is not None
        left = np.empty(len(public.items))
        for person in range(public.n_people):
            own = slice(public.starts[person], public.starts[person + 1])
            items = public.items[own]
            rows, residuals = table.rows[items], public.values[own] - table.offsets[items]
            taste = gp.taste_posterior(rows, residuals, 1 / table.variances[items])
            left[own] = gp.held_out_residuals(rows, residuals, *taste)
        counts = np.bincount(public.items, minlength=len(table.offsets))
        sums = np.bincount(public.items, left, minlength=len(table.offsets))
        return self.learned.effects + sums / np.maximum(counts, 1), self.noise / np.maximum(counts, TINY)

    def _learn_audience(self, learned: Learned, noisy: ItemSum) -> Learned:
        """Return `learned` with the audience of each item, the mean description of its raters, as new item columns.

        Audiences are scaled to mean 0 and variance 1 over all ratings. They also become `prior_columns`, on which later
        estimates of effects and factors are regressed.
        """
        counts = learned.counts
        found = audience_means(noisy, counts, learned.prior_columns)
        found = found - np.average(found, axis=0, weights=counts)
        audience = found / np.maximum(_sizes(found, counts), SMALLEST_SIZE)
        wider = replace(learned, prior_columns=np.concatenate([learned.prior_columns, audience], axis=1))
        return self._append(wider, CONSTANTS.column_spread * audience, CONSTANTS.taste_variance)

    def _learn_factors(self, learned: Learned, noisy: ItemSum) -> Learned:
        """Return `learned` with new factor columns, from the regression of each item's residuals on its raters' tastes.

        Least squares gives the coefficients θ_j of residual = θ_jᵀq with q = (Dᵀd, 1), for a rater's taste d and the
        matrix D (`directions`) of the public table. The last coefficient, that of the 1, is added to the item's effect,
        which gives one more estimate of the effect. The other coefficients become the factor columns: their posterior
        means, with each column scaled to the root mean square `column_spread` over all ratings.
        """
        inverse = np.linalg.inv(noisy.mean_weight)
        found = noisy.sums @ inverse / learned.counts[:, None]
        private = (noisy.deviations / learned.counts) ** 2
        private_shape = inverse @ inverse
        sampling_shape = self.noise * inverse @ noisy.squared_weight @ inverse
        noise = RowNoise(private, private_shape[:-1, :-1], 1 / learned.counts, sampling_shape[:-1, :-1])
        factors = column_posterior(found[:, :-1], noise, learned.prior_columns)
        scale = CONSTANTS.column_spread / np.maximum(_sizes(factors, learned.counts), SMALLEST_SIZE)
        learned = self._with_estimate(
            learned,
            learned.effects + found[:, -1],
            private * private_shape[-1, -1],
            sampling_shape[-1, -1] / learned.counts,
        )
        return self._append(learned, factors * scale, CONSTANTS.factor_variance)

    def _append(self, learned: Learned, columns: FloatArray, variance: float) -> Learned:
        """Return `learned` with new item columns in front; a priori, tastes for them are independent N(0, variance)."""
        width, length = columns.shape[1], len(learned.mean)
        covariance = np.zeros((width + length, width + length))
        covariance[:width, :width] = variance * np.eye(width)
        covariance[width:, width:] = learned.covariance
        return replace(
            learned,
            columns=np.concatenate([columns, learned.columns], axis=1),
            mean=np.concatenate([np.zeros(width), learned.mean]),
            covariance=covariance,
        )

    # Tastes ----------------------------------------------------------------------------------------------------

    def _learn_prior(self, learned: Learned, noisy: DecodedSum, survivors: int) -> Learned:
        """Return `learned` with a new mean and covariance of the prior of tastes: one EM step (`prior_step`).

        `noisy` is the sum of a prior block over `survivors` devices.
        """
        length, root = len(learned.mean), learned.root
        averages = noisy.values / survivors
        moments = symmetric(averages[length:], length)
        moments = np.where(np.eye(length, dtype=bool), moments, moments / np.sqrt(2))
        deviation = deviation_of(noisy) / survivors
        shift, growth = prior_step(averages[:length] / 2, moments, deviation, CONSTANTS.over_relaxation)
        covariance = root @ growth @ root.T
        return replace(learned, mean=learned.mean + root @ shift, covariance=(covariance + covariance.T) / 2)


def initial_variance(taste: FloatArray) -> float:
    """Return the variance, before the first round, of a person's taste for each of the taste columns.

    With t_j for the row of item j of `taste`, it is `taste_variance` or, if this is smaller, `LARGEST_TASTE` divided by
    the mean of ‖t_j‖². Without this bound, what the columns together add to the variance of a rating would grow with
    their number, and devices would follow single ratings.
    """
    size = float(np.mean(np.sum(taste**2, axis=1)))
    return min(CONSTANTS.taste_variance, LARGEST_TASTE / max(size, TINY))


def _sizes(columns: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the root mean square of each column over all ratings, `(K,)`; `counts` are the ratings per item."""
    return np.asarray(np.sqrt(np.average(columns**2, axis=0, weights=counts)))
