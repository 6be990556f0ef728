"""What a device sends: `plain`, `isgld` and `sdcf`, each a small frozen object that a client holds.

A protocol answers four questions for its client: on which values to train, which items to report, which error
stands in for an unrated one, and what all that releases. The model says what is learned from it.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities, calibrate_selection, fake_error_bound
from hushrec.budget.events import Event, PermanentDraw, RatingsPerturbed, SelectionSent
from hushrec.errors import ParameterError
from hushrec.mechanisms.fake_errors import fake_errors
from hushrec.mechanisms.laplace import perturb_ratings
from hushrec.mechanisms.randomized_response import instantaneous_items, permanent_bits
from hushrec.messages import Terms
from hushrec.randomness import RandomStream

NOBODY: IntArray = np.empty(0, dtype=np.int64)
NOBODY.flags.writeable = False
_TWICE_EPSILON_I = float("nan")  # a default that nobody can pass: compared by identity
LOWEST, HIGHEST = 1.0, 5.0  # every device maps its ratings to this scale first


@dataclass(frozen=True, eq=False)
class Draws:
    """One client's random choices of one round. Private: it never leaves the device."""

    selected: IntArray = field(repr=False)  # (n_selected,), rising
    fake_errors: FloatArray = field(repr=False)  # (n_selected unrated,), in the order of `selected`
    gradient_noise: FloatArray = field(repr=False)  # (n_selected, item_width)
    user_noise: FloatArray = field(repr=False)  # (user_width,)
    # Of a model that learns from pairs; of others, nobody.
    user_partners: IntArray = field(default_factory=lambda: NOBODY, repr=False)  # (n_rated,), unrated
    selected_partners: IntArray = field(default_factory=lambda: NOBODY, repr=False)  # (n_selected,), the pair's other


@dataclass(frozen=True, eq=False)
class PermanentChoice:
    """B', with the probabilities that go with it, until the next permanent epoch. Private."""

    bits: npt.NDArray[np.bool_] = field(repr=False)  # (n_items,)
    probabilities: SelectionProbabilities[float] = field(repr=False)

    def extended(self, n_items: int, *, rng: RandomStream) -> "PermanentChoice":
        """Items that joined the catalogue get their bit once; the bits that stand are kept."""
        more = permanent_bits(NOBODY, n_items - len(self.bits), self.probabilities.prob_randomize, rng=rng)
        return PermanentChoice(np.concatenate([self.bits, more]), self.probabilities)


class DeviceProtocol(Protocol):
    """What a client asks of its protocol."""

    name: ClassVar[str]

    @property
    def selects(self) -> bool:
        """Whether items are chosen by randomized response (else: just the rated ones)."""

    @property
    def needs_unrated(self) -> bool:
        """Whether a device that rated everything must stay out: it has nothing to hide among."""

    @property
    def selection_limit(self) -> float:
        """What the ledger allows for selections unless the person raises it: one draw of the permanent bits."""

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        """The values to train on, drawn once when a rating is stored."""

    def perturbation_events(self) -> list[Event]:
        """What drawing training values releases, once they are used."""

    def draw_permanent(
        self, rated: IntArray, terms: Terms, *, rng: RandomStream
    ) -> tuple[PermanentChoice, list[Event]] | None:
        """B' for a new permanent epoch and the event it is; None where nothing is drawn."""

    def select_items(self, rated: IntArray, permanent: PermanentChoice | None, *, rng: RandomStream) -> IntArray:
        """The items to report in this round, rising."""

    def selection_events(self) -> list[Event]:
        """What one selection releases."""

    def fake_errors(self, count: int, rated_errors: FloatArray, *, rng: RandomStream) -> FloatArray:
        """Errors for selected items that are not rated."""


@dataclass(frozen=True)
class Plain:
    """The non-private baseline: gradients of the rated items, nothing hidden ("MF with SGLD")."""

    name: ClassVar[str] = "plain"

    @property
    def selects(self) -> bool:
        return False

    @property
    def needs_unrated(self) -> bool:
        return False

    @property
    def selection_limit(self) -> float:
        return 0.0

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        return values

    def perturbation_events(self) -> list[Event]:
        return []

    def draw_permanent(self, rated: IntArray, terms: Terms, *, rng: RandomStream) -> None:
        return None

    def select_items(self, rated: IntArray, permanent: PermanentChoice | None, *, rng: RandomStream) -> IntArray:
        return rated

    def selection_events(self) -> list[Event]:
        return []

    def fake_errors(self, count: int, rated_errors: FloatArray, *, rng: RandomStream) -> FloatArray:
        return np.empty(0)


