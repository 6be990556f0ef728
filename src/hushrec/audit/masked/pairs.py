"""How far apart two devices are in a whole run, scored beside the ε that is claimed for that pair."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2, norm

from hushrec.audit.findings import Finding
from hushrec.audit.masked import trials
from hushrec.audit.masked.crafted import aim_at, lengthen
from hushrec.audit.masked.sums import PersonTables, SeenRun, watch
from hushrec.audit.masked.watched import Watched, without_profiles, without_ratings
from hushrec.audit.statistics import BoolArray, Interval, auc, auc_interval, rate_at
from hushrec.budget.gaussian import Cohort
from hushrec.protocols.masked.price import price_plan

NOISE_RATIO, KEYS_TWICE = "variance_measured_to_claimed", "share_seen_twice"
KINDS = ("ruled_out", "counted")  # of bounds on ε
CANARIES = 200  # of one run, at most half of the people
DRAWS = 20  # sums in which each rating is looked for
COLLUDING = 0.1  # part of the devices that the noise is made to allow for


class Unit(NamedTuple):
    """What a claim is about: its words, its entry in the statement, how many clips apart two devices can be."""

    words: str
    budget: str
    factor: float
    suffix: str  # of the measure: ε of different units must not be compared


PROFILE = Unit("whole profile", "epsilon", 1.0, "")
RATING = Unit("one rating or profile replaced", "item_level", 2.0, "_one_rating")
NOT_COVERED = Unit("not covered; whole profile", "epsilon", 1.0, "_not_covered")


def tell_pair(
    run: Watched, name: str, seen: SeenRun, difference: PersonTables, part: int, *, unit: Unit, **more: Any
) -> list[Finding]:
    """How often the two are told apart, the ε that this rules out, and μ, beside what is claimed."""
    scores = trials.draw_scores(seen, difference, rng=run.draws(part), **more)
    delta, name = run.budget["delta"], f"{name}, {trials.TRIALS:,} runs"
    mu = unit.factor * run.budget["mu"]
    allowed = f"which allows AUC {norm.cdf(mu / math.sqrt(2)):.3f} and TPR {norm.cdf(mu + norm.ppf(0.01)):.2f}"
    claim = f"{unit.words}: ε = {run.budget[unit.budget]:.3g}, {allowed}"
    ruled_out, counted = trials.epsilon_of_scores(scores, delta), trials.epsilon_counted(scores, delta)
    told: dict[str, Any] = {"auc": scores.auc, "rate": scores.rate, "chance": 0.0}
    findings = [
        run.finding(name, "epsilon", f"epsilon_ruled_out{unit.suffix}", ruled_out, claim, **told),
        run.finding(name, "epsilon", f"epsilon_counted{unit.suffix}", counted, claim, chance=0.0),
    ]
    found, interval = trials.measured_mu(scores)
    if math.isfinite(found):
        claim = f"{unit.words}: μ = {mu:.3g}"
        findings.append(run.finding(name, "epsilon", "mu", found, claim, interval=interval, chance=0.0))
    return findings


def contradictions(findings: Sequence[Finding], budget: Mapping[str, Any]) -> list[str]:
    """Return what contradicts a claim, in words: a larger ε than is claimed, too little noise, keys or masks that tell.

    All bounds of one column hold together at 95 %, so that an honest run is accused once in twenty audits at most.
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
    """What the sums of the run hold beside everybody's tables, in units of the noise that is claimed."""
    if run.budget["mu"] == math.inf:
        return []
    squares = [(block.noise.astype(float) ** 2).sum() / block.variance for block in run.seen.blocks]
    ratio, interval = variance_ratio(float(sum(squares)), sum(block.code.size for block in run.seen.blocks))
    claim = "the noise has the variance that the budget is computed from"
    return [run.finding("noise of the sums", "epsilon", NOISE_RATIO, ratio, claim, interval=interval)]


def variance_ratio(squares: float, numbers: int) -> tuple[float, Interval]:
    """Return the mean of so many squares of noise in units of its claimed variance, and its bounds from either side."""
    most, least = chi2.ppf(1 - trials.ERROR, numbers), chi2.ppf(trials.ERROR, numbers)
    return squares / numbers, (float(squares / most), float(squares / least))


def attack_profiles(run: Watched) -> list[Finding]:
    """A profile against zeros: with the run's own tables, and with tables that make blocks as long as they may be."""
    found = tell_pair(run, "profile or nothing", run.seen, _longest(run), 10, unit=PROFILE)
    heavy = run.seen.with_tables(lengthen)
    crafted = run.tables(run.profile(run.victims[run.longest]), heavy)
    return found + tell_pair(run, "profile or nothing, crafted table", heavy, crafted, 11, unit=PROFILE)


def _longest(run: Watched) -> PersonTables:
    return run.victims_tables[run.longest]


