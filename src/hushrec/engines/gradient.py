"""The base class of engines for gradient protocols: it holds user vectors and item vectors, and makes predictors."""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import Diverged
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, VectorPredictor
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.prediction import Predictions
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.simulation.training_problem import TrainingProblem

GradientProblem: TypeAlias = TrainingProblem[MatrixFactorization, GradientProtocol, Terms]


class GradientEngine(ABC):
    """An engine of a protocol whose devices send gradients. Its state is one vector per user, and the item vectors."""

    name: ClassVar[str]

    def __init__(self, problem: GradientProblem) -> None:
        problem.protocol(0).make_server(problem.terms, problem.model, problem.seed)  # raises for bad initial vectors
        self.problem = problem
        self._predictions = Predictions(problem)

    @property
    @abstractmethod
    def round_number(self) -> int: ...

    @property
    @abstractmethod
    def item_vectors(self) -> FloatArray:
        """The item vectors V, `(n_items + n_side_rows, item_width)`; model `fm` has side rows, for item attributes."""

    @property
    @abstractmethod
    def user_vectors(self) -> FloatArray:
        """The user vectors U, `(n_users, user_width)`. On real devices each of them is private."""

    @abstractmethod
    def value_rho(self) -> FloatArray:
        """Return the privacy loss ρ (zCDP) of the gradient values that each user has sent so far, `(n_users,)`."""

    def predictor(self) -> VectorPredictor:
        return self._predictions.predictor(self.user_vectors, self.item_vectors)

    def predictor_from(self, arrays: Arrays) -> VectorPredictor:
        return self._predictions.predictor_from(arrays)

    def losses(self) -> dict[str, FloatArray]:
        """Return the privacy losses under the name `value_rho`; infinite for users whose values have overflowed."""
        with np.errstate(over="ignore", invalid="ignore"):
            return {"value_rho": np.nan_to_num(self.value_rho(), nan=np.inf, posinf=np.inf)}

    def failure(self, round_number: int) -> Diverged:
        return self.problem.protocol(0).failure(self.problem.terms, {"item_vectors": self.item_vectors}, round_number)
