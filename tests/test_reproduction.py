"""The page on reproduction says what the records say."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hushrec.experiment_records import Record, read_records, read_stored
from hushrec.experiments.config import make_plans, read_experiment
from hushrec.report import plots
from hushrec.report.figures import paper_figures
from hushrec.report.studies import Study, make_study
from hushrec.simulation.settings import Settings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
RECORDS = ROOT / "experiments" / "records"
FILES = {"ML-100K": "ml-100k", "ML-1M": "ml-1m", "netflix-10k": "netflix-10k"}
TASK1 = {
    "bias model": None,
    "non-private": "plain, not private",
    **{f"ε_g = {level}": f"sdcf ε_I=4, ε_g={level}" for level in ("4", "1", "0.25", "0.0625")},
    "α = ∞": "sdcf ε_I=4, α=∞",
    **{f"ISGLD {level}": f"isgld ε={level}" for level in (4, 2)},
    **{f"ISGLD {level}, clamped": f"isgld ε={level}, clamped" for level in (4, 2)},
}
TASK2 = {"most popular": None, "non-private": "plain, not private"} | {
    f"ε_I = {level}": f"sdcf ε_I={level}" for level in ("4", "1", "0.25", "0.0625")
}

PEERS = ("Surprise SVD", "Surprise SVDpp", "myFM")


def table_below(heading: str) -> dict[str, dict[str, str]]:
    """Rows of the first table below a heading, by their first cell."""
    lines = PAGE[PAGE.index(f"## {heading}") :].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, body = rows[0], rows[2:]
    found: dict[str, dict[str, str]] = {}
    for row in body:
        if len(row) != len(head) or row[0] not in FILES:
            break
        found[row[0]] = dict(zip(head[1:], row[1:], strict=True))
    return found


@cache
def records_named(name: str) -> list[Record]:
    """The records of one experiment."""
    return read_records(RECORDS / name)


@cache
def study_named(name: str) -> Study:
    """The same as a study."""
    return make_study(records_named(name))


def study_of(task: str, data: str) -> Study:
    """The records of one of the paper's tasks on one data set."""
    return study_named(f"{task}-{FILES[data]}")


@pytest.mark.parametrize("data", FILES)
def test_the_table_of_task_1_is_that_of_the_records(data):
    """Every mean, to the three digits shown; thirty splits each."""
    study, shown = study_of("task1", data), table_below("Task 1")[data]
    means = {setting.label: setting for setting in study.settings}
    assert {len(setting.metrics["rmse"]) for setting in study.settings} == {30}
    for column, label in TASK1.items():
        expected = study.baseline("bias") if label is None else means[label].mean("rmse")
        assert shown[column] == f"{expected:.3f}", column


@pytest.mark.parametrize("data", FILES)
@pytest.mark.parametrize(("heading", "task"), [("Task 2: AUC", "task2"), ("Task 2, steps tuned", "task2-tuned")])
def test_the_tables_of_task_2_are_those_of_the_records(heading, task, data):
    """Every mean, to the three digits shown; ten splits each."""
    study, shown = study_of(task, data), table_below(heading)[data]
    means = {setting.label: setting for setting in study.settings}
    assert {len(setting.metrics["auc"]) for setting in study.settings} == {int(shown["splits"])} == {10}
    for column, label in TASK2.items():
        expected = study.baseline("popularity") if label is None else means[label].mean("auc")
        assert shown[column] == f"{expected:.3f}", column


LEVELS = ("4", "1", "0.25", "0.0625")
FLAT = " ".join(PAGE.split())


def means_by_step(name: str, protocol: str, measure: str) -> dict[float, float]:
    """The mean over splits of a tuning grid's measure at each step, in the order of the file; three splits each."""
    found: dict[float, list[float]] = {}
    for record in records_named(name):
        assert record["config"]["validation"]
        if record["protocol"] == protocol:
            found.setdefault(record["step"], []).append(record["metrics"][measure])
    assert {len(values) for values in found.values()} == {3}
    return {step: float(np.mean(values)) for step, values in found.items()}


@pytest.mark.parametrize("name", FILES.values())
def test_tuned_steps_are_those_that_validation_chose(name):
    """Of the steps compared inside training parts, the best of each protocol is the one that Task 2 is run with."""
    experiment = read_experiment(ROOT / "experiments" / f"task2-tuned-{name}.toml")
    for curve in experiment.curves:
        found = means_by_step(f"tuning-bpr-{name}", curve["protocol"], "auc")
        assert max(found, key=found.__getitem__) == curve["step"]


STEPS_PAGE = (ROOT / "docs" / "one-class-and-fm.md").read_text("utf-8")


