"""Attacks on simulated protocols of other papers (rivals), scored like the attacks on our protocols.

An attack uses what the rival's server sees of one victim, after subtracting what the attacker knows about everybody
else. `Rival.left_out` says which parts of a paper are *not* simulated. Cryptography is assumed to be secure: if a paper
adds up encrypted values, the server sees only the sum.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.audit.findings import EXACT, Finding, Subject
from hushrec.audit.judge import abs_cosines, judge_existence
from hushrec.audit.masked.sums import watch
from hushrec.audit.observed_run import Truth, rating_matrix
from hushrec.audit.statistics import log_odds
from hushrec.simulation.tasks import RatingTask
from hushrec.simulation.training_problem import AnyProblem, make_problem

STARS = np.arange(1.0, 6.0)
FACTORS, RIDGE = 10, 5.0  # length of the vectors, and penalty of the ridge regression
LENGTHS = np.geomspace(1, 40, 4000)  # candidates for the norm of a user vector
PERTURBED_EPSILON = 1.0  # budget of the number of items in each category
SURE = 20.0  # log odds of an item in the perturbed profile
PUBLIC_SHARE = 0.2  # share of people in Xin and Jaakkola's public group


@dataclass(frozen=True, eq=False)
class Guess:
    """The guesses of an attack on one rival, with one row per victim; None for what the attack does not guess."""

    items: FloatArray = field(repr=False)
    ratings: FloatArray | None = field(default=None, repr=False)
    taste: FloatArray | None = field(default=None, repr=False)
    true_taste: FloatArray | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Rival:
    """A protocol of another paper: which parts are simulated, which are left out, and the attack on it."""

    label: str
    simulated: str
    left_out: str
    attack: Callable[["Scene"], Guess] = field(repr=False)
    rmse: Callable[["Scene"], float] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Scene:
    """The data of the attacks on rivals: the task and its training ratings, the victims, and item popularity.

    The popularity is the share of the other people who rated each item.
    """

    task: RatingTask = field(repr=False)
    problem: AnyProblem = field(repr=False)
    victims: IntArray = field(repr=False)
    popularity: FloatArray = field(repr=False)
    rng: np.random.Generator = field(repr=False)

    @property
    def dense(self) -> tuple[FloatArray, FloatArray]:
        """Two arrays `(n_users, n_items)`: the ratings, with 0 for unrated items, and a 1 for each rated item."""
        shape = self.problem.n_users, self.problem.n_items
        ratings, there = np.zeros(shape), np.zeros(shape)
        ratings[self.problem.rating_users, self.problem.items] = self.problem.values
        there[self.problem.rating_users, self.problem.items] = 1.0
        return ratings, there


def exact_sums(scene: Scene) -> Guess:
    """Guess from the exact sum of gradients e u of each item, after everybody else's gradients are subtracted.

    The rows that remain are parallel to the victim's vector u, and the ratings are r = e + u·v.
    """
    _, there = scene.dense
    vectors = scene.rng.standard_normal((scene.problem.n_items, FACTORS)) * 0.3
    tastes, errors = _fit(scene, vectors)
    total = np.einsum("uj,uk->jk", errors * there, tastes)
    items, ratings, taste = [], [], []
    for user in scene.victims:
        others = total - np.outer(errors[user] * there[user], tastes[user])
        own = total - others
        lengths = np.linalg.norm(own, axis=1)
        direction = np.linalg.svd(own, full_matrices=False)[2][0]
        items.append(np.where(lengths > 1e-9, lengths + 1, 0.0))
        taste.append(direction)
        ratings.append(_ratings_on_grid(own @ direction, vectors @ direction, lengths > 1e-9))
    return Guess(np.array(items), np.array(ratings), np.array(taste), tastes[scene.victims])


def _fit(scene: Scene, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return everybody's user vector, by ridge regression on the item vectors, and the errors of all predictions."""
    ratings, _ = scene.dense
    tastes = np.zeros((scene.problem.n_users, FACTORS))
    for user in range(scene.problem.n_users):
        items, values = scene.problem.profile(user)
        rows = vectors[items]
        tastes[user] = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(FACTORS), rows.T @ values)
    return tastes, ratings - tastes @ vectors.T


def _ratings_on_grid(along: FloatArray, scores: FloatArray, there: BoolArray) -> FloatArray:
    """Return the ratings e + u·v as whole stars, from `along` = e ‖u‖ and `scores` = v·u / ‖u‖; NaN where not `there`.

    The unknown ±‖u‖ is the one that brings the ratings closest to whole stars.
    """
    found, best = np.full(len(along), np.nan), np.inf
    for length in np.concatenate([LENGTHS, -LENGTHS]):
        guess = along[there] / length + length * scores[there]
        stars = np.clip(np.rint(guess), 1, 5)
        off = float(((guess - stars) ** 2).mean())
        if off < best:
            best, found[there] = off, stars
    return found


