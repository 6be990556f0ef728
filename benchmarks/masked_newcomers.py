"""People unseen in training under `masked`: how well a device predicts from a few ratings and the public table.

    python benchmarks/masked_newcomers.py [--data ml-100k,ml-1m] [--epsilon inf,8,1]

One in ten people stays out of training. Each then has 1, 3, … of their ratings, and a fifth that was set aside is
predicted: beside the person's own mean, and beside the bias model of the others' ratings with the same few ratings of
the person, which would need everybody's ratings on one machine. ε = ∞ shows what the noise costs. Nothing is chosen on
these people.
"""

import argparse
import sys
from typing import Any

import numpy as np
from measure import load_data, write_record
from newcomers import Person, newcomers, rmse, without_taste

from hushrec.simulation.training import train

COUNTS = (1, 3, 5, 10, 20)


def predicted(predictor: Any, person: Person, count: int) -> np.ndarray:
    """Predictions of the ratings set aside, from the first `count`."""
    order = np.argsort(person.items[:count])
    found = predictor.of_profile(person.items[:count][order], person.values[:count][order])
    return found.predicted[person.later_items]


def measured(name: str, epsilons: list[float]) -> dict[str, Any]:
    """RMSE by number of ratings."""
    rest, people = newcomers(load_data(name).with_catalogue(), one_in=10)  # items as the run counts them
    tests: dict[str, Any] = {str(count): without_taste(rest, people, count) for count in COUNTS}
    for epsilon in epsilons:
        result = train(rest, epsilon=epsilon, final=True)
        for count in COUNTS:
            error = rmse((predicted(result.predictor, person, count), person) for person in people)
            tests[str(count)][f"masked, epsilon {epsilon:g}"] = error
    rounded = {count: {label: round(value, 4) for label, value in row.items()} for count, row in tests.items()}
    print(name, rounded, flush=True)
    return {"people": len(people), "others": rest.n_users, "rmse_by_number_of_ratings": rounded}


def main() -> None:
    """Measure every set, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k,ml-1m")
    parser.add_argument("--epsilon", default="inf,8,1")
    chosen = parser.parse_args()
    epsilons = [float(epsilon) for epsilon in chosen.epsilon.split(",")]
    sets = {name: measured(name, epsilons) for name in chosen.data.split(",")}
    write_record("masked-newcomers", {"command": "python " + " ".join(sys.argv), "sets": sets})


if __name__ == "__main__":
    main()
