"""Training that goes astray ends in one sentence on every engine, and no warning of NumPy's reaches anybody."""

import json
import re

import numpy as np
import pytest
from command import run
from parties import small_problem

from hushrec.data.sources import load
from hushrec.engines import make_engine, run_round
from hushrec.errors import Diverged, RemoteProtocolError
from hushrec.experiment_records import read_records
from hushrec.experiments.running import prepare, run_experiment
from hushrec.models.predictor import VectorPredictor
from hushrec.protocols.gradient.protocols import Isgld, Plain, value_statement
from hushrec.report.studies import make_study
from hushrec.report.tables import study_rows
from hushrec.simulation.run import measure
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train

DATA = "synthetic:users=60,items=80,ratings=1500,seed=1"
LEFT_OUT = "Lower the step; or leave --step out: training then lowers it until it converges."
STEPS = (50, 1e39, 1e300)  # beyond the parties' bounds, beyond float32, beyond float64's squares


def needs(engine: str) -> None:
    """Skips where what the engine needs is absent."""
    if engine == "gpu":
        pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", ["mf", "bpr", "fm"])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_divergence_is_one_sentence_with_round_and_remedy(engine, model, step):
    """Warnings are errors in the tests: none is raised on the way."""
    words = ("train", DATA, "--engine", engine, "--model", model, "--factors", 4, "--rounds", 40, "--no-compare")
    found = run(*words, "--step", 20 * step if model == "bpr" else step)
    assert found.code == 1
    last = found.err.strip().splitlines()[-1]
    assert last.startswith("hushrec: training with sdcf diverged in round ")
    assert last.endswith(f" at step {20 * step if model == 'bpr' else step:g}. {LEFT_OUT}")
    assert "Warning" not in found.err
    assert found.out == ""


@pytest.mark.parametrize("step", STEPS)
def test_divergence_is_the_same_sentence_on_engine_gpu(step):
    """With PyTorch on whatever device there is."""
    needs("gpu")
    found = run(
        "train",
        DATA,
        "--model",
        "mf",
        "--engine",
        "gpu",
        "--factors",
        4,
        "--rounds",
        40,
        "--no-compare",
        "--step",
        step,
    )
    assert found.code == 1
    assert "sdcf diverged in round" in found.err
    assert "Warning" not in found.err


@pytest.mark.parametrize("engine", ["cpu", "gpu", "reference"])
def test_what_a_party_refuses_is_kept_as_the_cause(engine):
    """The remedy names epsilon where its noise may be what is too large."""
    needs(engine)
    problem = small_problem(Isgld(epsilon=4.0), step=1e5)
    made = make_engine(engine, problem)
    with pytest.raises(Diverged, match=r"isgld diverged in round \d+: .*step.*epsilon") as ended:
        play_all_rounds(made)
    assert isinstance(ended.value.__cause__, RemoteProtocolError)


@pytest.mark.parametrize("engine", ["cpu", "reference", "gpu"])
def test_a_start_that_no_device_answers_is_refused_as_such(engine):
    """One factor of `bpr` starts uniform on (0, 0.3): one in thirty is below 0.01. Nothing has diverged."""
    needs(engine)
    found = run("train", DATA, "--engine", engine, "--model", "bpr", "--factors", 1, "--rounds", 2)
    assert found.code == 1
    assert found.err.splitlines()[-1].startswith("hushrec: factors must be more than 1")


def test_vectors_that_shrink_are_not_said_to_grow():
    """What clients refuse because it is near zero is named so, with its own remedy."""
    made = make_engine("reference", small_problem(Plain()))
    made.server.side.item_vectors[:] = 1e-4
    with pytest.raises(
        Diverged,
        match=r"round 1: .*item vectors.*step 0\.3.*factors",
    ) as ended:
        run_round(made)
    assert "diverged" not in str(ended.value)


