"""The root of the command line: the Typer app, error handling, and helpers that print."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from typer import Option

import hushrec
from hushrec.errors import HushrecError, ParameterError
from hushrec.extras import extra_of

FIRST_COMMANDS = ("demo", "train", "recommend", "report", "budget", "data")  # listed before the others


class Commands(typer.core.TyperGroup):
    """A command group whose help lists first the commands that a newcomer needs."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        names = super().list_commands(ctx)
        first = {name: place for place, name in enumerate(FIRST_COMMANDS)}
        return sorted(names, key=lambda name: (first.get(name, len(first)), name))


app = typer.Typer(
    name="hushrec",
    cls=Commands,
    epilog="Example: hushrec demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, Option("--json", help="Print the result to stdout as one JSON object.")]
DataDir = Annotated[
    Path | None,
    Option(help="Folder with the named data sets, searched before $HUSHREC_DATA and the user's cache."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hushrec {hushrec.__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Recommendations learned from ratings that never leave the device."""


def main() -> None:
    """Run the command that the user typed.

    An error of this package, or a missing optional package, becomes one sentence on stderr and exit code 1. Typer
    handles Ctrl-C (exit code 130).
    """
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
        print(f"hushrec: this needs the package {error.name}: pip install 'hushrec[{extra}]'.", file=sys.stderr)
        sys.exit(1)


def _check_threads(given: str | None) -> None:
    if given is not None and not (given.strip().isdecimal() and int(given) > 0):
        raise ParameterError(
            f"NUMBA_NUM_THREADS must be a whole number from 1 up, got {given!r}. Correct the variable or unset it."
        )


def print_json(value: Any) -> None:
    """Print the value to stdout as JSON, with infinity as the string "inf"."""
    from hushrec.json_values import to_json

    print(json.dumps(to_json(value), indent=1))


def say(text: str) -> None:
    """Print a remark to stderr, because stdout is for results."""
    print(text, file=sys.stderr)


@contextmanager
def say_on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C in the `with` block, print `message()` (what was saved, how to continue) and re-raise."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ninterrupted. {message()}")
        raise


def deliver(record: Any, print_words: Callable[[Any], None], *, as_json: bool) -> None:
    """Print the result of a command: as JSON if `as_json`, otherwise with `print_words`."""
    (print_json if as_json else print_words)(record)


@contextmanager
def progress_bars(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """Yield a function `show(name, done, total, text=None)` that draws or updates the progress bar called `name`.

    `done` of `total` steps are done; `total` is None if unknown. `text` is written before the bar, by default the name.
    `columns` are Rich columns after the bar. Bars are drawn on stderr if it is a terminal, otherwise not at all.
    """
    console, first = Console(stderr=True), (TextColumn("{task.description}"), BarColumn())
    with Progress(*first, *columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: float, total: float | None, text: str | None = None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total, description=text or name)

        yield show


def print_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print rows of untrusted text to stdout as a table with these column headings."""
    table = Table(*heads, box=None)
    for row in rows:
        table.add_row(*map(harmless, row))
    Console().print(table)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun in the singular or plural: 1 round, 2 rounds."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def as_percentage(fraction: float) -> str:
    """Return a fraction as a percentage with two decimals; below 0.1 %, with two significant digits."""
    percent = 100 * fraction
    return f"{percent:.2f} %" if percent >= 0.1 or percent == 0 else f"{percent:.2g} %"


def harmless(text: str) -> str:
    """Return untrusted text (a title, a file name) with markup escaped and control characters replaced, for Rich."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Return the text with every control character replaced by �."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
