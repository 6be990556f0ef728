"""Attacks on people, from the sums of a run: their items, ratings, taste, number of ratings, and identity."""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.findings import EXACT, Finding
from hushrec.audit.judge import abs_cosines, judge_count, judge_existence
from hushrec.audit.masked import readings
from hushrec.audit.masked.sums import Profile, watch
from hushrec.audit.masked.watched import Named, Watched, owners
from hushrec.audit.observed_run import Truth, rating_matrix
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.statistics import auc, log_odds, mean_interval, rate_at, share_interval
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

RATINGS_ASKED = 5  # number of ratings of each person that are guessed
RARE_ITEMS = 40  # largest number of items with one rating whose raters are guessed
SUMS = "sums, everybody else known"


def attack_people(run: Watched) -> list[Finding]:
    """Return the findings of all attacks on the victims, by an attacker who knows everybody else's ratings."""
    left = _left(run)
    return [
        *_existence(run, left),
        *_taste(run, left),
        *_count(run, left),
        _known_again(run, left),
        *_values(run, left),
        *_rare_items(run),
    ]


def attack_sums(
    settings: Settings, problem: AnyProblem, victims: IntArray, others: IntArray, rng: np.random.Generator
) -> list[Finding]:
    """Train once, and return the findings of the quick attacks on the victims' items, ratings and taste.

    `others` and `rng` are not used: the signature is that of `quick.attack_reports`.
    """
    run = Watched(settings, problem, watch(problem)[0], victims)
    left = _left(run)
    return _existence(run, left) + _taste(run, left) + _values(run, left)


def _left(run: Watched) -> list[readings.Left]:
    rng = run.draws(1)
    return [readings.left_of(run.seen, tables, rng=rng) for tables in run.victims_tables]


def _existence(run: Watched, left: list[readings.Left]) -> list[Finding]:
    blind = log_odds(run.popularity)
    scores = np.array([readings.item_scores(run.seen.blocks, one, run.usual_count) for one in left])
    guesses = {"popularity": np.tile(blind, (len(left), 1)), SUMS: scores, f"{SUMS} + popularity": scores + blind}
    return [
        finding
        for name, guess in guesses.items()
        for finding in judge_existence(
            Named(name, "existence", run.profile_claim), run.label, guess, truth_of(run), run.draws(2)
        )
    ]


def truth_of(run: Watched) -> Truth:
    """Return the victims' ratings, which only the scoring of attacks uses; the vectors in the result are empty."""
    ratings = rating_matrix(run.problem, run.victims)
    nothing = np.zeros((len(run.victims), 0))
    return Truth(~np.isnan(ratings), ratings, nothing, nothing)


def _taste(run: Watched, left: list[readings.Left]) -> list[Finding]:
    place, length = readings.taste_numbers(run.seen.blocks)
    size = run.seen.blocks[place].code.size
    truth = np.array([tables.dense(place, size)[:length] for tables in run.victims_tables], dtype=np.float64)
    cosines = abs_cosines(np.array([one[place][:length] for one in left]), truth)
    return [
        run.finding(
            SUMS,
            "model",
            "mean_abs_cosine",
            float(cosines.mean()),
            run.profile_claim,
            interval=mean_interval(cosines, rng=run.draws(3)),
            chance=float(abs_cosines(np.roll(truth, 1, axis=0), truth).mean()),
        )
    ]


def _count(run: Watched, left: list[readings.Left]) -> list[Finding]:
    counts = np.array([readings.read_count(run.seen.blocks, one, run.popularity) for one in left])
    attack = Named(f"count from {SUMS}", "metadata", run.profile_claim)
    return judge_count(attack, run.label, counts, truth_of(run), run.draws(4))