@pytest.mark.parametrize("data", FILES)
def test_the_table_of_steps_is_that_of_the_records(data):
    """AUC on validation parts at every step, with and without privacy, and of the most popular items; three splits."""
    name = f"tuning-bpr-{FILES[data]}"
    popular = {record["split_seed"]: record["baselines"]["popularity"]["auc"] for record in records_named(name)}
    for protocol, shown in (("plain", "`plain`"), ("sdcf", "`sdcf`, ε_I = 4")):
        found = means_by_step(name, protocol, "auc")
        cells = [f"{mean:.3f}" for mean in (*found.values(), np.mean(list(popular.values())))]
        assert f"| {data}, {shown} | {' | '.join(cells)} |" in STEPS_PAGE
        assert "| step | " + " | ".join(f"{step:g}" for step in found) + " | most popular |" in STEPS_PAGE


def test_the_table_of_steps_of_fm_is_that_of_the_records():
    """RMSE on validation parts at every step, with and without privacy, and of the bias model; three splits."""
    name = "tuning-fm-ml-100k"
    bias = {record["split_seed"]: record["baselines"]["bias"]["rmse"] for record in records_named(name)}
    for protocol, shown in (("plain", "`plain`"), ("sdcf", "`sdcf`, ε_I = 4, ε_g = 4")):
        found = means_by_step(name, protocol, "rmse")
        cells = [f"{mean:.3f}" for mean in (*found.values(), np.mean(list(bias.values())))]
        assert f"| ML-100K, {shown} | {' | '.join(cells)} |" in STEPS_PAGE
        assert "| step | " + " | ".join(f"{step:g}" for step in found) + " | bias model |" in STEPS_PAGE
        assert found[Settings(model="fm").options["step"]] - min(found.values()) < 0.006


@pytest.mark.parametrize("task", ["Task 1", "Task 2"])
def test_runs_and_seconds_of_the_time_table_are_those_of_the_records(task):
    """Of each data set, of the paper's shape of Netflix, and of all three together."""
    stem = task.lower().replace(" ", "")
    names = FILES | ({"netflix-10k5k": "netflix-10k5k"} if task == "Task 1" else {})
    found = {data: [record["seconds"] for record in records_named(f"{stem}-{name}")] for data, name in names.items()}
    found["all three"] = [seconds for data in FILES for seconds in found[data]]
    for data, seconds in found.items():
        assert f"\n| {task}, {data} | {len(seconds):,} | {sum(seconds):.1f} | " in PAGE, data


@pytest.mark.parametrize("data", FILES)
def test_the_tables_of_peers_are_those_of_the_records(data):
    """On the first split: the baseline, ours and each other library's model; "not run" where there is no number."""
    plain = "plain, not private"
    of_ratings = [first_split(f"task1-{FILES[data]}", name, "rmse") for name in ("bias", plain)]
    of_ratings += [first_split(f"task1-{FILES[data]}", name, "rmse") for name in PEERS]
    of_ranks = [first_split(f"task2-{FILES[data]}", name, "auc") for name in ("popularity", plain)]
    of_ranks += [first_split(f"task2-tuned-{FILES[data]}", plain, "auc")]
    of_ranks += [first_split(f"task2-{FILES[data]}", name, "auc") for name in ("implicit BPR", "implicit ALS")]
    for cells in (of_ratings, of_ranks):
        assert f"| {data} | {' | '.join(cells)} |" in PAGE


def first_split(name: str, model: str, measure: str) -> str:
    """A baseline's, a setting's or a peer's number on the first split, as the page shows it."""
    records = [record for record in records_named(name) if record["split_seed"] == 0]
    found = {record["label"]: record["metrics"] for record in records} | records[0]["baselines"] | records[0]["peers"]
    return f"{found[model][measure]:.3f}" if model in found else "not run"


def test_records_say_what_ran_them():
    """Versions, machine and a checksum of the data, in every folder of records."""
    for folder in sorted(path.parent for path in RECORDS.glob("*/experiment.json")):
        shared, _ = read_stored(folder)
        assert len(shared.about["data"]["checksum"]) == 64
        assert shared.about["machine"]
        assert shared.about["versions"]["hushrec"] != "not installed"
        assert {setting["engine"] for setting in shared.settings} <= {"cpu", "gpu"}


def test_pictures_of_the_page_are_drawn_from_records(monkeypatch):
    """Each picture that the page shows is one that `make docs` draws; of each, the name is enough here."""
    monkeypatch.setattr(plots, "to_svg", lambda figure: "")
    shown = set(re.findall(r"\((pictures/[^)]*)\)", PAGE))
    studies = [folder.parent.name for folder in RECORDS.glob("*/experiment.json")]
    drawn = {
        f"pictures/{study}-{name.removeprefix('task1-')}.svg"
        for study in studies
        if any(picture.startswith(f"pictures/{study}-") for picture in shown)
        for name in paper_figures(study_named(study))
    }
    assert drawn
    assert shown <= drawn
    assert all((ROOT / "docs" / picture).is_file() for picture in shown)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_of_the_project_is_well_formed(path):
    """Its name is that of its file, and every setting in it is one that training takes."""
    experiment = read_experiment(path)
    assert experiment.name == path.stem
    assert make_plans(experiment)
