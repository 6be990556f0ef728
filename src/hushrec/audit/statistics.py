"""How attacks are scored: areas under curves, rates, intervals, and the least that an observed success rules out."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit
from scipy.stats import binomtest, bootstrap, rankdata

from hushrec.arrays import FloatArray, IntArray

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
    if len(values) < 2:
        only = float(values[0]) if len(values) else math.nan
        return only, only
    return _percentiles((values,), np.mean, RESAMPLES, rng)


def auc_interval(scores: FloatArray, labels: BoolArray, *, rng: np.random.Generator) -> Interval:
    """Percentile bootstrap over cases, true and false ones apart."""
    true, false = scores[labels], scores[~labels]
    if len(true) == 0 or len(false) == 0:
        return math.nan, math.nan
    if min(len(true), len(false)) < 2:  # drawn again, one case is always itself
        true, false = (np.repeat(cases, 2) if len(cases) == 1 else cases for cases in (true, false))
    return _percentiles((true, false), _auc_of_two, RESAMPLES // 5, rng)


def _auc_of_two(true: FloatArray, false: FloatArray) -> float:
    labels = np.repeat([True, False], [len(true), len(false)])
    return auc(np.concatenate([true, false]), labels)


def _percentiles(
    data: Sequence[FloatArray], statistic: Callable[..., Any], n_resamples: int, rng: np.random.Generator
) -> Interval:
    """Return the percentile bootstrap interval by SciPy, at 95 %."""
    found = bootstrap(
        data, statistic, n_resamples=n_resamples, confidence_level=CONFIDENCE, method="percentile", rng=rng
    ).confidence_interval
    return float(found.low), float(found.high)


def rank_correlation(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return Spearman's rank correlation along the last axis; 0 where one side is constant."""
    ranks = [rankdata(side, axis=-1) - (side.shape[-1] + 1) / 2 for side in (left, right)]
    products = (ranks[0] * ranks[1]).sum(axis=-1)
    lengths = np.sqrt((ranks[0] ** 2).sum(axis=-1) * (ranks[1] ** 2).sum(axis=-1))
    return np.asarray(np.where(lengths > 0, products / np.maximum(lengths, 1e-300), 0.0))


def correlation_interval(left: FloatArray, right: FloatArray, *, rng: np.random.Generator) -> Interval:
    """Percentile bootstrap of the rank correlation, over people."""
    rows = rng.integers(0, len(left), (RESAMPLES, len(left)))
    low, high = np.quantile(rank_correlation(left[rows], right[rows]), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def share_interval(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Clopper–Pearson: an exact interval for a probability, half of the error on each side."""
    found = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def epsilon_ruled_out(correct: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """The largest ε that this many correct guesses of fair coins rule out, in one run.

    The theorem of [Steinke2023] for pure privacy: if the mechanism is ε-private in every canary, the number of correct
    guesses is stochastically at most Binomial(guesses, e^ε / (1 + e^ε)). Inverted by the one-sided Clopper–Pearson
    bound; 0 when nothing is ruled out.
    """
    if correct == 0:
        return 0.0
    low = binomtest(correct, guesses, alternative="greater").proportion_ci(confidence, method="exact").low
    return max(0.0, float(logit(low)))


def ceiling_auc(epsilon: float | FloatArray) -> FloatArray:
    """The AUC that no attack on an ε-private bit exceeds: e^ε / (1 + e^ε).

    Every ROC lies under the two lines through (1 − a, a), a = e^ε / (1 + e^ε); the area under them is a.
    """
    return np.asarray(expit(epsilon))


class KernelRidge:
    """Ridge regression by the similarities of rows alone, for any labels of the same known rows.

    The penalty is the one with the least leave-one-out error among the known, which one decomposition gives for all
    penalties and labels.
    """

    def __init__(self, kernel: FloatArray, known: IntArray) -> None:
        from_known = kernel[:, known].mean(axis=1)
        centered = kernel - from_known[:, None] - from_known + from_known[known].mean()  # as if the known were
        self._known, self._kernel = known, centered
        values, self._vectors = np.linalg.eigh(centered[np.ix_(known, known)])
        self._values = np.maximum(values, 0)

    def scores(self, targets: FloatArray, asked: IntArray) -> FloatArray:
        """Return scores of the rows `asked`, one per label, from the labels `targets` of the known rows."""
        offset = targets.mean(axis=0)
        projected = self._vectors.T @ (targets - offset)
        best, weights = math.inf, np.zeros_like(targets)
        for penalty in max(float(self._values.mean()), 1e-12) * np.logspace(-3, 2, 11):
            shrink = 1 / (self._values + penalty)
            candidate = self._vectors @ (shrink[:, None] * projected)
            left_out = float(((candidate / (self._vectors**2 @ shrink)[:, None]) ** 2).sum())
            if left_out < best:
                best, weights = left_out, candidate
        return np.asarray(self._kernel[np.ix_(asked, self._known)] @ weights + offset)


def folds(n_rows: int, n_folds: int, *, rng: np.random.Generator) -> list[IntArray]:
    """The rows dealt at random into parts of nearly equal size."""
    return [np.sort(part) for part in np.array_split(rng.permutation(n_rows), n_folds)]