@dataclass(frozen=True)
class Isgld(Plain):
    """The naive baseline of [SDCF], section 4.1: Laplace noise on each rating once, then `plain`.

    Covers one rating's value, not that it exists. `clamp` brings noisy ratings back to the scale, which costs
    nothing and helps.
    """

    name: ClassVar[str] = "isgld"

    epsilon: float
    clamp: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ParameterError(f"epsilon must be positive and finite, got {self.epsilon}.")

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        return perturb_ratings(values, LOWEST, HIGHEST, self.epsilon, clamp=self.clamp, rng=rng)

    def perturbation_events(self) -> list[Event]:
        return [RatingsPerturbed(self.epsilon)]


@dataclass(frozen=True)
class Sdcf:
    """The paper's protocol: two-stage randomized response, fake errors for unrated items.

    `epsilon_p` is 2 · `epsilon_i` unless given. `epsilon_g` is None for a model that learns from pairs: its unrated
    items have errors of their own, and no fakes are drawn. `profile_cap` calibrates from a public number of ratings,
    so that the selections no longer depend on how many there are.
    """

    name: ClassVar[str] = "sdcf"

    epsilon_i: float
    epsilon_g: float | None
    epsilon_p: float = field(default=_TWICE_EPSILON_I)
    profile_cap: int | None = None

    def __post_init__(self) -> None:
        if self.epsilon_p is _TWICE_EPSILON_I:
            object.__setattr__(self, "epsilon_p", 2 * self.epsilon_i)
        for name in ("epsilon_i", "epsilon_p"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if self.epsilon_g is not None and not self.epsilon_g >= 0:
            raise ParameterError(f"epsilon_g must be 0 or more (0 is α = ∞), got {self.epsilon_g}.")
        if self.profile_cap is not None and self.profile_cap < 1:
            raise ParameterError(f"profile_cap must be at least 1, got {self.profile_cap}.")

    @property
    def selects(self) -> bool:
        return True

    @property
    def needs_unrated(self) -> bool:
        return self.profile_cap is None

    @property
    def selection_limit(self) -> float:
        return self.epsilon_p

    def training_values(self, values: FloatArray, *, rng: RandomStream) -> FloatArray:
        return values

    def perturbation_events(self) -> list[Event]:
        return []

    def draw_permanent(
        self, rated: IntArray, terms: Terms, *, rng: RandomStream
    ) -> tuple[PermanentChoice, list[Event]]:
        """Theorems 1 and 2 give f, p, q; with a cap, at most `profile_cap` of the rated items count."""
        assert terms.reports_per_client is not None
        n_protected = len(rated) if self.profile_cap is None else self.profile_cap
        if len(rated) > n_protected:
            order = np.argsort(rng.random(len(rated)))
            rated = np.sort(rated[order[:n_protected]])
        probabilities = calibrate_selection(
            n_protected, terms.n_items, terms.reports_per_client, self.epsilon_i, self.epsilon_p
        )
        bits = permanent_bits(rated, terms.n_items, probabilities.prob_randomize, rng=rng)
        event = PermanentDraw(self.epsilon_p, n_protected, capped=self.profile_cap is not None)
        return PermanentChoice(bits, probabilities), [event]

    def select_items(self, rated: IntArray, permanent: PermanentChoice | None, *, rng: RandomStream) -> IntArray:
        assert permanent is not None
        probabilities = permanent.probabilities
        return instantaneous_items(permanent.bits, probabilities.prob_send_zero, probabilities.prob_send_one, rng=rng)

    def selection_events(self) -> list[Event]:
        return [SelectionSent(self.epsilon_i)]

    def fake_errors(self, count: int, rated_errors: FloatArray, *, rng: RandomStream) -> FloatArray:
        """Drawn from the normal law of this round's real errors, within ±α ([SDCF], section 3.3)."""
        if self.epsilon_g is None:
            raise ParameterError("epsilon_g must be given: this model needs fake errors.")
        mean, deviation = float(rated_errors.mean()), float(rated_errors.std())
        bound = float(fake_error_bound(mean, deviation, self.epsilon_g))
        return fake_errors(count, mean, deviation, bound, rng=rng)
