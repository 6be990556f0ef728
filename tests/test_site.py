"""The site: it builds without a network, its links lead somewhere, its search works from a disk, its snippets run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser_kit import open_browser
from test_readme import same

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "accuracy-and-leakage.ipynb"


def module(path: Path) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


snippets = module(ROOT / "docs" / "snippets.py")


@pytest.mark.parametrize("name", snippets.PAGES)
def test_the_snippets_of_a_page_print_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in order, in an empty folder, as a reader would; numbers to ±0.1. `make docs` brings them up to date."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    for package in ("sklearn",):
        if package in page:
            pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown = list(snippets.run_page(page))
    assert len(shown) > 0
    for printed, text in shown:
        assert same(printed, text or "", 0.1), printed


def test_the_notebook_runs_and_draws_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell in one namespace; more budget means less error and more leakage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    runs = names["runs"]
    assert runs["told"].is_sorted()
    assert 0.5 < runs["told"].min() < runs["told"].max() < 1
    assert runs["rmse"][-1] < runs["rmse"][0]
    assert "<svg" in (tmp_path / "accuracy-and-leakage.svg").read_text("utf-8")


class Page(HTMLParser):
    """What a page links to and loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(str(found["src"]))
        if tag == "link" and found.get("rel") == "stylesheet":
            self.loads.append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the extra docs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Every page by its place in the site."""
    return {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path, pages: dict[str, Page]) -> None:
    """And nothing is loaded from another host."""
    broken = []
    for name, page in pages.items():
        if name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = os.path.normpath((Path(name).parent / unquote(parts.path)).as_posix()) if parts.path else name
            place = f"{place}/index.html" if (site / place).is_dir() else place
            if not (site / place).exists():
                broken.append(f"{name}: {link}")
            elif parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].anchors:
                broken.append(f"{name}: {link} has no such place")
        assert not [source for source in page.loads if re.match(r"(https?:)?//", source)], name
    assert not broken


def test_the_reference_has_every_public_name_and_every_route(site: Path) -> None:
    """From docstrings and from the OpenAPI description."""
    import hushrec

    api = (site / "api.html").read_text("utf-8")
    for name in set(hushrec.__all__) - {"__version__", "data"}:
        described = getattr(hushrec, name)
        assert f'id="{described.__module__}.{name}"' in api or f'id="hushrec.{name}"' in api, name
    for described in (hushrec.Recommender, hushrec.Device):
        for method in (name for name in dir(described) if not name.startswith("_")):
            assert f'{described.__name__}.{method}"' in api, method
    assert "/openapi.json" in (site / "http.html").read_text("utf-8")
    assert (site / "http.html").read_text("utf-8").count("<tr>") > 10


def test_the_navigation_has_every_page() -> None:
    """Each file of docs/ is in `nav` of mkdocs.yml; the decisions are reached from their list."""
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "not_in_nav: |\n  /decisions/0*\ntheme:" in settings  # nothing else may be left out
    listed = re.findall(r": ([\w./-]+\.md)$", settings.partition("\nnav:\n")[2], re.MULTILINE)
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert {page for page in written if not page.startswith("decisions/0")} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the pages."""
    with open_browser() as found:
        yield found


def test_search_works_from_a_disk_and_both_colours_are_there(site: Path, browser: Any) -> None:
    """Opened as a file, with the network off: typing finds pages; the scheme follows the reader's."""
    for scheme, name in (("light", "default"), ("dark", "slate")):
        context = browser.new_context(color_scheme=scheme, offline=True)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        assert page.get_attribute("body", "data-md-color-scheme") == name
        page.click("input.md-search__input")
        page.keyboard.type("permutation", delay=20)
        page.wait_for_selector(".md-search-result__item a[href*='evaluate']", state="attached")
        assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]
        context.close()
