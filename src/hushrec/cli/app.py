"""The command line's root: the app that commands join, and what happens to errors."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.errors import HushrecError

app = typer.Typer(
    name="hushrec",
    help="Recommendations learned from ratings that never leave the device.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object, alone on stdout.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where the named data sets lie (else $HUSHREC_DATA, then the cache).")
]


def main() -> None:
    """Runs a command; our own errors become one sentence and exit code 1, Ctrl-C exit code 130."""
    try:
        app(standalone_mode=True)
    except HushrecError as error:
        print(f"hushrec: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("hushrec: interrupted.", file=sys.stderr)
        sys.exit(130)


def print_json(value: Any) -> None:
    """The value as JSON, alone on stdout; infinity is the string "inf"."""
    from hushrec.runs import to_json

    print(json.dumps(to_json(value), indent=1))


def say(text: str) -> None:
    """A remark for people: stderr, so that stdout holds results alone."""
    print(text, file=sys.stderr)
