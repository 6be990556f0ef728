"""What a device sends: `plain`, `isgld` and `sdcf`, each a small frozen object that a client holds.

A protocol answers four questions for its client: on which values to train, which items to report, which error
stands in for an unrated one, and what all that releases. The model says what is learned from it.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.accountants import gaussian_epsilon
from hushrec.budget.calibrate import fake_error_bound
from hushrec.budget.events import Event, RatingsPerturbed
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged, ParameterError
from hushrec.mechanisms.fake_errors import fake_errors
from hushrec.mechanisms.laplace import perturb_ratings
from hushrec.models import make_model
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, VectorPredictor, cold_start_of
from hushrec.protocols.configured import BoolArray, ConfiguredProtocol, Fleet, Spending
from hushrec.protocols.gradient import wording
from hushrec.protocols.gradient.device import GradientDevice
from hushrec.protocols.gradient.fleet_size import fleet_sentence
from hushrec.protocols.gradient.messages import REPORT, Terms
from hushrec.protocols.gradient.plausible import LEAST_REPORTS, SMALL_SHARE, SMALLEST_ITEM_NORM, too_short
from hushrec.protocols.gradient.prediction import Predictions, initial_user_vectors
from hushrec.protocols.gradient.selection import Selection, calibrate_devices
from hushrec.protocols.gradient.server import GradientServer
from hushrec.protocols.parties import State
from hushrec.protocols.wording import TAKING_PART
from hushrec.randomness import Purpose, RandomStream, SeededRandomness
from hushrec.scale import HIGHEST, LOWEST

DECAY = 0.6  # γ of [SDCF], section 4.1
VALUE_DELTA = 1e-6
USUAL_CAP, USUAL_SHARE = 600, 0.05  # of a network run: ratings, and share of the catalogue in a report


@dataclass(frozen=True)
class RatingNoise:
    """Laplace noise on rating values. `clamp` brings them back to the scale, which costs nothing and helps."""

    epsilon: float
    clamp: bool

    def added(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        """The values with noise."""
        return perturb_ratings(values, LOWEST, HIGHEST, self.epsilon, clamp=self.clamp, rng=rng)


LEFT_OUT = "or leave --step out: training then lowers it until it holds."


class GradientProtocol(ConfiguredProtocol):
    """A protocol whose devices send gradients of items: which items, which errors, which noise."""

    phases: ClassVar[tuple[str, ...]] = (REPORT,)

    # A run -----------------------------------------------------------------------------------------------------

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: MatrixFactorization) -> BoolArray:
        """Return which devices have ratings and, where the model or the selection needs them, unrated items."""
        needs_unrated = model.learns_from_pairs or self.needs_unrated
        return np.asarray((rated_counts > 0) & (rated_counts < n_items + (not needs_unrated)))

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Terms:
        return make_terms(self, fleet, options)

    def expected_devices(self, terms: Terms) -> int | None:
        """Return N / z, the number of devices, of a protocol that selects items."""
        return None if terms.reports_per_client is None else round(terms.data_weight / terms.reports_per_client)

    def expectation(self, terms: Terms, model: str, n_devices: float) -> str | None:
        """Return the accuracy that as many devices of ML-100K reached, for `mf` with selections."""
        return fleet_sentence(n_devices) if terms.reports_per_client is not None and model == "mf" else None

    def make_device(self, terms: Terms, model: MatrixFactorization) -> GradientDevice:
        return GradientDevice(self, terms, model)

    def make_server(self, terms: Terms, model: MatrixFactorization, seed: int) -> GradientServer:
        """Return the server; refuse initial vectors that devices would refuse: with few factors, many are near zero."""
        vectors = model.initial_items(terms.n_items, rng=SeededRandomness(seed).stream(Purpose.ITEM_VECTORS))
        if too_short(vectors, terms.n_items):
            raise ParameterError(
                f"factors must be more than {model.n_factors} for model {model.name} on these items: over"
                f" {SMALL_SHARE:.0%} of their random vectors are shorter than {SMALLEST_ITEM_NORM:g}, and no device"
                " answers such a start. Raise factors."
            )
        return GradientServer(terms, model, vectors)

    def make_network_server(self, terms: Terms, model: MatrixFactorization, public: Arrays) -> GradientServer:
        """Return the server with bounds on how far one device can move the item vectors."""
        vectors = public["item_vectors"]
        return GradientServer(terms, model, vectors, least_reports=LEAST_REPORTS, bounds_reports=True)

    def joining_costs(self, terms: Terms) -> dict[str, float]:
        """One draw of permanent bits; each further epoch asks again."""
        return {} if self.selection is None else {"selection": self.selection_limit}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        return {"selection": epsilon}

    def make_ledger(self, terms: Terms) -> Ledger:
        """Simulated people agree to every announced draw of permanent bits."""
        n_epochs = terms.epoch(terms.max_rounds) + 1
        return Ledger(selection=n_epochs * self.selection_limit)

    def losses(self, ledger: Ledger) -> dict[str, float]:
        return {"value_rho": ledger["value"].rho}

    def ledger_statement(self, ledger: Ledger) -> dict[str, Any]:
        selection, rating = ledger["selection"], ledger["rating"]
        capped = selection.permanent_draws > 0 and selection.capped_draws == selection.permanent_draws
        return {
            "unit": wording.ledger_unit(capped=capped),
            "committed": selection.committed(),
            "spent": selection.spent(),
            "limit": ledger.limit("selection"),
            "item_level": selection.item_level(),
            "rounds": selection.rounds,
            "permanent_draws": selection.permanent_draws,
            "capped": capped,
            "value_rho": ledger["value"].rho,
            "rating_epsilon": rating.charged(),
            "also": [f"gradient values so far: rho {ledger['value'].rho:.3g}"],
            "not_covered": wording.ledger_not_covered(capped=capped, perturbed=rating.perturbations > 0),
        }

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> VectorPredictor:
        """Users who take no part keep the vector that they start with."""
        vectors = initial_user_vectors(problem)
        for user, state in private.items():
            vectors[user] = state["user_vector"]
        return Predictions(problem).predictor(vectors, np.asarray(public["item_vectors"], dtype=np.float64))

    def predictor_from(self, problem: Any, arrays: Arrays) -> VectorPredictor:
        return Predictions(problem).predictor_from(arrays)

    def failure(self, terms: Terms, public: Arrays, round_number: int) -> Diverged:
        """Return the error: too many item vectors are near zero, where errors show ratings, or numbers overflowed."""
        with np.errstate(over="ignore", invalid="ignore"):
            shrank = too_short(public["item_vectors"], terms.n_items)
        if shrank:
            return Diverged(
                f"training with {self.name} ended in round {round_number}: over {SMALL_SHARE:.0%} of the item vectors"
                f" are shorter than {SMALLEST_ITEM_NORM:g} at step {terms.step:g}, and no device answers those."
                f" Raise factors, or lower the step; {LEFT_OUT}"
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
        """Unit, epsilon and what is not covered."""

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> VectorPredictor:
        model = make_model(
            record["model"], record["factors"], order=record.get("order"), attributes=arrays.get("attributes")
        )
        return VectorPredictor(model, arrays["user_vectors"], arrays["item_vectors"], cold_start_of(arrays))

    # A device --------------------------------------------------------------------------------------------------

    @property
    def selection(self) -> Selection | None:
        """The randomized response that chooses the items to report; None where just the rated ones are reported."""
        return None

    @property
    def rating_noise(self) -> RatingNoise | None:
        """The noise on the values that are trained on; None where those are the ratings."""
        return None

    @property
    def fake_range(self) -> float | None:
        """ε_g, from which the range of the fake errors of unrated items follows; None where there are no fakes."""
        return None

    @property
    def needs_unrated(self) -> bool:
        """Whether a device that rated everything must stay out: it has nothing to hide among."""
        return self.selection is not None and self.selection.profile_cap is None

    @property
    def selection_limit(self) -> float:
        """What the ledger allows for selections unless the person raises it: one draw of the permanent bits."""
        return 0.0 if self.selection is None else self.selection.epsilon_p

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        """The values to train on, drawn once when a rating is stored."""
        return values if self.rating_noise is None else self.rating_noise.added(values, rng=rng)

    def perturbation_events(self) -> list[Event]:
        """Return the budget events of training on perturbed values."""
        return [] if self.rating_noise is None else [RatingsPerturbed(self.rating_noise.epsilon)]

    def fake_errors(self, count: int, rated_errors: FloatArray, *, rng: RandomStream) -> FloatArray:
        """Errors for selected items that are not rated, from the normal law of this round's real errors, within ±α.

        [SDCF], section 3.3.
        """
        if self.selection is None:
            return np.empty(0)
        bound_from = self.checked_fake_range()
        mean, deviation = float(rated_errors.mean()), float(rated_errors.std())
        bound = float(fake_error_bound(mean, deviation, bound_from))
        return fake_errors(count, mean, deviation, bound, rng=rng)

    def checked_fake_range(self) -> float:
        """ε_g, refused where there is none: a model that does not learn from pairs needs fakes."""
        if self.fake_range is None:
            raise ParameterError("epsilon_g must be given: this model needs fake errors.")
        return self.fake_range


@dataclass(frozen=True)
class Plain(GradientProtocol):
    """The non-private baseline: gradients of the rated items, nothing hidden ("MF with SGLD")."""

    name: ClassVar[str] = "plain"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls()

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        return {
            "unit": wording.NOTHING_HIDDEN,
            "not_covered": [wording.ALL_THAT_IS_RATED],
        }


@dataclass(frozen=True)
class Isgld(GradientProtocol):
    """The naive baseline of [SDCF], section 4.1: Laplace noise on each rating once, then `plain`.

    Covers one rating's value, not that it exists.
    """

    name: ClassVar[str] = "isgld"

    epsilon: float
    clamp: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ParameterError(f"epsilon must be positive and finite, got {self.epsilon}.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(options["epsilon"], options["clamp"])

    divergence_advice: ClassVar[str] = "raise epsilon"

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        return {
            "unit": wording.ONE_VALUE,
            "epsilon": self.epsilon,
            "item_level": self.epsilon,
            "clamp": self.clamp,
            "not_covered": [wording.EXISTENCE, wording.USER_VECTOR, TAKING_PART],
        }

    @property
    def rating_noise(self) -> RatingNoise:
        return RatingNoise(self.epsilon, self.clamp)


@dataclass(frozen=True)
class Sdcf(GradientProtocol):
    """The paper's protocol: two-stage randomized response, fake errors for unrated items.

    `epsilon_p` is 2 · `epsilon_i` unless given. `epsilon_g` is None for a model that learns from pairs: its unrated
    items have errors of their own, and no fakes are drawn. `profile_cap` calibrates from a public number of ratings,
    so that the selections no longer depend on how many there are.
    """

    name: ClassVar[str] = "sdcf"

    epsilon_i: float
    epsilon_g: float | None
    epsilon_p: float | None = None
    profile_cap: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon_p", self.selection.epsilon_p)
        if self.epsilon_g is not None and not self.epsilon_g >= 0:
            raise ParameterError(f"epsilon_g must be 0 or more (0 is α = ∞), got {self.epsilon_g}.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(options["epsilon_i"], options.get("epsilon_g"), options["epsilon_p"], options["profile_cap"])

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Without ratings to count, a device reports one item in twenty, and profiles are capped.

        The cap is 600, or half of a smaller catalogue.
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
            f"Up to {terms.max_rounds:,} rounds, each about {terms.reports_per_client:,.0f} items chosen by chance.",
            f"Permanent bits are drawn {often}. Each draw costs a person ε_P, over all rounds that use it.",
            f"The usual ε_P is {self.selection.epsilon_p:g}. Every device chooses its own and does not tell it.",
            f"It covers {covered}. It does not cover the numbers sent with them.",
        ]

    @cached_property
    def selection(self) -> Selection:
        return Selection.checked(self.epsilon_i, self.epsilon_p, self.profile_cap)

    @property
    def fake_range(self) -> float | None:
        return self.epsilon_g

    def _guarantee(self, spending: Spending) -> dict[str, Any]:
        """Return the largest ε that any device spent, and everything that is not covered for at least one of them."""
        selections, terms = selections_of(spending.protocols), spending.terms
        spent = max(own.spent(terms, spending.rounds) for own in selections)
        caps = [own.profile_cap for own in selections]
        cap = None if None in caps else max(own for own in caps if own is not None)
        typical = int(np.median(spending.rated_counts)) if cap is None else cap
        epsilons_g = [own.fake_range for own in gradient_protocols(spending.protocols) if own.fake_range is not None]
        return {
            "unit": wording.selection_unit(cap),
            "epsilon": spent,
            "item_level": spent / typical,
            "item_level_unit": wording.item_level_unit(typical),
            "epsilon_i": max(own.epsilon_i for own in selections),
            "epsilon_p": max(own.epsilon_p for own in selections),
            "epsilon_g": max(epsilons_g, default=None),
            "profile_cap": cap,
            "permanent_draws": terms.epoch(max(spending.rounds, 1)) + 1,
            "reports_per_client": terms.reports_per_client,
            "not_covered": wording.selection_not_covered(cap, from_pairs=spending.model.learns_from_pairs),
        }


def selections_of(protocols: Sequence[ConfiguredProtocol]) -> list[Selection]:
    """Return the selection of every device; refuse devices whose protocol selects nothing."""
    found = [own.selection for own in gradient_protocols(protocols) if own.selection is not None]
    if len(found) != len(protocols):
        raise ParameterError("all users of a run must speak the same protocol; budgets may differ.")
    return found


def gradient_protocols(protocols: Sequence[ConfiguredProtocol]) -> list["GradientProtocol"]:
    """Return the protocols among these that send gradients."""
    return [own for own in protocols if isinstance(own, GradientProtocol)]


def make_terms(protocol: GradientProtocol, fleet: Fleet, options: Mapping[str, Any]) -> Terms:
    """The terms of a run: options `rounds`, `step`, `reports_per_client` and `epoch_rounds`.

    z is |R| / n unless given, both counting those who take part alone: who rated everything has nothing to hide among,
    and would bring z to the number of items. With selection, N = n z stands for |R|, which the server must not know;
    without, N = |R|.
    """
    model, step, rounds = fleet.model, options["step"], options["rounds"]
    if rounds < 1:
        raise ParameterError(f"rounds must be at least 1, got {rounds}.")
    if not 0 < step < np.inf:
        raise ParameterError(f"step must be positive and finite, got {step}.")
    reports_per_client, epoch_rounds = options.get("reports_per_client"), options.get("epoch_rounds")
    if epoch_rounds is not None and epoch_rounds < 1:
        raise ParameterError(f"epoch_rounds must be at least 1, got {epoch_rounds}.")
    data_weight = float(fleet.n_ratings)
    if protocol.selection is not None:
        n_active = len(fleet.rated_counts)
        mean_count = float(fleet.rated_counts.sum() / n_active)
        reports_per_client = mean_count if reports_per_client is None else reports_per_client
        if not 0 < reports_per_client < fleet.n_items:
            raise ParameterError(
                f"reports_per_client must be above 0 and below the number of items, {fleet.n_items},"
                f" got {reports_per_client:g}."
            )
        data_weight = n_active * reports_per_client
        calibrate_devices(selections_of(fleet.protocols), fleet.rated_counts, fleet.n_items, reports_per_client)
    elif reports_per_client is not None:
        raise ParameterError(f"protocol {protocol.name} sends its rated items; reports_per_client is not for it.")
    rng = SeededRandomness(fleet.seed).stream(Purpose.REGULARIZATION)
    return Terms(
        model=model.name,
        n_factors=model.n_factors,
        n_items=fleet.n_items,
        n_side_rows=model.n_side_rows,
        reports_per_client=reports_per_client,
        data_weight=data_weight,
        step=step,
        decay=DECAY,
        max_rounds=rounds,
        epoch_rounds=epoch_rounds,
        user_regularization=model.draw_regularization(rng=rng),
        item_regularization=model.draw_regularization(rng=rng),
    )


def value_statement(median: float, largest: float) -> dict[str, Any]:
    """Return the realized zCDP loss of the values, median and maximum over people; infinity where nothing bounds it."""
    return {
        "median": median,
        "max": largest,
        "unit": wording.VALUE_LOSS,
        "median_epsilon": np.inf if median == np.inf else gaussian_epsilon(median, VALUE_DELTA),
        "delta": VALUE_DELTA,
    }