def _known_again(run: Watched, left: list[readings.Left]) -> Finding:
    """Return how often people are recognized in a second run, in which they have the same profile but other noise.

    The attack compares counts blocks. `left` is what remains of the first run's sums for each victim after everybody
    else's tables are subtracted.
    """
    place, rng = readings.place_of(run.seen.blocks, COUNTS), run.draws(5)
    before = np.array([one[place] for one in left])
    after = np.array([readings.left_of(run.seen, one, rng=rng)[place] for one in run.victims_tables])
    scores = _cosines(before - before.mean(axis=0), after - after.mean(axis=0))
    right = int((scores.argmax(axis=1) == np.arange(len(scores))).sum())
    same = np.eye(len(scores), dtype=bool).ravel()
    return run.finding(
        f"known again in a second run, {SUMS}",
        "metadata",
        "share_linked",
        right / len(scores),
        "each run has its own budget",
        auc=auc(scores.ravel(), same),
        rate=rate_at(scores.ravel(), same),
        interval=share_interval(right, len(scores)),
        chance=1 / len(scores),
    )


def _cosines(left: FloatArray, right: FloatArray) -> FloatArray:
    lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    return np.asarray(left @ right.T / (lengths + 1e-300))


def _values(run: Watched, left: list[readings.Left]) -> list[Finding]:
    """Return the fraction of ratings that an attacker who knows all other ratings guesses exactly.

    A few ratings of each victim are guessed. `left` is what remains of the sums for each victim after everybody else's
    tables are subtracted. The list is empty for continuous ratings and for models that do not predict ratings.
    """
    levels = RatingLevels.of(run.problem.values)
    if not run.predicts_values or levels.continuous:
        return []
    rng, right, blind, asked = run.draws(6), 0, 0, 0
    for user, own in zip(run.victims, left, strict=True):
        items, values = run.problem.profile(user)
        for position in map(int, rng.permutation(len(items))[:RATINGS_ASKED]):
            prior = readings.level_prior(_ratings_of_others(run, int(items[position]), int(user)), levels)
            true = int(levels.places(values[position : position + 1])[0])
            tables = readings.level_tables(run.seen, (items, values), position, levels, rng=rng)
            right += readings.read_rating(run.seen.blocks, own, tables, prior) == true
            blind += int(np.argmax(prior)) == true
            asked += 1
    return [
        run.finding(
            "one rating, all else known",
            "value",
            EXACT,
            right / asked,
            run.rating_claim,
            interval=share_interval(right, asked),
            chance=blind / asked,
        )
    ]


def _ratings_of_others(run: Watched, item: int, user: int) -> FloatArray:
    rows = run.problem.items == item
    rows[run.problem.starts[user] : run.problem.starts[user + 1]] = False
    return np.asarray(run.problem.values[rows])


def _rare_items(run: Watched) -> list[Finding]:
    """Return how often an attacker identifies the only person who rated an item.

    Up to `RARE_ITEMS` items with a single rater are drawn, and the candidates are their raters. The list is empty if
    there are fewer than two candidates.
    """
    problem, rng = run.problem, run.draws(7)
    raters = np.bincount(problem.items, minlength=problem.n_items)
    rows = rng.permutation(np.flatnonzero(raters[problem.items] == 1))[:RARE_ITEMS]
    people = np.unique(owners(problem)[rows])
    if len(people) < 2:
        return []
    few, right = run.seen.only(COUNTS, AUDIENCE), 0
    for row in rows:
        item, own = int(problem.items[row]), int(owners(problem)[row])
        left = readings.left_of(few, few.tables(run.problem.profile(own), rng=rng), rng=rng)
        candidates = [_without_item(run.problem.profile(user), item) for user in people]
        right += int(people[readings.name_rater(few, left, item, candidates, rng=rng)]) == own
    return [
        run.finding(
            "rare items: the one person who rated it",
            "existence",
            "share_named",
            right / len(rows),
            run.rating_claim,
            interval=share_interval(right, len(rows)),
            chance=1 / len(people),
        )
    ]


def _without_item(profile: Profile, item: int) -> Profile:
    kept = profile[0] != item
    return profile[0][kept], profile[1][kept]
