"""How attacks are scored: areas under curves, rates, intervals, and the least that an observed success rules out."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit
from scipy.stats import beta, rankdata

from hushrec.randomness import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]
Interval = tuple[float, float]

CONFIDENCE = 0.95
RESAMPLES = 1000


def auc(scores: FloatArray, labels: BoolArray) -> float:
    """Probability that a true case scores above a false one, ties counting one half."""
    n_true, n_false = int(labels.sum()), int((~labels).sum())
    if n_true == 0 or n_false == 0:
        return math.nan
    ranks = rankdata(scores)
    return float((ranks[labels].sum() - n_true * (n_true + 1) / 2) / (n_true * n_false))


def rate_at(scores: FloatArray, labels: BoolArray, false_rate: float = 0.01) -> float:
    """Share of true cases found when `false_rate` of the false ones are accused, on the ROC joined by lines.

    Joining by lines is what breaking ties by coin achieves.
    """
    false_rates, true_rates = roc(scores, labels)
    return float(np.interp(false_rate, false_rates, true_rates))


def roc(scores: FloatArray, labels: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Rates of false and of true accusations, from the strictest threshold to the laxest."""
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = np.cumsum(labels[order])[last_of_tie]
    accused = last_of_tie + 1 - found
    return (
        np.concatenate([[0.0], accused / max(int((~labels).sum()), 1)]),
        np.concatenate([[0.0], found / max(int(labels.sum()), 1)]),
    )


def mean_interval(per_person: FloatArray, *, rng: np.random.Generator) -> Interval:
    """Percentile bootstrap of the mean over people, the unit that is drawn independently."""
    values = per_person[np.isfinite(per_person)]
    if len(values) == 0:
        return math.nan, math.nan
    rows = rng.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[rows].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def auc_interval(scores: FloatArray, labels: BoolArray, *, rng: np.random.Generator) -> Interval:
    """Percentile bootstrap over cases, true and false ones apart."""
    true, false = np.flatnonzero(labels), np.flatnonzero(~labels)
    if len(true) == 0 or len(false) == 0:
        return math.nan, math.nan
    values = []
    for _ in range(RESAMPLES // 5):
        rows = np.concatenate([rng.choice(true, len(true)), rng.choice(false, len(false))])
        values.append(auc(scores[rows], labels[rows]))
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def share_interval(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Clopper–Pearson: an exact interval for a probability, half of the error on each side."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def epsilon_ruled_out(correct: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """The largest ε that this many correct guesses of fair coins rule out, in one run.

    The theorem of [Steinke2023] for pure privacy: if the mechanism is ε-private in every canary, the number of correct
    guesses is stochastically at most Binomial(guesses, e^ε / (1 + e^ε)). Inverted by the one-sided Clopper–Pearson
    bound; 0 when nothing is ruled out.
    """
    if correct == 0:
        return 0.0
    low = float(beta.ppf(1 - confidence, correct, guesses - correct + 1))
    return max(0.0, float(logit(low)))


def ceiling_auc(epsilon: float | FloatArray) -> FloatArray:
    """The AUC that no attack on an ε-private bit exceeds: e^ε / (1 + e^ε).

    Every ROC lies under the two lines through (1 − a, a), a = e^ε / (1 + e^ε); the area under them is a.
    """
    return np.asarray(expit(epsilon))


@dataclass(frozen=True, eq=False)
class Ridge:
    """Linear scores for one or several labels, the penalty chosen by leave-one-out on the training rows."""

    center: FloatArray
    scale: FloatArray
    weights: FloatArray  # (n_features, n_labels)
    offset: FloatArray
    left_out_error: float

    def scores(self, features: FloatArray) -> FloatArray:
        return np.asarray((features - self.center) / self.scale @ self.weights + self.offset)


def fit_ridge(features: FloatArray, targets: FloatArray) -> Ridge:
    """Least squares with a penalty; leave-one-out errors come from one decomposition for all penalties."""
    center, scale = features.mean(axis=0), features.std(axis=0) + 1e-12
    offset = targets.mean(axis=0)
    left, values, right = np.linalg.svd((features - center) / scale, full_matrices=False)
    projected = left.T @ (targets - offset)
    best = None
    for penalty in len(features) * np.logspace(-2, 2, 9):
        shrink = values**2 / (values**2 + penalty)
        leverage = (left**2 @ shrink + 1 / len(features))[:, None]
        residual = (targets - offset - left @ (shrink[:, None] * projected)) / (1 - leverage)
        error = float((residual**2).sum())
        if best is None or error < best[0]:
            best = error, right.T @ ((values / (values**2 + penalty))[:, None] * projected)
    assert best is not None
    return Ridge(center, scale, best[1], offset, best[0])


def folds(n_rows: int, n_folds: int, *, rng: np.random.Generator) -> list[IntArray]:
    """The rows dealt at random into parts of nearly equal size."""
    return [np.sort(part) for part in np.array_split(rng.permutation(n_rows), n_folds)]