@pytest.mark.parametrize("epsilon", ["1e-300", "1e-320"])
@pytest.mark.parametrize("engine", ["cpu", "reference", "gpu"])
def test_noise_beyond_all_numbers_is_one_sentence(engine, epsilon):
    """The noise of so small an epsilon overflows while the engine is made: no warning, and the remedy."""
    needs(engine)
    words = ("train", DATA, "--engine", engine, "--factors", 4, "--rounds", 2, "--no-compare")
    found = run(*words, "--protocol", "isgld", "--epsilon", epsilon)
    assert found.code == 1
    last = found.err.splitlines()[-1]
    assert all(part in last for part in ("isgld", "0.4", "9.76563e-05", "epsilon"))
    stepped = run(*words, "--protocol", "isgld", "--epsilon", epsilon, "--step", 0.4)
    assert all(part in stepped.err for part in ("round 1", "step 0.4", "epsilon"))
    assert "Warning" not in found.err


def play_all_rounds(engine):
    """As many as the terms have."""
    for _ in range(engine.problem.terms.max_rounds):
        run_round(engine)


def test_an_error_that_is_no_number_is_no_result():
    """The last round is followed by none that would refuse its vectors: what is measured must be finite."""
    ratings = load(DATA)
    task, problem = Settings().make_task(ratings), small_problem(Plain())
    engine = make_engine("reference", problem)
    predictor = VectorPredictor(problem.model, np.full((60, 3), 1e200), np.full((80, 3), 1e200))
    engine.predictor = lambda: predictor
    with pytest.raises(Diverged, match=r"round 0: .*step 0\.3"):
        measure(task, engine)


BESIDE = (
    "train",
    DATA,
    "--model",
    "mf",
    "--factors",
    4,
    "--rounds",
    12,
    "--step",
    0.7,
)  # of which `sdcf` ends well, and no other


def test_a_run_stands_when_what_it_is_compared_with_diverges(tmp_path):
    """Its own result is printed and kept; each comparison says that it diverged, in the table and in a sentence."""
    found = run(*BESIDE, "--out", tmp_path / "run")
    assert found.code == 0
    lines = found.out.splitlines()
    assert sum(line.split()[-3:] == ["diverged", "diverged", "nothing"] for line in lines) == 1  # plain
    for protocol in ("plain", "isgld"):
        assert f"training with {protocol} diverged in round " in " ".join(found.out.split())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["metrics"]["rmse"] < 1
    assert record["interrupted"] is False
    assert set(record["comparisons"]) == {"plain", "isgld"}
    for protocol, entry in record["comparisons"].items():
        assert entry["rmse"] is None
        assert entry["mae"] is None
        assert entry["diverged"].startswith(f"training with {protocol} diverged in round ")
        assert entry["budget"]["unit"]


def test_a_report_shows_that_a_comparison_diverged(tmp_path):
    """As the last rows, without numbers; the page is written all the same."""
    assert run(*BESIDE, "--out", tmp_path / "run", "--json").code == 0
    found = run("report", tmp_path / "run", "--out", tmp_path / "page.html", "--json")
    assert found.code == 0
    study = json.loads(found.out)["studies"][0]
    assert [setting["protocol"] for setting in study["settings"]] == ["sdcf"]
    assert study["diverged"] == ["plain, not private", "isgld ε=4"]
    assert '<td data-name="RMSE">diverged</td>' in (tmp_path / "page.html").read_text()


def test_a_resumed_run_stands_too_when_a_comparison_diverges(tmp_path):
    """Cut in the comparison, the run ends with the record that it would have had."""

    def cut(what, round_number, rounds, headline):
        if (what, round_number) == ("plain", 2):
            raise KeyboardInterrupt

    settings = {"model": "mf", "factors": 4, "rounds": 12, "step": 0.7}
    whole = train(DATA, **settings)
    with pytest.raises(KeyboardInterrupt):
        train(DATA, out=tmp_path / "run", progress=cut, **settings)
    resumed = train(DATA, out=tmp_path / "run", resume=True, **settings)
    assert resumed.metrics == whole.metrics
    assert resumed.record["comparisons"] == whole.record["comparisons"]
    assert "diverged" in resumed.record["comparisons"]["plain"]


