"""The base class of engines for gradient protocols, and the selection parameters of all users, as arrays."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.errors import Diverged
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, VectorPredictor
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.prediction import Predictions
from hushrec.protocols.gradient.protocols import GradientProtocol, selections_of
from hushrec.protocols.gradient.selection import calibrate_devices
from hushrec.simulation.training_problem import TrainingProblem, active_protocols

GradientProblem: TypeAlias = TrainingProblem[MatrixFactorization, GradientProtocol, Terms]


class GradientEngine(ABC):
    """An engine of a protocol whose devices send gradients. Its state is one vector per user, and the item vectors."""

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
        """The item vectors V, `(n_items + n_side_rows, item_width)`.

        Only model `fm` has side rows: one for each item attribute, and one for the constant.
        """

    @property
    @abstractmethod
    def user_vectors(self) -> FloatArray:
        """The user vectors U, `(n_users, user_width)`. On real devices each of them is private."""

    @abstractmethod
    def run_round(self) -> None: ...

    @abstractmethod
    def value_rho(self) -> FloatArray:
        """Return the privacy loss ρ (zCDP) of the gradient values that each user has sent so far, `(n_users,)`."""

    def predictor(self) -> VectorPredictor:
        return self._predictions.predictor(self.user_vectors, self.item_vectors)

    def predictor_from(self, arrays: Arrays) -> VectorPredictor:
        return self.problem.protocol(0).predictor_from(self.problem, arrays)

    def losses(self) -> dict[str, FloatArray]:
        """Return a dict with one entry, `value_rho`; a loss that has overflowed or is not a number is ∞."""
        with np.errstate(over="ignore", invalid="ignore"):
            return {"value_rho": np.nan_to_num(self.value_rho(), nan=np.inf, posinf=np.inf)}

    def failure(self, round_number: int) -> Diverged:
        return self.problem.protocol(0).failure(self.problem.terms, {"item_vectors": self.item_vectors}, round_number)


def selection_probabilities(problem: GradientProblem) -> SelectionProbabilities[FloatArray] | None:
    """Return all users' selection probabilities, 0 for users who take no part; None in a protocol without selection."""
    z = problem.terms.reports_per_client
    if z is None:
        return None
    active = problem.active_users
    own = selections_of(active_protocols(problem.protocols, active))
    solved = calibrate_devices(own, problem.rated_counts[active], problem.n_items, z)
    everybody = {name: np.zeros(problem.n_users) for name in vars(solved)}
    for name, values in vars(solved).items():
        everybody[name][active] = values
    return SelectionProbabilities(**everybody)


def user_epsilon_g(problem: GradientProblem) -> FloatArray:
    """Return ε_g of every user, `(n_users,)`: the larger it is, the closer to 0 are the user's fake errors.

    It is ∞ for model `bpr`, which has no fake errors.
    """
    pairs = problem.model.learns_from_pairs
    own = [np.inf if pairs else protocol.checked_epsilon_g() for protocol in problem.protocols]
    return np.resize(np.array(own, np.float64), problem.n_users)


def profile_caps(problem: GradientProblem) -> IntArray:
    """Return each user's profile cap, `(n_users,)`; `n_items` for a user without one."""
    caps = [None if protocol.selection is None else protocol.selection.profile_cap for protocol in problem.protocols]
    return np.resize([problem.n_items if cap is None else cap for cap in caps], problem.n_users)
