"""docs/pages.md says what the record of `make pictures` says."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "pages.md").read_text("utf-8")


def figures(page: str) -> dict[str, Any]:
    """What was measured on one page, or on both; without the record every test of this file fails."""
    record = json.loads((ROOT / "benchmarks" / "records" / "pages.json").read_text("utf-8"))
    found: dict[str, Any] = record["pages"][page]
    return found


def test_sizes_and_first_paint_are_those_of_the_record() -> None:
    """Each page is small, and painted within a second."""
    pages = [figures("dashboard"), figures("device")]
    sizes, paints = ([page[name]["median"] for page in pages] for name in ("size", "paint_ms"))
    assert max(sizes) < 50_000
    assert max(paints) < 1000
    assert "| HTML, CSS and scripts | " + " | ".join(f"{size / 1000:.0f} kB" for size in sizes) + " |" in PAGE
    assert "| " + " | ".join(f"{paint / 1000:.2f} s" for paint in paints) + " |" in PAGE


def test_search_and_list_are_those_of_the_record() -> None:
    """A hundred thousand items, fifty times each: below 0.1 s."""
    search, listed = (figures("device")[name] for name in ("search_ms", "list_ms"))
    assert (search["times"], listed["times"]) == (50, 50)
    assert max(search["median"], listed["median"]) < 100
    assert f"{search['median']:.0f}; {listed['median']:.0f} ms" in PAGE


def test_no_violation_is_in_the_record() -> None:
    """axe-core looked at both pages in every look, with dialogs open and closed."""
    violations = figures("both")["violations"]
    assert violations["most"] == 0
    assert violations["times"] >= 16
    assert PAGE.count("no violation") == 2
