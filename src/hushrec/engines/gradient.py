"""What engines of gradient protocols share: vectors, the predictor made of them, and what to say when they diverge."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.client import SMALL_SHARE, SMALLEST_ITEM_NORM
from hushrec.engines.limits import too_short
from hushrec.errors import Diverged, ParameterError
from hushrec.messages import Terms
from hushrec.models.cold import ColdStart, own_means
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, VectorPredictor, cold_start_of
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.problem import Problem

GradientProblem: TypeAlias = Problem[MatrixFactorization, GradientProtocol, Terms]


class GradientEngine(ABC):
    """An engine whose state is a vector per user and a public table of item vectors."""

    name: ClassVar[str]

    def __init__(self, problem: GradientProblem) -> None:
        check_start(problem)
        self.problem = problem

    @property
    @abstractmethod
    def round_number(self) -> int: ...

    @property
    @abstractmethod
    def item_vectors(self) -> FloatArray:
        """V, `(n_items + n_side_rows, item_width)`: public."""

    @property
    @abstractmethod
    def user_vectors(self) -> FloatArray:
        """U, `(n_users, user_width)`: private to each user, joined here because this is a simulation."""

    @abstractmethod
    def value_rho(self) -> FloatArray:
        """The zCDP loss of the gradient values that each user has sent so far, `(n_users,)`."""

    def predictor(self) -> VectorPredictor:
        return VectorPredictor(self.problem.model, self.user_vectors, self.item_vectors, self._cold_start())

    def _cold_start(self) -> ColdStart | None:
        if not self.problem.model.fallback:
            return None
        moved = self.item_vectors[: self.problem.n_items].astype(np.float32) != self._first_vectors
        return ColdStart(self._own_means, ~moved.any(axis=1))

    @cached_property
    def _own_means(self) -> FloatArray:
        return own_means(self.problem.starts, self.problem.values)

    @cached_property
    def _first_vectors(self) -> npt.NDArray[np.float32]:
        """The items' vectors before the first round, as coarse as the coarsest engine keeps them."""
        return initial_item_vectors(self.problem)[: self.problem.n_items].astype(np.float32)

    def predictor_from(self, arrays: Arrays) -> VectorPredictor:
        users, items = arrays["user_vectors"], arrays["item_vectors"]
        if (users.shape, items.shape) != (self.user_vectors.shape, self.item_vectors.shape):
            raise ValueError("these vectors are of another problem")
        return VectorPredictor(self.problem.model, users, items, cold_start_of(arrays))

    def losses(self) -> dict[str, FloatArray]:
        """Values that are no numbers any more have no bound."""
        with np.errstate(over="ignore", invalid="ignore"):
            return {"value_rho": np.nan_to_num(self.value_rho(), nan=np.inf, posinf=np.inf)}

    def failure(self, round_number: int) -> Diverged:
        with np.errstate(over="ignore", invalid="ignore"):
            shrank = too_short(self.item_vectors, self.problem.n_items)
        return (collapsed if shrank else diverged)(self.problem, round_number)


def initial_item_vectors(problem: GradientProblem) -> FloatArray:
    """The public table before the first round, `(n_items + n_side_rows, item_width)`."""
    rng = SeededRandomness(problem.seed).stream(Purpose.ITEM_VECTORS)
    return problem.model.initial_items(problem.n_items, rng=rng)


def initial_user_vectors(problem: GradientProblem) -> FloatArray:
    """U before the first round, `(n_users, user_width)`: each user's own draw."""
    rows = [
        problem.model.initial_vectors(1, rng=SeededRandomness(problem.seed, user).stream(Purpose.USER_VECTOR))
        for user in range(problem.n_users)
    ]
    return np.concatenate(rows)


def check_start(problem: GradientProblem) -> None:
    """Refuses a start that no device would answer: with few factors, many random vectors are near zero."""
    if too_short(initial_item_vectors(problem), problem.n_items):
        raise ParameterError(
            f"factors must be more than {problem.model.n_factors} for model {problem.model.name} on these items: over"
            f" {SMALL_SHARE:.0%} of their random vectors are shorter than {SMALLEST_ITEM_NORM:g}, and no device answers"
            " such a start. Raise factors."
        )


def collapsed(problem: GradientProblem, round_number: int) -> Diverged:
    """Too many items came near zero, where errors would be ratings: devices stop."""
    return Diverged(
        f"training with {problem.protocol(0).name} ended in round {round_number}: over {SMALL_SHARE:.0%} of the item"
        f" vectors are shorter than {SMALLEST_ITEM_NORM:g} at step {problem.terms.step:g}, and no device answers those."
        " Raise factors, or change the step."
    )


def diverged(problem: GradientProblem, round_number: int) -> Diverged:
    """What went astray, when, and what to do."""
    protocol = problem.protocol(0)
    return Diverged(
        f"training with {protocol.name} diverged in round {round_number}: its numbers grew beyond all bounds at step"
        f" {problem.terms.step:g}. {protocol.divergence_advice()}"
    )
