"""Command-line options that several commands share, and those that models and protocols declare."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.models import MODELS
from hushrec.options import Option
from hushrec.protocols import PROTOCOLS

Command = Callable[..., None]

# The budgets of protocol `sdcf`; None means the default.
EpsilonI = Annotated[
    float | None, typer.Option(help="sdcf: privacy budget of one round's item selection.  [default: 4]")
]
EpsilonP = Annotated[
    float | None,
    typer.Option(help="sdcf: privacy budget of the item selections of all rounds.  [default: 2 × epsilon-i]"),
]
EpsilonG = Annotated[
    float | None,
    typer.Option(
        help="sdcf with mf or fm: how tightly the size of fake errors is limited. A larger value lowers the limit, and"
        " 0 sets none. A parameter, not a privacy guarantee.  [default: 4]"
    ),
]
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


def with_declared_options(command: Command) -> Command:
    """Replace `**options` in a command's signature by every option that a model or a protocol declares.

    The declared options follow the command's own parameter `protocol`; an option that the user does not give is None.
    """
    own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
    declared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, owners))
        for name, owners in declared_by().items()
    ]
    after = [one.name for one in own].index("protocol") + 1
    keyword_only = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    signature = inspect.Signature([*keyword_only[:after], *declared, *keyword_only[after:]])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def declared_by() -> dict[str, dict[str, Option]]:
    """Return all declared options: for each option's name, a mapping from its owners to their declarations.

    An owner is the name of a model or protocol that declares the option.
    """
    found: dict[str, dict[str, Option]] = {}
    declared = [(name, model.options) for name, model in MODELS.items()]
    declared += [(name, protocol.options) for name, protocol in PROTOCOLS.items()]
    for owner, options in declared:
        for option in options:
            found.setdefault(option.name, {})[owner] = option
    return found


def _annotation(name: str, owners: dict[str, Option]) -> Any:
    kind = next(iter(owners.values())).kind
    flags = (f"--{name.replace('_', '-')}",)
    return Annotated[kind | None, typer.Option(*flags, help=help_text(owners), show_default=False)]


def help_text(owners: dict[str, Option]) -> str:
    """Return the help text of one option.

    `owners` maps each model or protocol that declares the option to its declaration. Owners with different texts get a
    clause each. A clause begins with the names of its owners, unless these are all models or all protocols.
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