def slope_one(scene: Scene) -> Guess:
    """Guess from the exact sums over pairs of items, after everybody else's pairs are subtracted.

    The remainder reveals the victim's items and the differences of the ratings. Of the ratings with these differences
    that fit the scale, the attack chooses those closest to the items' mean ratings.
    """
    means = _item_means(scene)
    items, ratings = [], []
    for user in scene.victims:
        own, values = scene.problem.profile(user)
        score = np.zeros(scene.problem.n_items)
        score[own] = 1.0 if len(own) > 1 else 0.0  # a pair reveals both of its items
        differences = values - values[0]
        shifts = [first for first in STARS if np.all((first + differences >= 1) & (first + differences <= 5))]
        best = min(shifts, key=lambda first: float(((first + differences - means[own]) ** 2).sum()))
        guess = np.full(scene.problem.n_items, np.nan)
        guess[own] = best + differences
        items.append(score)
        ratings.append(guess)
    return Guess(np.array(items), np.array(ratings))


def slope_one_error(scene: Scene) -> float:
    """Return the test RMSE of the recommender weighted Slope One."""
    ratings, there = scene.dense
    counts = there.T @ there
    np.fill_diagonal(counts, 0)
    sums = ratings.T @ there  # (j, k): ratings of j by people who rated k as well
    deviations = (sums - sums.T) / np.maximum(counts, 1)
    users, items, actual = scene.task._test()
    weights = there @ counts
    predicted = (there @ (deviations * counts).T + ratings @ counts) / np.maximum(weights, 1)
    mean = scene.problem.values.mean()
    found = np.where(weights > 0, predicted, mean)[users, items]
    return float(np.sqrt(np.mean((scene.task.scale.from_unit(found) - actual) ** 2)))


def _item_means(scene: Scene) -> FloatArray:
    ratings, there = scene.dense
    return np.asarray((ratings.sum(axis=0) + 3.5) / (there.sum(axis=0) + 1))


def perturbed_profiles(scene: Scene) -> Guess:
    """Guess from a perturbed profile, which a person sends once.

    Laplace noise of scale 1/ε is added to the number of rated items in each category. Random items of the category are
    then added to the profile or removed from it until the number fits.
    """
    categories = _categories(scene)
    odds = log_odds(scene.popularity)
    items = []
    for user in scene.victims:
        there = np.zeros(scene.problem.n_items, dtype=bool)
        there[scene.problem.profile(user)[0]] = True
        sent = there.copy()
        for category in np.unique(categories):
            inside = scene.rng.permutation(np.flatnonzero(categories == category))
            more = round(scene.rng.laplace(0, 1 / PERTURBED_EPSILON))
            changed = inside[~there[inside]][:more] if more > 0 else inside[there[inside]][: max(-more, 0)]
            sent[changed] = more > 0
        items.append(np.where(sent, SURE, 0.0) + odds)
    return Guess(np.array(items))


def _categories(scene: Scene) -> IntArray:
    """Return the public category of every item, `(n_items,)`: the index of its attribute with the largest value."""
    return np.asarray(scene.problem.model.columns.taste.argmax(axis=1))


def constant_noise(scene: Scene) -> Guess:
    """Guess from the gradients of two rounds. The noise is the same in both, so it cancels in their difference."""
    vectors = scene.rng.standard_normal((scene.problem.n_items, FACTORS)) * 0.3
    moved = vectors + 0.1 * scene.rng.standard_normal(vectors.shape)
    before, errors_before = _fit(scene, vectors)
    after, errors_after = _fit(scene, moved)
    items, taste = [], []
    for user in scene.victims:
        noise = scene.rng.laplace(0, 10, vectors.shape)
        there = np.isin(np.arange(len(vectors)), scene.problem.profile(user)[0])[:, None]
        first = there * np.outer(errors_before[user], before[user]) + noise
        second = there * np.outer(errors_after[user], after[user]) + noise
        difference = second - first
        items.append(np.linalg.norm(difference, axis=1))
        taste.append(np.linalg.svd(difference, full_matrices=False)[2][0])
    scores = np.array(items)
    return Guess(np.where(scores > 1e-9, scores + 1, 0.0), None, np.array(taste), after[scene.victims])


def public_group(scene: Scene) -> Guess:
    """Guess the items of people who send nothing, by the popularity of items."""
    return Guess(np.tile(log_odds(scene.popularity), (len(scene.victims), 1)))


