"""The page on reproduction says what the records say."""

from pathlib import Path

import pytest

from hushrec.experiments.config import make_plans, read_experiment
from hushrec.records import read_records
from hushrec.report.records import Study, make_study

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


def study_of(task: str, data: str) -> Study:
    """The records of one of the paper's tasks on one data set."""
    return make_study(read_records(RECORDS / f"{task}-{FILES[data]}"))


@pytest.mark.parametrize("data", FILES)
def test_the_table_of_task_1_is_that_of_the_records(data):
    """Every mean, to the three digits shown; thirty splits each."""
    study, shown = study_of("task1", data), table_below("Task 1")[data]
    means = {setting.label: setting for setting in study.settings}
    assert {len(setting.metrics["rmse"]) for setting in study.settings} == {30}
    for column, label in TASK1.items():
        expected = study.baseline("bias") if label is None else means[label].mean("rmse")
        assert shown[column] == f"{expected:.3f}", column


@pytest.mark.parametrize("data", table_below("Task 2"))
def test_the_table_of_task_2_is_that_of_the_records(data):
    """Every mean, to the three digits shown, and how many splits there are."""
    study, shown = study_of("task2", data), table_below("Task 2")[data]
    means = {setting.label: setting for setting in study.settings}
    assert shown["splits"] == str(len(study.settings[0].metrics["auc"]))
    for column, label in TASK2.items():
        expected = study.baseline("popularity") if label is None else means[label].mean("auc")
        assert shown[column] == f"{expected:.3f}", column


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_of_the_project_is_well_formed(path):
    """Its name is that of its file, and every setting in it is one that training takes."""
    experiment = read_experiment(path)
    assert experiment.name == path.stem
    assert make_plans(experiment)
