"""The command line's root: the app that commands join, and what happens to errors."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.errors import HushrecError, ParameterError
from hushrec.extras import extra_of

ORDER = ("demo", "train", "recommend", "report", "budget", "data")  # as a newcomer meets them; others follow


class Commands(typer.core.TyperGroup):
    """Lists commands in the order of a first hour."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


app = typer.Typer(
    name="hushrec",
    cls=Commands,
    epilog="Example: hushrec demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object, alone on stdout.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where the named data sets lie (else $HUSHREC_DATA, then the cache).")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hushrec {version('hushrec')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Recommendations learned from ratings that never leave the device."""


def main() -> None:
    """Run a command; our own errors become one sentence and exit code 1. (Ctrl-C is typer's: exit code 130.)"""
    try:
        _check_threads(os.environ.get("NUMBA_NUM_THREADS"))
        app(standalone_mode=True)
    except HushrecError as error:
        print(f"hushrec: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        print(f"hushrec: this needs {error.name}: pip install 'hushrec[{extra}]'.", file=sys.stderr)
        sys.exit(1)


def _check_threads(given: str | None) -> None:
    """Check NUMBA_NUM_THREADS, which decides whether engine `cpu` can start."""
    if given is not None and not (given.strip().isdecimal() and int(given) > 0):
        raise ParameterError(
            f"NUMBA_NUM_THREADS must be a whole number from 1 up, got {given!r}. Set it so, or unset it."
        )


def print_json(value: Any) -> None:
    """Print the value as JSON, alone on stdout; infinity is the string "inf"."""
    from hushrec.simulation.results import to_json

    print(json.dumps(to_json(value), indent=1))


def say(text: str) -> None:
    """Print a remark for people to stderr, so that stdout holds results alone."""
    print(text, file=sys.stderr)


@contextmanager
def saying_what_was_kept(in_words: Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C what is left of the work, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ninterrupted. {in_words()}")
        raise


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun: 1 round, 2 rounds."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def as_percentage(share: float) -> str:
    """Return a share in per cent: two decimals, and two digits of what is smaller than those show."""
    percent = 100 * share
    return f"{percent:.2f} %" if percent >= 0.1 or percent == 0 else f"{percent:.2g} %"


def harmless(text: str) -> str:
    """Text of somebody else's (a title, a file name) made harmless for a terminal: no markup, no control characters."""
    from rich.markup import escape

    return escape("".join(letter if letter.isprintable() else "�" for letter in text))
