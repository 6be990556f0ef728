"""Accuracy of a run on shards: each part measures its own test ratings, and the driver process adds up the results."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.sharded.crew import Crew, Worker
from hushrec.evaluate import held_out_ranks, metrics_of_ranks
from hushrec.models.baselines import BIAS_PENALTY
from hushrec.models.cold import own_means
from hushrec.models.predictor import Arrays, Predictor
from hushrec.simulation.shard_parts import Seen, ShardPart
from hushrec.simulation.tasks import Candidates, same_for_all
from hushrec.simulation.training_problem import AnyProblem

Metrics = dict[str, float]


class Accuracy:
    """Measures the test accuracy of a run on shards, part by part, with the workers of `crew`.

    `seen` has numbers and sums of ratings over all parts, such as the training ratings of each item. `among` holds the
    candidate items for a model that ranks, and is None for a model that predicts ratings.
    """

    def __init__(self, crew: Crew, n_parts: int, seen: Seen, among: Candidates | None) -> None:
        self._crew, self._n_parts, self._seen, self._among = crew, n_parts, seen, among

    def measured(self, users: list[Any] | None, public: Arrays) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the test metrics of the model, and those of each non-personal model by name.

        `users` refers to the user vectors of each part; None if the protocol has none. `public` is the public table.
        """
        seen = self._seen._replace(by_person=np.empty(0, np.int64))
        biases = None if self._among is not None else self.item_biases()
        own = [None] * self._n_parts if users is None else users
        found = self._of_all(measure, self._crew.share(public), seen, self._among, biases, own=own)
        combine = _errors if self._among is None else _ranks
        named = {name: combine([one[name] for one in found]) for name in found[0]}
        return named.pop("model"), named

    def item_biases(self) -> FloatArray:
        """Return the item biases b_i that minimize Σ (r − b_u − b_i)² + λ (Σ b_u² + Σ b_i²), on the scale 1 to 5.

        Here r is a training rating minus the mean of all, b_u is the bias of person u, and λ is `BIAS_PENALTY`. n_u and
        n_i are the numbers of ratings of a person and of an item. The bias of a person follows from those of the items:
        b_u = Σ_i (r − b_i) / (n_u + λ). Inserting this leaves a linear system for the items alone, with the left side
        (n_i + λ) b_i − Σ_u Σ_j b_j / (n_u + λ), where u rated item i, and j are the items that u rated. The method of
        conjugate gradients solves the system, and the parts compute its matrix-vector products.
        """
        n_items, weights = len(self._seen.by_item), self._seen.by_item + BIAS_PENALTY

        def product(biases: FloatArray) -> FloatArray:
            shared = self._crew.share(np.asarray(biases, np.float64).ravel())
            return np.asarray(weights * biases.ravel() - sum(self._of_all(left_side, shared)))

        right = sum(self._of_all(right_side, self._seen))
        system = LinearOperator((n_items, n_items), matvec=product, dtype=np.float64)
        scaled = LinearOperator((n_items, n_items), matvec=lambda vector: vector.ravel() / weights, dtype=np.float64)
        solution, failed = cg(system, right, rtol=1e-10, M=scaled)
        if failed:
            raise ArithmeticError(
                f"conjugate gradients must converge for the item biases of the bias model, but did not in {failed}"
                " iterations. Train with --final, which measures nothing."
            )
        return np.asarray(solution)

    def _of_all(self, function: Callable[..., Any], *arguments: Any, own: list[Any] | None = None) -> list[Any]:
        """Call a function for each part, and return the results; `own` holds each part's individual first argument."""
        asked = [
            self._crew.ask(part, function, *(() if own is None else (own[part],)), *arguments)
            for part in range(self._n_parts)
        ]
        return [self._crew.get(one) for one in asked]


def right_side(worker: Worker, seen: Seen) -> FloatArray:
    """Return this part's contribution to the right side of the linear system in `Accuracy.item_biases`.

    For each item i it is the sum over raters u of d_ui − Σ_j d_uj / (n_u + λ), where d is a rating minus the mean, j
    runs over the n_u items that u rated, and λ is `BIAS_PENALTY`. `seen` has counts and sums over all parts.
    """
    problem: AnyProblem = worker.people.problem
    residuals = problem.values - float(worker.part.scale.to_unit(seen.mean))
    return np.bincount(problem.items, residuals - _spread(problem, residuals), problem.n_items).astype(np.float64)


