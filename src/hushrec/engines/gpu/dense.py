"""Sums of errors times vectors over *all* (user, item) cells of a round, for users and for items, in plain PyTorch.

Engine `gpu` uses them where the kernels of `engines.gpu.fused` cannot run, and tests compare the two. In the shapes, g
is the number of runs that share their training values, n of users, m of items and k of factors. `values` `(n, m)` holds
the training rating of each cell, NaN if the user has not rated the item. Arrays of a single run have no axis g.

Work and memory grow with n m instead of the number of ratings. For data sets with a few percent of rated cells this is
still fast, because the sums of errors times vectors are matrix products, and no list is built, sorted or searched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEWTON_STEPS = 24
_LARGEST_BELOW_ONE = 1 - 2.0**-24  # in float32; the normal quantile of 1 would be infinite


@dataclass(frozen=True, eq=False)
class FakeLaw:
    """The distribution of each user's fake errors, a truncated normal distribution.

    Before it is truncated to ±`bound`, it has the mean and deviation of the user's real errors. A fake error is
    sign · (center + deviation · Φ⁻¹(low + uniform · mass)), with a uniform number in [0, 1). Every field is `(g, n)`,
    for g runs and n users.
    """

    sign: Tensor  # of the mean of the real errors, −1 or 1
    center: Tensor  # absolute value of that mean
    deviation: Tensor  # standard deviation of the real errors
    low: Tensor  # Φ((−bound − center) / deviation): the probability below −bound before truncation
    mass: Tensor  # exp(−ε_g): the probability between −bound and bound before truncation
    bound: Tensor  # α

    def of_run(self, run: int) -> "FakeLaw":
        """Return the distributions for the users of one run; their fields are `(n_users,)`."""
        return FakeLaw(*(entry[run] for entry in vars(self).values()))

    def errors(self, uniform: Tensor) -> Tensor:
        """Map uniform numbers in [0, 1), `(g, n, m)` for g runs, n users and m items, to fake errors."""
        half_cell = 2.0**-25
        quantile = (uniform + half_cell) * self.mass[..., None] + self.low[..., None]
        normal = torch.special.ndtri(quantile.clamp(torch.finfo(torch.float32).tiny, _LARGEST_BELOW_ONE))
        errors = normal * self.deviation[..., None] + self.center[..., None]
        bound = self.bound[..., None]
        return torch.minimum(torch.maximum(errors, -bound), bound) * self.sign[..., None]


def fake_law(mean: Tensor, deviation: Tensor, epsilon_g: Tensor) -> FakeLaw:
    """Return the distribution of fake errors, from the mean and deviation of real errors ([SDCF], Theorem 3)."""
    mean, deviation, epsilon_g = mean.double(), deviation.double(), epsilon_g.double()
    bound = fake_error_bounds(mean, deviation, epsilon_g)
    low = torch.special.ndtr(-(bound + mean.abs()) / deviation)
    low = torch.where(deviation > 0, low, torch.zeros_like(low))
    sign = torch.where(mean < 0, -1.0, 1.0)
    fields = (sign, mean.abs(), deviation, low, torch.exp(-epsilon_g), bound)
    return FakeLaw(*(entry.float() for entry in fields))


def fake_error_bounds(mean: Tensor, deviation: Tensor, epsilon_g: Tensor) -> Tensor:
    """Return the bounds α of fake errors, in float64, by the Newton method of `budget.calibrate.fake_error_bound`."""
    inside = (deviation > 0) & (epsilon_g > 0) & torch.isfinite(epsilon_g)
    one = torch.ones_like(mean)
    center = torch.where(inside, mean.abs() / deviation, one)
    target = -torch.where(inside, epsilon_g, one)
    s = torch.maximum(target.exp() * math.sqrt(math.pi / 2), center + torch.special.ndtri(target.exp()))
    for _ in range(NEWTON_STEPS):
        log_mass = _log_mass(center, s)
        log_density = -((s - center) ** 2) / 2 - math.log(2 * math.pi) / 2 + torch.log1p(torch.exp(-2 * center * s))
        s = s + ((target - log_mass) * torch.exp(log_mass - log_density)).clamp_min(0)
    bound = torch.where(inside, deviation * s, mean.abs())
    bound = torch.where(epsilon_g == 0, math.inf, bound)
    return torch.where(torch.isinf(epsilon_g), 0.0, bound)


def _log_mass(center: Tensor, s: Tensor) -> Tensor:
    """Return ln(Φ(s − c) − Φ(−s − c)) for c = `center`; for a small s from the series 2 s φ(c) (1 + (c² − 1) s²/6)."""
    narrow = torch.log(2 * s) - math.log(2 * math.pi) / 2 - center**2 / 2 + torch.log1p((center**2 - 1) * s**2 / 6)
    upper = torch.special.log_ndtr(s - center)
    wide = upper + torch.log(-torch.expm1(torch.special.log_ndtr(-s - center) - upper))
    return torch.where(s * center.clamp_min(1) < 1e-4, narrow, wide)


@dataclass(frozen=True, eq=False)
class UserSums:
    """For each user, the sum of error times item vector over the rated items, and the errors' mean and deviation.

    The shapes are for g runs, n users and k factors.
    """

    gradients: Tensor  # (g, n, k)
    error_mean: Tensor  # (g, n)
    error_deviation: Tensor  # (g, n)


@dataclass(frozen=True, eq=False)
class ItemSums:
    """Sums over all reports of a round: gradients and their number for each item, squared errors for each user.

    The shapes are for g runs, n users, m items and k factors.
    """

    gradients: Tensor  # Σ e u, errors times user vectors, of each item, (g, m, k)
    counts: Tensor  # users who report each item, (g, m)
    squares: Tensor  # Σ e² of each user, (g, n)

    @staticmethod
    def stacked(runs: Sequence["ItemSums"]) -> "ItemSums":
        return ItemSums(*(torch.stack(rows) for rows in zip(*(vars(one).values() for one in runs), strict=True)))


def user_sums(values: Tensor, counts: Tensor, user_vectors: Tensor, item_vectors: Tensor) -> UserSums:
    """Return the `UserSums` of one round; `counts` `(n,)` holds each user's number of rated items."""
    errors = rated_errors(values, user_vectors, item_vectors)  # (g, n, m)
    h = counts.clamp_min(1)
    mean = errors.sum(-1) / h
    square = torch.where(values.isnan(), 0.0, (errors - mean[..., None]) ** 2).sum(-1) / h
    return UserSums(errors @ item_vectors, mean, square.sqrt())


