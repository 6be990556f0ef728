"""The masked protocol with its options chosen: plan and price of a run, its statement, and what it predicts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from hushrec.arrays import IntArray
from hushrec.budget.gaussian import Cohort, default_delta, run_mu
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged, LocalProtocolError, ParameterError
from hushrec.models.gaussian_process import Ratings
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.configured import BoolArray, ConfiguredProtocol, Fleet, Spending
from hushrec.protocols.masked.learning import find_learning, learning_of
from hushrec.protocols.masked.price import PricedPlan, price_plan
from hushrec.protocols.parties import DeviceSide, ServerSide, State

NOT_BY_MESSAGES = "a simulated masked run has no client objects yet; use engine cpu or reference."
SAFE_DEVIATIONS = 5.0  # below the expected number of survivors: a round with fewer cannot be revealed


@dataclass(frozen=True)
class PlanTerms:
    """The terms of a simulated run: the plan with its price. On the network `MaskedTerms` adds the rules of masks."""

    priced: PricedPlan

    @property
    def max_rounds(self) -> int:
        """How many rounds the plan has."""
        return len(self.priced.plan.rounds)


@dataclass(frozen=True)
class Masked(ConfiguredProtocol):
    """Sums only: one clipped, noised, masked table of integers per device and round."""

    name: ClassVar[str] = "masked"
    phases: ClassVar[tuple[str, ...]] = ("table",)

    epsilon: float
    delta: float | None = None
    dropout: float = 0.0
    survivors: float | None = None
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ParameterError(f"dropout must be at least 0 and below 1, got {self.dropout}.")
        if self.survivors is not None and not 0 < self.survivors <= 1:
            raise ParameterError(f"survivors must be above 0 and at most 1, got {self.survivors}.")
        run_mu(self.epsilon, self.delta or 1e-6)  # refuses an impossible budget

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: Any) -> BoolArray:
        """Everybody: whether a device takes part must not depend on its profile. An empty one sends zeros."""
        return np.ones(len(rated_counts), dtype=np.bool_)

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> PlanTerms:
        """Choose the plan from public numbers, and size the noise of every block."""
        devices = len(fleet.rated_counts)
        delta = default_delta(devices) if self.delta is None else self.delta
        cohort = Cohort(devices, self.expected_survivors(devices), self.corrupt)
        plan = learning_of(fleet.model).choose_plan(devices, run_mu(self.epsilon, delta))
        return PlanTerms(price_plan(plan, epsilon=self.epsilon, delta=delta, cohort=cohort))

    def expected_survivors(self, devices: int) -> float:
        """The smallest part of the devices that a round may end with: as asked for, or what dropout surely leaves."""
        if self.survivors is not None:
            return self.survivors
        absent = self.dropout * devices + SAFE_DEVIATIONS * math.sqrt(devices * self.dropout * (1 - self.dropout))
        return max(math.floor(devices - absent), 1) / devices

    def statement(self, spending: Spending) -> dict[str, Any]:
        terms: PlanTerms = spending.terms
        return terms.priced.statement(spending.model.columns.n_unlisted) | {"rounds": spending.rounds}

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        ratings = Ratings(arrays["rated_starts"], arrays["rated_items"], arrays["rated_values"])
        return find_learning(record["model"]).predictor_from(arrays, ratings)

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> Predictor:
        """Everybody's predictions from the public state of a `Learner`; devices keep nothing but their ratings."""
        learning = learning_of(problem.model)
        learner = learning.make_learner(problem.terms.priced.plan, problem.n_users)
        learner.restore(public)
        final = learner.round_number == problem.terms.max_rounds
        return learning.predictor(learner.table(), _ratings(problem), final=final)

    def predictor_from(self, problem: Any, arrays: Arrays) -> Predictor:
        if len(arrays["log_counts"]) != problem.n_items:
            raise ValueError("this table is of another catalogue.")
        return learning_of(problem.model).predictor_from(arrays, _ratings(problem))

    def failure(self, terms: Any, public: Arrays, round_number: int) -> Diverged:
        return Diverged(
            f"training with masked failed in round {round_number}: predictions are not finite."
            " Raise epsilon, or wait for more devices."
        )

    # A `Client` and a `Server` exchange masked tables by `device_round` and `server_round`; the engines of this
    # protocol add up tables without them.

    def make_device(self, terms: Any, model: Any) -> DeviceSide:
        raise LocalProtocolError(NOT_BY_MESSAGES)

    def make_server(self, terms: Any, model: Any, seed: int) -> ServerSide:
        raise LocalProtocolError(NOT_BY_MESSAGES)

    def make_ledger(self, terms: Any) -> Ledger:
        raise LocalProtocolError(NOT_BY_MESSAGES)

    def ledger_statement(self, ledger: Ledger) -> dict[str, Any]:
        raise LocalProtocolError(NOT_BY_MESSAGES)


def _ratings(problem: Any) -> Ratings:
    return Ratings(problem.starts, problem.items, problem.values)
