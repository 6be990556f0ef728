"""The numbers of the masked protocol that were chosen once, for all data: public, and the same in every run.

Ratings are on 1 to 5. They were chosen on validation parts of ML-100K and ML-1M.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Where learning starts, and how the columns that are learned are scaled."""

    centre: float = 3.5  # a rating before anything is known
    noise: float = 0.8  # variance of a rating around what taste and item explain
    taste_variance: float = 0.09  # of a person's taste for one column, before it is learned
    level_variance: float = 0.25  # of a person's own level
    column_spread: float = 0.3  # deviation of a learned column, and of log-popularity
    factor_variance: float = 0.1  # of a person's taste for a factor column
    weight_offset: float = 20.0  # an item with n ratings weighs (n + 20)^(−¼) in an upload
    weight_power: float = 0.25
    rare_count: float = 50.0  # in factor blocks divided by 1 + (50/n)² besides
    profile_spread: float = 4.0  # a device's description is 4 Σ columns / (h + 5), and log h − 4.3
    profile_offset: float = 5.0
    usual_log_profile: float = 4.3
    audience_limit: float = 1.6  # norm of a description with K entries, divided by √K, at most
    factor_limit: float = 1.5
    over_relaxation: float = 2.0
    kernel_amplitude: float = 0.12  # a
    kernel_length: float = 0.6  # ℓ, in deviations of the rows of items


CONSTANTS = Constants()
