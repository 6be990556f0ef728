"""Statistics for audits: ROC curves, AUC, confidence intervals, lower bounds on ε, and kernel ridge regression."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest, bootstrap, rankdata

from hushrec.arrays import BoolArray, FloatArray, IntArray

Interval = tuple[float, float]

CONFIDENCE = 0.95
RESAMPLES = 1000


def auc(scores: FloatArray, labels: BoolArray) -> float:
    """Return the area under the ROC curve: the probability that a true case scores higher than a false one.

    Ties count one half. The result is NaN if there is no true or no false case.
    """
    n_true, n_false = int(labels.sum()), int((~labels).sum())
    if n_true == 0 or n_false == 0:
        return math.nan
    ranks = rankdata(scores)
    return float((ranks[labels].sum() - n_true * (n_true + 1) / 2) / (n_true * n_false))


def mean_auc(scores: FloatArray, labels: BoolArray) -> float:
    """Return the mean AUC over people, who have one row each in both arrays.

    People whose labels are all True or all False are left out.
    """
    return float(np.nanmean([auc(*row) for row in zip(scores, labels, strict=True)]))


def rate_at(scores: FloatArray, labels: BoolArray) -> float:
    """Return the true-positive rate at a false-positive rate of 1 %, on the piecewise linear ROC curve."""
    return float(np.interp(0.01, *roc(scores, labels)))


def roc(scores: FloatArray, labels: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the false-positive rates and the true-positive rates, from the highest threshold to the lowest."""
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = np.cumsum(labels[order])[last_of_tie]
    accused = last_of_tie + 1 - found
    return (
        np.concatenate([[0.0], accused / max(int((~labels).sum()), 1)]),
        np.concatenate([[0.0], found / max(int(labels.sum()), 1)]),
    )


def log_odds(shares: FloatArray) -> FloatArray:
    """Return ln(p / (1 − p)) of each probability p in `shares`, clipped to [1e-4, 1 − 1e-4] to be finite."""
    return np.asarray(logit(np.clip(shares, 1e-4, 1 - 1e-4)))


def mean_interval(per_person: FloatArray, *, rng: np.random.Generator) -> Interval:
    """Return the 95 % bootstrap interval of the mean over people; NaN and infinite values are left out."""
    values = per_person[np.isfinite(per_person)]
    if len(values) < 2:
        only = float(values[0]) if len(values) else math.nan
        return only, only
    return _percentiles((values,), np.mean, RESAMPLES, rng)


def auc_interval(scores: FloatArray, labels: BoolArray, *, rng: np.random.Generator) -> Interval:
    """Return the 95 % bootstrap interval of the AUC; true and false cases are resampled separately."""
    true, false = scores[labels], scores[~labels]
    if len(true) == 0 or len(false) == 0:
        return math.nan, math.nan
    if min(len(true), len(false)) < 2:  # SciPy needs two cases; a duplicated case resamples like a single case
        true, false = (np.repeat(cases, 2) if len(cases) == 1 else cases for cases in (true, false))
    return _percentiles((true, false), lambda *cases: auc(*with_labels(*cases)), RESAMPLES // 5, rng)


def with_labels(true: FloatArray, false: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Return the scores of true and of false cases as one array, and the labels: True for the true cases."""
    return np.concatenate([true, false]), np.repeat([True, False], [len(true), len(false)])


def _percentiles(
    data: Sequence[FloatArray], statistic: Callable[..., Any], n_resamples: int, rng: np.random.Generator, **more: Any
) -> Interval:
    found = bootstrap(
        data, statistic, n_resamples=n_resamples, confidence_level=CONFIDENCE, method="percentile", rng=rng, **more
    ).confidence_interval
    return float(found.low), float(found.high)


def rank_correlation(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return Spearman's rank correlation of two arrays along their last axis; 0 if one of them is constant there."""
    ranks = [rankdata(side, axis=-1) - (side.shape[-1] + 1) / 2 for side in (left, right)]
    products = (ranks[0] * ranks[1]).sum(axis=-1)
    lengths = np.sqrt((ranks[0] ** 2).sum(axis=-1) * (ranks[1] ** 2).sum(axis=-1))
    return np.asarray(np.where(lengths > 0, products / np.maximum(lengths, 1e-300), 0.0))


def correlation_interval(left: FloatArray, right: FloatArray, *, rng: np.random.Generator) -> Interval:
    """Return the 95 % bootstrap interval of the rank correlation of two vectors with one entry per person."""
    return _percentiles(
        (left, right), lambda *both, axis: rank_correlation(*both), RESAMPLES, rng, paired=True, vectorized=True
    )


def share_interval(successes: int, trials: int) -> Interval:
    """Return the 95 % Clopper–Pearson confidence interval of a probability, from `successes` in `trials`."""
    found = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def epsilon_ruled_out(correct: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on ε from the number of correct guesses of fair coins in one run.

    By the theorem of [Steinke2023] for pure differential privacy, the number of correct guesses about an ε-private
    mechanism is stochastically at most Binomial(guesses, e^ε / (1 + e^ε)). Inverting the one-sided Clopper–Pearson
    bound gives the lower bound on ε. The result is 0 if the guesses are not significantly better than chance.
    """
    if correct == 0:
        return 0.0
    low = binomtest(correct, guesses, alternative="greater").proportion_ci(confidence, method="exact").low
    return max(0.0, float(logit(low)))


def ceiling_auc(epsilon: float | FloatArray) -> FloatArray:
    """Return the largest AUC that any attack on an ε-private bit can have: e^ε / (1 + e^ε).

    With a = e^ε / (1 + e^ε), every ROC curve lies below the line from (0, 0) to (1 − a, a) and the line from there to
    (1, 1). The area below both lines is a.
    """
    return np.asarray(expit(epsilon))


class KernelRidge:
    """Kernel ridge regression, which predicts labels of all rows from the labels of the `known` rows.

    `kernel` holds the similarity of all pairs of rows. Of several penalties, the one with the smallest leave-one-out
    error over the known rows is used. One eigendecomposition serves all penalties and labels.
    """

    def __init__(self, kernel: FloatArray, known: IntArray) -> None:
        from_known = kernel[:, known].mean(axis=1)
        centered = kernel - from_known[:, None] - from_known + from_known[known].mean()  # centred on the known rows
        self._known, self._kernel = known, centered
        values, self._vectors = np.linalg.eigh(centered[np.ix_(known, known)])
        self._values = np.maximum(values, 0)

    def scores(self, targets: FloatArray, rows: IntArray) -> FloatArray:
        """Return the predicted labels of these rows, given the labels `targets` of the known rows."""
        offset = targets.mean(axis=0)
        projected = self._vectors.T @ (targets - offset)
        best, weights = math.inf, np.zeros_like(targets)
        for penalty in max(float(self._values.mean()), 1e-12) * np.logspace(-3, 2, 11):
            shrink = 1 / (self._values + penalty)
            candidate = self._vectors @ (shrink[:, None] * projected)
            left_out = float(((candidate / (self._vectors**2 @ shrink)[:, None]) ** 2).sum())
            if left_out < best:
                best, weights = left_out, candidate
        return np.asarray(self._kernel[np.ix_(rows, self._known)] @ weights + offset)


def folds(n_rows: int, n_folds: int, *, rng: np.random.Generator) -> list[IntArray]:
    """Return a random partition of the row numbers 0 to n_rows − 1 into `n_folds` sorted arrays of similar size."""
    return [np.sort(part) for part in np.array_split(rng.permutation(n_rows), n_folds)]
