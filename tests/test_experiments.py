"""Experiment files are refused by key before the first run; what runs is kept, resumed and read back."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import run

from hushrec.errors import ParameterError, RunError
from hushrec.experiment_records import is_experiment, read_records, read_stored
from hushrec.experiments import running
from hushrec.experiments.config import make_plans, read_experiment
from hushrec.experiments.running import prepare, run_experiment
from hushrec.experiments.single import group_of_users, run_plan
from hushrec.report.studies import make_study

FILE = """
name = "small"
title = "A small one"
[data]
set = "synthetic"
[splits]
count = 2
[run]
factors = 3
rounds = 3
[[curves]]
protocol = "plain"
[[curves]]
protocol = "isgld"
epsilon = [4.0, 2.0]
clamp = [false, true]
[[curves]]
protocol = "sdcf"
epsilon_i = [4.0, 1.0]
epsilon_g = 1.0
"""


FOR_A_GRID = FILE.replace("rounds = 3", "rounds = 3\nno_fallback = true")
BUDGETS = "epsilon_i = [4.0, 1.0]\nepsilon_g = 1.0"


def write(tmp_path, text):
    """An experiment file with that text."""
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_lists_are_multiplied_out(tmp_path):
    """Curves within splits: 1 + 2 × 2 + 2 of each split; a run's seed is its split's."""
    plans = make_plans(read_experiment(write(tmp_path, FILE)))
    assert len(plans) == 14
    assert [plan.curve for plan in plans[:7]] == [0, 1, 1, 1, 1, 2, 2]
    assert {(plan.settings.split_seed, plan.settings.seed) for plan in plans} == {(0, 0), (1, 1)}
    assert [plan.settings.options["clamp"] for plan in plans[1:5]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("factors = 3", "factor = 3"), r"run\.factor must"),
        (("set =", "sett ="), r"data\.set must|data\.sett must"),
        (("count = 2", "count = 0"), r"splits\.count: .*greater than or equal to 1"),
        (('"synthetic"', '"no-such-set"'), r"data\.set: "),
        (
            ("epsilon_g = 1.0", "epsilon_g = 1.0\nepsilon_p = 1.5"),
            r"curves\[2\]\.epsilon_p: epsilon_p must be at least",
        ),
        (("epsilon_g = 1.0", "epsilon_g = -1.0"), r"curves\[2\]|epsilon_g"),
        (("epsilon_g = 1.0", "epsilon = 1.0"), r"curves\[2\]: epsilon must not be given"),
        (("epsilon_g = 1.0", "epsilon_gg = 1.0"), r"curves\[2\]\.epsilon_gg"),
        (('protocol = "plain"', 'protocol = "plane"'), r"curves\[0\]: protocol must be one of"),
        (("factors = 3", 'factors = 3\nengine = "abacus"'), "engine of protocol"),
        (("rounds = 3", "rounds = 0"), "rounds must be at least 1"),
        (('name = "small"', 'name = "../small"'), "name: "),
        (("[data]", "[data"), "TOML"),
        ((BUDGETS, "groups = [{share = 0.5, epsilon_i = 1.0, epsilon_g = 1.0}]"), r"curves\[2\]\.groups must"),
        ((BUDGETS, "groups = [{epsilon_i = 1.0, epsilon_g = 1.0}]"), r"curves\[2\]\.groups: .*share"),
        (
            (BUDGETS, "groups = [{share = 1.0, epsilon_i = 1.0}]"),
            r"curves\[2\]\.groups: .*epsilon_g",
        ),
        (("epsilon_g = 1.0", "groups = [{share = 1.0}]"), r"curves\[2\]\.groups"),
        ((BUDGETS, "groups = 3"), r"curves\[2\]\.groups must be a list of tables"),
        (("rounds = 3", 'rounds = "three"'), r"run\.rounds must be a whole number, got 'three'"),
        (("rounds = 3", "rounds = 3.0"), r"run\.rounds must be a whole number, got 3\.0"),
        (("rounds = 3", "rounds = true"), r"run\.rounds must be a whole number, got True"),
        (("rounds = 3", "rounds = 3\nstep = nan"), r"run\.step must be a number, got nan"),
        (("rounds = 3", "rounds = 3\nengine = 1"), r"run\.engine must be a text, got 1"),
        (("rounds = 3", "rounds = 3\nmeasure_every = 0"), r"curves\[0\]\.measure_every must be at least 1, got 0"),
        (("rounds = 3", "rounds = 3\ndata_weight = -1"), r"curves\[0\]\.data_weight must be positive and finite"),
        (("rounds = 3", "rounds = 3\npatience = 5"), r"run\.patience"),
        (("epsilon_g = 1.0", "epsilon_g = 1.0\nepoch_rounds = 0"), r"curves\[2\]: epoch_rounds must be at least 1"),
        (("clamp = [false, true]", "clamp = 1"), r"curves\[1\]\.clamp must be true or false, got 1"),
        (("epsilon = [4.0, 2.0]", "epsilon = []"), r"curves\[1\]\.epsilon must not be an empty list"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key_before_the_first_run(tmp_path, monkeypatch, change, message):
    """Unknown keys, impossible budgets, missing data, contradictions: nothing has run and nothing was written."""
    monkeypatch.setattr(running, "run_plan", lambda *arguments: pytest.fail("a run started"))
    path = write(tmp_path, FILE.replace(*change, 1))
    with pytest.raises(ParameterError, match=message):
        run_experiment(prepare(path), tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    """With the reason."""
    with pytest.raises(ParameterError, match=r"nowhere\.toml"):
        read_experiment(tmp_path / "nowhere.toml")


def test_records_hold_what_a_report_needs(tmp_path):
    """Config, curve, metrics, baselines, budget, seconds, versions and checksum, in the form of a run's record."""
    folder = run_experiment(prepare(write(tmp_path, FILE)), tmp_path / "records")
    assert is_experiment(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["experiment.json", "runs.parquet"]
    records = read_records(folder)
    assert len(records) == 14
    for record in records:
        assert [point["round"] for point in record["curve"]] == [1, 2, 3]
        assert record["curve"][-1]["rmse"] == pytest.approx(record["metrics"]["rmse"], rel=1e-6)
        assert {"bias", "item_mean"} <= record["baselines"].keys()
        assert record["versions"]["numpy"] == np.__version__
        assert len(record["data"]["checksum"]) >= 16
        assert record["seconds"] > 0
        assert record["budget"]["not_covered"]
    private = records[-1]
    assert private["config"]["epsilon_i"] == 1.0
    assert private["budget"]["epsilon_p"] == 2.0
    study = make_study(records)
    assert [len(setting.metrics["rmse"]) for setting in study.settings] == [2] * 7


def test_records_of_rankings_hold_what_the_released_counts_are_worth(tmp_path):
    """Private popularity belongs to a run: it differs between budgets, where exact popularity is the split's."""
    small = "synthetic:users=60,items=40,ratings=1400,seed=1"
    curves = '[[curves]]\nprotocol = "masked"\nmodel = "audience"\nepsilon = [inf, 0.1]\n'
    text = f'name = "small"\ntitle = "A small one"\n[data]\nset = "{small}"\n[splits]\ncount = 1\n{curves}'
    exact, noisy = read_records(run_experiment(prepare(write(tmp_path, text)), tmp_path / "records"))
    assert exact["baselines"] == noisy["baselines"]
    released = [record["metrics"]["private_popularity_auc"] for record in (exact, noisy)]
    assert released[0] > released[1]
    assert released[0] == pytest.approx(exact["baselines"]["popularity"]["auc"], abs=0.03)


def test_infinity_in_records_is_a_word(tmp_path):
    """JSON has no infinity: a setting and a file that ask for it say "inf", as every result does."""
    text = FILE.partition("[run]")[0] + '[[curves]]\nprotocol = "masked"\nepsilon = [inf, 8.0]\n'
    folder = run_experiment(prepare(write(tmp_path, text), n_splits=1), tmp_path / "records")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    stored = json.loads((folder / "experiment.json").read_text("utf-8"), parse_constant=refuse)
    assert stored["config"]["curves"][0]["epsilon"] == ["inf", 8.0]
    assert stored["settings"][0]["config"]["epsilon"] == "inf"


def test_jobs_on_several_processes_give_the_same_records(tmp_path):
    """Two processes, the same curves to the last bit."""
    one = read_records(run_experiment(prepare(write(tmp_path, FILE), n_splits=1), tmp_path / "a"))
    two = read_records(run_experiment(prepare(write(tmp_path, FILE), n_splits=1), tmp_path / "b", jobs=2))
    assert [record["curve"] for record in one] == [record["curve"] for record in two]


def test_an_interrupted_experiment_resumes(tmp_path, monkeypatch):
    """What was done is not done again; without --resume, and once finished, the folder is refused."""
    prepared = prepare(write(tmp_path, FILE), n_splits=1)
    real, calls = running.run_plan, []

    def interrupted(task, plan):
        calls.append(plan)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(task, plan)

    monkeypatch.setattr(running, "run_plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepared, tmp_path)
    with pytest.raises(RunError, match="records"):
        run_experiment(prepared, tmp_path)
    shown = []
    folder = run_experiment(prepared, tmp_path, resume=True, progress=lambda done, total: shown.append((done, total)))
    assert shown == [(4, 7), (5, 7), (6, 7), (7, 7)]
    assert len(read_records(folder)) == 7
    with pytest.raises(RunError, match="records"):
        run_experiment(prepared, tmp_path, resume=True)


def test_budget_groups_are_measured_apart(tmp_path):
    """Half of the people at ε_I 4, half at 0.25: each group's error on its own people's test ratings."""
    groups = "groups = [{share=0.5, epsilon_i=4.0, epsilon_g=4.0}, {share=0.5, epsilon_i=0.25, epsilon_g=0.25}]"
    text = FILE.replace("epsilon_i = [4.0, 1.0]\nepsilon_g = 1.0", groups)
    records = read_records(run_experiment(prepare(write(tmp_path, text), n_splits=1), tmp_path))
    metrics = records[-1]["metrics"]
    low, high = sorted([metrics["rmse_at_epsilon_4_4"], metrics["rmse_at_epsilon_0.25_0.25"]])
    assert low <= metrics["rmse"] <= high
    plan = make_plans(read_experiment(tmp_path / "experiment.toml"))[-1]  # of the second split
    members = group_of_users(plan, 101)
    assert sorted(np.bincount(members)) == [50, 51]


def test_the_literal_step_moves_next_to_nothing(tmp_path):
    """With N = 1 and the paper's η₀ the error stays where it started."""
    text = FILE.replace('protocol = "plain"', 'protocol = "plain"\ndata_weight = 1.0\nstep = 5e-6')
    record = read_records(run_experiment(prepare(write(tmp_path, text), n_splits=1), tmp_path))[0]
    assert record["curve"][0]["rmse"] == pytest.approx(record["curve"][-1]["rmse"], abs=0.01)
    assert record["label"].endswith("N=1")


def test_damaged_records_are_refused(tmp_path):
    """A missing table, another format, no JSON."""
    folder = run_experiment(prepare(write(tmp_path, FILE), n_splits=1), tmp_path)
    content = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(RunError, match="must have format 1"):
        read_stored(folder)
    (folder / "experiment.json").write_text("{")
    with pytest.raises(RunError, match="must hold a readable"):
        read_stored(folder)


def test_the_command_runs_an_experiment(tmp_path):
    """`hushrec experiment FILE --json` says where the records are; a wrong file exits with 1 and one sentence."""
    path = write(tmp_path, FILE)
    done = run("experiment", str(path), "--splits", "1", "--out", str(tmp_path / "records"), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["runs"] == 7
    assert pl.read_parquet(f"{found['records']}/runs.parquet").height == 7
    wrong = run("experiment", str(write(tmp_path, FILE.replace("factors", "factor"))))
    assert wrong.code == 1
    assert "run.factor" in wrong.err


def test_a_grid_file_is_written_for_another_machine(tmp_path):
    """`--export` runs nothing; what the machine sends back becomes the records."""
    from hushrec.experiments.grid import Grid, GridResult

    path = write(tmp_path, FILE)
    refused = run("experiment", str(path), "--export", str(tmp_path / "grid.npz"))
    assert "no_fallback must be true" in refused.err
    path = write(tmp_path, FOR_A_GRID)
    exported = run("experiment", str(path), "--export", str(tmp_path / "grid.npz"))
    assert exported.code == 0, exported.err
    grid = Grid.load(tmp_path / "grid.npz")
    assert len(grid.runs) == 14
    n = len(grid.runs)
    result = GridResult(
        np.full((n, 3), 0.9), np.full((n, 2), 0.9), np.ones((n, 2)), np.ones(n),
        {
            "device": "a GPU", "versions": {"torch": "2"}, "seconds": 7.0, "runs": n, "metrics": ["rmse", "mae"],
            "run_settings": grid.runs[::-1],
        },
    )  # fmt: skip
    result.save(tmp_path / "result.npz")
    out = tmp_path / "records"
    collected = run("experiment", str(path), "--collect", str(tmp_path / "result.npz"), "--out", str(out))
    assert collected.code == 0, collected.err
    records = read_records(out / "small")
    assert {round(record["metrics"]["rmse"], 6) for record in records} == {0.9}
    assert (records[0]["machine"], records[0]["versions"]["torch"]) == ("a GPU", "2")
    assert {record["engine"] for record in records} == {"gpu"}
    assert records[0]["seconds"] == 0.5
    result.about["run_settings"] = grid.runs[1:]
    result.save(tmp_path / "result.npz")
    wrong = run("experiment", str(path), "--collect", str(tmp_path / "result.npz"), "--out", str(tmp_path))
    assert "lacks run 1" in wrong.err


RANKING = """
name = "ranking"
title = "Pairs"
[data]
set = "synthetic"
[splits]
count = 2
[run]
model = "bpr"
factors = 3
rounds = 4
measure_every = 2
[[curves]]
protocol = "plain"
[[curves]]
protocol = "sdcf"
epsilon_i = [4.0, 1.0]
"""


def test_ranking_runs_as_one_batch(tmp_path):
    """A grid of `bpr` on engine gpu: measured in the rounds of the file, each run as if it were alone, to rounding."""
    pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")
    gpu = prepare(write(tmp_path, RANKING.replace("factors = 3", 'factors = 3\nengine = "gpu"')))
    batch = read_records(run_experiment(gpu, tmp_path / "gpu"))
    for ours, plan in zip(batch, gpu.plans, strict=True):
        assert [point["round"] for point in ours["curve"]] == [1, 2, 4]
        assert ours["curve"][-1]["auc"] == pytest.approx(ours["metrics"]["auc"], abs=1e-6)
        assert ours["baselines"] == gpu.task(plan).baselines()
        alone = run_plan(gpu.task(plan), plan)
        assert ours["metrics"] == pytest.approx(alone["metrics"], abs=1e-3)
        assert ours["bytes_per_client_round"] == pytest.approx(alone["bytes_per_client_round"])
    assert {record["engine"] for record in batch} == {"gpu"}


@pytest.mark.parametrize("text", [FOR_A_GRID, RANKING], ids=["ratings", "ranking"])
def test_with_validation_nothing_of_the_test_part_is_seen(tmp_path, text):
    """Trained and measured inside the training part; so is the grid for another machine."""
    plain = prepare(write(tmp_path, text), n_splits=1)
    inside = prepare(write(tmp_path, text.replace("count = 2", "count = 2\nvalidation = true")), n_splits=1)
    held_out = pairs_of(plain.task(plain.plans[0]), "test")
    task = inside.task(inside.plans[0])
    assert not held_out & (pairs_of(task, "train") | pairs_of(task, "test"))
    grid = running.make_grid(inside)
    assert not held_out & set(zip(grid.users.tolist(), grid.items.tolist(), strict=True))
    assert grid.held_out.sum() == len(task.split.test)
    assert inside.plans[0].validation
    assert running._plain_plan(inside.plans[0])["validation"]


def pairs_of(task, part):
    """(user, item) of the rows of one part of a task's split."""
    rows = getattr(task.split, part)
    return set(zip(task.ratings.users[rows].tolist(), task.ratings.items[rows].tolist(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rounds = 4", "rounds = [4, 5]"), "rounds, at_least and measure_every"),
        (("count = 2", "count = 2\nvalidation = true"), r"splits\.count"),
        (('protocol = "plain"', 'protocol = "plain"\ndata_weight = 2.0'), "data_weight"),
    ],
)
def test_what_no_grid_can_hold_is_refused(tmp_path, change, message):
    """Runs of different lengths, validation parts that differ, and what only engine cpu does."""
    with pytest.raises(ParameterError, match=message):
        running.make_grid(prepare(write(tmp_path, RANKING.replace(*change))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('protocol = "plain"', 'protocol = "plain"\nengine = "cpu"'), "engine must be gpu for all curves"),
        (('protocol = "plain"', 'protocol = "plain"\ndata_weight = 2.0'), "data_weight"),
        (("factors = 3", 'factors = 3\nmodel = "fm"'), "model mf or bpr"),
    ],
)
def test_what_engine_gpu_cannot_do_is_refused_before_the_first_run(tmp_path, change, message):
    """One engine for all curves, no data_weight, no fm."""
    pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")
    text = FILE.replace("rounds = 3", 'rounds = 3\nengine = "gpu"').replace(*change, 1)
    with pytest.raises(ParameterError, match=message):
        prepare(write(tmp_path, text))


def test_an_interrupted_batch_resumes(tmp_path, monkeypatch):
    """On engine gpu what was whole is not run again, and the records are those of a run without a break."""
    pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")
    from hushrec.experiments import grid, running

    monkeypatch.setattr(running, "SPLITS_AT_ONCE", 2)
    text = RANKING.replace("rounds = 4", 'rounds = 2\nengine = "gpu"').replace("count = 2", "count = 3")
    prepared = prepare(write(tmp_path, text))
    whole = read_records(run_experiment(prepared, tmp_path / "whole"))
    real, calls = grid._run_batch, []

    def interrupted(grid_file, numbers, *rest):
        calls.append(len(numbers))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(grid_file, numbers, *rest)

    monkeypatch.setattr(grid, "_run_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepared, tmp_path / "broken")
    shown = []
    folder = run_experiment(prepared, tmp_path / "broken", resume=True, progress=lambda *counts: shown.append(counts))
    assert calls == [6, 3, 3]
    assert shown == [(9, 9)]
    for ours, theirs in zip(read_records(folder), whole, strict=True):
        assert ours["metrics"]["auc"] == pytest.approx(theirs["metrics"]["auc"], abs=1e-4)


# What strangers need -------------------------------------------------------------------------------------------------


def test_the_table_of_runs_names_settings_and_budgets(tmp_path):
    """Whoever opens runs.parquet sees what each row is; read back, records are as they were."""
    folder = run_experiment(prepare(write(tmp_path, FILE), n_splits=1), tmp_path / "records")
    runs = pl.read_parquet(folder / "runs.parquet")
    assert runs["protocol"].to_list() == ["plain", *["isgld"] * 4, *["sdcf"] * 2]
    assert runs["epsilon"].to_list() == [np.inf, 4, 4, 2, 2, 8, 2]
    assert runs["epsilon_i"].to_list()[-2:] == [4, 1]
    assert runs["clamp"].to_list()[1:5] == [False, True, False, True]
    assert set(runs["factors"]) == {3}
    assert "profile-level" in runs["unit"][-1]
    assert runs["metric_precision_at_10"].is_not_null().all()
    records = read_records(folder)
    assert [record["label"] for record in records] == runs["label"].to_list()
    assert not {"epsilon", "unit", "clamp"} & set(records[0])


def test_the_page_on_experiments_is_true(tmp_path, monkeypatch):
    """Its files, commands and Python run, its curves are as many as it says, and its table is not stale."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "experiments.md").read_text("utf-8")
    toml, group = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    rows = [f"r{user};b{item};{1 + (user * item) % 5}" for user in range(30) for item in range(20) if (user + item) % 3]
    Path("my.csv").write_text("reader;book;stars\n" + "\n".join([*rows, "r1;b99;0"]) + "\n")
    Path("steps.toml").write_text(toml.replace("rounds = 50", "rounds = 2"))
    assert len(prepare("steps.toml").plans) == 18
    Path("groups.toml").write_text(toml.partition("[[curves]]")[0] + group)
    assert len(prepare("groups.toml").plans) == 3
    for command in re.findall(r"^\$ hushrec (.*?)(?:  +#.*)?$", page, re.MULTILINE):
        outcome = run(*command.replace("--jobs 2", "--splits 1").split())
        assert outcome.code == 0, outcome.err
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "experiments.md", "exec"), {})
    spec = importlib.util.spec_from_file_location("generate", root / "docs" / "generate.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.with_keys(page) == page, "run python docs/generate.py keys"
