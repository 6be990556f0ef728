"""Other libraries' personal models on the splits of an experiment; written beside its records as `peers.json`.

    python experiments/peers.py experiments/task1-ml-100k.toml --splits 3 [--only "Surprise SVD"] [--jobs 2]

What the file holds already is kept, and results are added one by one, so that slow ones can be left for another time.
Needs the extra `bench`: Surprise (SVD, SVD++) and myFM for tasks with ratings, implicit (BPR, ALS) for those without.
None of them is private: all see all ratings in one place. Default settings, but for the factors of myFM (10, as in its
documentation) and for those called *tuned*: their settings are the best of a few on a validation part, and stand in
the file under `chosen`.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hushrec.data.sources import load
from hushrec.evaluate import ranking_metrics, rating_metrics
from hushrec.experiments.config import make_plans, read_experiment
from hushrec.simulation.tasks import Metrics, RankingTask, RatingTask

MODULES = {"scikit-surprise": "surprise", "implicit": "implicit", "myfm": "myfm"}


def surprise_metrics(name: str, task: RatingTask) -> Metrics:
    """Error of Surprise's SVD or SVD++ on the test part, not clipped; for SVD also the quality of its lists."""
    import surprise

    options = {"cache_ratings": True} if name == "SVDpp" else {}  # the same numbers, several times sooner
    ratings, train, test = task.ratings, task.split.train, task.split.test
    reader = surprise.Reader(rating_scale=(task.scale.low, task.scale.high))
    rows = [(ratings.users[row], ratings.items[row], task.values[row], None) for row in train]
    trainset = surprise.Dataset(reader).construct_trainset(rows)
    model = getattr(surprise, name)(random_state=0, **options).fit(trainset)
    predicted = [model.predict(ratings.users[row], ratings.items[row], clip=False).est for row in test]
    metrics = rating_metrics(np.array(predicted), task.values[test])
    return metrics if name == "SVDpp" else metrics | task.measure_lists(surprise_scores(model, trainset, task))


def surprise_scores(model: Any, trainset: Any, task: RatingTask) -> Callable[[np.ndarray], np.ndarray]:
    """Predictions of SVD for all items, by user: μ + b_u + b_i + p_u · q_i, without what the training part lacks."""
    users, items = (
        np.array([known(index) if index in seen else -1 for index in range(count)])
        for known, seen, count in (
            (trainset.to_inner_uid, trainset._raw2inner_id_users, task.ratings.n_users),
            (trainset.to_inner_iid, trainset._raw2inner_id_items, task.ratings.n_items),
        )
    )
    knows_item = items >= 0
    item_part = np.where(knows_item, model.bi[items], 0.0)
    item_vectors = np.where(knows_item[:, None], model.qi[items], 0.0)

    def scores(who: np.ndarray) -> np.ndarray:
        knows = users[who] >= 0
        own = np.where(knows, model.bu[users[who]], 0.0)
        vectors = np.where(knows[:, None], model.pu[users[who]], 0.0)
        return np.asarray(trainset.global_mean + own[:, None] + item_part + vectors @ item_vectors.T)

    return scores


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


def rating_peers(task: RatingTask) -> dict[str, Callable[[], Metrics]]:
    """Error of each on the test part, and the lists of Surprise's SVD."""
    actual = task.values[task.split.test]
    return {
        "Surprise SVD": lambda: surprise_metrics("SVD", task),
        "Surprise SVDpp": lambda: surprise_metrics("SVDpp", task),
        "myFM": lambda: rating_metrics(bayesian_fm(task), actual),
    }


def ranking_peers(task: RankingTask) -> dict[str, Callable[[], dict[str, Any]]]:
    """Ranking of the held-out item by implicit's BPR and ALS as they ship, and by both and EASE tuned on validation."""
    return {
        "implicit BPR": lambda: measured(task, implicit_scores(task, "bpr")),
        "implicit ALS": lambda: measured(task, implicit_scores(task, "als")),
        "EASE, tuned": lambda: tuned(
            task, ease_scores, [{"regularization": r} for r in (300.0, 1000.0, 3000.0, 10000.0)]
        ),
        "implicit BPR, tuned": lambda: tuned(
            task,
            lambda part, **chosen: implicit_scores(part, "bpr", **chosen),
            [{"factors": f, "iterations": n} for f in (16, 100) for n in (60, 100)],
        ),
        "implicit ALS, tuned": lambda: tuned(
            task,
            lambda part, **chosen: implicit_scores(part, "als", **chosen),
            [{"factors": f, "regularization": r} for f in (16, 32, 64) for r in (3.0, 10.0, 30.0)],
        ),
    }


