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
from hushrec.simulation.shard_parts import Seen
from hushrec.simulation.tasks import Candidates, same_for_all
from hushrec.simulation.training_problem import AnyProblem

Metrics = dict[str, float]


class Accuracy:
    """Measures the test accuracy of a run on shards, part by part, with the workers of `crew`.

    `seen` has counts and sums of the ratings of all parts. `among` holds the candidate items for a model that ranks,
    and is None for a model that predicts ratings.
    """

    def __init__(self, crew: Crew, n_parts: int, seen: Seen, among: Candidates | None) -> None:
        self._crew, self._n_parts, self._seen, self._among = crew, n_parts, seen, among

    def measured(self, users: list[Any] | None, public: Arrays) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the test metrics of the model, and the test metrics of each non-personal model by name.

        `users` has, for each part, a reference to its user vectors for the part's worker. It is None if the protocol
        has no user vectors. `public` is the public table.
        """
        seen = self._seen._replace(by_person=np.empty(0, np.int64))
        own = [None] * self._n_parts if users is None else users
        combine: Callable[[list[Any]], Metrics]
        if self._among is None:
            found = self._of_all(sum_errors, self._crew.share(public), seen, self.item_biases(), own=own)
            combine = _errors
        else:
            found = self._of_all(rank_items, self._crew.share(public), seen, self._among, own=own)
            combine = _ranks
        named = {name: combine([one[name] for one in found]) for name in found[0]}
        return named.pop("model"), named

    def item_biases(self) -> FloatArray:
        """Return the item biases b_i that minimize Σ (r − b_u − b_i)² + λ (Σ b_u² + Σ b_i²), on the scale 1 to 5.

        Here r is a training rating minus the mean of all training ratings, b_u is the bias of person u, and λ is
        `BIAS_PENALTY`. n_u and n_i are the numbers of ratings of a person and of an item. The bias of a person follows
        from the item biases: b_u = Σ_i (r − b_i) / (n_u + λ). Inserting this leaves a linear system for the items
        alone, with the left side (n_i + λ) b_i − Σ_u Σ_j b_j / (n_u + λ), where u runs over the people who rated item
        i, and j over the items that u rated. The method of conjugate gradients solves the system, and the parts compute
        its matrix-vector products.
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
    """Return, for each rating, the sum of `values` over its person's n ratings, divided by n + `BIAS_PENALTY`."""
    return np.repeat(own_sums(problem, values), problem.rated_counts)


def own_sums(problem: AnyProblem, values: FloatArray) -> FloatArray:
    """Return, for each person, the sum of `values` over their ratings, divided by (number of ratings + `BIAS_PENALTY`).

    `values` has one number for each rating of the problem.
    """
    sums = np.bincount(problem.rating_users, values, problem.n_users)
    return np.asarray(sums / (problem.rated_counts + BIAS_PENALTY))


def sum_errors(worker: Worker, users: Any, public: Arrays, seen: Seen, biases: FloatArray) -> dict[str, FloatArray]:
    """Return Σ e², Σ |e| and the number of test errors e of one part, for "model" and each non-personal model.

    `users` are this part's user vectors, or None if the protocol has none. `seen` has counts and sums of the ratings of
    all parts, and `biases` are the item biases of the bias model. Errors are on the file's scale.
    """
    scale, problem, (who, all_items, values, held) = worker.part.scale, worker.people.problem, worker.part.read()
    people, items, mean = who[held], all_items[held], seen.mean
    with np.errstate(invalid="ignore", divide="ignore"):
        user_means = scale.from_unit(own_means(problem.starts, problem.values))
        item_means = seen.sums / seen.by_item
    unit = float(scale.to_unit(mean))
    own_biases = own_sums(problem, problem.values - unit - biases[problem.items])
    guesses = {
        "model": scale.from_unit(worker.people.predictor(users, public).predict(people, items)),
        "global_mean": np.full(len(people), mean),
        "user_mean": np.nan_to_num(user_means, nan=mean)[people],
        "item_mean": np.nan_to_num(item_means, nan=mean)[items],
        "bias": scale.from_unit(unit + own_biases[people] + biases[items]),
    }
    errors = {name: guess - values[held] for name, guess in guesses.items()}
    return {name: np.array([e @ e, np.abs(e).sum(), len(e)]) for name, e in errors.items()}


def rank_items(worker: Worker, users: Any, public: Arrays, seen: Seen, among: Candidates) -> dict[str, Any]:
    """Return the ranks of one part's test items among the candidate items, for "model" and each non-personal model.

    The ranks of a model are three arrays with an entry for each test item: how many other items that its person has not
    rated score higher, how many tie, and how many there are. `users` are this part's user vectors, or None if the
    protocol has none. `seen` has counts of the ratings of all parts.
    """
    problem, (who, items, _, held) = worker.people.problem, worker.part.read()
    predictor: Predictor = worker.people.predictor(users, public)
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
        name: held_out_ranks(among.scorer(score), who[held], among.ranks[items[held]], problem.starts, rated)
        for name, score in scorers.items()
    }


def _errors(parts: list[FloatArray]) -> dict[str, float]:
    squares, absolute, count = np.sum(parts, axis=0)
    return {"rmse": math.sqrt(squares / count), "mae": float(absolute / count)}


def _ranks(parts: list[tuple[IntArray, IntArray, IntArray]]) -> dict[str, float]:
    above, tied, others = (np.concatenate(own) for own in zip(*parts, strict=True))
    return metrics_of_ranks(above, tied, others)