def public_group_error(scene: Scene) -> float:
    """Return the test RMSE of model `gp` if it learns only from a public group of people, without noise."""
    problem = scene.problem
    people = np.setdiff1d(np.flatnonzero(problem.rated_counts > 0), scene.victims)
    public = np.sort(scene.rng.permutation(people)[: int(PUBLIC_SHARE * problem.n_users)])
    kept = np.isin(problem.rating_users, public)
    group = make_problem(
        np.searchsorted(public, problem.rating_users[kept]),
        problem.items[kept],
        problem.values[kept],
        n_users=len(public),
        n_items=problem.n_items,
        model=problem.model,
        protocols=problem.protocols,
        seed=problem.seed,
    )
    _, engine = watch(group)
    table = {**vars(engine.learner.table()), "round_number": np.array(problem.terms.max_rounds)}
    return scene.task.metrics(problem.protocol(0).make_predictor(problem, table, {}))["rmse"]


RIVALS = (
    Rival(
        "exact sums (Canny 2002; Nikolaenko 2013 after one iteration)",
        "sums of gradients over all people, one iteration, random item vectors; everybody else known",
        "the cryptography; further iterations, of which Canny's parties see every sum, and those of Nikolaenko et al."
        " the item vectors of the last one alone",
        exact_sums,
    ),
    Rival(
        "Slope One sums (Basu 2013)",
        "exact sums of differences and counts of all pairs of items, which the cloud holds; everybody else known",
        "how pairs get there without a name (an anonymising network); the encrypted question for a prediction",
        slope_one,
        slope_one_error,
    ),
    Rival(
        f"perturbed profiles (after Shen and Jin 2014), ε = {PERTURBED_EPSILON:g} per category",
        "a profile sent once, with noise in its number of items per category, items added and removed by chance",
        "their choice of the items that change, which keeps recommendations useful; ratings; their recommender; the"
        " categories that a person may choose to share (2016)",
        perturbed_profiles,
    ),
    Rival(
        "noise in the objective (after Hua 2015)",
        "gradients of all items with a noise vector that stays the same, two iterations",
        "how the noise of a user is sized, and whatever hides single gradients from the server besides; learning",
        constant_noise,
    ),
    Rival(
        f"public group of {PUBLIC_SHARE:.0%} (after Xin and Jaakkola 2014)",
        "items are learned from volunteers whose ratings everybody sees; nobody else sends anything",
        "what private people may add in their paper: relations between items, with deniability of single ones",
        public_group,
        public_group_error,
    ),
)


def attack_rival(rival: Rival, scene: Scene) -> dict[str, Any]:
    """Return the findings of the attack on a rival as JSON data, with the rival's test RMSE if it is computed."""
    guess = rival.attack(scene)
    ratings = rating_matrix(scene.problem, scene.victims)
    truth = Truth(~np.isnan(ratings), ratings, np.zeros((0, 0)), np.zeros((0, 0)))
    blind = np.tile(log_odds(scene.popularity), (len(scene.victims), 1))
    findings = judge_existence(Subject(rival.label, "popularity", "existence", "–"), blind, truth, scene.rng)
    findings += judge_existence(Subject(rival.label, rival.simulated, "existence", "–"), guess.items, truth, scene.rng)
    findings += _values(rival, guess, truth, scene) + _taste(rival, guess, scene)
    return {
        "label": rival.label,
        "simulated": rival.simulated,
        "left_out": rival.left_out,
        "rmse": None if rival.rmse is None else rival.rmse(scene),
        "attacks": [one.record() for one in findings],
    }


def _values(rival: Rival, guess: Guess, truth: Truth, scene: Scene) -> list[Finding]:
    if guess.ratings is None:
        return []
    pairs = list(zip(guess.ratings, truth.ratings, truth.rated, strict=True))
    shares = np.array([np.mean(np.abs(own[row] - actual[row]) < 0.5) for own, actual, row in pairs])
    chance = np.mean([np.max(np.bincount(actual[row].astype(int))) / row.sum() for _, actual, row in pairs])
    return [Subject(rival.label, rival.simulated, "value", "–").mean(EXACT, shares, chance, rng=scene.rng)]


def _taste(rival: Rival, guess: Guess, scene: Scene) -> list[Finding]:
    if guess.taste is None or guess.true_taste is None:
        return []
    cosines = abs_cosines(guess.taste, guess.true_taste)
    chance = abs_cosines(np.roll(guess.true_taste, 1, axis=0), guess.true_taste).mean()
    subject = Subject(rival.label, rival.simulated, "model", "–")
    return [subject.mean("mean_abs_cosine", cosines, chance, rng=scene.rng)]
