"""Calibration of the mechanisms of [SDCF]: their parameters for a given privacy budget.

`calibrate_selection` computes the probabilities of the two-stage randomized response (Theorems 1 and 2) for one device
(numbers) or many devices (arrays), and `fake_error_bound` the interval of the fake errors (Theorem 3). Both are exact
up to rounding. They raise an error for a budget that cannot be met, instead of using the nearest possible value.

Letters: h = `n_rated`, m = `n_items`, z = `reports_per_client`.
"""

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
from scipy.special import cython_special, expit, ndtri_exp

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ImpossibleBudget, ParameterError

FloatOrArray = TypeVar("FloatOrArray", float, FloatArray)
Numbers = float | npt.NDArray[np.floating] | npt.NDArray[np.integer]

# Largest budgets per rating: above them, a probability could underflow to zero, which protects nothing.
LARGEST_EPSILON_I, LARGEST_EPSILON_P = 300.0, 600.0
_ROUNDED_UP = 1 + 1e-15  # more than the rounding errors of a few operations: a factor that rounds their result up

_log_ndtr: Callable[[float], float] = cython_special.log_ndtr  # compiled for floats, without the overhead of arrays


@dataclass(frozen=True, repr=False)  # no repr: the values reveal how many items are rated
class SelectionProbabilities(Generic[FloatOrArray]):
    """The probabilities of the two-stage randomized response, for one device (floats) or many (arrays).

    Real devices keep them private, because they reveal how many items a person has rated.
    """

    prob_randomize: FloatOrArray  # f: a permanent bit is replaced by a fair coin
    prob_send_unrated: FloatOrArray  # p*: an unrated item is selected, over both stages
    prob_send_rated: FloatOrArray  # q*: a rated item is selected, over both stages
    prob_send_zero: FloatOrArray  # p: an item whose permanent bit is 0 is selected
    prob_send_one: FloatOrArray  # q: an item whose permanent bit is 1 is selected


@overload
def calibrate_selection(
    n_rated: int, n_items: int, reports_per_client: float, epsilon_i: float, epsilon_p: float
) -> SelectionProbabilities[float]: ...


@overload
def calibrate_selection(
    n_rated: IntArray, n_items: int, reports_per_client: float, epsilon_i: Numbers, epsilon_p: Numbers
) -> SelectionProbabilities[FloatArray]: ...


def calibrate_selection(
    n_rated: int | IntArray, n_items: int, reports_per_client: float, epsilon_i: Numbers, epsilon_p: Numbers
) -> SelectionProbabilities[float] | SelectionProbabilities[FloatArray]:
    """Return the selection probabilities that cost exactly epsilon_p and epsilon_i, and send z items on average.

    epsilon_p is the budget of the permanent bits, and epsilon_i the budget of each round's selection. Write h, m and z
    for `n_rated`, `n_items` and `reports_per_client`, and f, p*, q*, p and q for the five fields of the result. Theorem
    1 of [SDCF] gives f; Theorem 2 with h q* + (m − h) p* = z gives p* and q*::

        epsilon_p = 2h ln((1 − f/2) / (f/2))              epsilon_i = h ln(q*(1 − p*) / (p*(1 − q*)))
        p* = (1 − f/2) p + (f/2) q                        q* = (f/2) p + (1 − f/2) q

    With y = epsilon_p/2h, x = epsilon_i/h and L = ln((1 − p*)/(1 − q*)), so that x − L = ln(q*/p*), the second
    line is solved without cancellation by::

        p = p* (1 − exp(−(y − (x − L)))) / (1 − exp(−y))      q = q* (1 − exp(−(y + (x − L)))) / (1 − exp(−y))
                                                      1 − q = (1 − q*) (1 − exp(−(y − L))) / (1 − exp(−y))

    These lie in [0, 1] exactly if y ≥ max(x − L, L). Otherwise, `ImpossibleBudget` names the smallest epsilon_p that
    works; epsilon_p = 2 epsilon_i always works.

    To protect also how many items are rated, pass a profile cap H as `n_rated`: the cost then holds between any two
    profiles of up to H ratings, including those with different numbers of ratings.
    """
    h, x, epsilon_p = _checked(n_rated, n_items, reports_per_client, epsilon_i, epsilon_p)
    unrated, log_unsent = _solve_selection(h, n_items, reports_per_client, x)
    _refuse_impossible(epsilon_p, _smallest_epsilon_p(h, x, log_unsent))
    rated = unrated * np.exp(x - log_unsent)
    y = epsilon_p / (2 * h)
    zero = unrated * np.expm1(x - log_unsent - y) / np.expm1(-y)
    one = rated * np.expm1(log_unsent - x - y) / np.expm1(-y)
    not_one = (1 - unrated) * np.exp(-log_unsent) * np.expm1(log_unsent - y) / np.expm1(-y)
    one = np.where(one <= 0.5, one, 1 - not_one)
    if not np.all(np.isfinite(zero + one)):
        raise ParameterError(
            "epsilon_i and epsilon_p must be large enough to compute selection probabilities in double precision, got"
            f" {float(np.min(epsilon_i)):g} and {float(np.min(epsilon_p)):g}. Raise them to at least 1e-300."
        )
    found = (2 * expit(-y), unrated, rated, zero, one)
    return SelectionProbabilities(*found) if y.ndim else SelectionProbabilities(*map(float, found))


