"""The benchmarks' own words: what is missing is one sentence, and what was not measured is called so."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

FILE = """
name = "tiny"
title = "Two curves"
[data]
set = "synthetic:users=40,items=60,ratings=900,seed=1"
[splits]
count = 30
[run]
factors = 3
rounds = 2
[[curves]]
protocol = "plain"
[[curves]]
protocol = "sdcf"
"""


@pytest.fixture
def module_named(monkeypatch):
    """A script of the benchmarks as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_a_grid_is_measured_on_some_splits_and_extrapolated_to_all(module_named, tmp_path):
    """Measured seconds × splits / splits measured; nothing is left behind."""
    file = tmp_path / "tiny.toml"
    file.write_text(FILE)
    found = module_named("grid_two_cores").measured(file, 2, 1)
    assert (found["splits measured"], found["runs measured"], found["splits"]) == (2, 4, 30)
    assert found["measured seconds"]["wall"] > 0
    assert found["measured seconds"]["processor"] > 0
    assert found["extrapolated hours"] == pytest.approx(found["measured seconds"]["wall"] * 15 / 3600)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_a_peer_that_is_not_installed_is_one_sentence(module_named, monkeypatch):
    """The script ends with what the worker said; so does the run of all scripts."""
    monkeypatch.setitem(sys.modules, "surprise", None)
    with pytest.raises(SystemExit, match=r"scikit-surprise .*`bench`"):
        module_named("alternate").need("surprise", "scikit-surprise")


def test_a_worker_that_cannot_start_ends_the_benchmark(module_named, tmp_path):
    """With the worker's own exit and sentence, and no traceback."""
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit('no peer here')")
    with pytest.raises(SystemExit), module_named("alternate").asking(sys.executable, str(script), {}):
        pytest.fail("the worker was ready")


def test_a_worker_answers_line_by_line(module_named, tmp_path):
    """And finds its arrays in the file that it is given."""
    script = tmp_path / "worker.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "import numpy as np\n"
        "from alternate import answer_lines\n"
        "rows = np.load(sys.argv[2])['rows']\n"
        "answer_lines(lambda line: [line, int(rows.sum())])\n"
    )
    numpy = importlib.import_module("numpy")
    with module_named("alternate").asking(sys.executable, str(script), {"rows": numpy.arange(4)}) as ask:
        assert ask("one") == ["one", 6]
        assert ask("two") == ["two", 6]


def test_a_data_set_that_is_not_there_is_one_sentence(module_named, monkeypatch, tmp_path):
    """Where it was looked for, and what to do."""
    monkeypatch.setenv("HUSHREC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"ml-1m .* `hushrec data get ml-1m`"):
        module_named("measure").load_data("ml-1m")


def test_all_benchmarks_are_refused_before_the_first_where_something_is_missing(tmp_path):
    """One sentence and exit code 1."""
    environment = {"HUSHREC_DATA": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("ml-100k was not found")
    assert len(ended.stderr.splitlines()) == 1


def test_records_name_their_benchmark_and_machine():
    """Every record that `write_record` made."""
    for path in (BENCHMARKS / "records").glob("*.json"):
        record = json.loads(path.read_text())
        if "benchmark" in record:
            assert record["benchmark"] == path.stem
            assert {"processor", "cores"} <= record["machine"].keys()


def test_the_record_of_an_audit_names_its_attacks(module_named, monkeypatch):
    """Each once for every protocol, with its target; seconds are of the command that was run."""
    finding = {"target": "value", "name": "one report", "metric": "a"}
    attacks = [
        {"protocol": "plain", **finding},
        {"protocol": "plain", **finding, "metric": "b"},
        {"protocol": "sdcf", **finding},
        {"protocol": "sdcf", "target": "model", "name": "rank one"},
    ]
    said, kept = [], {}
    text = json.dumps({"worst": {"plain": {}, "sdcf": {}}, "attacks": attacks})

    def run(words, **options):
        said.append(words[1:])
        return subprocess.CompletedProcess(words, 0, stdout=text)

    script = module_named("audit")
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(script, "write_record", lambda name, result: kept.update({name: result}))
    script.main()
    assert said == [["-m", "hushrec", "audit", "ml-100k", "--json"]]
    assert kept["audit-ml-100k"]["command"] == "hushrec audit ml-100k --json"
    assert kept["audit-ml-100k"]["seconds"].keys() == {"wall", "processor"}
    assert kept["audit-ml-100k"]["attacks"] == {
        "plain": ["value: one report"],
        "sdcf": ["value: one report", "model: rank one"],
    }
