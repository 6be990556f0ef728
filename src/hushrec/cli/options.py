"""Command-line options that several commands share, and options that models and protocols declare."""

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.models import MODELS
from hushrec.options import Option
from hushrec.protocols import PROTOCOLS, by_usual
from hushrec.protocols.protocol import Protocol

Command = Callable[..., None]

Authority = Annotated[
    Path | None,
    typer.Option(
        help="PEM file of the only certificate to trust for this server; `device join` remembers it."
        "  [default: the system's certificate authorities]"
    ),
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free port.", min=0, max=65535)]
Count = Annotated[int, typer.Option("-n", "--count", help="Number of items to recommend.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help=f"Model to train: {', '.join(f'{name} ({model.summary})' for name, model in MODELS.items())}."
        "  [default: gp, or mf with protocol plain, isgld or sdcf; for data without ratings: audience, or"
        " bpr with protocol plain or sdcf]"
    ),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help=f"Protocol, which decides what devices send:"
        f" {'; '.join(f'{name} ({entry.summary})' for name, entry in PROTOCOLS.items())}."
        "  [default: masked; sdcf for mf, bpr and fm]"
    ),
]


PersonalProtocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Protocol that --epsilon and the other budget options are for.  [default: the protocol of the joined run;"
        " before a device joins, for each option the protocol with which the option's help text begins]",
    ),
]


def with_declared_options(command: Command, names: Collection[str] | None = None) -> Command:
    """Replace `**options` in a command's signature by every option that a model or a protocol declares.

    With `names`, add only the options with these names. The declared options follow the command's own parameter
    `protocol`; an option that the user does not give is None.
    """
    found = {name: owners for name, owners in declared_by().items() if names is None or name in names}
    return _with_options(command, found, after="protocol")


def with_personal_options(
    after: str, *, protocols: Iterable[Protocol] | None = None, shows_defaults: bool = True
) -> Callable[[Command], Command]:
    """Return a decorator that replaces `**options` in a command's signature by the options that a person chooses.

    These are the options `Protocol.personal_options` of `protocols`, by default of all protocols; they follow the
    parameter `after`. An option that the user does not give is None. With `shows_defaults`, the help texts show the
    usual values (`Protocol.usual`) as defaults.
    """
    found: dict[str, dict[str, Option]] = {}
    for protocol in protocols or by_usual():
        for name, option in protocol.personal_options().items():
            shown = replace(option, default=None, default_text=None)
            if shows_defaults and protocol.usual is not None:
                value = protocol.usual.get(option.name)
                shown = option if value is None else replace(shown, default=value)
            found.setdefault(name, {})[protocol.name] = shown
    return lambda command: _with_options(command, found, after=after)


def given_only(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def _with_options(command: Command, options: dict[str, dict[str, Option]], *, after: str) -> Command:
    own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
    declared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, owners))
        for name, owners in options.items()
    ]
    stop = [one.name for one in own].index(after) + 1
    keyword_only = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    signature = inspect.Signature([*keyword_only[:stop], *declared, *keyword_only[stop:]])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def declared_by() -> dict[str, dict[str, Option]]:
    """Return all declarations of options, by name of the option and then by name of the model or protocol."""
    found: dict[str, dict[str, Option]] = {}
    declared = [(name, model.options) for name, model in MODELS.items()]
    declared += [(name, protocol.options) for name, protocol in PROTOCOLS.items()]
    for owner, options in declared:
        for option in options:
            found.setdefault(option.name, {})[owner] = option
    return found


def _annotation(name: str, owners: dict[str, Option]) -> Any:
    kind = next(iter(owners.values())).kind
    flag = f"--{name.replace('_', '-')}"
    return Annotated[kind | None, typer.Option(flag, help=help_text(owners), show_default=False)]


def help_text(owners: dict[str, Option]) -> str:
    """Return the help text of one option; `owners` maps models and protocols by name to their declarations of it.

    The text has a clause for each different help text of the declarations. The clause begins with the names of the
    models and protocols with this text, unless these are all models or all protocols.
    """
    meanings: dict[str, list[str]] = {}
    for owner, option in owners.items():
        meanings.setdefault(option.help.rstrip("."), []).append(owner)
    everybody = [set(MODELS), set(PROTOCOLS)]
    sentences = [
        text if set(names) in everybody else f"{', '.join(names)}: {text[0].lower()}{text[1:]}"
        for text, names in meanings.items()
    ]
    return f"{'; '.join(sentences)}.{_default_text(owners)}"


def _default_text(owners: dict[str, Option]) -> str:
    defaults = {owner: option.described_default for owner, option in owners.items() if option.described_default}
    if not defaults:
        return ""
    first = next(iter(defaults.values()))
    others = [f"{owner}: {text}" for owner, text in defaults.items() if text != first]
    return f"  [default: {'; '.join([first, *others])}]"
