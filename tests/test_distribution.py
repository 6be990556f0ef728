"""What is shipped: the wheel, the sdist, the container file, the extras, the release notes; and how quick it starts."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pace import slowness

from hushrec.extras import extra_of, is_installed

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist, made from this tree by the build backend."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """Every module and every page, template and style; no test, no record; small enough to send by mail."""
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "hushrec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= set(names)
    assert all(name.startswith(("hushrec/", "hushrec-")) for name in names)
    assert wheel.stat().st_size < 2_000_000


def test_the_sdist_builds_and_tests_itself(built: Path) -> None:
    """Sources, tests, docs and the files that make them; the rating data is nowhere."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "Makefile",
        "README.md",
        "LICENSE",
        "requirements.lock",
        "src/hushrec/__init__.py",
    } <= names
    assert "tests/test_distribution.py" in names
    assert not [name for name in names if name.endswith((".gz", ".dat", "u.data"))]


def test_an_installed_wheel_starts(built: Path, tmp_path: Path) -> None:
    """Outside the tree: the command, the library and the version."""
    (wheel,) = built.glob("*.whl")
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    options += ["--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    code = "import hushrec; print(hushrec.__file__, hushrec.__version__); hushrec.Recommender()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path / "site"))


@pytest.mark.parametrize(("code", "seconds"), [("import hushrec", 0.3), ("import hushrec.cli", 0.5)])
def test_it_starts_quickly(code: str, seconds: float) -> None:
    """Processor time beyond that of Python itself; a loaded machine gets more of it. `--help` needs `hushrec.cli`."""
    timed = f"import time; start = time.process_time(); {code}; print(time.process_time() - start)"
    times = [
        float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert min(times) < seconds * slowness()


WITHOUT_SERVICE = """
import sys
sys.modules["sqlalchemy"] = None  # as if it were not installed
from hushrec.cli import main
from hushrec.extras import is_installed
assert is_installed("report") and not is_installed("service")
sys.argv = ["hushrec", "serve", "--items", "items.csv"]
main()
"""
WITHOUT_REPORT = """
import sys
sys.modules["jinja2"] = None
from concurrent.futures import ThreadPoolExecutor
from hushrec import demo
from hushrec.cli import main
demo.SETTINGS = {name: demo.SETTINGS[name] for name in ("masked-8",)}
with ThreadPoolExecutor() as beside:
    assert demo.run_demo("demo", progress=lambda *_: None, beside=beside).page is None  # and all else is there
sys.argv = ["hushrec", "report", "demo/runs", "--out", "page.html"]
main()
"""


@pytest.mark.parametrize(("extra", "code"), [("service", WITHOUT_SERVICE), ("report", WITHOUT_REPORT)])
def test_what_an_extra_brings_is_asked_for_by_its_name(extra: str, code: str, tmp_path: Path) -> None:
    """Without it, a command that needs it says what to install; the demo makes do without its page."""
    assert is_installed(extra)
    (tmp_path / "items.csv").write_text("id,title\n1,Alien\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert f"hushrec[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_of_no_extra_is_a_bug() -> None:
    """Its traceback is shown."""
    assert extra_of("nothing") is None
    assert extra_of(None) is None
    assert extra_of("matplotlib.figure") == "report"


def test_the_container_file_names_what_exists() -> None:
    """Every file that it copies, and every option of the command that it runs."""
    text = (ROOT / "deploy" / "Containerfile").read_text("utf-8")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    (arguments,) = re.findall(r"^CMD \[(.+)\]$", text, re.MULTILINE)
    words = re.findall(r'"(.+?)"', arguments)
    shown = subprocess.run(
        [sys.executable, "-m", "hushrec", words[0], "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(word in shown for word in words if word.startswith("--"))


def test_release_notes_are_a_section_of_the_changelog() -> None:
    """Without its title and the links below it; a version that is not there is refused."""
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / "docs" / "release_notes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "# Changelog\n\n## [Unreleased]\n\n### Privacy\n\n- a\n\n## [1.0] - 2026\n\n### Privacy\n\n- b\n\n[1.0]: x\n"
    assert module.release_notes(text, "Unreleased") == "## Privacy\n\n- a"
    assert module.release_notes(text, "1.0") == "## Privacy\n\n- b"
    with pytest.raises(SystemExit, match=r"2\.0"):
        module.release_notes(text, "2.0")
    assert module.release_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), "Unreleased").startswith("## Privacy")
