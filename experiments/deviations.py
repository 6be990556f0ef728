"""How often ratings are within the deviations of model `gp`: held-out ratings of made-up people, and of MovieLens.

    python experiments/deviations.py

Per data set and ε, it prints the RMSE of the held-out ratings, the root mean square of their deviations, and the share
of ratings within one and within two deviations of the prediction. If errors are normal, these are 0.68 and 0.95. All
numbers are means over `SPLITS` splits.
"""

import numpy as np

import hushrec
from hushrec.data import load, random_split

SPLITS, MOST_PEOPLE = 3, 300
SETS = [f"synthetic:users={people},items=200,ratings={30 * people}" for people in (60, 300, 2000)] + ["ml-100k"]


def measured(name: str, epsilon: float, seed: int) -> list[float]:
    """Return RMSE, deviation, and the shares within one and two deviations, of one split's first `MOST_PEOPLE`."""
    ratings = load(name)
    split = random_split(ratings.n_ratings, seed)
    predictor = hushrec.Recommender(epsilon=epsilon, seed=seed).fit(ratings.rows(split.train))._fitted.predictor
    test = ratings.rows(split.test[ratings.users[split.test] < MOST_PEOPLE])
    assert test.values is not None
    off = np.abs(predictor.predict(test.users, test.items) - test.values)
    wide = np.zeros(len(off))
    for user in np.unique(test.users):
        rows = test.users == user
        found = predictor.deviations(int(user))
        assert found is not None
        wide[rows] = found[test.items[rows]]
    sizes = [float(np.sqrt(np.mean(numbers**2))) for numbers in (off, wide)]
    return [*sizes, float((off < wide).mean()), float((off < 2 * wide).mean())]


def main() -> None:
    """Print a row of a table for each data set and ε."""
    print("| data | ε | RMSE | deviation | within 1 | within 2 |\n|---|---|---|---|---|---|")
    for name in SETS:
        for epsilon in (np.inf, 8.0, 1.0):
            numbers = np.mean([measured(name, epsilon, seed) for seed in range(SPLITS)], axis=0)
            print(f"| {name} | {epsilon:g} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