def attack_ratings(run: Watched) -> list[Finding]:
    """Tell whether one rating exists, all else known: of every victim, and of the one with the largest effect."""
    rng, first, second = run.draws(12), list[float](), list[float]()
    longest, most = _longest(run), -1.0
    for user, tables in zip(run.victims, run.victims_tables, strict=True):
        items, values = run.profile(user)
        position = int(rng.integers(len(items)))
        difference = tables.minus(run.tables((np.delete(items, position), np.delete(values, position))))
        apart = trials.distance(run.seen, difference)
        scores = trials.draw_scores(run.seen, difference, rng=rng, trials=DRAWS)
        middle = apart**2 / 2 if math.isfinite(apart) else float(scores.first.mean() / 2)
        first += list(scores.first - middle)
        second += list(scores.second - middle)
        if apart > most:
            longest, most = difference, apart
    labels, pooled = np.repeat([True, False], [len(first), len(second)]), np.array([*first, *second])
    told = run.finding(
        "one rating there or not, all else known",
        "existence",
        "auc_one_rating",
        auc(pooled, labels),
        run.rating_claim,
        auc=auc(pooled, labels),
        rate=rate_at(pooled, labels),
        interval=auc_interval(pooled, labels, rng=rng),
        chance=0.5,
    )
    return [told, *tell_pair(run, "one rating there or not", run.seen, longest, 13, unit=RATING), *_crafted(run)]


def _crafted(run: Watched) -> list[Finding]:
    """A server that asks about one item alone: 1 or 5 stars, or, where there are no stars, there or not."""
    items, values = run.profile(run.victims[run.longest])
    position = int(run.draws(14).integers(len(items)))
    aimed = run.seen.with_tables(lambda table: aim_at(table, int(items[position])))
    if run.predicts_values:
        low, high = values.copy(), values.copy()
        low[position], high[position] = 1.0, 5.0
        difference = run.tables((items, high), aimed).minus(run.tables((items, low), aimed))
    else:
        without = np.delete(items, position), np.delete(values, position)
        difference = run.tables((items, values), aimed).minus(run.tables(without, aimed))
    return tell_pair(run, "one rating, crafted table", aimed, difference, 15, unit=RATING)


def attack_cohorts(run: Watched) -> list[Finding]:
    """Sums that differ in one device, and devices that tell the server their noise."""
    found = tell_pair(
        run, "difference of two cohorts, nobody's ratings known", run.seen, _longest(run), 16, unit=PROFILE, sums=2
    )
    priced = run.problem.terms.priced
    if priced.epsilon != math.inf:
        cohort = Cohort(priced.cohort.devices, priced.cohort.survivors, COLLUDING)
        dearer = price_plan(priced.plan, epsilon=priced.epsilon, delta=priced.delta, cohort=cohort)
        allowed = run.seen.with_codes(dearer.codes)
        own = run.tables(run.profile(run.victims[run.longest]), allowed)
        name, honest = f"collusion with c_max = {cohort.most_corrupt} devices", cohort.honest / cohort.devices
        found += tell_pair(run, name, allowed, own, 17, unit=PROFILE, honest=honest)
    alone = "collusion with all but one"
    return found + tell_pair(run, alone, run.seen, _longest(run), 18, unit=NOT_COVERED, honest=0.0)


def attack_one_run(run: Watched) -> list[Finding]:
    """Coins decide whose devices send zeros, or leave out one rating; real runs, whose tables depend on the sums."""
    rng = run.draws(19)
    rated = np.flatnonzero(run.problem.rated_counts > 1)
    users = np.sort(rng.permutation(rated)[: min(CANARIES, len(rated) // 2)])
    coins = rng.random(len(users)) < 0.5
    seen, _ = watch(without_profiles(run.problem, users[~coins]))
    canaries = [seen.tables(run.profile(user), rng=rng) for user in users]
    found = _one_run(run, "profiles or nothing", seen, canaries, coins, PROFILE)
    asked = run.problem.starts[users] + rng.integers(run.problem.rated_counts[users])
    seen, _ = watch(without_ratings(run.problem, asked[~coins]))
    differences = []
    for user, row in zip(users, asked, strict=True):
        (items, values), left_out = run.profile(user), int(row - run.problem.starts[user])
        without = seen.tables((np.delete(items, left_out), np.delete(values, left_out)), rng=run.draws(0))
        differences.append(seen.tables((items, values), rng=run.draws(0)).minus(without))
    return [found, _one_run(run, "one rating there or not", seen, differences, coins, RATING)]


def _one_run(
    run: Watched, name: str, seen: SeenRun, canaries: list[PersonTables], coins: BoolArray, unit: Unit
) -> Finding:
    """Guess the coins of one run; beside the claim for that unit."""
    told = trials.tell_coins(seen, canaries, coins, run.budget["delta"])
    claim = f"{unit.words}: ε = {run.budget[unit.budget]:.3g} ({told.correct} of {told.guesses} coins right)"
    metric = f"epsilon_ruled_out{unit.suffix}"
    return run.finding(f"{name}, one run of {len(coins)} canaries", "epsilon", metric, told.epsilon, claim, chance=0.0)
