"""The server side of the gradient protocols, Algorithm 2 of [SDCF]: adds the mean gradient to each item vector."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays
from hushrec.protocols.gradient.messages import REPORT, GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.plausible import LARGEST_GRADIENT, growth_of, report_bound
from hushrec.protocols.parties import Inbox, Name, RoundOver, ServerSide
from hushrec.randomness import RandomStream

_ROUNDING = 1 + 1e-6  # tolerance for a norm rounded to float32 on the wire


class GradientServer(ServerSide):
    """The computations of the server in a gradient protocol. It stores the public item vectors, nothing about devices.

    The server refuses a report with a gradient whose norm is above `max_gradient_norm`; if that is None, the bound is
    so large that it stops only extreme values. If `bounds_reports` is true, the server computes `max_report_norm` for
    every round from the expected number of devices, announces it, and refuses a report with a larger joint norm. An
    item with c gradients changes by their sum divided by max(c, `least_reports`), so that one report changes an item by
    at most `max_report_norm` / `least_reports`; model `fm` has a formula of its own.
    """

    phases = (REPORT,)

    def __init__(
        self,
        terms: Terms,
        model: MatrixFactorization,
        item_vectors: FloatArray,
        *,
        max_gradient_norm: float | None = None,
        least_reports: int = 1,
        bounds_reports: bool = False,
    ) -> None:
        self._terms, self._model = terms, model
        self._max_gradient_norm = max_gradient_norm
        self.max_report_norm: float | None = None
        self._least_reports, self._bounds_reports = least_reports, bounds_reports
        self.restore({"item_vectors": item_vectors})

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def public(self) -> Arrays:
        return {"item_vectors": self.item_vectors}

    def restore(self, public: Arrays) -> None:
        item_vectors = np.array(public["item_vectors"], dtype=np.float64)
        shape = (self._terms.n_items + self._model.n_side_rows, self._model.item_width)
        if item_vectors.shape != shape:
            raise ParameterError(f"item_vectors must have shape {shape}, got {item_vectors.shape}.")
        if not np.all(np.isfinite(item_vectors)):
            raise ParameterError("item_vectors must be finite numbers, got NaN or infinity.")
        self.item_vectors = item_vectors  # (n_items + n_side_rows, item_width), public

    @property
    def concern(self) -> str | None:
        longer = growth_of(self.item_vectors) if self._model.name == "mf" else None
        if longer is None:
            return None
        return (
            f"Item vectors are {longer:.2g} times as long as honest devices make them: a device sends false gradients,"
            " or the step is too large."
        )

    @property
    def can_grow(self) -> bool:
        return self._model.n_side_rows == 0

    def add_items(self, count: int, *, rng: RandomStream) -> None:
        if not self.can_grow:
            raise ParameterError(
                f"items cannot be added to a run of model {self._model.name}, which needs their attributes from the"
                " start. Start a new run."
            )
        self.item_vectors = np.concatenate([self.item_vectors, self._model.initial_vectors(count, rng=rng)])
        self._terms = replace(self._terms, n_items=len(self.item_vectors))

    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        if self._bounds_reports:
            self.max_report_norm = report_bound(self._terms, round_number, self.n_expected or len(members))
        announcement = ItemVectors(self._terms, round_number, self.item_vectors, self.max_report_norm)
        return dict.fromkeys(members, announcement)

    def check(self, address: Address, sender: Name, message: Any) -> None:
        if not isinstance(message, GradientReport):
            raise RemoteProtocolError(f"a report must be a GradientReport, got {type(message).__name__}.")
        if message.round_number != address.round_number:
            raise RemoteProtocolError(
                f"round_number of a report must be that of the open round, {address.round_number},"
                f" got {message.round_number}."
            )
        if message.gradients.shape[1] != self._model.item_width:
            raise RemoteProtocolError(
                f"gradients must have {self._model.item_width} numbers each, got {message.gradients.shape[1]}."
            )
        if len(message.items) == 0:
            return
        if message.items[-1] >= self._terms.n_items:
            raise RemoteProtocolError(f"item numbers of a report must be below {self._terms.n_items}, but one is not.")
        if len(message.items) > self._terms.most_items:
            raise RemoteProtocolError(
                f"a report must have at most {self._terms.most_items} items, got {len(message.items)}."
            )
        self._check_norms(message, address.round_number)

    def _check_norms(self, report: GradientReport, round_number: int) -> None:
        largest = self._max_gradient_norm
        if largest is None:
            largest = LARGEST_GRADIENT * self._terms.step_size(round_number) * self._terms.data_weight
        if np.linalg.norm(report.gradients, axis=1).max() > largest:
            raise RemoteProtocolError(
                f"each gradient must have a norm of at most {largest:g} in round {round_number}, but one is longer."
            )
        together = self.max_report_norm
        if together is not None and np.linalg.norm(report.gradients) > _ROUNDING * together:
            raise RemoteProtocolError(
                f"the gradients of a report must have a joint norm of at most {together:g} in round {round_number}, but"
                " the joint norm of this report is larger."
            )

    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> RoundOver:
        """Change the item vectors by the gradients in these reports, and end the round.

        An item's vector changes by the sum of its gradients, divided by their number or by `least_reports`, whichever
        is larger. Model `fm` has a formula of its own, in its `move_items`.
        """
        sums = np.zeros((self._terms.n_items, self._model.item_width))
        counts: IntArray = np.zeros(self._terms.n_items, dtype=np.int64)
        for _, report in reports:
            sums[report.items] += report.gradients  # the items of a report are distinct
            counts[report.items] += 1
        sums *= (counts / np.maximum(counts, self._least_reports))[:, None]
        prior = self._terms.step_size(address.round_number) * self._terms.item_regularization
        self.item_vectors = self._model.move_items(self.item_vectors, sums, counts, prior)
        return RoundOver()

    @property
    def largest_report(self) -> int:
        return 500 + self._terms.most_items * 4 * (1 + self._model.item_width)
