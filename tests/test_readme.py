"""README and the made pages are true: their code runs, their output is what comes out."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from command import run
from pace import slowness

from hushrec.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
NUMBER = re.compile(r"[-+]?\d+\.\d+")


def same(found: str, printed: str, tolerance: float) -> bool:
    """Whether two texts have the same words, and decimal numbers within the tolerance: engines round differently."""
    words = [NUMBER.sub("#", text).split() for text in (found, printed)]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, printed)]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], abs=tolerance)


def generator_of_pages() -> ModuleType:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands() -> list[str]:
    """Every command of README, in order, without remarks."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [
        line[2:].split("   #")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")
    ]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate.py as a module."""
    return generator_of_pages()


def test_the_librarys_example_prints_what_readme_says() -> None:
    """The Python block and the text block after it belong together."""
    (code, printed), *_ = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert same(out.getvalue(), printed, 0.1)
    assert float(NUMBER.findall(out.getvalue())[0]) == pytest.approx(float(NUMBER.findall(printed)[0]), abs=0.003)


def test_every_command_of_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in an empty folder that holds nothing but a reader's own two files.

    ml-100k has its own test, and so have a server and its devices (tests/test_service_cli.py and the soak).
    """
    monkeypatch.chdir(tmp_path)
    rows = [f"p{user},f{item},{1 + (user * item) % 5}" for user in range(30) for item in range(20) if (user + item) % 3]
    Path("my.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    Path("titles.csv").write_text("id,title\n" + "".join(f"f{item},Film {item}\n" for item in range(20)))
    elsewhere = ("ml-100k", "hushrec serve", "hushrec device")
    ours = [command for command in commands() if command.startswith("hushrec ")]
    ours = [command for command in ours if not any(words in command for words in elsewhere)]
    assert len(ours) >= 6
    for command in ours:
        outcome = run(*shlex.split(command)[1:])
        assert outcome.code == 0, f"{command}: {outcome.err}"


def test_make_knows_what_readme_tells_to_make() -> None:
    """`make demo` and `make test` exist, and `make demo` is `hushrec demo`."""
    made = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert made == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^demo: \$\(CORE\)\n\t\$\(BIN\)/hushrec demo$", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)


@pytest.mark.data
def test_the_result_on_movielens_is_what_its_command_gives(data_dir: Path) -> None:
    """The table under the command, to ±0.003; the bias model, which draws nothing, to rounding."""
    (command,) = [command for command in commands() if "ml-100k" in command]
    outcome = run(*shlex.split(command)[1:], "--no-compare", "--data-dir", data_dir, "--json")
    record = json.loads(outcome.out)
    row = re.search(r"^\| ml-100k \| (.+) \|$", README, re.MULTILINE)
    assert row is not None
    masked, bias = (float(cell) for cell in row[1].split(" | "))
    assert record["metrics"]["rmse"] == pytest.approx(masked, abs=0.003)
    assert record["baselines"]["bias"]["rmse"] == pytest.approx(bias, abs=0.0006)
    assert record["budget"]["epsilon"] == 8


def test_the_page_of_commands_is_not_stale(generator: ModuleType) -> None:
    """docs/cli.md is what `python docs/generate.py cli` makes."""
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == generator.cli_page(), "run python docs/generate.py cli"


def test_every_help_ends_with_an_example(generator: ModuleType) -> None:
    """Each command shows one, and it names that command."""
    import typer

    for words in generator.commands(typer.main.get_command(app), ("hushrec",)):
        text = " ".join(generator.help_of(words).split())
        assert re.search(rf"Example: {' '.join(words)}\b", text), words


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    """`hushrec --help` loads no numpy, polars, scipy, numba or matplotlib, and takes no second of work."""
    code = (
        "import sys, time\n"
        "from hushrec.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'polars', 'scipy', 'numba', 'matplotlib', 'fastapi', 'sqlalchemy'} & set(sys.modules)\n"
        "print(sorted(heavy), time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, _, seconds = done.stderr.strip().rpartition(" ")
    assert heavy == "[]"
    assert float(seconds) < slowness()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    """`--show-completion` prints a script, and the completion it calls knows the commands."""
    environment = {**os.environ, "_HUSHREC_COMPLETE": f"source_{shell}"}
    code = "from hushrec.cli import app; app(prog_name='hushrec')"
    script = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "_HUSHREC_COMPLETE" in script.stdout
    asked = {**os.environ, "_HUSHREC_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "hushrec de"}
    asked |= {"COMP_WORDS": "hushrec de", "COMP_CWORD": "1", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked, check=False)
    assert "demo" in found.stdout


def test_the_tables_and_pictures_of_the_audit_are_made_from_its_records(generator: ModuleType) -> None:
    """Every number of every table in docs/audit.md, and the lines of its plots, stand in a committed record."""
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    assert page.count("made by `make docs`") == 1 + len(re.findall("<!-- end of table -->", page))
    assert generator.with_tables(page) == page
    for name, figures in generator.audit_pictures().items():
        assert (ROOT / "docs" / "pictures" / name).read_text("utf-8") == figures, name


def test_the_words_on_two_cores_are_made_from_their_record(generator: ModuleType) -> None:
    """docs/reproduction.md says what `benchmarks/grid_two_cores.py` measured, and what was only extrapolated."""
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert generator.with_two_cores(page) == page, "run python docs/generate.py grid"


def test_the_table_of_newcomers_is_made_from_its_record(generator: ModuleType) -> None:
    """docs/service.md says what `benchmarks/newcomers.py` measured."""
    page = (ROOT / "docs" / "service.md").read_text("utf-8")
    assert generator.NEWCOMERS in page
    assert generator.with_newcomers(page) == page, "run python docs/generate.py newcomers"


def test_the_words_on_two_cores_tell_what_was_measured(generator: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """Seconds of the splits that were run, and hours that are measured seconds × splits."""
    cost = {"splits measured": 1, "runs measured": 22, "measured seconds": {"wall": 90.4, "processor": 170.6}}
    grids = {name: {**cost, "splits": 30, "extrapolated hours": 0.75} for name in generator.SETS}
    monkeypatch.setattr(generator, "GRID_RECORD", tmp_path / "grid.json")
    (tmp_path / "grid.json").write_text(json.dumps({"jobs": 2, "grids": grids, "extrapolated hours": 2.25}))
    page = generator.with_two_cores(f"before\n{generator.GRID}\nold\n{generator.GRID_END}\nafter\n")
    words = " ".join(page.split())
    assert "on 1 split of ML-1M (22 runs) 90 s (171 processor seconds)" in words
    assert "were not run on two cores: measured seconds × splits come to 2.2 hours" in words
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert max(map(len, page.splitlines())) <= 120
