"""How far apart two devices are in the noisy sums of a whole run: the likelihood ratio, with everything else known.

Two tables of one device, z and z', differ by d. With everybody else's integers subtracted, a sum is z or z' plus noise
of known variance, and the statistic of the likelihood ratio is ⟨d, sum − z'⟩/variance, added over all blocks. It is
normal with mean 0 or μ² and variance μ², μ² = Σ ‖d_b‖²/variance_b.

*Fixed* in the trials of one pair are the public tables (those of one real run, or crafted ones): a server may publish
any table whatever the sums say, and the promise covers that. *Drawn anew* in every trial is the noise of every block,
with the sampler that sums are made with. Whatever else is in the sums cancels, because it is known.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import beta, norm

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.masked.sums import PersonTables, SeenBlock, SeenRun
from hushrec.audit.statistics import CONFIDENCE, BoolArray, Interval, auc, epsilon_ruled_out, rate_at
from hushrec.budget.gaussian import epsilon_of_mu
from hushrec.protocols.masked.noise import summed_noise

TRIALS = 2000
AT_ONCE = 250  # trials whose noise is held in memory together
BOUNDS = 16  # that an audit states of one column, on ε and on noise: all of them hold together at 95 %
ERROR = (1 - CONFIDENCE) / BOUNDS  # of one of them
GUESSED = 1 / 3  # part of the coins of one run that are guessed: those that look surest


class Scores(NamedTuple):
    """The statistic in trials with the one device, and in as many with the other."""

    first: FloatArray
    second: FloatArray

    @property
    def auc(self) -> float:
        """How often the two are told apart."""
        return auc(*self._pooled())

    @property
    def rate(self) -> float:
        """True accusations at 1 % false ones."""
        return rate_at(*self._pooled())

    def _pooled(self) -> tuple[FloatArray, BoolArray]:
        labels = np.repeat([True, False], [len(self.first), len(self.second)])
        return np.concatenate([self.first, self.second]), labels


def weights_of(blocks: Sequence[SeenBlock]) -> list[float]:
    """1/variance of each block; where no block has noise every number tells all, and they weigh the same."""
    noisy = [block.variance for block in blocks if block.variance > 0]
    least = min(noisy, default=1.0)
    return [1 / (block.variance or least / len(blocks)) for block in blocks]


def distance(run: SeenRun, tables: PersonTables) -> float:
    """Return μ of a difference, with the noise as it is claimed; infinite without noise."""
    total = 0.0
    for block, integers in zip(run.blocks, tables.integers, strict=True):
        if len(integers) and block.variance == 0:
            return math.inf
        total += float(integers.astype(float) @ integers) / (block.variance or 1.0)
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
    """Return the statistic of `trials` sums with each of the two devices.

    `honest` is the part of the devices whose noise the attacker does not know; `sums` is how many independent sums the
    attacker has to subtract from each other.
    """
    trials = TRIALS if trials is None else trials
    signal, found = 0.0, [np.zeros(trials), np.zeros(trials)]
    for block, integers, weight in zip(run.blocks, difference.integers, weights_of(run.blocks), strict=True):
        if not len(integers):
            continue
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
    """Return the distance of the two means in deviations of the scores, and its 95 % interval.

    The scores are sums of many independent terms, so normal. Infinite where they do not vary: there is no noise.
    """
    deviation = math.sqrt((scores.first.var(ddof=1) + scores.second.var(ddof=1)) / 2)
    gap = float(scores.first.mean() - scores.second.mean())
    if deviation <= 1e-9 * abs(gap):
        return math.inf, (math.inf, math.inf)
    found = gap / deviation
    error = float(norm.ppf((1 + CONFIDENCE) / 2)) * _mu_error(found, len(scores.first))
    return found, (found - error, found + error)


def _mu_error(mu: float, trials: int) -> float:
    """The deviation of a measured μ."""
    return math.sqrt(2 / trials + mu**2 / (4 * trials))


def epsilon_of_scores(scores: Scores, delta: float) -> float:
    """Return the ε that normal scores rule out at δ; without noise, what counting rules out."""
    found, _ = measured_mu(scores)
    if found == math.inf:
        return epsilon_counted(scores, delta)
    low = found - float(norm.ppf(1 - ERROR)) * _mu_error(found, len(scores.first))
    return epsilon_of_mu(low, delta) if low > 0 else 0.0


def epsilon_counted(scores: Scores, delta: float) -> float:
    """Return the ε that counting rules out: no assumption about the law of the scores.

    (ε, δ) allows true accusations ≤ e^ε · false ones + δ at every threshold, and the same for acquittals. Threshold and
    side are chosen on the first half of the trials and counted on the second, with Clopper–Pearson on both rates.
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
    """Return ln((P(more > t) − δ) / P(less > t)) at every threshold, both rates at the unfavourable end."""
    hits, alarms = ((side[:, None] > thresholds).sum(axis=0) for side in (more, less))
    low = np.where(hits > 0, beta.ppf(ERROR / 2, np.maximum(hits, 1), len(more) - hits + 1), 0.0)
    high = np.where(alarms < len(less), beta.ppf(1 - ERROR / 2, alarms + 1, np.maximum(len(less) - alarms, 1)), 1.0)
    return np.asarray(np.log(np.maximum(low - delta, 1e-300) / high))


class Coins(NamedTuple):
    """What one run says of the coins of its canaries."""

    correct: int
    guesses: int
    epsilon: float


def tell_coins(run: SeenRun, canaries: Sequence[PersonTables], coins: BoolArray, delta: float) -> Coins:
    """Guess from one run which canaries' devices sent their profile and which sent zeros; count what is right.

    A third of the coins is guessed, the surest. [Steinke2023], Theorem 5.2: the number of correct guesses is at most
    Binomial(guesses, e^ε/(1 + e^ε)), up to a probability of 2 · canaries · δ, which is taken off the confidence.
    """
    lead = coin_leads(run, canaries, coins)
    guessed = np.argsort(-np.abs(lead), kind="stable")[: max(1, int(GUESSED * len(canaries)))]
    correct = int(((lead > 0) == coins)[guessed].sum())
    confidence = 1 - max(ERROR - 2 * len(canaries) * delta, ERROR / 10)
    return Coins(correct, len(guessed), epsilon_ruled_out(correct, len(guessed), confidence))


def coin_leads(run: SeenRun, canaries: Sequence[PersonTables], sent: BoolArray) -> FloatArray:
    """Return how far each coin looks like "sent" rather than "zeros", from the sums of a run in which `sent` did.

    The attacker knows every canary's profile and no coin: `sent` only makes the sums. They are linear in the coins,
    whose posterior mean, with normal coins of mean and deviation ½ in place of fair ones, is a least-squares fit.
    """
    system, target = 4 * np.eye(len(canaries)), np.full(len(canaries), 2.0)
    for place, (block, weight) in enumerate(zip(run.blocks, weights_of(run.blocks), strict=True)):
        tables = [(one.places[place], one.integers[place]) for one in canaries]
        rows = _rows([places for places, _ in tables], [integers for _, integers in tables], block.code.size)
        known = rows.T @ sent.astype(float) + block.noise  # the sum without the people who are no canaries
        system += weight * (rows @ rows.T).toarray()
        target += weight * (rows @ known)
    return np.asarray(np.linalg.solve(system, target) - 0.5)


def _rows(places: Sequence[IntArray], integers: Sequence[IntArray], size: int) -> csr_array:
    starts = np.concatenate([[0], np.cumsum([len(one) for one in places])])
    data = np.concatenate(integers).astype(float)
    return csr_array((data, np.concatenate(places), starts), shape=(len(places), size))
