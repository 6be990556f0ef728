"""Runs a command of hushrec inside the test's process, as a shell would."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from hushrec.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run(*arguments: object, columns: int = 80) -> Outcome:
    """`hushrec ARGUMENTS` in a terminal's width, without a terminal."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["hushrec", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Outcome(code, out.getvalue(), err.getvalue())
