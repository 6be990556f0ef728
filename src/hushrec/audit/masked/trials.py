"""Likelihood-ratio tests between two inputs of one device, from the noisy sums of a whole run.

Two inputs of a device have tables z and z' that differ by d. After everybody else's integers are subtracted, a sum is z
or z' plus noise of known variance. The test statistic is ⟨d, sum − z'⟩/variance, added over all blocks. It is normal
with variance μ², where μ² = Σ ‖d_b‖²/variance_b, and with mean μ² for the input z or 0 for z'.

All trials of one pair of inputs use the same public tables, real or crafted. This is valid because the guarantee holds
for any table that a server publishes. In every trial the noise of every block is drawn anew, by the sampler of the
protocol. Everything else in the sums cancels, because the attacker knows it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import vstack
from scipy.stats import beta, norm

from hushrec.arrays import BoolArray, FloatArray
from hushrec.audit.masked.sums import PersonTables, SeenBlock, SeenRun
from hushrec.audit.statistics import CONFIDENCE, Interval, epsilon_ruled_out
from hushrec.budget.gaussian import epsilon_of_mu
from hushrec.protocols.masked.noise import summed_noise

TRIALS = 2000  # number of trials for each of the two inputs
AT_ONCE = 250  # number of trials whose noise is in memory at the same time
BOUNDS = 16  # number of bounds in one column of an audit, all of which hold together with 95 % confidence
ERROR = (1 - CONFIDENCE) / BOUNDS  # error probability of one bound
GUESSED = 1 / 3  # fraction of the coins of one run that are guessed, those with the clearest evidence


class Scores(NamedTuple):
    """The test statistic in trials with the first input of a device, and in equally many trials with the second."""

    first: FloatArray
    second: FloatArray


def weights_of(blocks: Sequence[SeenBlock]) -> list[float]:
    """Return the weight of each block in the test statistic: 1/variance of the noise in its sum.

    A block without noise has a larger weight than any block with noise. If no block has noise, all weights are equal.
    """
    noisy = [block.variance for block in blocks if block.variance > 0]
    least = min(noisy, default=1.0)
    return [1 / (block.variance or least / len(blocks)) for block in blocks]


def mu_between(run: SeenRun, difference: PersonTables) -> float:
    """Return the Gaussian-privacy parameter μ of two inputs of a device whose tables differ by `difference`.

    It is infinite if a block in which the tables differ has no noise.
    """
    total = 0.0
    for block, own in zip(run.blocks, difference, strict=True):
        if own.nnz and block.variance == 0:
            return math.inf
        total += float(own.data.astype(float) @ own.data) / (block.variance or 1.0)
    return math.sqrt(total)


def draw_scores(
    run: SeenRun,
    difference: PersonTables,
    *,
    rng: np.random.Generator,
    trials: int | None = None,
    honest: float = 1.0,
    sums: int = 1,
) -> Scores:
    """Return the test statistic in `trials` simulated runs with each of two inputs that differ by `difference`.

    By default there are `TRIALS` runs for each input. `honest` is the fraction of devices whose noise the attacker does
    not know. `sums` is how many times the noise of a sum is added: 2 for an attacker who subtracts the sums of two
    cohorts to isolate one device, because both sums contain noise.
    """
    trials = TRIALS if trials is None else trials
    signal, found = 0.0, [np.zeros(trials), np.zeros(trials)]
    for block, own, weight in zip(run.blocks, difference, weights_of(run.blocks), strict=True):
        if not own.nnz:
            continue
        integers = own.data
        direction = integers * weight
        signal += float(direction @ integers)
        law = summed_noise(block.code.share_variance, max(1, round(honest * block.survivors)))
        for scores in found:
            for start in range(0, trials, AT_ONCE):
                count = min(AT_ONCE, trials - start)
                noise = sum(law.draw(count * len(integers), rng=rng) for _ in range(sums))
                scores[start : start + count] += np.reshape(noise, (count, -1)) @ direction
    return Scores(found[0] + signal, found[1])


def measured_mu(scores: Scores) -> tuple[float, Interval]:
    """Return the measured μ, the Gaussian-privacy parameter, and its 95 % interval.

    μ is the difference of the mean test statistics of the two inputs, in standard deviations of the statistic. The
    statistic is approximately normal, as a sum of many independent terms. Without noise, μ is infinite.
    """
    deviation = math.sqrt((scores.first.var(ddof=1) + scores.second.var(ddof=1)) / 2)
    gap = float(scores.first.mean() - scores.second.mean())
    if deviation <= 1e-9 * abs(gap):
        return math.inf, (math.inf, math.inf)
    found = gap / deviation
    error = float(norm.ppf((1 + CONFIDENCE) / 2)) * _mu_error(found, len(scores.first))
    return found, (found - error, found + error)


def _mu_error(mu: float, trials: int) -> float:
    return math.sqrt(2 / trials + mu**2 / (4 * trials))


def epsilon_of_scores(scores: Scores, delta: float) -> float:
    """Return a lower bound on ε at this δ that is wrong with probability `ERROR` at most.

    This assumes normally distributed scores. The bound follows from the measured μ. If the scores have no noise, μ is
    infinite, and the function returns the result of `epsilon_counted`.
    """
    found, _ = measured_mu(scores)
    if found == math.inf:
        return epsilon_counted(scores, delta)
    low = found - float(norm.ppf(1 - ERROR)) * _mu_error(found, len(scores.first))
    return epsilon_of_mu(low, delta) if low > 0 else 0.0


def epsilon_counted(scores: Scores, delta: float) -> float:
    """Return a lower bound on ε at this δ by counting, which is wrong with probability `ERROR` at most.

    It holds for any distribution of the test statistics in `scores`.

    Under (ε, δ)-privacy, the true-positive rate is at most e^ε · (false-positive rate) + δ at every threshold. The same
    holds for the true-negative and false-negative rates. The first half of the trials chooses the threshold and which
    of the two inequalities to use. The second half is counted, with Clopper–Pearson bounds on both rates.
    """
    half = len(scores.first) // 2
    sides = [(scores.first, scores.second), (-scores.second, -scores.first)]
    found = []
    for more, less in sides:
        thresholds = np.quantile(np.concatenate([more[:half], less[:half]]), np.linspace(0.005, 0.995, 199))
        tried = _counted(more[:half], less[:half], thresholds, delta)
        best = int(np.argmax(tried))
        found.append((tried[best], _counted(more[half:], less[half:], thresholds[best : best + 1], delta)[0]))
    return max(0.0, float(max(found)[1]))


def _counted(more: FloatArray, less: FloatArray, thresholds: FloatArray, delta: float) -> FloatArray:
    """Return a lower confidence bound on ln((P(more > t) − δ) / P(less > t)) for every threshold t, from samples."""
    hits, alarms = ((side[:, None] > thresholds).sum(axis=0) for side in (more, less))
    # Clopper–Pearson bounds by quantiles of the beta distribution: SciPy's `binomtest` takes one count at a time.
    low = np.where(hits > 0, beta.ppf(ERROR / 2, np.maximum(hits, 1), len(more) - hits + 1), 0.0)
    high = np.where(alarms < len(less), beta.ppf(1 - ERROR / 2, alarms + 1, np.maximum(len(less) - alarms, 1)), 1.0)
    return np.asarray(np.log(np.maximum(low - delta, 1e-300) / high))


def tell_coins(
    run: SeenRun, canaries: Sequence[PersonTables], coins: BoolArray, delta: float
) -> tuple[int, int, float]:
    """Guess the canaries' coins from one run; return the numbers of correct and of all guesses, and a lower bound on ε.

    A coin decided which of two inputs a canary's device had. `canaries` holds the difference of the tables of the two
    inputs, and `coins` is True where the sums contain this difference. If the second input is a device that sends
    zeros, the difference is the canary's tables. Only a third of the coins is guessed: those with the clearest
    evidence.

    Let n be the number of canaries. By Theorem 5.2 of [Steinke2023], the number of correct guesses is stochastically at
    most Binomial(guesses, e^ε/(1 + e^ε)), except with probability 2 n δ. The bound on ε is computed at the error level
    `ERROR` − 2 n δ, so that it is wrong with probability `ERROR` at most. This does not hold if 2 n δ exceeds 0.9
    `ERROR`, because the level is never below `ERROR`/10.
    """
    lead = coin_leads(run, canaries, coins)
    guessed = np.argsort(-np.abs(lead), kind="stable")[: max(1, int(GUESSED * len(canaries)))]
    correct = int(((lead > 0) == coins)[guessed].sum())
    confidence = 1 - max(ERROR - 2 * len(canaries) * delta, ERROR / 10)
    return correct, len(guessed), epsilon_ruled_out(correct, len(guessed), confidence)


def coin_leads(run: SeenRun, canaries: Sequence[PersonTables], sent: BoolArray) -> FloatArray:
    """Return a number for each canary: positive if its coin is probably True, negative if False, far from 0 if clear.

    `canaries` holds, for each canary, the difference of the tables of its two inputs. `sent` holds the coins: True if
    the sums contain this difference. The attacker knows the differences but not the coins; `sent` is used only to
    compute the sums. The sums are linear in the coins. If coins were normal variables with mean and standard deviation
    ½, their posterior mean would be a least-squares solution. The result is this solution minus ½.
    """
    system, target = 4 * np.eye(len(canaries)), np.full(len(canaries), 2.0)
    for place, (block, weight) in enumerate(zip(run.blocks, weights_of(run.blocks), strict=True)):
        rows = vstack([tables[place] for tables in canaries], format="csr", dtype=np.float64)
        known = rows.T @ sent.astype(float) + block.noise  # the sum minus the tables of all other people
        system += weight * (rows @ rows.T).toarray()
        target += weight * (rows @ known)
    return np.asarray(np.linalg.solve(system, target) - 0.5)