def left_side(worker: Worker, biases: FloatArray) -> FloatArray:
    """Return this part's contribution to the sum Σ_u Σ_j b_j / (n_u + λ) in `Accuracy.item_biases`, for each item.

    u runs over the people of this part who rated the item, and j over the n_u items that u rated. The b_j are the
    `biases`, and λ is `BIAS_PENALTY`.
    """
    problem: AnyProblem = worker.people.problem
    return np.bincount(problem.items, _spread(problem, biases[problem.items]), problem.n_items).astype(np.float64)


def _spread(problem: AnyProblem, values: FloatArray) -> FloatArray:
    """Return, for each rating, the number that `own_sums` returns for the person who gave it."""
    return np.repeat(own_sums(problem, values), problem.rated_counts)


def own_sums(problem: AnyProblem, values: FloatArray) -> FloatArray:
    """Return, for each person, the sum of `values` over their ratings, divided by (number of ratings + `BIAS_PENALTY`).

    `values` has one number for each rating of the problem.
    """
    sums = np.bincount(problem.rating_users, values, problem.n_users)
    return np.asarray(sums / (problem.rated_counts + BIAS_PENALTY))


def measure(
    worker: Worker, users: Any, public: Arrays, seen: Seen, among: Candidates | None, biases: FloatArray | None
) -> dict[str, Any]:
    """Return one part's contribution to the test metrics, by name: "model" and the non-personal models, such as "bias".

    `users` are this part's user vectors, or None if the protocol has none. `seen` has numbers and sums of ratings over
    all parts. If the model predicts ratings, a contribution is Σ e², Σ |e| and the number of test errors e. Then
    `biases` are the item biases of the bias model, and `among` is None. If the model ranks, a contribution is what
    `held_out_ranks` returns: the ranks of the test items among the candidate items, `among`. Then `biases` is None.
    """
    part: ShardPart = worker.part
    problem, (who, items, values, held) = worker.people.problem, part.read()
    predictor: Predictor = worker.people.predictor(users, public)
    test = who[held], items[held]
    if among is None:
        assert biases is not None
        return _rating_errors(part, problem, predictor, test, values[held], seen, biases)
    released = predictor.released_support()
    scorers = {
        "model": predictor.scores,
        "popularity": same_for_all(seen.by_item.astype(np.float64)),
        "random": same_for_all(np.zeros(problem.n_items)),
    }
    if released is not None:
        scorers["private_popularity"] = same_for_all(released)
    rated = among.ranks[problem.items]
    return {
        name: held_out_ranks(among.scorer(score), test[0], among.ranks[test[1]], problem.starts, rated)
        for name, score in scorers.items()
    }


def _rating_errors(
    part: ShardPart,
    problem: AnyProblem,
    predictor: Predictor,
    test: tuple[IntArray, IntArray],
    actual: FloatArray,
    seen: Seen,
    biases: FloatArray,
) -> dict[str, FloatArray]:
    """Return Σ e², Σ |e| and the number of test errors e of one part, for the model and each non-personal model.

    `test` has users and items of the test ratings, and `actual` their values. Errors are on the file's scale.
    """
    assert part.scale is not None
    users, items = test
    mean = seen.mean
    with np.errstate(invalid="ignore", divide="ignore"):
        user_means = part.scale.from_unit(own_means(problem.starts, problem.values))
        item_means = seen.sums / seen.by_item
    unit = float(part.scale.to_unit(mean))
    own_biases = own_sums(problem, problem.values - unit - biases[problem.items])
    guesses = {
        "model": part.scale.from_unit(predictor.predict(users, items)),
        "global_mean": np.full(len(users), mean),
        "user_mean": np.nan_to_num(user_means, nan=mean)[users],
        "item_mean": np.nan_to_num(item_means, nan=mean)[items],
        "bias": part.scale.from_unit(unit + own_biases[users] + biases[items]),
    }
    errors = {name: guess - actual for name, guess in guesses.items()}
    return {name: np.array([e @ e, np.abs(e).sum(), len(e)]) for name, e in errors.items()}


def _errors(parts: list[FloatArray]) -> dict[str, float]:
    squares, absolute, count = np.sum(parts, axis=0)
    return {"rmse": math.sqrt(squares / count), "mae": float(absolute / count)}


def _ranks(parts: list[tuple[IntArray, IntArray, IntArray]]) -> dict[str, float]:
    above, tied, others = (np.concatenate(own) for own in zip(*parts, strict=True))
    return metrics_of_ranks(above, tied, others)
