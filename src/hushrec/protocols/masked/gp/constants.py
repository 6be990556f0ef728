"""The public constants of model `gp` in the masked protocol, which are the same in every run.

They were chosen on validation data of ML-100K and ML-1M. Ratings are on the scale 1 to 5.
"""

from dataclasses import dataclass

from hushrec.scale import HIGHEST, LOWEST


@dataclass(frozen=True)
class Constants:
    """The constants of model `gp`: initial values, weights in blocks, descriptions, limits, and the kernel."""

    centre: float = 3.5  # the predicted rating before the first round
    noise: float = 0.8  # residual variance of a rating, given taste and item, if it has at least five levels
    taste_variance: float = 0.09  # initial variance of a person's taste for one item column
    level_variance: float = 0.25  # initial variance of a person's bias
    column_spread: float = 0.3  # root mean square of audience and factor columns; also multiplies log-popularity
    factor_variance: float = 0.1  # initial variance of a person's taste for a factor column
    weight_offset: float = 20.0  # an item with n ratings has weight (n + 20)^(−¼) in item blocks
    weight_power: float = 0.25
    rare_count: float = 50.0  # in factor blocks the weight is also divided by 1 + (50/n)²
    profile_spread: float = 4.0  # for h rated items, a description is 4 Σ columns / (h + 5), and log h − 4.3
    profile_offset: float = 5.0
    usual_log_profile: float = 4.3
    audience_limit: float = 1.6  # largest norm of a whitened description of K numbers, divided by √K
    factor_limit: float = 1.5  # the same limit for the K numbers of a person's taste that factor blocks use
    over_relaxation: float = 2.0  # exponent p of `posteriors.prior_step`; 1 is plain expectation maximization
    kernel_amplitude: float = 0.12  # variance of the part of item similarity that is not linear in the item rows
    kernel_length: float = 0.6  # length scale of that part, in units of the total standard deviation of the item rows


CONSTANTS = Constants()

# The largest initial variance of what the taste columns together add to a rating of an average item. MovieLens and
# Netflix have at most 0.15. Chosen on validation parts of generated ratings (experiments/masked_generated.py).
LARGEST_TASTE = 0.4


def residual_variance(levels: int) -> float:
    """Return the variance of a rating, given taste and item, if a rating has this number of levels (at least two).

    With fewer than five levels it grows in proportion to the distance between neighbouring levels: 0.8 for five levels
    and more, 1.07 for four, 1.6 for three, and 3.2 for two. A rating of two levels is 1 or 5, and half of each has
    variance 4. The rule was chosen on validation parts of generated ratings (experiments/masked_generated.py).
    """
    return CONSTANTS.noise * max(1.0, (HIGHEST - LOWEST) / (levels - 1))