FILE = f"""
name = "astray"
title = "A step that is too large"
[data]
set = "{DATA}"
[splits]
count = 2
first = 3
[run]
factors = 3
rounds = 12
[[curves]]
protocol = "plain"
step = 0.1
[[curves]]
protocol = "sdcf"
step = 500.0
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_experiment_goes_on_past_a_run_that_went_astray(tmp_path, jobs):
    """The record of that run says so in a sentence and has no numbers; the other runs have theirs."""
    path = tmp_path / "astray.toml"
    path.write_text(FILE)
    records = read_records(run_experiment(prepare(path), tmp_path / "records", jobs=jobs))
    assert [(record["protocol"], record["split_seed"]) for record in records] == [
        ("plain", 3), ("sdcf", 3), ("plain", 4), ("sdcf", 4),
    ]  # fmt: skip
    for record in records:
        if record["protocol"] == "plain":
            assert not record["diverged"]
            assert record["metrics"]["rmse"] > 0
        else:
            assert record["diverged"].startswith("training with sdcf diverged in round ")
            assert record["metrics"] == {}
            assert record["budget"]["rounds"] == 12
            assert record["budget"]["value_rho"]["median"] is None


def test_values_without_a_bound_have_no_finite_epsilon():
    """A run that diverged may have sent them."""
    assert value_statement(np.inf, np.inf)["median_epsilon"] == np.inf


def test_one_diverging_split_is_enough_to_have_no_mean(tmp_path):
    """A mean over the other splits would flatter; the table says that the setting diverged."""
    path = tmp_path / "astray.toml"
    path.write_text(FILE.replace("step = 500.0", "step = 0.1"))
    records = read_records(run_experiment(prepare(path), tmp_path / "records"))
    records[-1] |= {"metrics": {}, "diverged": "training with sdcf diverged in round 2"}
    study = make_study(records)
    assert [setting.protocol for setting in study.settings] == ["plain"]
    assert [(setting.protocol, setting.n_diverged) for setting in study.diverged] == [("sdcf", 1)]
    assert set(study_rows(study)[-1].values) == {"diverged"}


def test_the_command_counts_the_runs_that_diverged_and_reports_show_them(tmp_path):
    """Also where no run of the experiment ended well."""
    path = tmp_path / "astray.toml"
    path.write_text(FILE)
    found = run("experiment", path, "--out", tmp_path / "records")
    assert found.code == 0
    assert "4 runs kept in " in found.err + found.out
    assert ", 2 diverged." in " ".join((found.err + found.out).split())
    path.write_text(FILE.replace("step = 0.1", "step = 1e300").replace('"astray"', '"lost"'))
    found = run("experiment", path, "--out", tmp_path / "records", "--json")
    assert json.loads(found.out)["diverged"] == 4
    for name in ("astray", "lost"):
        page = tmp_path / f"{name}.html"
        assert run("report", tmp_path / "records" / name, "--out", page).code == 0
        assert '<td data-name="RMSE">diverged</td>' in page.read_text()


@pytest.mark.parametrize("model", ["mf", "bpr"])
def test_a_batch_goes_on_past_a_run_that_went_astray(tmp_path, model):
    """The other runs of the batch end well; ranks of vectors that are no numbers are no result."""
    needs("gpu")
    text = FILE.replace("step = 500.0", "step = 1e30").replace("rounds = 12", f'rounds = 12\nmodel = "{model}"')
    text = text.replace('model = "mf"', 'model = "mf"\nno_fallback = true')
    path = tmp_path / "astray.toml"
    path.write_text(text.replace("factors = 3", 'factors = 3\nengine = "gpu"'))
    records = read_records(run_experiment(prepare(path), tmp_path / "records"))
    for record in records:
        if record["protocol"] == "plain":
            assert record["metrics"]
        else:
            assert re.match(r"training with sdcf diverged after round \d+ at step 1e\+30\. Lower", record["diverged"])
            assert record["metrics"] == {}


@pytest.mark.parametrize("given", ["0", "-1", "words", "", "1.5"])
def test_a_number_of_threads_that_is_none_is_one_sentence(monkeypatch, given):
    """Numba itself would end in a traceback, or warn with one."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", given)
    found = run("train", DATA, "--rounds", 1)
    assert found.code == 1
    assert found.err.startswith("hushrec: NUMBA_NUM_THREADS must be")
    assert f"got {given!r}" in found.err


def test_a_number_of_threads_is_no_matter(monkeypatch):
    """One that is a number passes."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", " 1 ")
    found = run("budget", "--rated", 20, "--items", 100, "--json")
    assert found.code == 0
    assert json.loads(found.out)
