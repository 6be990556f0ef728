"""How often ratings are within the deviations of model `gp`: held-out ratings of made-up people, and of MovieLens.

    python experiments/deviations.py

Per data set and ε, it measures the RMSE of the held-out ratings, the root mean square of their deviations, and the
share of ratings within one and within two deviations of the prediction. If errors are normal, these are 0.68 and 0.95.
All numbers are means over `SPLITS` splits, and on the file's scale. They are kept as
experiments/records/deviations.json, from which `make docs` writes the table of docs/evaluate.md.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from masked_generated import draw_scattered

import hushrec
from hushrec.data import load, random_split

SPLITS, MOST_PEOPLE = 3, 300
PEOPLE = (60, 300, 2000)
SCATTERED = ("likes and dislikes", "1 to 5, noise 0.2", "1 to 5, noise 1.5", "0 to 100, mostly 70 to 82")
RECORD = Path(__file__).parent / "records" / "deviations.json"


def measured(ratings: Any, epsilon: float, seed: int) -> list[float]:
    """Return RMSE, deviation, and the shares within one and two deviations, of one split's first `MOST_PEOPLE`."""
    split = random_split(ratings.n_ratings, seed)
    found = hushrec.Recommender(epsilon=epsilon, seed=seed).fit(ratings.rows(split.train))._fitted
    test = ratings.rows(split.test[ratings.users[split.test] < MOST_PEOPLE])
    assert test.values is not None
    predicted = found.scale.from_unit(found.predictor.predict(test.users, test.items))
    off, wide = np.abs(predicted - test.values), np.zeros(len(test.values))
    for user in np.unique(test.users):
        rows = test.users == user
        deviations = found.predictor.deviations(int(user))
        assert deviations is not None
        wide[rows] = deviations[test.items[rows]] * (found.scale.high - found.scale.low) / 4
    sizes = [float(np.sqrt(np.mean(numbers**2))) for numbers in (off, wide)]
    return [*sizes, float((off <= wide).mean()), float((off <= 2 * wide).mean())]


def main() -> None:
    """Measure every data set at every ε, print the rows and keep them."""
    made = {
        f"{people} made-up people": f"synthetic:users={people},items=200,ratings={30 * people}" for people in PEOPLE
    }
    sets = {name: load(source) for name, source in (made | {"MovieLens-100K": "ml-100k"}).items()}
    sets |= {name: draw_scattered(name, 30, seed=5) for name in SCATTERED}
    record: dict[str, list[float]] = {}
    for name, ratings in sets.items():
        for epsilon in (np.inf, 8.0, 1.0):
            numbers = np.mean([measured(ratings, epsilon, seed) for seed in range(SPLITS)], axis=0)
            record[f"{name}; {epsilon:g}"] = [round(float(number), 3) for number in numbers]
            print(name, epsilon, record[f"{name}; {epsilon:g}"], flush=True)
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
