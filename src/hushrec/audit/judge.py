"""Score attacks by comparing their guesses with the truth."""

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.attacks import Attack, Described
from hushrec.audit.attacks.linkage import LinkEnrolments, LinkRounds
from hushrec.audit.findings import Finding
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth
from hushrec.audit.statistics import (
    BoolArray,
    KernelRidge,
    auc,
    auc_interval,
    correlation_interval,
    folds,
    mean_interval,
    rank_correlation,
    rate_at,
    roc,
    share_interval,
)
from hushrec.audit.value_scores import ValueScore

FALSE_RATES = np.concatenate([[0.0], np.geomspace(1e-4, 1, 61).round(6)])  # false-positive rates of stored ROC curves
TOP = 10  # length of the recommendation lists


def judge(attack: Attack, observation: Observation, truth: Truth, *, rng: np.random.Generator) -> list[Finding]:
    """Return the findings about one attack; empty if the attack does not apply to the observation."""
    if not attack.applies_to(observation):
        return []
    guess = observation.guessed_by(attack)
    if attack.target == "value":
        return _value(attack, observation, guess, truth, rng)
    return {"existence": judge_existence, "model": _model, "metadata": judge_count}[attack.target](
        attack, observation.protocol.name, guess, truth, rng
    )


def judge_existence(
    attack: Described, protocol: str, scores: FloatArray, truth: Truth, rng: np.random.Generator
) -> list[Finding]:
    """Return a finding with the AUC of rated against unrated items, averaged over people.

    `scores` has the shape `(n_victims, n_items)`; items with a NaN score are left out. The confidence interval comes
    from resampling people. The list is empty if no person has both rated and unrated items.
    """
    asked = [(row[~np.isnan(row)], labels[~np.isnan(row)]) for row, labels in zip(scores, truth.rated, strict=True)]
    areas = np.array([auc(row, labels) for row, labels in asked])
    rates = np.array([rate_at(row, labels) if labels.any() else np.nan for row, labels in asked])
    if not np.isfinite(areas).any():
        return []
    area = float(np.nanmean(areas))
    return [
        Finding(
            protocol=protocol,
            name=attack.name,
            target=attack.target,
            metric="auc",
            value=area,
            auc=area,
            tpr_at_1pct_fpr=float(np.nanmean(rates)),
            interval=mean_interval(areas, rng=rng),
            chance=0.5,
            claim=attack.claim,
        )
    ]


def mean_roc(scores: FloatArray, rated: BoolArray) -> FloatArray:
    """Return the true-positive rate at each false-positive rate of `FALSE_RATES`, averaged over people.

    `scores` and `rated` have the shape `(n_victims, n_items)`.
    """
    curves = [np.interp(FALSE_RATES, *roc(row, labels)) for row, labels in zip(scores, rated, strict=True)]
    return np.asarray(np.mean(curves, axis=0).round(4))


def _value(
    attack: Attack, observation: Observation, guess: FloatArray, truth: Truth, rng: np.random.Generator
) -> list[Finding]:
    """Return a finding on the values of all ratings: the fraction that the attack recovers exactly.

    On a continuous scale it is the fraction of error removed (see `value_scores`). If some ratings were not reported, a
    second finding is about the reported ones only.
    """
    score = ValueScore.on(truth.ratings[truth.rated], observation.levels)
    reported = truth.rated & ~np.isnan(guess)
    asked = {score.metric: truth.rated}
    if reported.any() and not reported[truth.rated].all():
        asked[score.metric_of_reported] = reported
    common: dict[str, Any] = {
        "protocol": observation.protocol.name,
        "name": attack.name,
        "target": attack.target,
        "claim": attack.claim,
        "chance": float(np.mean([score.chance(row[known]) for row, known in _people(truth.ratings, truth.rated)])),
    }
    findings = []
    for metric, rows in asked.items():
        people = zip(guess, truth.ratings, rows, strict=True)
        shares = np.array([score.share(own[row], actual[row]) for own, actual, row in people if row.any()])
        findings.append(
            Finding(metric=metric, value=float(shares.mean()), interval=mean_interval(shares, rng=rng), **common)
        )
    return findings


def _people(ratings: FloatArray, rated: BoolArray) -> list[tuple[FloatArray, BoolArray]]:
    """Return one pair per person with at least one rating: the person's ratings, and the mask of rated items."""
    return [(row, known) for row, known in zip(ratings, rated, strict=True) if known.any()]


