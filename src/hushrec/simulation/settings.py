"""`Settings`: everything that defines a run except its data, checked against the options of model and protocol."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypedDict, cast

from hushrec.data.ratings import Ratings
from hushrec.engines import DEFAULT_ENGINE
from hushrec.errors import ParameterError
from hushrec.json_values import to_json
from hushrec.models import MODELS, ModelDeclaration, find_model
from hushrec.options import Option, with_defaults
from hushrec.protocols import DEFAULTS, PROTOCOLS, default_protocol, find_protocol, protocols_of
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.protocol import Protocol
from hushrec.simulation.tasks import Task, ranking_task, rating_task


def _default_protocols() -> str:
    """Return the default protocol of every model in words."""
    first, second = DEFAULTS
    *models, last = (model for model in second.models if model not in first.models)
    return f"{first.name}; {second.name} for {', '.join(models)} and {last}"


COMMON = (
    Option("model", str, "Model to train."),
    Option("protocol", str, "Protocol between devices and server.", default_text=_default_protocols()),
    Option("split_seed", int, "Seed of the split into training and test part.", 0),
    Option("seed", int, "Seed of all other random draws.", 0),
    Option("patience", int, "Stop after this many rounds without improvement on a validation part; keep the best."),
    Option("engine", str, "Implementation that computes the rounds.", default_text=DEFAULT_ENGINE),
    Option("final", bool, "Train on every rating, hold none out, and measure nothing.", False),
)


class ModelSettings(TypedDict, total=False):
    """The keyword arguments of `hushrec.Recommender`, for type checkers. `hushrec train --help` explains each.

    A test compares them with the options that models and protocols declare.
    """

    model: str | None
    protocol: str | None
    seed: int
    engine: str | None
    factors: int | None
    step: float | None
    no_fallback: bool | None
    at_least: float | None
    order: int | None
    attributes: str | None
    rating_levels: int | None
    ratings_per_person: float | None
    rounds: int | None
    epsilon: float | None
    clamp: bool | None
    epsilon_i: float | None
    epsilon_p: float | None
    epsilon_g: float | None
    profile_cap: int | None
    reports_per_client: float | None
    epoch_rounds: int | None
    delta: float | None
    dropout: float | None
    survivors: float | None
    corrupt: float | None
    least_cohort: int | None
    own_epsilon: float | None
    reserve: float | None
    evaluation: float | None
    repeats: int | None
    options: Mapping[str, Any] | None  # of plug-ins


def flat(settings: ModelSettings) -> dict[str, Any]:
    """Return all settings that are not None in one dictionary, including the options of plug-ins."""
    named = {name: value for name, value in settings.items() if name != "options" and value is not None}
    return named | dict(settings.get("options") or {})


def nested(settings: Mapping[str, Any]) -> ModelSettings:
    """Return `ModelSettings` from the dictionary that `flat` returned; unknown names become options of plug-ins."""
    known = ModelSettings.__annotations__.keys()
    named = {name: value for name, value in settings.items() if name in known}
    others = {name: value for name, value in settings.items() if name not in known and value is not None}
    return cast(ModelSettings, named | ({"options": others} if others else {}))


def declared_options() -> dict[str, Option]:
    """Return the options of all models and protocols by name; of several with the same name, return the first."""
    found: dict[str, Option] = {}
    for options in (*(model.options for model in MODELS.values()), *(one.options for one in PROTOCOLS.values())):
        for option in options:
            found.setdefault(option.name, option)
    return found


def default_model(protocol: str | None, *, has_values: bool) -> str:
    """Return the name of the first model of `protocol`, or of the default protocol if it is None.

    For data without rating values, return the protocol's first model that ranks items, if it has one.
    """
    models = find_protocol(default_protocol(None) if protocol is None else protocol).models
    ranking = [name for name in models if find_model(name).predicts == "ranking"]
    return models[0] if has_values or not ranking else ranking[0]


def unknown_setting(given: Iterable[str], known: Iterable[str]) -> ParameterError:
    """Return an error about the alphabetically first name in `given`, all of which are unknown.

    The error suggests the most similar name in `known`, if there is a similar one.
    """
    name, known = min(given), sorted(known)
    near = get_close_matches(name, known, n=1)
    advice = f"Did you mean {near[0]}?" if near else "help(hushrec.Recommender) lists the settings."
    return ParameterError(f"there is no setting {name}. {advice}")


class Settings:
    """Everything that defines a run except its data. The help of `hushrec train` explains each setting.

    `given` holds the options of model and protocol that were set; all others have their defaults. An option that
    neither the model nor the protocol uses is refused.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        protocol: str | None = None,
        split_seed: int = 0,
        seed: int = 0,
        patience: int | None = None,
        engine: str | None = None,
        final: bool = False,
        **options: Any,
    ) -> None:
        unknown = options.keys() - declared_options().keys()
        if unknown:
            raise unknown_setting(unknown, declared_options())
        self.protocol = find_protocol(default_protocol(model) if protocol is None else protocol).name
        self.model = find_model(self.declared.models[0] if model is None else model).name
        if self.model not in self.declared.models:
            allowed = " or ".join(protocols_of(self.model)) or "one that supports it, but there is none"
            raise ParameterError(f"protocol of model {self.model} must be {allowed}, got {self.protocol}.")
        seeds = {option.name: option for option in COMMON}
        self.split_seed, self.seed = seeds["split_seed"].checked(split_seed), seeds["seed"].checked(seed)
        self.patience = patience
        if patience is not None and patience < 1:
            raise ParameterError(f"patience must be at least 1 round, got {patience}.")
        if patience is not None and not any(option.name == "rounds" for option in self._options()):
            raise ParameterError(
                f"patience must not be given with protocol {self.protocol}: its rounds are planned in advance, and"
                " choosing the best round by its accuracy on real ratings would reveal more than the budget covers."
                " Leave patience out."
            )
        if final and patience is not None:
            raise ParameterError(
                "`patience` must not be given with `final`: `patience` needs a validation part, and `final` holds"
                " nothing out. Give the number of rounds instead."
            )
        self.engine, self.final = engine, bool(final)
        if engine in self.declared.engines and engine not in self._engines():
            raise ParameterError(f"engine of model {self.model} must be {' or '.join(self._engines())}, got {engine}.")
        self.given = self._checked({name: value for name, value in options.items() if value is not None})

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with checked values; raise `ParameterError` for an option that this run does not use."""
        own = {option.name: option for option in self._options()}
        for name in options:
            if name in own:
                continue
            of_protocol = any(option.name == name for option in self.declared.options)
            elsewhere = any(option.name == name for model in MODELS.values() for option in model.options)
            who = f"model {self.model}" if of_protocol or elsewhere else f"protocol {self.protocol}"
            alike = [other for other in own if other.split("_")[0] == name.split("_")[0]]
            instead = f", or give {' or '.join(alike)} instead" if alike else ""
            raise ParameterError(f"{name} must not be given, because {who} does not use it. Leave {name} out{instead}.")
        return {name: own[name].checked(value) for name, value in options.items()}

    def _options(self) -> Iterable[Option]:
        return (*find_model(self.model).options, *self.declared.options_for(self.model))

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.chosen().items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.as_record() == other.as_record()

    @property
    def declared(self) -> Protocol:
        return find_protocol(self.protocol)

    @property
    def declared_model(self) -> ModelDeclaration:
        return find_model(self.model)

    @property
    def chosen_engine(self) -> str:
        """The engine's name: `engine` if given, else the default if it supports the model, else the first that does."""
        if self.engine is not None:
            return self.engine
        allowed = self._engines()
        return DEFAULT_ENGINE if DEFAULT_ENGINE in allowed else allowed[0]

    def _engines(self) -> list[str]:
        own = self.declared_model.engines
        return [name for name in self.declared.engines if not own or name in own]

    @property
    def options(self) -> dict[str, Any]:
        """All options that the model or the protocol uses, by name, with their given or default values."""
        return with_defaults(self._options(), {**self._tuned(self.protocol), **self.given})

    def _tuned(self, protocol: str) -> Mapping[str, Any]:
        """Return the model's tuned defaults for training without privacy; empty if the protocol is private."""
        return {} if find_protocol(protocol).is_private else self.declared_model.without_privacy

    def chosen(self) -> dict[str, Any]:
        """Return keyword arguments of `Settings` that reproduce these settings, without options that were not given."""
        common = {option.name: getattr(self, option.name) for option in COMMON}
        return {name: value for name, value in common.items() if value is not None and value is not False} | self.given

    def replace(self, **changes: Any) -> "Settings":
        return Settings(**{**self.chosen(), **changes})

    def make_model(self, ratings: Ratings) -> Any:
        return self.declared_model.make(self.options, ratings)

    def among_items(self, ratings: Ratings) -> Ratings:
        """Return the ratings; if the protocol uses the whole catalogue, add its items that nobody has rated."""
        return ratings.with_catalogue() if self.declared.whole_catalogue else ratings

    def make_task(self, ratings: Ratings) -> Task:
        ratings = self.among_items(ratings)
        if self.declared_model.predicts == "ranking":
            return ranking_task(ratings, self.split_seed, self.options.get("at_least"), final=self.final)
        return rating_task(ratings, self.split_seed, final=self.final)

    def make_protocol(self) -> ConfiguredProtocol:
        return self.declared.configure(self.given, self.model)

    def as_record(self) -> dict[str, Any]:
        """Return every setting by name, including defaults, as JSON data.

        A run can be resumed only if all these settings are the same.
        """
        common = {option.name: getattr(self, option.name) for option in COMMON}
        resolved = {**common, "engine": self.chosen_engine, **self.options, **self.make_protocol().chosen_options()}
        return to_json(resolved)  # type: ignore[no-any-return]

    def compared_with(self, protocol: str) -> "Settings":
        """Return the settings of the same run with another protocol, for a comparison.

        Options that both protocols declare in the same way keep their values. Options for which the model has a tuned
        default under the other protocol get this default, so that the comparison is as accurate as possible.
        """
        own = set(self.declared.options) - set(find_protocol(protocol).options)
        defaults = dict.fromkeys([*(option.name for option in own), *self._tuned(protocol)])
        return self.replace(**defaults, protocol=protocol)