def smallest_epsilon_p(n_rated: int, n_items: int, reports_per_client: float, epsilon_i: float) -> float:
    """Return the smallest epsilon_p that `calibrate_selection` accepts with these arguments, rounded up.

    It lies between epsilon_i and 2 epsilon_i. If epsilon_i is much smaller than `n_rated`, it is near
    2 max(s, 1 − s) epsilon_i, where s is `reports_per_client` divided by `n_items`.
    """
    h, x, _ = _checked(n_rated, n_items, reports_per_client, epsilon_i, 1.0)
    _, log_unsent = _solve_selection(h, n_items, reports_per_client, x)
    return float(_smallest_epsilon_p(h, x, log_unsent))


def _solve_selection(h: FloatArray, m: int, z: float, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return p* and ln((1 − p*)/(1 − q*)), where p* and q* are the probabilities to send an unrated and a rated item.

    A device has rated h of m items and sends z on average, and x = epsilon_i/h. So h q* + (m − h) p* = z, and
    q* = p*(1 + A)/(1 + A p*) with A = exp(x) − 1. Then p* is the positive root of (m − h) A p*² + b p* − z = 0 with
    b = m + (h − z) A. The equation is divided by 1 + A, so that a large x does not overflow, and the root is computed
    in the form without cancellation.
    """
    decay, growth = np.exp(-x), -np.expm1(-x)  # 1/(1 + A), A/(1 + A)
    b = m * decay + (h - z) * growth
    root = np.sqrt(b**2 + 4 * (m - h) * growth * z * decay)
    with np.errstate(divide="ignore"):  # the branch that np.where does not take
        unrated = np.where(b >= 0, 2 * z * decay / (b + root), (root - b) / (2 * (m - h) * growth))
        small = np.log1p(2 * z * growth / (b + root))  # ln(1 + A p*)
    return unrated, np.where(b >= 0, small, x + np.log(decay + growth * unrated))


def _smallest_epsilon_p(h: FloatArray, x: FloatArray, log_unsent: FloatArray) -> FloatArray:
    return np.asarray(2 * h * np.maximum(x - log_unsent, log_unsent) * _ROUNDED_UP)


def _checked(
    n_rated: int | IntArray, n_items: int, reports_per_client: float, epsilon_i: Numbers, epsilon_p: Numbers
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return n_rated, epsilon_i/n_rated and epsilon_p as arrays of one shape; raise `ParameterError` for bad values."""
    if not 0 < reports_per_client < n_items:
        raise ParameterError(
            f"reports_per_client must be above 0 and below n_items = {n_items}, got {reports_per_client}."
        )
    h = np.asarray(n_rated, dtype=np.float64)
    outside = np.count_nonzero(~((h >= 1) & (h <= n_items - 1) & (h == np.floor(h))))
    if outside:
        raise ParameterError(
            f"n_rated must be a whole number from 1 to n_items - 1 = {n_items - 1}, but {outside} of {h.size} given"
            " values are not. Leave out people who rated nothing or everything."
        )
    limits = (("epsilon_i", epsilon_i, LARGEST_EPSILON_I), ("epsilon_p", epsilon_p, LARGEST_EPSILON_P))
    for name, epsilon, largest in limits:
        values = np.asarray(epsilon, dtype=np.float64)
        if not np.all((values > 0) & np.isfinite(values)):
            raise ParameterError(f"{name} must be positive and finite, got {_extreme(values)}.")
        if np.any(values / h > largest):
            raise ParameterError(
                f"{name} / n_rated must be at most {largest:g}, got {_extreme(np.asarray(values / h))}. Lower {name}."
            )
    h, i, p = np.broadcast_arrays(h, epsilon_i, epsilon_p)
    return h, np.asarray(i / h), np.asarray(p, dtype=np.float64)


def _extreme(values: FloatArray) -> float:
    """Return one of the values for an error message: NaN if there is one, a negative or zero value, or the largest."""
    return float(values.max() if np.all(values > 0) else values.min())


def _refuse_impossible(epsilon_p: FloatArray, smallest: FloatArray) -> None:
    too_small = np.count_nonzero(~(epsilon_p >= smallest))
    if not too_small:
        return
    needed = float(smallest.max())
    of_many = f" for {too_small} of {smallest.size} devices" if smallest.ndim else ""
    raise ImpossibleBudget(
        f"epsilon_p must be at least {_digits_up(needed)} for this epsilon_i and reports_per_client, "
        f"got {float(epsilon_p.min()):g}, which is too small{of_many}. "
        "Raise epsilon_p (2 epsilon_i always works) or lower epsilon_i.",
        smallest_epsilon_p=needed,
    )


def _digits_up(value: float) -> decimal.Decimal:
    """Return the number rounded up to six digits, so that a user can copy it from an error message."""
    return decimal.Context(prec=6, rounding=decimal.ROUND_CEILING).create_decimal_from_float(value)


def fake_error_bound(mean: float, deviation: float, epsilon_g: float) -> float:
    """Return α, rounded up; fake errors are drawn from the interval [−α, α].

    Theorem 3 of [SDCF] defines α by P(|X| < α) = exp(−epsilon_g) for X ~ N(mean, deviation²), where mean and deviation
    are those of the person's real errors. epsilon_g = 0 gives ∞ (fake errors are distributed like real errors), and
    epsilon_g = ∞ gives 0 (fake errors are zero). For a person with one rating the deviation is 0 and α is |mean|: all
    fake errors are equal to the mean.

    Departs from Theorem 3: the theorem calls epsilon_g a guarantee, but it is only a parameter. It bounds the ratio of
    the densities of fake and real errors; an error outside [−α, α] is certainly a real one (docs/proofs.md).
    """
    if not (math.isfinite(mean) and 0 <= deviation < math.inf):
        raise ParameterError(
            "mean and deviation of the errors, which are private, must be finite, and deviation must not be negative."
        )
    if not epsilon_g >= 0:
        raise ParameterError(f"epsilon_g must be at least 0, got {epsilon_g}.")
    if epsilon_g == 0:
        return math.inf
    if epsilon_g == math.inf:
        return 0.0
    if deviation == 0 or abs(mean) > 1e15 * deviation:
        return abs(mean)
    return deviation * _half_width(abs(mean) / deviation, epsilon_g)


def _half_width(center: float, epsilon_g: float) -> float:
    """Return the s with P(|center + Z| < s) = exp(−epsilon_g) for a standard normal Z, rounded up by 1e-11 s.

    F(s) = P(|center + Z| < s) is log-concave in s, so Newton's method on ln F(s) = −epsilon_g converges from any s
    below the root. F(s) ≤ 2 s φ(0) and F(s) ≤ Φ(s − center) give two such starting points; the larger one is used.
    """
    below = math.exp(-epsilon_g) * math.sqrt(math.pi / 2)
    s = max(below, center + float(ndtri_exp(-epsilon_g)), 1e-300)
    step = s
    while step > 1e-12 * s:
        log_mass = _log_mass(center, s)
        log_density = -((s - center) ** 2) / 2 - math.log(2 * math.pi) / 2 + math.log1p(math.exp(-2 * center * s))
        step = -(log_mass + epsilon_g) * math.exp(log_mass - log_density)
        s += max(step, 0.0)
    return s * (1 + 1e-11)


def _log_mass(center: float, s: float) -> float:
    """Return ln F(s) = ln(Φ(s − c) − Φ(−s − c)) for c = `center`: the log probability that N(c, 1) is in [−s, s].

    For small s, use the series F(s) = 2 s φ(c) (1 + (c² − 1) s²/6 + …), which does not cancel.
    """
    if s * max(center, 1.0) < 1e-4:
        series = math.log1p((center**2 - 1) * s**2 / 6)
        return math.log(2 * s) - math.log(2 * math.pi) / 2 - center**2 / 2 + series
    upper = _log_ndtr(s - center)
    gap = _log_ndtr(-s - center) - upper
    return upper + (math.log(-math.expm1(gap)) if gap > -0.7 else math.log1p(-math.exp(gap)))
