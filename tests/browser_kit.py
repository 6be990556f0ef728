"""A real browser for the tests of the pages, and the checker of accessibility where it is installed."""

import contextlib
import io
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from service_kit import N_ITEMS, PATIENCE

from hushrec.data import load

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
DRAWING = os.environ.get("HUSHREC_PICTURES") == "1"  # `make pictures`
AXE = Path(os.environ.get("HUSHREC_AXE", Path.home() / ".cache" / "hushrec" / "node_modules" / "axe-core"))
SIZES = {"phone": (390, 844), "desktop": (1200, 900)}
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


RECORD = ROOT / "benchmarks" / "records" / "pages.json"
SENT_BYTES = """() => performance.getEntriesByType("navigation")
    .concat(performance.getEntriesByType("resource").filter((one) => one.name.includes("/static/")))
    .reduce((sum, one) => sum + one.decodedBodySize, 0)"""
_FIGURES: dict[str, dict[str, list[float]]] = {}


def keep_figures(name: str, **figures: float) -> None:
    """Notes what was measured on a page, and writes the medians into the record, when pictures are drawn."""
    if not DRAWING:
        return
    for figure, value in figures.items():
        _FIGURES.setdefault(name, {}).setdefault(figure, []).append(value)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from measure import machine

    pages = {
        page: {
            figure: {"median": round(statistics.median(values), 1), "most": round(max(values), 1), "times": len(values)}
            for figure, values in noted.items()
        }
        for page, noted in _FIGURES.items()
    }
    told = {"benchmark": "pages", "command": "make pictures", "machine": machine(), "pages": pages}
    RECORD.write_text(json.dumps(told, indent=1) + "\n")


def chromium() -> str:
    """Where Chromium is; without it the test is skipped, and says so."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("Chromium is not here: apt-get install chromium")
    return found


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """A browser that reaches this machine only through the addresses a test opens."""
    place = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=FLAGS, timeout=1000 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, address: str, *, size: str = "desktop", scheme: str = "light") -> Any:
    """A page, with `page.complaints`: what went wrong in its scripts, and every address that it asked elsewhere."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    page.complaints = []
    host = address.split("/")[2]
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda said: page.complaints.append(said.text) if _is_complaint(said) else None)
    page.on("request", lambda asked: page.complaints.append(asked.url) if _is_elsewhere(asked.url, host) else None)
    page.goto(address)
    return page


def _is_complaint(said: Any) -> bool:
    """Errors, among them every break of the content security policy; a server that is away is expected."""
    return said.type == "error" and "ERR_" not in said.text and "status of" not in said.text


def _is_elsewhere(url: str, host: str) -> bool:
    return not url.startswith(("data:", "blob:")) and url.split("/")[2] != host


def violations(page: Any, place: str = "html") -> list[str]:
    """What axe-core finds wrong with that part of the page: WCAG 2.0 to 2.2, A and AA, and its best practices."""
    script = AXE / "axe.min.js"
    if not script.is_file():
        pytest.skip(f"axe-core is not here: npm install --prefix {AXE.parents[1]} axe-core")
    if not page.evaluate("'axe' in window"):
        page.evaluate(script.read_text("utf-8"))
    found = page.evaluate("place => axe.run(place)", place)
    assert found["passes"], "axe-core looked at nothing"
    keep_figures("both", violations=len(found["violations"]))
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in found["violations"]]


def check_layout(page: Any, name: str) -> None:
    """Nothing wider than the screen, painted early; then its picture.

    A second is the aim, which pictures are drawn with on a quiet machine; a test leaves room for a slow and busy one.
    """
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < (1000 if DRAWING else 20_000)
    shoot(page, name)
    keep_figures(name.split("-")[0], size=page.evaluate(SENT_BYTES), paint_ms=painted)


def pleasant_titles() -> list[str]:
    """Titles for the kit's items that are good to look at."""
    titles = load("synthetic").titles
    assert titles is not None
    return list(titles[:N_ITEMS])


def shoot(page: Any, name: str) -> None:
    """A picture for the docs, when they are asked for."""
    if DRAWING:
        drawn = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        coverage, plain = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE  # rare colours stay
        few = drawn.quantize(40, method=coverage, kmeans=1, dither=plain)  # and the background keeps its exact colour
        few.save(PICTURES / f"{name}.png", optimize=True)
