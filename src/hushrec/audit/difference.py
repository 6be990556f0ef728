"""The difference attack: a person rates one more item, and the server compares the reports before and after."""

from dataclasses import replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.devices import replay
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.observation import Observation
from hushrec.engines.gradient import GradientProblem

CAP = 15.0  # largest log odds that an item can have


def difference_scores(observation: Observation) -> FloatArray:
    """Return how much the evidence that an item is rated grows from the first half of the rounds to the second.

    The result has the shape `(n_victims, n_items)`. The evidence is the log odds that the item is rated or, if the
    protocol does not select items at random, the number of reports that contain the item.
    """
    half = observation.n_rounds // 2
    before, after = observation.first_rounds(half), observation.last_rounds(observation.n_rounds - half)
    if observation.protocol.selection is not None:
        halves = zip(before.recovered, after.recovered, strict=True)
        return np.array(
            [np.clip(late.log_odds, -CAP, CAP) - np.clip(early.log_odds, -CAP, CAP) for early, late in halves]
        )
    return after.selection_counts.astype(np.float64) - before.selection_counts


def attack_difference(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rng: np.random.Generator
) -> list[Finding]:
    """Let every victim rate one more item halfway through the run; return a finding on how often the server finds it.

    The server's guess is the item with the largest of `difference_scores`. The list is empty if no victim has at least
    two unrated items.
    """
    victims = victims[problem.rated_counts[victims] < problem.n_items - 1]  # at least two items to guess from
    if len(victims) == 0:
        return []
    new: dict[int, tuple[IntArray, FloatArray]] = {}
    for user in victims.tolist():
        items, values = problem.profile(user)
        new[user] = rng.choice(np.setdiff1d(np.arange(problem.n_items), items), 1), rng.choice(values, 1)
    halfway = observation.n_rounds // 2 + 1
    watched = replay(
        replace(problem, seed=problem.seed + 2), observation, victims,
        added=lambda user, round_number: new[user] if round_number == halfway else None,
    )  # fmt: skip
    scores = difference_scores(watched)
    target = np.array([new[int(user)][0][0] for user in victims])
    own = scores[np.arange(len(victims)), target]
    ahead = (scores > own[:, None]).sum(axis=1)
    tied = (scores == own[:, None]).sum(axis=1)
    found = int(((ahead == 0) & (tied == 1)).sum())
    area = float(np.mean(1 - (ahead + (tied - 1) / 2) / (scores.shape[1] - 1)))
    claim = "permanent bits stay as they are when a rating is added, so selections do not show it"
    subject = Subject(observation.protocol.name, "difference: the one item rated halfway", "value", claim)
    return [subject.share("share_found_first", found, len(victims), auc=area, chance=1 / scores.shape[1])]