def rated_errors(values: Tensor, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
    """Return rating minus prediction for every rated cell, 0 in other cells, `(g, n, m)`: runs, users, items."""
    errors = values - user_vectors @ item_vectors.transpose(-1, -2)
    return errors.nan_to_num_(nan=0.0)


def select_cells(bits: Tensor, prob_send_zero: Tensor, prob_send_one: Tensor, uniform: Tensor) -> Tensor:
    """Return whether each (user, item) cell is selected, `(g, n, m)`: whether its number in `uniform` is below p.

    Here p is the user's `prob_send_one` if the permanent bit of the cell, in `bits`, is 1, else `prob_send_zero`.
    """
    return uniform < torch.where(bits, prob_send_one[..., None], prob_send_zero[..., None])


def item_sums(values: Tensor, selected: Tensor, fakes: Tensor, user_vectors: Tensor, item_vectors: Tensor) -> ItemSums:
    """Return the `ItemSums` of one round.

    The error of a selected cell is the real error if the cell is rated, else its entry in `fakes`.
    """
    errors = torch.where(values.isnan(), fakes, rated_errors(values, user_vectors, item_vectors))
    errors = torch.where(selected, errors, 0.0)
    return ItemSums(errors.transpose(-1, -2) @ user_vectors, selected.sum(-2), (errors**2).sum(-1))
