"""Lower bounds on ε, from how well an attacker distinguishes two inputs of a device by the sums of a run.

Two inputs are for example a profile and no ratings, or two profiles that differ in one rating. If a lower bound is
above the claimed ε, the claim is false.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2, norm

from hushrec.arrays import BoolArray
from hushrec.audit.findings import Finding
from hushrec.audit.masked import trials
from hushrec.audit.masked.crafted import aim_at, lengthen
from hushrec.audit.masked.sums import PersonTables, SeenRun, difference_of, watch
from hushrec.audit.masked.watched import Watched, without_profiles, without_ratings
from hushrec.audit.statistics import Interval, auc, rate_at, with_labels
from hushrec.budget.gaussian import Cohort
from hushrec.protocols.masked.price import price_plan

NOISE_RATIO, KEYS_TWICE = "variance_measured_to_claimed", "share_seen_twice"
KINDS = ("ruled_out", "counted")  # kinds of lower bounds on ε, as in the names of metrics
CANARIES = 200  # largest number of canaries in one run, which are at most half of the people
DRAWS = 20  # number of simulated sums for each rating
COLLUDING = 0.1  # fraction of colluding devices for which the noise is sized


class Unit(NamedTuple):
    """The unit of a claimed ε: it defines which two inputs of a device are compared."""

    words: str  # for the claim of a finding
    budget: str  # key of the claimed ε in `Watched.budget`
    factor: float  # the largest norm of the difference of the two tables in each block, in multiples of the clip
    suffix: str  # of the metric's name, so that ε of different units are not compared


PROFILE = Unit("whole profile", "epsilon", 1.0, "")
RATING = Unit("one rating or profile replaced", "item_level", 2.0, "_one_rating")
NOT_COVERED = Unit("not covered; whole profile", "epsilon", 1.0, "_not_covered")


def tell_pair(
    run: Watched, name: str, seen: SeenRun, difference: PersonTables, part: int, *, unit: Unit, **more: Any
) -> list[Finding]:
    """Return lower bounds on ε, and a measured μ, for two inputs of a device whose tables differ by `difference`.

    `seen` is the run whose sums are attacked: `run.seen`, or a copy with other public tables or encodings. `name` is
    the name of the attack, and `unit` the unit of the claim. `part` is a number that seeds the random draws
    (`Watched.draws`). `more` holds arguments of `trials.draw_scores`.
    """
    scores = trials.draw_scores(seen, difference, rng=run.draws(part), **more)
    delta, name = run.budget["delta"], f"{name}, {trials.TRIALS:,} runs"
    mu = unit.factor * run.budget["mu"]
    allowed = f"which allows AUC {norm.cdf(mu / math.sqrt(2)):.3f} and TPR {norm.cdf(mu + norm.ppf(0.01)):.2f}"
    subject = run.subject(name, "epsilon", f"{unit.words}: ε = {run.budget[unit.budget]:.3g}, {allowed}")
    cases = with_labels(*scores)
    more_fields = {"auc": auc(*cases), "tpr_at_1pct_fpr": rate_at(*cases), "chance": 0.0}
    findings = [
        subject.finding(f"epsilon_ruled_out{unit.suffix}", trials.epsilon_of_scores(scores, delta), **more_fields),
        subject.finding(f"epsilon_counted{unit.suffix}", trials.epsilon_counted(scores, delta), chance=0.0),
    ]
    found, interval = trials.measured_mu(scores)
    if math.isfinite(found):
        subject = run.subject(name, "epsilon", f"{unit.words}: μ = {mu:.3g}")
        findings.append(subject.finding("mu", found, interval=interval, chance=0.0))
    return findings


def contradictions(findings: Sequence[Finding], budget: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each finding that contradicts a claim: ε above the claim, too little noise, repeated keys.

    `budget` is the claimed budget. All bounds of one audited run hold together with 95 % confidence: at most one of
    twenty audits wrongly contradicts a run that keeps its claims.
    """
    limits = {f"epsilon_{kind}{unit.suffix}": budget[unit.budget] for kind in KINDS for unit in (PROFILE, RATING)}
    found = []
    for one in findings:
        if one.metric in limits and one.value > limits[one.metric]:
            found.append(f"{one.name}: ε of at least {one.value:.3g}, claimed {limits[one.metric]:.3g}")
        if one.metric == NOISE_RATIO and one.interval is not None and one.interval[1] < 1:
            found.append(f"{one.name}: {one.value:.3g} of the variance that is claimed")
        if one.metric == KEYS_TWICE and one.value > 0:
            found.append(f"{one.name}: {one.value:.3g} of them")
    return found


