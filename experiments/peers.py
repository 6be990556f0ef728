"""Other libraries' personal models on the splits of an experiment; written beside its records as `peers.json`.

    python experiments/peers.py experiments/task1-ml-100k.toml --splits 3 [--data-dir DIR]

Needs the extra `bench`: Surprise (SVD, SVD++), myFM, implicit (BPR, ALS). None of them is private: all see all ratings
in one place. Default settings throughout, but for the factors of myFM (10, as in its documentation).
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from scipy import sparse

from hushrec.data.sources import load
from hushrec.evaluate import ranking_metrics, rating_metrics
from hushrec.experiments.config import make_plans, read_experiment
from hushrec.tasks import RankingTask, RatingTask


def surprise_model(name: str, task: RatingTask) -> np.ndarray:
    """Predictions of Surprise's SVD or SVD++ on the test part, not clipped."""
    import surprise

    ratings, train, test = task.ratings, task.split.train, task.split.test
    reader = surprise.Reader(rating_scale=(task.scale.low, task.scale.high))
    rows = [(ratings.users[row], ratings.items[row], task.values[row], None) for row in train]
    trainset = surprise.Dataset(reader).construct_trainset(rows)
    model = getattr(surprise, name)(random_state=0).fit(trainset)
    return np.array([model.predict(ratings.users[row], ratings.items[row], clip=False).est for row in test])


def bayesian_fm(task: RatingTask) -> np.ndarray:
    """Predictions of myFM's Bayesian factorization machine on one-hot users and items."""
    import myfm

    ratings = task.ratings
    width = ratings.n_users + ratings.n_items

    def one_hot(rows: np.ndarray) -> sparse.csr_matrix:
        columns = np.stack([ratings.users[rows], ratings.n_users + ratings.items[rows]], axis=1).ravel()
        return sparse.csr_matrix(
            (np.ones(len(columns)), columns, np.arange(0, len(columns) + 1, 2)), shape=(len(rows), width)
        )

    train, test = task.split.train, task.split.test
    groups = [ratings.n_users, ratings.n_items]
    model = myfm.MyFMRegressor(rank=10, random_seed=0)
    model.fit(one_hot(train), task.values[train], n_iter=200, n_kept_samples=180, group_shapes=groups)
    return model.predict(one_hot(test))


def rating_peers(task: RatingTask) -> dict[str, dict[str, float]]:
    """Error of each on the test part."""
    actual = task.values[task.split.test]
    found = {f"Surprise {name}": surprise_model(name, task) for name in ("SVD", "SVDpp")}
    found["myFM"] = bayesian_fm(task)
    return {name: rating_metrics(predicted, actual) for name, predicted in found.items()}


def ranking_peers(task: RankingTask) -> dict[str, dict[str, float]]:
    """Ranking of the held-out item by implicit's BPR and ALS."""
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking

    ratings, rows = task.ratings, task.split.train
    met = sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (ratings.users[rows], ratings.items[rows])),
        shape=(ratings.n_users, ratings.n_items),
    )
    found = {}
    for name, kind in (("implicit BPR", BayesianPersonalizedRanking), ("implicit ALS", AlternatingLeastSquares)):
        model = kind(random_state=0)
        model.fit(met, show_progress=False)
        users, items = np.asarray(model.user_factors, np.float64), np.asarray(model.item_factors, np.float64)
        held_out = ratings.users[task.split.test], ratings.items[task.split.test]
        found[name] = ranking_metrics(
            lambda who, users=users, items=items: users[who] @ items.T, *held_out, task.starts, task.items
        )
    return found


def main() -> None:
    """Runs the peers split by split; the file grows as they finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "records")
    chosen = parser.parse_args()
    experiment = read_experiment(chosen.file)
    ratings = load(experiment.data.set, data_dir=chosen.data_dir)
    plans = {plan.settings.split_seed: plan for plan in make_plans(experiment, n_splits=chosen.splits)}
    versions = {name: version(name) for name in ("scikit-surprise", "implicit", "myfm")}
    splits = {}
    for seed, plan in plans.items():
        task = plan.settings.make_task(ratings)
        splits[str(seed)] = rating_peers(task) if isinstance(task, RatingTask) else ranking_peers(task)
        content = {"versions": versions, "splits": splits}
        path = chosen.out / experiment.name / "peers.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"split {seed}: {splits[str(seed)]}", flush=True)


if __name__ == "__main__":
    main()
