"""Score attacks by comparing their guesses with the victims' private data (`Truth`)."""

from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.audit.attacks import Attack
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth
from hushrec.audit.statistics import (
    KernelRidge,
    auc,
    auc_interval,
    correlation_interval,
    folds,
    rank_correlation,
    rate_at,
    roc,
)
from hushrec.audit.value_scores import ValueScore

FALSE_RATES = np.concatenate([[0.0], np.geomspace(1e-4, 1, 61).round(6)])  # false-positive rates of stored ROC curves
TOP = 10  # length of the recommendation lists


def judge(attack: Attack, observation: Observation, truth: Truth, *, rng: np.random.Generator) -> list[Finding]:
    """Return the findings about one attack; empty if the attack does not apply to the observation."""
    if not attack.applies_to(observation):
        return []
    guess, subject = observation.guessed_by(attack), Subject.of(attack, observation.protocol.name)
    if attack.target == "value":
        return _value(subject, ValueScore.on(truth.ratings[truth.rated], observation.levels), guess, truth, rng)
    judges = {"existence": judge_existence, "model": _model, "metadata": judge_count}
    return judges[attack.target](subject, guess, truth, rng)


def judge_existence(subject: Subject, scores: FloatArray, truth: Truth, rng: np.random.Generator) -> list[Finding]:
    """Return a finding with the AUC of rated against unrated items, averaged over people.

    `scores` has the shape `(n_victims, n_items)`; items with a NaN score are left out. The list is empty if no person
    has both rated and unrated items.
    """
    people = zip(scores, truth.rated, strict=True)
    return subject.mean_area([(row[~np.isnan(row)], labels[~np.isnan(row)]) for row, labels in people], rng=rng)


def mean_roc(scores: FloatArray, rated: BoolArray) -> FloatArray:
    """Return the true-positive rate at each of `FALSE_RATES`, averaged over people (rows of `scores` and `rated`)."""
    curves = [np.interp(FALSE_RATES, *roc(row, labels)) for row, labels in zip(scores, rated, strict=True)]
    return np.asarray(np.mean(curves, axis=0).round(4))


def _value(
    subject: Subject, score: ValueScore, guess: FloatArray, truth: Truth, rng: np.random.Generator
) -> list[Finding]:
    """Return findings on guessed ratings: the mean of `ValueScore.share` over people.

    If `guess` is NaN for some ratings, a second finding is about the remaining ratings only.
    """
    guessed = truth.rated & ~np.isnan(guess)
    judged = {score.metric: truth.rated}
    if guessed.any() and not guessed[truth.rated].all():
        judged[score.metric_of_reported] = guessed
    people = zip(truth.ratings, truth.rated, strict=True)
    chance = np.mean([score.chance(row[rated]) for row, rated in people if rated.any()])
    findings = []
    for metric, rows in judged.items():
        guesses = zip(guess, truth.ratings, rows, strict=True)
        shares = np.array([score.share(own[row], actual[row]) for own, actual, row in guesses if row.any()])
        findings.append(subject.mean(metric, shares, chance, rng=rng))
    return findings


def _model(subject: Subject, guess: FloatArray, truth: Truth, rng: np.random.Generator) -> list[Finding]:
    """Return two findings on guessed user vectors, averaged over people.

    The first has the |cosine| of the angle between the guessed and the true vector. The second has the fraction of
    items that the top ten of both vectors have in common.
    """
    other_people = np.roll(truth.user_vectors, 1, axis=0)
    cosines, blind = (abs_cosines(vectors, truth.user_vectors) for vectors in (guess, other_people))
    found, own, others = (top_items(vectors, truth) for vectors in (guess, truth.user_vectors, other_people))
    shared, by_chance = (
        np.array([len(np.intersect1d(a, b)) / TOP for a, b in zip(some, own, strict=True)]) for some in (found, others)
    )
    return [
        subject.mean("mean_abs_cosine", cosines, blind.mean(), rng=rng),
        subject.mean("overlap_at_10", shared, by_chance.mean(), rng=rng),
    ]


