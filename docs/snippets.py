"""Run the Python of a page as a reader would, from top to bottom, and keep what it prints.

A ```python block that is followed by a ```text block prints that text. `python docs/snippets.py docs/tutorial.md`
brings the texts of a page up to date; `tests/test_site.py` compares them.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCKS = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<text>.*?)```)?", re.DOTALL)
HERE = Path(__file__).parent
PAGES = ("tutorial.md", "choose-a-budget.md", "evaluate.md", "scikit-learn.md")


def run_page(page: str) -> Iterator[tuple[str, str | None]]:
    """Yield what each block of a page prints, and the text that stands below it; in the present folder."""
    names: dict[str, Any] = {}
    for block in BLOCKS.finditer(page):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], "page", "exec"), names)
        yield out.getvalue(), block["text"]


def with_output(page: str) -> str:
    """Return a page with what its blocks print."""
    printed = iter([found for found, _ in run_page(page)])

    def fill(block: re.Match[str]) -> str:
        found = next(printed)
        return block[0] if block["text"] is None else f"```python\n{block['code']}```\n\n```text\n{found}```"

    return BLOCKS.sub(fill, page)


if __name__ == "__main__":
    for name in sys.argv[1:] or [str(HERE / page) for page in PAGES]:
        path = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ.setdefault("MPLBACKEND", "agg")
            path.write_text(with_output(path.read_text("utf-8")), "utf-8")
