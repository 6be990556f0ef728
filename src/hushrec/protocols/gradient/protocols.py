"""The gradient protocols `plain`, `isgld` and `sdcf` with the options of one run.

They differ in the values that a device trains on, the items that it reports, the fake errors of unrated items, and the
guarantee.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.budget.calibrate import fake_error_bound
from hushrec.budget.gaussian import epsilon_of_mu
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged, ParameterError, require
from hushrec.mechanisms.fake_errors import fake_errors
from hushrec.mechanisms.laplace import perturb_ratings
from hushrec.models import make_model
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, VectorPredictor, cold_start_of
from hushrec.protocols.configured import ConfiguredProtocol, Fleet, LedgerStatement, PrivacyLevel, Spending
from hushrec.protocols.fleet_size import sentence_of
from hushrec.protocols.gradient import levels, wording
from hushrec.protocols.gradient.device import GradientDevice
from hushrec.protocols.gradient.fleet_size import MEASURED
from hushrec.protocols.gradient.messages import REPORT, Terms
from hushrec.protocols.gradient.plausible import LEAST_REPORTS, SMALL_SHARE, SMALLEST_ITEM_NORM, too_short
from hushrec.protocols.gradient.prediction import Predictions, initial_user_vectors
from hushrec.protocols.gradient.selection import Selection, calibrate_devices
from hushrec.protocols.gradient.server import GradientServer
from hushrec.protocols.parties import State
from hushrec.protocols.protocol import TAKING_PART
from hushrec.randomness import Purpose, RandomStream, SeededRandomness

DECAY = 0.6  # γ of [SDCF], section 4.1
VALUE_DELTA = 1e-6
EPSILON_P_FACTOR = 2  # the default is ε_P = 2 ε_I, the smallest value that works for every profile
USUAL_CAP, USUAL_SHARE = 600, 0.05  # defaults of a network run: profile cap, and fraction of all items in a report
LEFT_OUT = "or leave --step out: training then lowers it until it converges."


class GradientProtocol(ConfiguredProtocol):
    """Base class of the protocols whose devices report gradients of item vectors."""

    phases: ClassVar[tuple[str, ...]] = (REPORT,)
    epsilon_g: float | None = None  # sets the range of fake errors; None if there are no fake errors

    # A run -----------------------------------------------------------------------------------------------------

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: MatrixFactorization) -> BoolArray:
        """Return whether each device takes part: it must have ratings and, in some runs, also unrated items."""
        hides_among_unrated = self.selection is not None and self.selection.profile_cap is None
        needs_unrated = model.learns_from_pairs or hides_among_unrated
        return np.asarray((rated_counts > 0) & (rated_counts < n_items + (not needs_unrated)))

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Terms:
        """Return the terms of a run from the options `rounds`, `step`, `reports_per_client` and `epoch_rounds`.

        In `sdcf`, `reports_per_client` is by default the mean number of ratings of the devices that take part, and
        `data_weight` is the number of these devices times `reports_per_client`, because the server must not know the
        number of ratings. In other protocols `data_weight` is the number of ratings.
        """
        model, rounds, reports_per_client = fleet.model, options["rounds"], options.get("reports_per_client")
        require(rounds >= 1, "rounds", "at least 1", rounds)
        data_weight = float(fleet.n_ratings)
        if self.selection is not None:
            n_active = len(fleet.rated_counts)
            mean_count = float(fleet.rated_counts.sum() / n_active)
            reports_per_client = mean_count if reports_per_client is None else reports_per_client
            data_weight = n_active * reports_per_client
            calibrate_devices(selections_of(fleet.protocols), fleet.rated_counts, fleet.n_items, reports_per_client)
        elif reports_per_client is not None:
            raise ParameterError(
                f"reports_per_client must be left out for protocol {self.name}, which reports all rated items."
            )
        rng = SeededRandomness(fleet.seed).stream(Purpose.REGULARIZATION)
        return Terms(
            model=model.name,
            n_factors=model.n_factors,
            n_items=fleet.n_items,
            n_side_rows=model.n_side_rows,
            reports_per_client=reports_per_client,
            data_weight=data_weight,
            step=options["step"],
            decay=DECAY,
            max_rounds=rounds,
            epoch_rounds=options.get("epoch_rounds"),
            user_regularization=model.draw_regularization(rng=rng),
            item_regularization=model.draw_regularization(rng=rng),
        )

    def expected_devices(self, terms: Terms) -> int | None:
        return None if terms.reports_per_client is None else round(terms.data_weight / terms.reports_per_client)

    def expectation(self, terms: Terms, model: str, n_devices: float) -> str | None:
        """Return sentences about the accuracy to expect of `sdcf` with model `mf`; None for any other pair."""
        return sentence_of(MEASURED, n_devices) if terms.reports_per_client is not None and model == "mf" else None

    def describe_report(self, terms: Terms, round_number: int, message: Any) -> None:
        """Return None: the person's page shows the report itself and what an attack recovers, not sentences."""
        return

    def make_device(self, terms: Terms, model: MatrixFactorization) -> GradientDevice:
        return GradientDevice(self, terms, model)

    def make_server(self, terms: Terms, model: MatrixFactorization, seed: int) -> GradientServer:
        """Return the server of a simulated run; raise `ParameterError` if devices would refuse its initial vectors."""
        vectors = model.initial_items(terms.n_items, rng=SeededRandomness(seed).stream(Purpose.ITEM_VECTORS))
        if too_short(vectors, terms.n_items):
            raise ParameterError(
                f"factors must be more than {model.n_factors} for model {model.name} on these items: over"
                f" {SMALL_SHARE:.0%} of their random vectors are shorter than {SMALLEST_ITEM_NORM:g}, which devices"
                ' refuse. Raise the option "factors".'
            )
        return GradientServer(terms, model, vectors)

    def make_network_server(self, terms: Terms, model: MatrixFactorization, public: Arrays) -> GradientServer:
        """Return the server of a network run, which limits how far one device can move the item vectors."""
        vectors = public["item_vectors"]
        return GradientServer(terms, model, vectors, least_reports=LEAST_REPORTS, bounds_reports=True)

    def table_width(self, terms: Terms) -> int:
        return terms.n_factors

    def losses(self, ledger: Ledger) -> dict[str, float]:
        return {"value_rho": ledger["value"].rho}

    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        selection, rating, rho = ledger["selection"], ledger["rating"], ledger["value"].rho
        draws = selection.permanent_draws
        capped = draws > 0 and selection.capped_draws == draws
        return LedgerStatement(
            unit=wording.selection_unit("the public cap" if capped else None),
            spent=selection.spent(),
            limit=ledger.limit("selection"),
            rounds=selection.rounds,
            sentences=wording.selection_sentences(draws, selection.spent(), selection.charged(), rho),
            not_covered=wording.ledger_not_covered(capped=capped, perturbed=rating.perturbations > 0),
            fixed=wording.BUDGET_IS_FIXED if draws else None,
            numbers={
                "committed": selection.charged(),
                "item_level": selection.item_level(),
                "permanent_draws": draws,
                "capped": capped,
                "value_rho": rho,
                "rating_epsilon": rating.charged(),
            },
        )

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> VectorPredictor:
        """Return the predictor of a simulated run; users who do not take part keep their initial vectors."""
        vectors = initial_user_vectors(problem)
        for user, state in private.items():
            vectors[user] = state["user_vector"]
        return Predictions(problem).predictor(vectors, np.asarray(public["item_vectors"], dtype=np.float64))

    def predictor_from(self, problem: Any, arrays: Arrays) -> VectorPredictor:
        model, users, items = problem.model, arrays["user_vectors"], arrays["item_vectors"]
        shapes = ((problem.n_users, model.user_width), (problem.n_items + model.n_side_rows, model.item_width))
        if (users.shape, items.shape) != shapes:
            raise ValueError(f"user and item vectors must have shapes {shapes}, got {(users.shape, items.shape)}")
        return VectorPredictor(model, users, items, cold_start_of(arrays))

    def failure(self, terms: Terms, public: Arrays, round_number: int) -> Diverged:
        """Return the error to raise if training fails, with advice.

        The error says that too many item vectors are near zero, if they are, or else that numbers grew too large.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            shrank = too_short(public["item_vectors"], terms.n_items)
        if shrank:
            return Diverged(
                f"training with {self.name} ended in round {round_number}: over {SMALL_SHARE:.0%} of the item vectors"
                f" are shorter than {SMALLEST_ITEM_NORM:g} at step {terms.step:g}, which devices refuse."
                f' Raise the option "factors", or lower the step; {LEFT_OUT}'
            )
        besides = f", or {self.divergence_advice}" if self.divergence_advice else ""
        return Diverged(
            f"training with {self.name} diverged in round {round_number}: its numbers grew beyond all bounds at step"
            f" {terms.step:g}. Lower the step{besides}; {LEFT_OUT}"
        )

    def statement(self, spending: Spending) -> dict[str, Any]:
        rho = spending.losses["value_rho"]
        own: dict[str, Any] = {"unit": None, "epsilon": np.inf, "delta": 0.0, "rounds": spending.rounds}
        own |= {"item_level": None} | self._guarantee(spending)
        return own | {"value_rho": value_statement(float(np.median(rho)), float(rho.max()))}

    @abstractmethod
    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        """Return the entries of `statement` that differ between protocols, such as `unit` and `not_covered`."""

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> VectorPredictor:
        model = make_model(
            record["model"], record["factors"], order=record.get("order"), attributes=arrays.get("attributes")
        )
        return VectorPredictor(model, arrays["user_vectors"], arrays["item_vectors"], cold_start_of(arrays))

    # A device --------------------------------------------------------------------------------------------------

    @property
    def selection(self) -> Selection | None:
        """The budgets of the randomized response that selects items; None if devices report all their rated items."""
        return None

    @property
    def rating_epsilon(self) -> float | None:
        """The ε of the noise that devices add to their ratings; None if they train on the ratings themselves."""
        return None

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        """Return the values that a device trains on: the ratings or, in `isgld`, the ratings plus noise."""
        return values

    def fake_errors(self, count: int, rated_errors: FloatArray, *, rng: RandomStream) -> FloatArray:
        """Return `count` errors to report for unrated items; empty for a protocol without selections.

        [SDCF], section 3.3: they are drawn from the normal distribution with mean and deviation of the person's real
        errors, `rated_errors`, truncated to [−α, α]; `epsilon_g` determines α.
        """
        if self.selection is None:
            return np.empty(0)
        mean, deviation = float(rated_errors.mean()), float(rated_errors.std())
        bound = float(fake_error_bound(mean, deviation, self.checked_epsilon_g()))
        return fake_errors(count, mean, deviation, bound, rng=rng)

    def checked_epsilon_g(self) -> float:
        """Return `epsilon_g`; raise `ParameterError` if it is None."""
        if self.epsilon_g is None:
            raise ParameterError("epsilon_g must be given for this model, which needs fake errors, got None.")
        return self.epsilon_g


@dataclass(frozen=True)
class Plain(GradientProtocol):
    """The protocol without privacy ("MF with SGLD" in [SDCF]): a device reports the gradients of all its rated items.

    Under model `bpr`, it also reports the gradients of their partners, the unrated items of its pairs.
    """

    name: ClassVar[str] = "plain"

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        return {"unit": wording.NOTHING_HIDDEN, "not_covered": [wording.ALL_THAT_IS_RATED]}


@dataclass(frozen=True)
class Isgld(GradientProtocol):
    """The protocol ISGLD of [SDCF], section 4.1: a device adds Laplace noise to its ratings once, then runs `plain`.

    `epsilon` is the privacy budget for the value of one rating. With `clamp`, noisy ratings are clipped to the rating
    scale, which costs no budget. ISGLD protects the value of a rating, not the fact that the rating exists.
    """

    name: ClassVar[str] = "isgld"
    divergence_advice: ClassVar[str] = "raise epsilon"

    epsilon: float
    clamp: bool = False

    def __post_init__(self) -> None:
        positive = 0 < self.epsilon < math.inf
        require(positive, "epsilon", "positive and finite", self.epsilon, "Choose a value such as 4.")

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        return {
            "unit": wording.ONE_VALUE,
            "epsilon": self.epsilon,
            "item_level": self.epsilon,
            "clamp": self.clamp,
            "not_covered": [wording.EXISTENCE, wording.USER_VECTOR, TAKING_PART],
        }

    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        rating, rho = ledger["rating"], ledger["value"].rho
        return LedgerStatement(
            unit=wording.ONE_VALUE,
            spent=rating.charged(),
            limit=ledger.limit("rating"),
            rounds=None,
            sentences=wording.rating_sentences(rating.perturbations, rho),
            not_covered=wording.ledger_not_covered(capped=False, perturbed=True),
            fixed=wording.NOISE_IS_DRAWN if rating.perturbations else None,
            numbers={"value_rho": rho, "rating_epsilon": rating.charged()},
        )

    @property
    def rating_epsilon(self) -> float:
        return self.epsilon

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        return perturb_ratings(values, self.epsilon, clamp=self.clamp, rng=rng)


@dataclass(frozen=True)
class Sdcf(GradientProtocol):
    """The protocol of [SDCF]: two-stage randomized response selects the items to report; unrated items get fake errors.

    `epsilon_p` is 2 · `epsilon_i` by default. `epsilon_g` is None for a model that learns from pairs of items, which
    needs no fake errors. With a `profile_cap`, the selection is calibrated for this public number of ratings instead of
    the person's own, so that it does not reveal how many items a person rated.
    """

    name: ClassVar[str] = "sdcf"
    pauses_for_level: ClassVar[bool] = True  # otherwise an open round could still draw bits at the old level

    epsilon_i: float
    epsilon_g: float | None
    epsilon_p: float | None = None
    profile_cap: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon_p", self.selection.epsilon_p)
        require(self.epsilon_g is None or self.epsilon_g >= 0, "epsilon_g", "at least 0", self.epsilon_g)

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Return the options of a network run, with defaults for `reports_per_client` and `profile_cap`.

        The defaults depend on `n_items` only, because the server cannot count ratings.
        """
        z, cap = options.get("reports_per_client"), options.get("profile_cap")
        return {
            **options,
            "reports_per_client": max(1.0, USUAL_SHARE * n_items) if z is None else z,
            "profile_cap": min(USUAL_CAP, max(1, n_items // 2)) if cap is None else cap,
        }

    def asks(self, terms: Terms) -> list[str]:
        draws = terms.epoch(terms.max_rounds) + 1
        often = "once, for the whole run" if draws == 1 else f"{draws:,} times, every {terms.epoch_rounds:,} rounds"
        covered = f"which items are reported, for any two profiles of up to {self.profile_cap:,} ratings"
        return [
            f"Up to {terms.max_rounds:,} rounds, each about {terms.reports_per_client:,.0f} items, drawn at random.",
            f"Permanent bits are drawn {often}. Each draw costs a person ε_P, for all rounds that use it.",
            f"The default ε_P is {self.selection.epsilon_p:g}. Every device chooses its own and does not reveal it.",
            f"The budget covers {covered}. It does not cover the gradient values sent with them.",
        ]

    def privacy_levels(self, terms: Terms, n_rated: int, own: str | None = None) -> list[PrivacyLevel]:
        return levels.explain_levels(terms, self, n_rated)

    def options_at(self, level: float, terms: Terms) -> dict[str, Any]:
        return {"epsilon_i": levels.check_level(level), "epsilon_p": None}

    def joining_costs(self, terms: Terms) -> dict[str, float]:
        """Return the cost of the run's first draw of permanent bits, by unit of the ledger.

        A person who joins agrees to this draw only, not to the draws of later permanent epochs.
        """
        return {"selection": self.selection.epsilon_p}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        return {"selection": epsilon}

    def make_ledger(self, terms: Terms) -> Ledger:
        """Return the ledger of a simulated person, which can pay for the permanent bits of every epoch."""
        return Ledger(selection=(terms.epoch(terms.max_rounds) + 1) * self.selection.epsilon_p)

    @cached_property
    def selection(self) -> Selection:
        epsilon_p = EPSILON_P_FACTOR * self.epsilon_i if self.epsilon_p is None else self.epsilon_p
        return Selection(self.epsilon_i, epsilon_p, self.profile_cap)

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        """Return the guarantee that holds for every device, with the largest ε of any device."""
        selections, terms = selections_of(spending.protocols), spending.terms
        spent = max(own.spent(terms, spending.rounds) for own in selections)
        caps = [own.profile_cap for own in selections]
        cap = None if None in caps else max(own for own in caps if own is not None)
        typical = int(np.median(spending.rated_counts)) if cap is None else cap
        epsilons_g = (own.epsilon_g for own in spending.protocols if isinstance(own, Sdcf))
        return {
            "unit": wording.selection_unit(cap),
            "epsilon": spent,
            "item_level": spent / typical,
            "item_level_unit": f"one rating replaced by another, for a person with {typical} ratings",
            "epsilon_i": max(own.epsilon_i for own in selections),
            "epsilon_p": max(own.epsilon_p for own in selections),
            "epsilon_g": max((own for own in epsilons_g if own is not None), default=None),
            "profile_cap": cap,
            "permanent_draws": terms.epoch(max(spending.rounds, 1)) + 1,
            "reports_per_client": terms.reports_per_client,
            "not_covered": wording.selection_not_covered(cap, from_pairs=spending.model.learns_from_pairs),
        }


def selections_of(protocols: Sequence[ConfiguredProtocol]) -> list[Selection]:
    """Return the selection budgets of each protocol; raise `ParameterError` if one has none."""
    found = [own.selection for own in protocols if isinstance(own, Sdcf)]
    if len(found) != len(protocols):
        raise ParameterError("all devices of a run must use protocol sdcf; only their budgets may differ.")
    return found


def value_statement(median: float, largest: float) -> dict[str, Any]:
    """Return the entry `value_rho` of a run's budget: the privacy loss of the gradient values sent.

    The loss of a device is its ρ of zero-concentrated DP. `median` and `largest` are the median and the largest ρ of
    all devices; either may be infinite. The result also has the ε of a device with the median ρ, at δ = `VALUE_DELTA`.
    It is that of a Gaussian mechanism with parameter μ, for ρ = μ²/2.
    """
    return {
        "median": median,
        "max": largest,
        "unit": wording.VALUE_LOSS,
        "median_epsilon": epsilon_of_mu(math.sqrt(2 * median), VALUE_DELTA),
        "delta": VALUE_DELTA,
    }