def measure_noise(run: Watched) -> list[Finding]:
    """Return a finding with the ratio of measured to claimed variance of the noise in the sums; none without noise."""
    if run.budget["mu"] == math.inf:
        return []
    squares = [(block.noise.astype(float) ** 2).sum() / block.variance for block in run.seen.blocks]
    ratio, interval = variance_ratio(float(sum(squares)), sum(block.code.size for block in run.seen.blocks))
    claim = "the noise has the variance that the budget is computed from"
    return [run.subject("noise of the sums", "epsilon", claim).finding(NOISE_RATIO, ratio, interval=interval)]


def variance_ratio(squares: float, numbers: int) -> tuple[float, Interval]:
    """Return the ratio of measured to claimed variance of some draws, and its confidence interval.

    `squares` is the sum of draw² / claimed variance over all draws, and `numbers` the number of draws.
    """
    most, least = chi2.ppf(1 - trials.ERROR, numbers), chi2.ppf(trials.ERROR, numbers)
    return squares / numbers, (float(squares / most), float(squares / least))


def attack_profiles(run: Watched) -> list[Finding]:
    """Return lower bounds on ε for a device that sends a profile or zeros, with real and with crafted public tables."""
    found = tell_pair(run, "profile or nothing", run.seen, run.victims_tables[run.most_visible], 10, unit=PROFILE)
    heavy = run.seen.with_tables(lengthen)
    crafted = run.tables(run.problem.profile(run.victims[run.most_visible]), heavy)
    return found + tell_pair(run, "profile or nothing, crafted table", heavy, crafted, 11, unit=PROFILE)


def attack_ratings(run: Watched) -> list[Finding]:
    """Return findings on how well an attacker who knows all other ratings recovers whether one rating exists.

    The AUC is over one random rating of every victim. The lower bounds on ε are for the rating among these that changes
    the tables most, and for one rating under a crafted public table.
    """
    rng, first, second = run.draws(12), list[float](), list[float]()
    longest, most = run.victims_tables[run.most_visible], -1.0
    for user, tables in zip(run.victims, run.victims_tables, strict=True):
        items, values = run.problem.profile(user)
        position = int(rng.integers(len(items)))
        without = run.tables((np.delete(items, position), np.delete(values, position)))
        difference = difference_of(tables, without)
        apart = trials.mu_between(run.seen, difference)
        scores = trials.draw_scores(run.seen, difference, rng=rng, trials=DRAWS)
        middle = apart**2 / 2 if math.isfinite(apart) else float(scores.first.mean() / 2)
        first += list(scores.first - middle)
        second += list(scores.second - middle)
        if apart > most:
            longest, most = difference, apart
    subject = run.subject("one rating there or not, all else known", "existence", run.rating_claim)
    area = subject.area(*with_labels(np.array(first), np.array(second)), "auc_one_rating", rng=rng)
    return [area, *tell_pair(run, "one rating there or not", run.seen, longest, 13, unit=RATING), *_crafted(run)]


def _crafted(run: Watched) -> list[Finding]:
    """Return lower bounds on ε for one rating of a victim, under a public table crafted for the rated item.

    The two inputs have 1 and 5 stars for the item. If the model does not predict ratings, one input contains the item
    and the other does not.
    """
    items, values = run.problem.profile(run.victims[run.most_visible])
    position = int(run.draws(14).integers(len(items)))
    aimed = run.seen.with_tables(lambda table: aim_at(table, int(items[position])))
    first, second = (items, values), (np.delete(items, position), np.delete(values, position))
    if run.predicts_values:
        is_chosen = np.arange(len(items)) == position
        first, second = ((items, np.where(is_chosen, rating, values)) for rating in (5.0, 1.0))
    difference = difference_of(run.tables(first, aimed), run.tables(second, aimed))
    return tell_pair(run, "one rating, crafted table", aimed, difference, 15, unit=RATING)


