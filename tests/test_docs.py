"""Docs that drift fail the build: names that pages mention must exist."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LISTING_WORDS = {"notation.md", "CHANGELOG.md"}  # name the words that are not used
DATA_FLOW = (ROOT / "docs" / "data-flow.md").read_text().replace("\n", " ")
NAME = re.compile(r"(?:`([a-z_/]+)\.py` )?`([a-z_]+|_?[A-Z][A-Za-z]+(?:\.[a-z_]+)?)`")  # a name, and its file if given


def source_of(module: str) -> str:
    """The text of a file below src/hushrec, given without its ending."""
    return (ROOT / "src" / "hushrec" / f"{module}.py").read_text()


def files_of_the_data_flow() -> dict[str, str]:
    """The file of each class that docs/data-flow.md names right after a file."""
    return {name.split(".")[0]: module for module, name in NAME.findall(DATA_FLOW) if module}


def test_every_step_of_the_data_flow_exists():
    """Each name that follows a file is defined in it, and each method belongs to a class that the page gave a file."""
    files, checked = files_of_the_data_flow(), 0
    for module, name in NAME.findall(DATA_FLOW):
        owner, *rest = name.split(".")
        if module or rest:
            module = module or files[owner]
            assert re.search(rf"^(?:def|class) {owner}\b", source_of(module), re.MULTILINE), (module, name)
            found = getattr(importlib.import_module(f"hushrec.{module.replace('/', '.')}"), owner)
            assert all(hasattr(found, part) for part in rest), name
            checked += 1
    assert checked > 100


def test_every_call_of_the_data_flow_is_in_the_code():
    """`f` → `g` on the page: the file of f calls something that is named like g."""
    files, module, last, checked = files_of_the_data_flow(), "", (0, ""), 0
    for found in NAME.finditer(DATA_FLOW):
        module = found[1] or module
        owner, _, method = found[2].rpartition(".")
        if DATA_FLOW[last[0] : found.start()] == " → ":
            called = rf"(?<!def )\b{method}\("
            assert re.search(called, source_of(last[1])), f"{last[1]}.py does not call {found[2]}"
            checked += 1
        last = found.end(), found[1] or files.get(owner, module)
    assert checked > 40


def test_the_routes_of_the_data_flow_exist():
    """Each `GET /path` or `POST /path` is a route of the server or of the device page."""
    source = source_of("service/app") + source_of("device/ui")
    routes = re.findall(r"`(GET|POST) ((?:/v1)?)(/[a-z0-9/]+)`", DATA_FLOW)
    assert len(routes) > 8
    for method, prefix, path in routes:
        assert re.search(rf'(app|router)\.{method.lower()}\(\s*"({prefix})?{path}"', source), (method, prefix, path)


def test_the_data_flow_names_no_function_that_is_gone():
    """Also where no file stands before it: every `name_with_underscores` is defined somewhere in the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"`(?:[A-Za-z]+\.)?([a-z]+_[a-z_]+)`", DATA_FLOW))
    assert len(names) > 20
    assert not {name for name in names if f"def {name}(" not in source and f"{name}:" not in source}


def test_the_dictionary_names_exist_in_the_code():
    """Every name in code font in docs/notation.md's third column occurs in the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    rows = [line.split("|") for line in (ROOT / "docs" / "notation.md").read_text().replace(r"\|", "").splitlines()]
    names = {name for row in rows if len(row) > 5 for name in re.findall(r"`([A-Za-z_.]+)`", row[3])}
    assert len(names) > 25
    missing = {name for name in names if name.split(".")[-1] not in source}
    assert not missing


def test_sources_and_pages_use_the_words_of_the_list():
    """Some words that docs/notation.md rejects are gone."""
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), *(ROOT / "src").rglob("*.html"), *PAGES]
    texts = {path: path.read_text("utf-8") for path in places if path.name not in LISTING_WORDS}
    assert "upload" in (ROOT / "docs" / "notation.md").read_text("utf-8")
    rejected = r"(?i)public state|upload|hostile\s(server|(public )?table)|malicious\sdevice"
    assert not [path for path, text in texts.items() if re.search(rejected, text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    """Relative links and the files they name exist."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_script_that_a_page_names_exists():
    """Benchmarks and experiments that can be run again."""
    scripts = {name for page in PAGES for name in re.findall(r"\b(?:benchmarks|experiments)/\w+\.py", page.read_text())}
    assert len(scripts) > 10
    assert not [script for script in scripts if not (ROOT / script).is_file()]


def test_every_test_that_a_page_names_exists():
    """And every step of the argument for `masked` names one."""
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    written = "".join(path.read_text() for path in sorted((ROOT / "tests").glob("test_*.py")))
    assert len(named) > 30
    assert sorted(name for name in named if f"def {name}(" not in written) == []
    steps = (ROOT / "docs" / "proofs.md").read_text().partition("# The masked protocol")[2].split("\n## ")[1:]
    assert len(steps) > 8
    assert [step.partition("\n")[0] for step in steps if "*Held by*" not in step] == []


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    """docs/measured.py as a module."""
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_marked_number_is_that_of_its_record(measured):
    """In every page; `make docs` brings them up to date. A mark of a value that no record has fails, too."""
    marks = 0
    for page in PAGES:
        text = page.read_text()
        marks += len(measured.MARK.findall(text))
        assert measured.with_numbers(text) == text, f"{page.name}: run python docs/generate.py numbers"
    assert marks > 100


def test_a_mark_names_a_record_a_way_and_a_format(measured, monkeypatch):
    """By hand: lists, a divisor, no format, and text around the marks that stays."""
    values = {"turns": [3.0, 1.0, 2.5], "bytes": 32_910, "names": {"a/b": 1}}
    monkeypatch.setitem(measured.COMPUTED, "toy", lambda: values)
    page = "**<!--=toy/turns/median:.1f-->?<!--/-->** of <!--=toy/turns/1:g--><!--/-->,"
    page += " <!--=toy/bytes:/1000 .0f-->7<!--/--> kB"
    filled = measured.with_numbers(page)
    assert re.sub("<!--.*?-->", "", filled) == "**2.5** of 1, 33 kB"
    assert measured.with_numbers(filled) == filled
    assert measured.shown("toy/bytes:,") == "32,910"
    assert measured.shown("toy/bytes") == "32910"
    with pytest.raises(KeyError):
        measured.shown("toy/nothing")


def test_every_decision_has_a_number_of_its_own():
    """The file and its title agree on it."""
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    titles = [path.read_text().partition(".")[0] for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert len(set(numbers)) == len(numbers)
    assert titles == [f"# {number}" for number in numbers]
