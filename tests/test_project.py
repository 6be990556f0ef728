"""The files around the code agree with it and with each other."""

import re
import tomllib
from pathlib import Path

import pytest

from hushrec.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = ["requirements.lock", "requirements-test.lock"]


def pins(lock: str) -> dict[str, set[str]]:
    """Versions pinned by a lock, by name; a name has several where they depend on the Python version."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)(?:\[.*?\])?==(\S+)", (ROOT / lock).read_text("utf-8"), re.M):
        found.setdefault(name, set()).add(version)
    return found


def names(requirements: list[str]) -> set[str]:
    """Names of requirements, without extras and versions."""
    return {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in requirements}


def bibliography() -> set[str]:
    """Keys of docs/references.bib."""
    return set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text("utf-8"), re.M))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address(lock: str) -> None:
    """A lock says what to install, with its hashes, and leaves where from to the machine."""
    text = (ROOT / lock).read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^-", text, re.M)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    """Each requirement is followed by at least one sha256."""
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text("utf-8").strip())
    assert entries
    assert not [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_covers_what_runs_and_what_builds(lock: str) -> None:
    """Dependencies and the build backend are in both locks, so that the package installs without a network later."""
    extras = PROJECT["optional-dependencies"]
    runs = names(PROJECT["dependencies"] + extras["report"] + extras["service"])
    assert runs | {"hatchling", "editables"} <= pins(lock).keys()


def test_the_test_lock_covers_what_tests_and_what_makes_the_site() -> None:
    """The extras `test` and `docs` are pinned in its lock."""
    extras = PROJECT["optional-dependencies"]
    assert names(extras["test"] + extras["docs"]) <= pins("requirements-test.lock").keys()


def test_an_extra_is_what_its_error_message_says() -> None:
    """The modules that `hushrec.extras` knows are those that the extra of that name installs."""
    for extra, modules in EXTRAS.items():
        assert {module.replace("_", "-") for module in modules} == names(PROJECT["optional-dependencies"][extra])


def test_the_locks_agree() -> None:
    """What both locks pin, they pin alike: `make demo` after `make test` changes nothing."""
    core, test = (pins(lock) for lock in LOCKS)
    assert core == {name: test.get(name) for name in core}


def test_the_citation_names_this_version() -> None:
    """CITATION.cff and pyproject.toml move together."""
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


def test_each_version_in_the_changelog_opens_with_privacy() -> None:
    """Privacy is the first heading under every version."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    first_headings = re.findall(r"^## \[(.+?)\].*\n+(### \w+)", text, re.M)
    assert first_headings[0][0] == "Unreleased"
    assert {heading for _, heading in first_headings} == {"### Privacy"}
    assert len(first_headings) == len(re.findall(r"^## ", text, re.M))


def test_every_paper_that_is_cited_is_in_the_bibliography() -> None:
    """A key in brackets, [SDCF] or [Name2020], exists in docs/references.bib."""
    pattern = re.compile(r"\[(SDCF|[A-Z][A-Za-z]+(?:19|20)\d\d)\](?!\()")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    cited = {key for file in files for key in pattern.findall(file.read_text("utf-8"))}
    assert cited <= bibliography()


def test_every_entry_of_the_bibliography_is_complete() -> None:
    """Author, title, year, and where it appeared."""
    entries = (ROOT / "docs" / "references.bib").read_text("utf-8").split("\n@")[1:]
    fields = [set(re.findall(r"^  (\w+)\s*=", entry, re.M)) for entry in entries]
    assert len(entries) == len(bibliography()) >= 10
    assert all({"author", "title", "year"} <= names and names & {"journal", "booktitle"} for names in fields)
