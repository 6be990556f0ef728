"""The class `Protocol`, which declares one protocol to the command line, the engines, the service and the reports.

A declaration imports nothing heavy: `implementation`, `messages` and `engines` are import paths, which are loaded at
first use. The class at `implementation` is a `ConfiguredProtocol`, which holds the options of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hushrec.errors import ParameterError
from hushrec.options import Option, imported, with_defaults

if TYPE_CHECKING:
    from hushrec.models.predictor import Arrays, Predictor
    from hushrec.protocols.configured import ConfiguredProtocol


REFERENCE = "hushrec.engines.reference:ReferenceEngine"  # can run every protocol
TAKING_PART = "that a device takes part, and when"  # not covered by any guarantee


@dataclass(frozen=True)
class ServerKnowledge:
    """Sentences about what a server that stores everything it receives can and cannot know about a person."""

    can: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    risk: str = "What a server can find out is listed below."  # shown to a person who is about to join
    choice: str = "Choose how much your reports may reveal."  # shown with `risk`: what the person's budget limits


@dataclass(frozen=True)
class Wording:
    """The functions that describe a run's privacy in a few words, for tables and figures.

    The argument of each function is the entry `budget` of the run's result.
    """

    label: Callable[[Mapping[str, Any]], str]  # the protocol's name and its main settings, such as ε
    protects: Callable[[Mapping[str, Any]], str]  # what is protected, and how much
    numbers: Callable[[Mapping[str, Any]], list[str]]  # the numbers with their units, one sentence each
    in_label: tuple[str, ...] = ("epsilon",)  # keys of the budget whose values `label` shows


@dataclass(frozen=True)
class Protocol:
    """The declaration of a protocol: its options and models, the texts about it, and the import paths of its code."""

    name: str
    summary: str  # what leaves a device, in a few words
    row_label: str  # the label of its row in a table of results
    is_private: bool
    options: tuple[Option, ...]
    models: tuple[str, ...]  # supported models; the first is the default
    implementation: str  # import path of the ConfiguredProtocol
    messages: str  # import path of the module that declares its messages with `@crosses`
    terms: str  # the tag of its terms, which `messages` declares
    wording: Wording = field(repr=False)
    engines: Mapping[str, str] = field(default_factory=lambda: {"reference": REFERENCE})  # name → import path
    parts_engine: str | None = None  # import path of the engine that trains on shards; None if there is none
    costs: str | None = None  # import path of the function that estimates the costs of a training; None: not measured
    unit: str | None = None  # unit of the ledger in which a person limits their reports; None: no limit
    usual: Mapping[str, Any] | None = None  # personal options of people who choose none; None: they must choose
    compared_with: tuple[str, ...] = ()  # protocols that `train` also trains to compare, if they support the model
    whole_catalogue: bool = False  # whether runs use every item of the catalogue, not only the rated ones
    auditor: str | None = None  # import path of its `Auditor`; one audit compares protocols with the same auditor
    knowledge: ServerKnowledge = field(default=ServerKnowledge(), repr=False)

    def configure(self, options: Mapping[str, Any], model: str) -> ConfiguredProtocol:
        """Return the protocol with these options, and defaults for the options that are not given.

        Raise `ParameterError` if the value of an option is not allowed.
        """
        implementation = imported(self.implementation)
        return implementation.from_options(with_defaults(self.options_for(model), options))  # type: ignore[no-any-return]

    def load_predictor(self, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        """Return the predictor that a run folder stores: `record` is its `run.json`, `arrays` its `model.npz`."""
        return imported(self.implementation).load_predictor(record, arrays)  # type: ignore[no-any-return]

    def options_for(self, model: str) -> tuple[Option, ...]:
        """Return the options that this protocol has for the model called `model`."""
        return tuple(option for option in self.options if not option.models or model in option.models)

    def personal_options(self) -> dict[str, Option]:
        """Return the options that each person chooses, by the names that a person uses (`Option.device_name`)."""
        return {option.device_name or option.name: option for option in self.options if option.personal}

    def engine(self, name: str) -> Any:
        """Return the engine class called `name`; raise `ParameterError` if it is unknown or needs a missing package."""
        if name not in self.engines:
            raise ParameterError(f"engine of protocol {self.name} must be {' or '.join(self.engines)}, got {name}.")
        try:
            return imported(self.engines[name])
        except ModuleNotFoundError as error:
            raise ParameterError(
                f"engine {name} needs the package {error.name}, which is not installed. Run pip install {error.name}."
            ) from None