def abs_cosines(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return |cosine| of the angle between each row of `left` and the corresponding row of `right`."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(np.abs(np.einsum("ij,ij->i", left, right)) / (lengths + 1e-300))


def top_items(vectors: FloatArray, truth: Truth) -> IntArray:
    """Return the ten unrated items with the highest scores for each user vector, `(n_victims, 10)`."""
    scores = vectors @ truth.item_vectors.T
    scores[truth.rated] = -np.inf
    return np.asarray(np.argsort(-scores, axis=1, kind="stable")[:, :TOP])


def judge_count(subject: Subject, guess: FloatArray, truth: Truth, rng: np.random.Generator) -> list[Finding]:
    """Return two findings about guessed numbers of ratings: an AUC, and the rank correlation with the true numbers.

    The AUC says how well the guesses distinguish the quarter of people with the most ratings from the quarter with the
    fewest.
    """
    low, high = np.quantile(truth.counts, [0.25, 0.75])
    ends = (truth.counts <= low) | (truth.counts >= high)
    area = subject.area(guess[ends], truth.counts[ends] >= high, rng=rng)
    counts = truth.counts.astype(np.float64)
    found, interval = float(rank_correlation(guess, counts)), correlation_interval(guess, counts, rng=rng)
    return [area, subject.finding("rank_correlation", found, interval=interval, chance=0.0)]


def judge_linkage(subject: Subject, scores: FloatArray) -> Finding:
    """Return a finding with the fraction of people whose two messages are matched by the best one-to-one assignment.

    `scores[i, j]` is the evidence that message i of the first set and message j of the second come from the same
    person. True pairs are on the diagonal.
    """
    right = int((linear_sum_assignment(-scores)[1] == np.arange(len(scores))).sum())
    return share_linked(subject, right, scores)


def share_linked(subject: Subject, right: int, scores: FloatArray) -> Finding:
    """Return a finding that `right` of `len(scores)` people were linked correctly.

    The finding also has the AUC of true pairs, which are on the diagonal of `scores`, against all other pairs.
    """
    pairs = scores.ravel(), np.eye(len(scores), dtype=bool).ravel()
    more = {"auc": auc(*pairs), "tpr_at_1pct_fpr": rate_at(*pairs), "chance": 1 / len(scores)}
    return subject.share("share_linked", right, len(scores), **more)


def judge_people(
    subject: Subject, kernel: FloatArray, attributes: dict[str, IntArray], *, rng: np.random.Generator
) -> list[Finding]:
    """Return findings on how well kernel ridge regression guesses people's attributes, with ten-fold cross-validation.

    `kernel` holds the similarity of all pairs of people. `attributes` maps the name of an attribute to everybody's
    class. Each tenth of the people is guessed by an attacker who knows the attributes of the other nine tenths.
    """
    n_people = len(kernel)
    targets = {name: (labels[:, None] == np.unique(labels)).astype(np.float64) for name, labels in attributes.items()}
    scores = {name: np.zeros_like(target) for name, target in targets.items()}
    right = dict.fromkeys(attributes, 0)
    for tenth in folds(n_people, 10, rng=rng):
        known = np.setdiff1d(np.arange(n_people), tenth)
        learned = KernelRidge(kernel, known)
        for name, target in targets.items():
            found = learned.scores(target[known], tenth)
            right[name] += int((np.argmax(found, axis=1) == np.argmax(target[tenth], axis=1)).sum())
            # Centred, because the shares of the classes differ between folds.
            scores[name][tenth] = found - target[known].mean(axis=0)
    findings = []
    for name in attributes:
        own = replace(subject, name=f"{name} from {subject.name}")
        findings += _attribute(own, scores[name], targets[name], right[name], rng)
    return findings


def _attribute(
    subject: Subject, scores: FloatArray, targets: FloatArray, right: int, rng: np.random.Generator
) -> list[Finding]:
    """Return two findings about one attribute: the AUC and the accuracy of the guesses.

    `scores` and `targets`, `(n_people, n_classes)`, hold the guesses and the truth (0 or 1), and `right` is the number
    of correct guesses. With two classes, the AUC is for the second class; otherwise it is the mean over all classes
    with at least 20 people. The `chance` of the accuracy is the accuracy of always guessing the most common class.
    """
    n_people, n_classes = targets.shape
    judged = range(1, 2) if n_classes == 2 else [k for k in range(n_classes) if targets[:, k].sum() >= 20]
    cases = [(scores[:, k], targets[:, k] > 0) for k in judged]
    area, rate = (float(np.mean([measure(*case) for case in cases])) for measure in (auc, rate_at))
    intervals = [auc_interval(*case, rng=rng) for case in cases]
    low, high = (float(np.mean([interval[end] for interval in intervals])) for end in (0, 1))
    return [
        subject.finding("auc", area, auc=area, tpr_at_1pct_fpr=rate, interval=(low, high), chance=0.5),
        subject.share("accuracy", right, n_people, chance=float(targets.mean(axis=0).max())),
    ]
