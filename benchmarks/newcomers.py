"""Newcomers to a finished run: how well a device predicts for a person who took part in no round.

    python benchmarks/newcomers.py

A third of the people stay out of a private run. Each then fits a vector to 1, 3, … of their own ratings against the
public item vectors (`protocols/gradient/fit.py`), and predicts a fifth of their ratings that was set aside. The two
constants of the fit are chosen on half of these people, the errors are reported for the other half: beside the person's
own mean, beside a start vector, which is all that a device without rounds had before, and beside the bias model, which
would need the ratings of everybody on one machine.
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from measure import load_data, write_record
from people import choose_people

from hushrec.models.baselines import fit_biases
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient import fit
from hushrec.simulation.training import train

SETS = {"ml-100k": {}, "synthetic": {"rounds": 400, "factors": 5, "step": 0.6}}
PROTOCOL = {"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 4.0}
COUNTS = (1, 3, 5, 10, 20, 40)
TASTE_WEIGHTS, LEVEL_RATINGS = (0.06, 0.2, 0.6, 2.0, 6.0), (1.0, 2.0, 4.0, 8.0)
SEED = 7


@dataclass(frozen=True)
class Person:
    """One newcomer: rated items and values, in a random order, and those set aside."""

    items: np.ndarray
    values: np.ndarray
    later_items: np.ndarray
    later_values: np.ndarray


def newcomers(ratings: Any, one_in: int = 3) -> tuple[Any, list[Person]]:
    """The ratings without a third of the people (or one in so many), and these people."""
    rng = np.random.default_rng(SEED)
    new = rng.choice(ratings.n_users, ratings.n_users // one_in, replace=False)
    rest = choose_people(ratings, ~np.isin(np.arange(ratings.n_users), new))
    people = []
    for user in new:
        rows = rng.permutation(np.flatnonzero(ratings.users == user))
        own, later = np.split(rows, [int(0.8 * len(rows))])
        people.append(Person(ratings.items[own], ratings.values[own], ratings.items[later], ratings.values[later]))
    return rest, people


def fitted(vectors: np.ndarray, people: list[Person], count: int) -> float:
    """RMSE of the fit from `count` ratings each."""
    return rmse(
        (vectors[p.later_items] @ fit.fit_user_vector(p.values[:count], vectors[p.items[:count]], vectors), p)
        for p in people
    )


def rmse(predicted: Iterator[tuple[np.ndarray, Person]]) -> float:
    """Of predictions within the scale."""
    errors = np.concatenate([np.clip(values, 1, 5) - person.later_values for values, person in predicted])
    return float(np.sqrt(np.mean(errors**2)))


def baselines(rest: Any, vectors: np.ndarray, people: list[Person], count: int) -> dict[str, float]:
    """The person's own mean; a start vector; the bias model with their `count` ratings."""
    rng = np.random.default_rng(SEED)
    start = MatrixFactorization(vectors.shape[1]).initial_vectors(len(people), rng=rng)
    found = without_taste(rest, people, count)
    return found | {"start vector": rmse((vectors[p.later_items] @ u, p) for u, p in zip(start, people, strict=True))}


def without_taste(rest: Any, people: list[Person], count: int) -> dict[str, float]:
    """The person's own mean, and the bias model with their `count` ratings."""
    mean = rest.values.mean()
    _, item_bias = fit_biases(rest.users, rest.items, rest.values - mean, len(rest.user_ids), rest.n_items)

    def bias(person: Person) -> np.ndarray:
        left = person.values[:count] - mean - item_bias[person.items[:count]]
        return mean + left.sum() / (len(left) + 4) + item_bias[person.later_items]

    return {
        "own mean": rmse((np.full(len(p.later_items), p.values[:count].mean()), p) for p in people),
        "bias model": rmse((bias(p), p) for p in people),
    }


def main() -> None:
    """Trains on both sets, chooses on validation people, reports test people."""
    prepared = {}
    for name, settings in SETS.items():
        rest, people = newcomers(load_data(name))
        result = train(rest, compare=False, **PROTOCOL, **settings)
        prepared[name] = rest, result.predictor.item_vectors, people[::2], people[1::2]
    scores = {}
    for weight, level in itertools.product(TASTE_WEIGHTS, LEVEL_RATINGS):
        fit.TASTE_WEIGHT, fit.LEVEL_RATINGS = weight, level
        found = [
            fitted(vectors, people, count) for _, vectors, people, _ in prepared.values() for count in (*COUNTS, 1000)
        ]
        scores[weight, level] = float(np.mean(found))
    fit.TASTE_WEIGHT, fit.LEVEL_RATINGS = min(scores, key=scores.__getitem__)
    tests = {}
    for name, (rest, vectors, _, people) in prepared.items():
        tests[name] = {
            ("all" if count == 1000 else str(count)): {
                "fit": round(fitted(vectors, people, count), 4),
                **{label: round(value, 4) for label, value in baselines(rest, vectors, people, count).items()},
            }
            for count in (*COUNTS, 1000)
        }
    write_record(
        "newcomers",
        {
            "command": "python " + " ".join(sys.argv),
            "sets": SETS,
            "protocol": PROTOCOL,
            "newcomers": {name: len(test) for name, (*_, test) in prepared.items()},
            "validation": {f"{weight:g}, {level:g}": round(score, 4) for (weight, level), score in scores.items()},
            "taste_weight": fit.TASTE_WEIGHT,
            "level_ratings": fit.LEVEL_RATINGS,
            "test_rmse_by_number_of_ratings": tests,
        },
    )


if __name__ == "__main__":
    main()
