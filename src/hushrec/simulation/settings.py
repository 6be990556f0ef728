"""`Settings`: everything that defines a run besides its data, checked, with the defaults of each model and protocol."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from hushrec.data.ratings import Ratings
from hushrec.data.side import side_columns
from hushrec.engines import DEFAULT_ENGINE
from hushrec.errors import ParameterError
from hushrec.models import MODELS, Model, make_model
from hushrec.protocols.gradient import DeviceProtocol, Isgld, Plain, Sdcf
from hushrec.simulation.results import to_json
from hushrec.simulation.tasks import Task, ranking_task, rating_task

DEFAULT_EPSILON = 4.0

# The options that belong to one protocol alone.
USED_BY: dict[str, tuple[str, ...]] = {
    "plain": (),
    "isgld": ("epsilon", "clamp"),
    "sdcf": ("epsilon_i", "epsilon_p", "epsilon_g", "profile_cap", "reports_per_client", "epoch_rounds"),
}

# The options that belong to some models alone, the protocols of each, and its defaults.
USED_BY_MODEL: dict[str, tuple[str, ...]] = {
    "mf": ("epsilon_g",),
    "bpr": ("at_least",),
    "fm": ("epsilon_g", "order", "attributes"),
}
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {
    "mf": ("plain", "isgld", "sdcf"),
    "bpr": ("plain", "sdcf"),
    "fm": ("plain", "isgld", "sdcf"),
}
DEFAULT_FACTORS = {"mf": 50, "bpr": 10, "fm": 50}
DEFAULT_STEP = {"mf": 0.4, "bpr": 4.0, "fm": 0.2}
DEFAULT_ORDER = 2  # of fm


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that defines a run besides its data. An option that model or protocol does not use is refused.

    None means the default of the protocol in force: ε 4 for `isgld`; ε_I 4, ε_P 2 ε_I, ε_g 4 for `sdcf`; or of the
    model: see `DEFAULT_FACTORS`, `DEFAULT_STEP`. `at_least` is the lowest rating that counts as an
    action (`bpr`); `order` (2 or 3) and `attributes` (names, or "none"; all unless given) shape `fm`. With `patience`
    a fifth of the training part is kept for validation, training stops when that has not improved for so many
    rounds, and the model of its best round is what is kept.
    """

    model: str = "mf"
    protocol: str = "sdcf"
    epsilon: float | None = None
    clamp: bool | None = None
    epsilon_i: float | None = None
    epsilon_p: float | None = None
    epsilon_g: float | None = None
    profile_cap: int | None = None
    reports_per_client: float | None = None
    epoch_rounds: int | None = None
    at_least: float | None = None
    order: int | None = None
    attributes: str | None = None
    factors: int | None = None
    rounds: int = 100
    step: float | None = None
    split_seed: int = 0
    seed: int = 0
    patience: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ParameterError(f"patience must be at least 1 round, got {self.patience}.")
        if self.protocol not in USED_BY:
            raise ParameterError(f"protocol must be one of {', '.join(USED_BY)}, got {self.protocol}.")
        if self.model not in MODELS:
            raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {self.model}.")
        if self.protocol not in PROTOCOLS_OF[self.model]:
            allowed = " or ".join(PROTOCOLS_OF[self.model])
            raise ParameterError(f"protocol of model {self.model} must be {allowed}, got {self.protocol}.")
        self._refuse_unused(f"protocol {self.protocol}", USED_BY, self.protocol)
        self._refuse_unused(f"model {self.model}", USED_BY_MODEL, self.model)

    def _refuse_unused(self, who: str, used_by: dict[str, tuple[str, ...]], key: str) -> None:
        for name in (name for names in used_by.values() for name in names):
            if getattr(self, name) is not None and name not in used_by[key]:
                raise ParameterError(f"{who} does not use {name}. Leave it out.")

    @property
    def chosen_factors(self) -> int:
        """Numbers in each vector."""
        return DEFAULT_FACTORS[self.model] if self.factors is None else self.factors

    @property
    def chosen_step(self) -> float:
        """η₀ N."""
        return _or(self.step, DEFAULT_STEP[self.model])

    @property
    def chosen_engine(self) -> str:
        """How the rounds are computed."""
        return DEFAULT_ENGINE if self.engine is None else self.engine

    def make_model(self, ratings: Ratings) -> Model:
        """The model, with the public attributes of the items if it uses them."""
        attributes = side_columns(ratings, self.attributes) if self.model == "fm" else None
        return make_model(self.model, self.chosen_factors, order=self.order, attributes=attributes)

    def make_task(self, ratings: Ratings) -> Task:
        """What the model learns from, split into training and test part."""
        if MODELS[self.model].one_class:
            return ranking_task(ratings, self.split_seed, self.at_least)
        return rating_task(ratings, self.split_seed)

    def make_protocol(self) -> DeviceProtocol:
        """The protocol with its budgets, checked."""
        if self.protocol == "plain":
            return Plain()
        if self.protocol == "isgld":
            return Isgld(epsilon=_or(self.epsilon, DEFAULT_EPSILON), clamp=bool(self.clamp))
        epsilon_i = _or(self.epsilon_i, DEFAULT_EPSILON)
        return Sdcf(
            epsilon_i=epsilon_i,
            epsilon_p=_or(self.epsilon_p, 2 * epsilon_i),
            epsilon_g=None if MODELS[self.model].one_class else _or(self.epsilon_g, DEFAULT_EPSILON),
            profile_cap=self.profile_cap,
        )

    def as_record(self) -> dict[str, Any]:
        """Every setting by name, defaults written out: what a checkpoint must agree with."""
        protocol = self.make_protocol()
        budgets = {entry.name: getattr(protocol, entry.name) for entry in fields(protocol)}  # type: ignore[arg-type]
        chosen = {
            "engine": self.chosen_engine,
            "factors": self.chosen_factors,
            "step": self.chosen_step,
            "order": DEFAULT_ORDER if self.model == "fm" and self.order is None else self.order,
        }
        return to_json({**asdict(self), **budgets, **chosen})  # type: ignore[no-any-return]

    def compared_with(self, protocol: str) -> "Settings":
        """The same run under a baseline protocol with its default budget."""
        own = set().union(*USED_BY.values())
        shared = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in own}
        return Settings(**{**shared, "protocol": protocol})


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
