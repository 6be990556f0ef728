"""Makes what is made in the docs.

That is `docs/cli.md`, README's outputs and plots, the dashboard's words in `docs/privacy.md`, and the pictures of
`docs/reproduction.md`, from the records. Run by `make docs`; `python docs/generate.py cli` makes one part alone, as do
`example`, `demo`, `knowledge` and `paper`.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import typer

from hushrec.cli import app
from hushrec.knowledge import as_markdown
from hushrec.records import read_records
from hushrec.report.figures import paper_figures
from hushrec.report.records import make_study

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
START, END = "<!-- demo output: made by `make docs` -->", "<!-- end of demo output -->"
KNOWS, KNOWS_END = "<!-- knowledge: made by `make docs` -->", "<!-- end of knowledge -->"
HEAD = """# Command line

Made by `make docs` from every command's `--help`; a test fails when it is stale. `hushrec --install-completion` sets
up completion for the shell you are in. Exit codes: 1 with one sentence for an error of ours, 2 for a usage error, 130
after Ctrl-C. `--json` prints one object, alone on stdout; whatever is said besides goes to stderr.
"""


def commands(
    command: typer.core.TyperCommand | typer.core.TyperGroup, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """A command and all below it, as words on a command line."""
    yield words
    for name in sorted(getattr(command, "commands", {})):
        yield from commands(command.commands[name], (*words, name))


def help_of(words: tuple[str, ...]) -> str:
    """What `--help` prints, in a terminal of 100 columns."""
    out = io.StringIO()
    wide = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([*words[1:], "--help"], prog_name=words[0])
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def cli_page() -> str:
    """The whole of `docs/cli.md`."""
    every = commands(typer.main.get_command(app), ("hushrec",))
    parts = [f"## `{' '.join(words)}`\n\n```\n{help_of(words)}\n```\n" for words in every]
    return "\n".join([HEAD, *parts])


def with_output(page: str, output: str) -> str:
    """The page with what the demo prints between its two marks."""
    head, _, rest = page.partition(START)
    tail = rest.partition(END)[2]
    return f"{head}{START}\n```text\n{output.strip()}\n```\n{END}{tail}"


def demo_output(folder: Path) -> str:
    """What `hushrec demo` prints in a terminal of 80 columns; the seconds are left out, they differ."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        app(["demo"], prog_name="hushrec")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return re.sub(r"^\d+ s\. ", "", "\n".join(lines), flags=re.MULTILINE)


def write_example() -> None:
    """Writes what README's Python block prints into the block after it."""
    page = README.read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code[1], "README.md", "exec"), {})
    head, tail = page[: code.end()], page[code.end() :]
    tail = re.sub(r"```text\n.*?```", lambda _: f"```text\n{out.getvalue()}```", tail, count=1, flags=re.DOTALL)
    README.write_text(head + tail, "utf-8")


def write_demo() -> None:
    """Writes the demo's output into README.md, and its two plots."""
    with tempfile.TemporaryDirectory() as folder:
        output = demo_output(Path(folder))
        for plot in ("finals", "curves"):
            shutil.copy(Path(folder) / "hushrec-demo" / "plots" / f"{plot}.svg", DOCS / "pictures" / f"demo-{plot}.svg")
    README.write_text(with_output(README.read_text("utf-8"), output), "utf-8")


def with_knowledge(page: str) -> str:
    """docs/privacy.md with the dashboard's text between its two marks."""
    head, _, rest = page.partition(KNOWS)
    return f"{head}{KNOWS}\n{as_markdown()}\n{KNOWS_END}{rest.partition(KNOWS_END)[2]}"


def write_knowledge() -> None:
    """Writes the section of docs/privacy.md."""
    page = DOCS / "privacy.md"
    page.write_text(with_knowledge(page.read_text("utf-8")), "utf-8")


def write_cli() -> None:
    """Writes docs/cli.md."""
    (DOCS / "cli.md").write_text(cli_page(), "utf-8")


def write_paper() -> None:
    """Draws the pictures of docs/reproduction.md anew from the records, by the names that it gives them."""
    page = (DOCS / "reproduction.md").read_text("utf-8")
    records = DOCS.parent / "experiments" / "records"
    for folder in sorted(path.parent for path in records.glob("*/experiment.json")):
        drawn = paper_figures(make_study(read_records(folder)))
        for name, (_, svg) in drawn.items():
            picture = f"pictures/{folder.name}-{name.removeprefix('task1-')}.svg"
            if picture in page:
                (DOCS / picture).write_text(svg, "utf-8")


if __name__ == "__main__":
    made = {
        "cli": write_cli, "example": write_example, "demo": write_demo, "knowledge": write_knowledge,
        "paper": write_paper,
    }  # fmt: skip
    for name in sys.argv[1:] or made:
        made[name]()