def _model(attack: Attack, protocol: str, guess: FloatArray, truth: Truth, rng: np.random.Generator) -> list[Finding]:
    """Return two findings: the mean |cosine| of guessed and true user vectors, and the overlap of their top-ten lists.

    `chance` is the result of guessing another person's vector.
    """
    cosines = abs_cosines(guess, truth.user_vectors)
    other_people = np.roll(truth.user_vectors, 1, axis=0)
    found = top_items(guess, truth)
    own, others = top_items(truth.user_vectors, truth), top_items(other_people, truth)
    shared = np.array([len(np.intersect1d(a, b)) / TOP for a, b in zip(found, own, strict=True)])
    blind = np.array([len(np.intersect1d(a, b)) / TOP for a, b in zip(others, own, strict=True)])
    common: dict[str, Any] = {"protocol": protocol, "name": attack.name, "target": attack.target, "claim": attack.claim}
    return [
        Finding(
            metric="mean_abs_cosine",
            value=float(cosines.mean()),
            interval=mean_interval(cosines, rng=rng),
            chance=float(abs_cosines(other_people, truth.user_vectors).mean()),
            **common,
        ),
        Finding(
            metric="overlap_at_10",
            value=float(shared.mean()),
            interval=mean_interval(shared, rng=rng),
            chance=float(blind.mean()),
            **common,
        ),
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


def judge_count(
    attack: Described, protocol: str, guess: FloatArray, truth: Truth, rng: np.random.Generator
) -> list[Finding]:
    """Return two findings on how well the guesses rank people by number of ratings: an AUC and a rank correlation.

    The AUC compares the quarter of people with the most ratings to the quarter with the fewest.
    """
    low, high = np.quantile(truth.counts, [0.25, 0.75])
    ends = (truth.counts <= low) | (truth.counts >= high)
    scores, heavy = guess[ends], truth.counts[ends] >= high
    common: dict[str, Any] = {"protocol": protocol, "name": attack.name, "target": attack.target, "claim": attack.claim}
    area = auc(scores, heavy)
    counts = truth.counts.astype(np.float64)
    return [
        Finding(
            metric="auc",
            value=area,
            auc=area,
            tpr_at_1pct_fpr=rate_at(scores, heavy),
            interval=auc_interval(scores, heavy, rng=rng),
            chance=0.5,
            **common,
        ),
        Finding(
            metric="rank_correlation",
            value=float(rank_correlation(guess, counts)),
            interval=correlation_interval(guess, counts, rng=rng),
            chance=0.0,
            **common,
        ),
    ]


def judge_linkage(attack: LinkRounds | LinkEnrolments, protocol: str, scores: FloatArray) -> Finding:
    """Return the fraction of people whose two messages are matched by the best one-to-one assignment.

    `scores[i, j]` is the evidence that message i of the first set and message j of the second come from the same
    person. True pairs are on the diagonal.
    """
    right = int((linear_sum_assignment(-scores)[1] == np.arange(len(scores))).sum())
    same = np.eye(len(scores), dtype=bool)
    return Finding(
        protocol=protocol,
        name=attack.name,
        target=attack.target,
        metric="share_linked",
        value=right / len(scores),
        auc=auc(scores.ravel(), same.ravel()),
        tpr_at_1pct_fpr=rate_at(scores.ravel(), same.ravel()),
        interval=share_interval(right, len(scores)),
        chance=1 / len(scores),
        claim=attack.claim,
    )


def judge_people(
    attack: Described, protocol: str, kernel: FloatArray, attributes: dict[str, IntArray], *, rng: np.random.Generator
) -> list[Finding]:
    """Return how well kernel ridge regression guesses people's attributes, with ten-fold cross-validation.

    `kernel` holds the similarity of all pairs of people, and `attributes` everybody's class by the name of the
    attribute. The attacker knows the attributes of nine tenths of the people and guesses those of the last tenth.
    """
    n_people = len(kernel)
    targets = {name: (labels[:, None] == np.unique(labels)).astype(np.float64) for name, labels in attributes.items()}
    scores = {name: np.zeros_like(target) for name, target in targets.items()}
    right = dict.fromkeys(attributes, 0)
    for asked in folds(n_people, 10, rng=rng):
        known = np.setdiff1d(np.arange(n_people), asked)
        learned = KernelRidge(kernel, known)
        for name, target in targets.items():
            found = learned.scores(target[known], asked)
            right[name] += int((np.argmax(found, axis=1) == np.argmax(target[asked], axis=1)).sum())
            # Centred, because the shares of the classes differ between folds.
            scores[name][asked] = found - target[known].mean(axis=0)
    common: dict[str, Any] = {"protocol": protocol, "target": attack.target, "claim": attack.claim}
    return [
        finding
        for name in attributes
        for finding in _attribute(
            scores[name], targets[name], right[name], rng, name=f"{name} from {attack.name}", **common
        )
    ]


def _attribute(
    scores: FloatArray, targets: FloatArray, right: int, rng: np.random.Generator, **common: Any
) -> list[Finding]:
    """Return two findings about one attribute: the AUC and the accuracy of the guesses.

    `scores` and `targets`, `(n_people, n_classes)`, hold the guesses and the truth (0 or 1), and `right` is the number
    of correct guesses. `common` holds the fields that both findings have in common. With two classes the AUC is that of
    the second class, otherwise the mean over all classes with at least 20 people. The accuracy's `chance` is that of
    always guessing the most common class.
    """
    n_people, n_classes = targets.shape
    judged = range(1, 2) if n_classes == 2 else [k for k in range(n_classes) if targets[:, k].sum() >= 20]
    areas = [auc(scores[:, k], targets[:, k] > 0) for k in judged]
    intervals = [auc_interval(scores[:, k], targets[:, k] > 0, rng=rng) for k in judged]
    return [
        Finding(
            metric="auc",
            value=float(np.mean(areas)),
            auc=float(np.mean(areas)),
            tpr_at_1pct_fpr=float(np.mean([rate_at(scores[:, k], targets[:, k] > 0) for k in judged])),
            interval=(float(np.mean([low for low, _ in intervals])), float(np.mean([high for _, high in intervals]))),
            chance=0.5,
            **common,
        ),
        Finding(
            metric="accuracy",
            value=right / n_people,
            interval=share_interval(right, n_people),
            chance=float(targets.mean(axis=0).max()),
            **common,
        ),
    ]
