"""What a protocol declares. Whoever needs to know something about a protocol asks its declaration, by name.

A declaration is light: `implementation` and `engines` name classes that are imported when they are first used. The
class at `implementation` is a `ConfiguredProtocol`: it holds the options of one run and does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hushrec.errors import ParameterError
from hushrec.options import Option, imported

if TYPE_CHECKING:
    from hushrec.models.predictor import Arrays, Predictor


REFERENCE = "hushrec.engines.reference:ReferenceEngine"  # runs the messages of any protocol


@dataclass(frozen=True)
class ServerKnowledge:
    """Sentences about a server that keeps everything it receives: what it can and what it cannot know."""

    can: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    risk: str = "What a server can find out is listed below."  # for a person who is about to join, in plain words
    choice: str = "Choose how much your reports may tell."  # what a person's own level limits

    def as_markdown(self, protocol: str) -> str:
        """Both lists, for docs/privacy.md."""
        lists = (("can", self.can), ("cannot", self.cannot))
        return "\n\n".join(
            f"Under `{protocol}`, it {verb} know:\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)
            for verb, sentences in lists
        )


@dataclass(frozen=True)
class Wording:
    """How the `budget` of a result is said in few words; the protocol's statement has unit and what is not covered."""

    label: Callable[[Mapping[str, Any]], str]  # the protocol with the numbers that tell one setting from another
    protects: Callable[[Mapping[str, Any]], str]  # what is protected, and how much
    numbers: Callable[[Mapping[str, Any]], list[str]]  # the numbers with their units, one sentence each
    in_label: tuple[str, ...] = ("epsilon",)  # options that `label` shows, by their names in the budget


@dataclass(frozen=True)
class Protocol:
    """A protocol as settings, the command line, statements, reports and pages know it."""

    name: str
    summary: str  # what leaves a device, in a few words
    row_label: str  # its row in a table of results
    is_private: bool
    options: tuple[Option, ...]
    models: tuple[str, ...]  # that it speaks; the first unless one is chosen
    implementation: str  # place of the ConfiguredProtocol
    wording: Wording = field(repr=False)
    engines: Mapping[str, str] = field(default_factory=lambda: {"reference": REFERENCE})  # name → place of its class
    parts_engine: str | None = None  # place of the class that runs people in parts; None: only all at once
    unit: str | None = None  # of the ledger, in which a person limits what they send; None: nothing is limited
    compared_with: tuple[str, ...] = ()  # protocols that `train` runs beside it, where they speak the same model
    whole_catalogue: bool = False  # whether it runs over every item of the catalogue, not over the rated ones alone
    knowledge: ServerKnowledge = field(default=ServerKnowledge(), repr=False)

    def configure(self, options: Mapping[str, Any], model: str) -> Any:
        """Return a checked `ConfiguredProtocol` with these options, and defaults for the others."""
        used = {option.name: options.get(option.name, option.default) for option in self.options_for(model)}
        return imported(self.implementation).from_options(used)

    def load_predictor(self, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        """The predictor that a run folder holds: its record, and the arrays of `model.npz`."""
        return imported(self.implementation).load_predictor(record, arrays)  # type: ignore[no-any-return]

    def options_for(self, model: str) -> tuple[Option, ...]:
        """The options that this protocol uses with that model."""
        return tuple(option for option in self.options if not option.models or model in option.models)

    def engine(self, name: str) -> Any:
        """The class of the engine of that name."""
        if name not in self.engines:
            raise ParameterError(f"engine of protocol {self.name} must be {_or(list(self.engines))}, got {name}.")
        try:
            return imported(self.engines[name])
        except ModuleNotFoundError as error:
            raise ParameterError(
                f"engine {name} needs {error.name}, which is not installed: pip install {error.name}."
            ) from None


def _or(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)
