"""The difference attack: a person rates one more item, and the server compares the reports before and after."""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.devices import replay
from hushrec.audit.findings import Finding
from hushrec.audit.observation import Observation
from hushrec.audit.statistics import share_interval
from hushrec.engines.gradient import GradientProblem

CAP = 15.0  # largest log odds that an item can have


def difference_scores(observation: Observation) -> FloatArray:
    """Return how much the evidence that an item is rated grows between the two halves of the rounds.

    The result has the shape `(n_victims, n_items)`.
    """
    half = observation.n_rounds // 2
    before, after = observation.first_rounds(half), observation.last_rounds(observation.n_rounds - half)
    if observation.protocol.selection is not None:
        return np.array(
            [
                np.clip(late.log_odds, -CAP, CAP) - np.clip(early.log_odds, -CAP, CAP)
                for early, late in zip(before.recovered, after.recovered, strict=True)
            ]
        )
    return after.selection_counts.astype(np.float64) - before.selection_counts


def attack_difference(
    problem: GradientProblem, observation: Observation, victims: IntArray, *, rng: np.random.Generator
) -> list[Finding]:
    """Return how often the item that a victim rates halfway through the run shows the largest change in evidence.

    People with fewer than two unrated items are left out, because the guess could not be wrong.
    """
    victims = victims[problem.rated_counts[victims] < problem.n_items - 1]
    if len(victims) == 0:
        return []
    new = {int(user): _new_rating(problem, int(user), rng) for user in victims}
    half = observation.n_rounds // 2
    watched = replay(
        problem,
        observation,
        victims,
        seed=problem.seed + 2,
        added=lambda user, round_number: (
            (np.array([new[user][0]]), np.array([new[user][1]])) if round_number == half + 1 else None
        ),
    )
    scores = difference_scores(watched)
    target = np.array([new[int(user)][0] for user in victims])
    own = scores[np.arange(len(victims)), target]
    ahead = (scores > own[:, None]).sum(axis=1)
    tied = (scores == own[:, None]).sum(axis=1)
    found = int(((ahead == 0) & (tied == 1)).sum())
    area = float(np.mean(1 - (ahead + (tied - 1) / 2) / (scores.shape[1] - 1)))
    return [
        Finding(
            protocol=observation.protocol.name,
            name="difference: the one item rated halfway",
            target="value",
            metric="share_found_first",
            value=found / len(victims),
            auc=area,
            interval=share_interval(found, len(victims)),
            chance=1 / scores.shape[1],
            claim="permanent bits stay as they are when a rating is added, so selections do not show it",
        )
    ]


def _new_rating(problem: GradientProblem, user: int, rng: np.random.Generator) -> tuple[int, float]:
    items, values = problem.profile(user)
    unrated = np.setdiff1d(np.arange(problem.n_items), items)
    return int(rng.choice(unrated)), float(rng.choice(values))
