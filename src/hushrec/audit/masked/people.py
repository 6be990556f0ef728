"""Attacks on people, from the sums of a run: their items, ratings, taste, number of ratings, and identity."""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.findings import EXACT, Finding
from hushrec.audit.judge import abs_cosines, judge_count, judge_existence, share_linked
from hushrec.audit.masked import readings
from hushrec.audit.masked.sums import watch
from hushrec.audit.masked.watched import Watched
from hushrec.audit.observed_run import Truth, rating_matrix
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.statistics import log_odds
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

RATINGS_GUESSED = 5  # largest number of ratings of each person that are guessed
RARE_ITEMS = 40  # largest number of items with one rating whose raters are guessed
SUMS = "sums, everybody else known"


def attack_people(run: Watched) -> list[Finding]:
    """Return the findings of all attacks of this module, by an attacker who knows everybody else's ratings."""
    found = [*_existence(run), _taste(run), *_count(run), _recognition(run)]
    return found + _values(run) + _rare_items(run)


def attack_quickly(settings: Settings, problem: AnyProblem, victims: IntArray, _: np.random.Generator) -> list[Finding]:
    """Train once, and return the findings of a few attacks on the victims' items, ratings and taste."""
    run = Watched(settings, problem, watch(problem)[0], victims)
    return [*_existence(run), _taste(run), *_values(run)]


def _existence(run: Watched) -> list[Finding]:
    blind, findings = log_odds(run.popularity), []
    scores = np.array([readings.item_scores(run.seen.blocks, one, run.usual_count) for one in run.left])
    guesses = {"popularity": np.tile(blind, (len(scores), 1)), SUMS: scores, f"{SUMS} + popularity": scores + blind}
    for name, guess in guesses.items():
        subject = run.subject(name, "existence", run.profile_claim)
        findings += judge_existence(subject, guess, truth_of(run), run.draws(2))
    return findings


def truth_of(run: Watched) -> Truth:
    """Return the victims' ratings, for scoring attacks. `user_vectors` and `item_vectors` of the result are empty."""
    ratings = rating_matrix(run.problem, run.victims)
    nothing = np.zeros((len(run.victims), 0))
    return Truth(~np.isnan(ratings), ratings, nothing, nothing)


def _taste(run: Watched) -> Finding:
    place, length = readings.taste_numbers(run.seen.blocks)
    truth = np.array([tables[place].toarray()[:length] for tables in run.victims_tables], dtype=np.float64)
    cosines = abs_cosines(np.array([one[place][:length] for one in run.left]), truth)
    chance = abs_cosines(np.roll(truth, 1, axis=0), truth).mean()
    return run.subject(SUMS, "model", run.profile_claim).mean("mean_abs_cosine", cosines, chance, rng=run.draws(3))


def _count(run: Watched) -> list[Finding]:
    place = readings.index_of(run.seen.blocks, COUNTS)
    counts = np.array([one[place] @ run.popularity for one in run.left])  # higher for people with more ratings
    subject = run.subject(f"count from {SUMS}", "metadata", run.profile_claim)
    return judge_count(subject, counts, truth_of(run), run.draws(4))


def _recognition(run: Watched) -> Finding:
    """Return a finding on how often a person is recognized in a second run by the block of counts.

    People have the same profiles in both runs. Only the noise differs.
    """
    place, rng = readings.index_of(run.seen.blocks, COUNTS), run.draws(5)
    before = np.array([one[place] for one in run.left])
    after = np.array([readings.left_of(run.seen, one, rng=rng)[place] for one in run.victims_tables])
    first, second = (rows - rows.mean(axis=0) for rows in (before, after))
    lengths = np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    scores = np.asarray(first @ second.T / (lengths + 1e-300))
    right = int((scores.argmax(axis=1) == np.arange(len(scores))).sum())
    subject = run.subject(f"known again in a second run, {SUMS}", "metadata", "each run has its own budget")
    return share_linked(subject, right, scores)


def _values(run: Watched) -> list[Finding]:
    """Return a finding with the fraction of ratings guessed exactly by an attacker who knows all other ratings.

    The list is empty if the model does not predict ratings, or if ratings are continuous.
    """
    levels = RatingLevels.of(run.problem.values)
    if not run.predicts_values or levels.continuous:
        return []
    rng, right, blind, guesses = run.draws(6), 0, 0, 0
    for user, own in zip(run.victims, run.left, strict=True):
        items, values = run.problem.profile(user)
        for position in map(int, rng.permutation(len(items))[:RATINGS_GUESSED]):
            prior = readings.level_prior(_ratings_of_others(run, int(items[position]), int(user)), levels)
            true = int(levels.indices(values[position : position + 1])[0])
            varied = np.arange(len(items)) == position
            tables = [run.seen.tables((items, np.where(varied, level, values)), rng=rng) for level in levels.values]
            right += readings.read_rating(run.seen.blocks, own, tables, prior) == true
            blind += int(np.argmax(prior)) == true
            guesses += 1
    subject = run.subject("one rating, all else known", "value", run.rating_claim)
    return [subject.share(EXACT, right, guesses, chance=blind / guesses)]


def _ratings_of_others(run: Watched, item: int, user: int) -> FloatArray:
    rows = run.problem.items == item
    rows[run.problem.starts[user] : run.problem.starts[user + 1]] = False
    return np.asarray(run.problem.values[rows])


def _rare_items(run: Watched) -> list[Finding]:
    """Return a finding on how often an attacker who knows all other ratings finds the only person who rated an item.

    The candidates are the only raters of up to `RARE_ITEMS` items. The list is empty for fewer than two candidates.
    """
    problem, rng = run.problem, run.draws(7)
    raters = np.bincount(problem.items, minlength=problem.n_items)
    rows = rng.permutation(np.flatnonzero(raters[problem.items] == 1))[:RARE_ITEMS]
    owners = problem.rating_users[rows]
    people = np.unique(owners)
    if len(people) < 2:
        return []
    few, right = run.seen.only(COUNTS, AUDIENCE), 0
    for item, own in zip(problem.items[rows], owners, strict=True):
        left = readings.left_of(few, few.tables(problem.profile(own), rng=rng), rng=rng)
        profiles = (problem.profile(user) for user in people)
        candidates = [(items[items != item], values[items != item]) for items, values in profiles]
        right += int(people[readings.name_rater(few, left, int(item), candidates, rng=rng)] == own)
    subject = run.subject("rare items: the one person who rated it", "existence", run.rating_claim)
    return [subject.share("share_named", right, len(rows), chance=1 / len(people))]