def attack_cohorts(run: Watched) -> list[Finding]:
    """Return lower bounds on ε from the sums of two cohorts, and from collusion with devices.

    The first attacker knows nobody's ratings, and compares the sums of two cohorts that differ in one device. The
    second colludes with devices, which reveal their noise: with as many devices as the noise is sized for, or with all
    devices but one.
    """
    longest, name = run.victims_tables[run.most_visible], "difference of two cohorts, nobody's ratings known"
    found = tell_pair(run, name, run.seen, longest, 16, unit=PROFILE, sums=2)
    priced = run.problem.terms.priced
    if priced.epsilon != math.inf:
        cohort = Cohort(priced.cohort.devices, priced.cohort.survivors, COLLUDING)
        dearer = price_plan(priced.plan, epsilon=priced.epsilon, delta=priced.delta, cohort=cohort)
        allowed = run.seen.with_codes(dearer.codes)
        own = run.tables(run.problem.profile(run.victims[run.most_visible]), allowed)
        name, honest = f"collusion with c_max = {cohort.most_corrupt} devices", cohort.honest / cohort.devices
        found += tell_pair(run, name, allowed, own, 17, unit=PROFILE, honest=honest)
    alone = "collusion with all but one"
    return found + tell_pair(run, alone, run.seen, longest, 18, unit=NOT_COVERED, honest=0.0)


def attack_one_run(run: Watched) -> list[Finding]:
    """Return lower bounds on ε from canaries (people whose input a coin decides) in two complete training runs.

    In the first run a coin decides whether a canary sends its profile or zeros. In the second run a coin decides
    whether a canary's device leaves out one rating. The public tables of later rounds depend on the sums, and thus on
    the coins. The other attacks of this module use the same public tables in all simulated runs.
    """
    rng = run.draws(19)
    rated = np.flatnonzero(run.problem.rated_counts > 1)
    users = np.sort(rng.permutation(rated)[: min(CANARIES, len(rated) // 2)])
    coins = rng.random(len(users)) < 0.5
    seen, _ = watch(without_profiles(run.problem, users[~coins]))
    canaries = [seen.tables(run.problem.profile(user), rng=rng) for user in users]
    found = _one_run(run, "profiles or nothing", seen, canaries, coins, PROFILE)
    chosen = run.problem.starts[users] + rng.integers(run.problem.rated_counts[users])
    seen, _ = watch(without_ratings(run.problem, chosen[~coins]))
    differences = []
    for user, row in zip(users, chosen, strict=True):
        (items, values), left_out = run.problem.profile(user), int(row - run.problem.starts[user])
        without = seen.tables((np.delete(items, left_out), np.delete(values, left_out)), rng=run.draws(0))
        differences.append(difference_of(seen.tables((items, values), rng=run.draws(0)), without))
    return [found, _one_run(run, "one rating there or not", seen, differences, coins, RATING)]


def _one_run(
    run: Watched, name: str, seen: SeenRun, canaries: list[PersonTables], coins: BoolArray, unit: Unit
) -> Finding:
    """Return a finding with a lower bound on ε, from guesses of the canaries' coins by the sums of `seen`.

    `canaries` holds, for each canary, the difference of the tables of its two inputs. `coins` is True where the sums
    contain this difference. `unit` is the unit of the claim.
    """
    correct, guesses, epsilon = trials.tell_coins(seen, canaries, coins, run.budget["delta"])
    claim = f"{unit.words}: ε = {run.budget[unit.budget]:.3g} ({correct} of {guesses} coins right)"
    subject = run.subject(f"{name}, one run of {len(coins)} canaries", "epsilon", claim)
    return subject.finding(f"epsilon_ruled_out{unit.suffix}", epsilon, chance=0.0)