def tuned(task: RankingTask, scores: Callable[..., np.ndarray], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Metrics with the best choice on one more held-out item of everybody; the choice itself stands under `chosen`."""
    inner = task.validation(seed=1)
    best = max(choices, key=lambda chosen: measured(inner, scores(inner, **chosen))["auc"])
    return measured(task, scores(task, **best)) | {"chosen": best}


def measured(task: RankingTask, scores: np.ndarray) -> Metrics:
    """Ranking metrics of `(n_users, n_items)` scores on the held-out items."""
    held_out = task.ratings.users[task.split.test], task.ratings.items[task.split.test]
    return ranking_metrics(lambda who: scores[who], *held_out, task.starts, task.items)


def actions(task: RankingTask) -> sparse.csr_matrix:
    """Who met what in the training part, `(n_users, n_items)`."""
    ratings, rows = task.ratings, task.split.train
    return sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (ratings.users[rows], ratings.items[rows])),
        shape=(ratings.n_users, ratings.n_items),
    )


def implicit_scores(task: RankingTask, kind: str, **options: Any) -> np.ndarray:
    """Scores of one of implicit's models."""
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking

    model = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind](
        random_state=0, use_gpu=False, **options
    )
    model.fit(actions(task), show_progress=False)
    return np.asarray(model.user_factors, np.float64) @ np.asarray(model.item_factors, np.float64).T


def ease_scores(task: RankingTask, regularization: float) -> np.ndarray:
    """Scores X B of EASE (Steck 2019): B = I − P diag(P)⁻¹ with P = (XᵀX + λ I)⁻¹, so that its diagonal is 0."""
    met = actions(task)
    gram = (met.T @ met).toarray().astype(np.float64)
    inverse = np.linalg.inv(gram + regularization * np.eye(len(gram)))
    weights = np.eye(len(gram)) - inverse / np.diag(inverse)
    return np.asarray(met @ weights)


def peers_of(task: RatingTask | RankingTask) -> dict[str, Callable[[], Any]]:
    """The peers of a task by name."""
    return rating_peers(task) if isinstance(task, RatingTask) else ranking_peers(task)


def run_peer(file: Path, data_dir: str | None, seed: int, name: str) -> tuple[int, str, dict[str, Any], float]:
    """Run one peer on one split; return both, what was measured and the seconds it took."""
    task = read_tasks(file, data_dir)[seed]()
    started = time.perf_counter()
    return seed, name, dict(peers_of(task)[name]()), time.perf_counter() - started


def read_tasks(file: Path, data_dir: str | None) -> dict[int, Callable[[], Any]]:
    """How to make the task of each split of an experiment, by seed."""
    experiment = read_experiment(file)
    ratings = replace(load(experiment.data.set, data_dir=data_dir), catalogue=None)  # peers know rated items alone
    plans = {plan.settings.split_seed: plan.settings for plan in make_plans(experiment)}
    return {seed: functools.partial(settings.make_task, ratings) for seed, settings in plans.items()}


def installed() -> dict[str, str]:
    """Versions of those of the libraries that this Python has: each task needs some of them."""
    return {name: version(name) for name, module in MODULES.items() if find_spec(module)}


def main() -> None:
    """Runs the peers split by split, some at once if asked to; the file grows as they finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", action="append", help="a peer's name; may repeat")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    chosen = parser.parse_args()
    path = chosen.out / read_experiment(chosen.file).name / "peers.json"
    content = json.loads(path.read_text()) if path.is_file() else {"splits": {}}
    content["versions"] = content.get("versions", {}) | installed()
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = read_tasks(chosen.file, chosen.data_dir)
    names = chosen.only or list(peers_of(next(iter(tasks.values()))()))
    asked = [(seed, name) for name in names for seed in list(tasks)[: chosen.splits]]
    missing = [(seed, name) for seed, name in asked if name not in content["splits"].get(str(seed), {})]
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        running = [pool.submit(run_peer, chosen.file, chosen.data_dir, *one) for one in missing]
        for done in as_completed(running):
            seed, name, found, seconds = done.result()
            parts = {"splits": found, "seconds": round(seconds, 1), "chosen": found.pop("chosen", None)}
            for part, value in parts.items():
                if value is not None:
                    content.setdefault(part, {}).setdefault(str(seed), {})[name] = value
            path.write_text(json.dumps(content, indent=1) + "\n")
            print(f"split {seed}, {name}: {found} in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
