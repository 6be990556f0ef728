"""The paper's figures from records alone: panels, legend, baselines, and what lies outside is named."""

import json
import re

import pytest

from hushrec.experiment_records import Shared, write_records
from hushrec.report import plots, read_studies, study_rows, write_report
from hushrec.report.figures import paper_figures

LEVELS = (4.0, 1.0, 0.25, 0.0625)


def budget(**levels):
    """A budget statement with these numbers."""
    private = "epsilon_i" in levels
    return {
        "unit": "profile-level" if private else "a value",
        "epsilon": 2 * levels.get("epsilon_i", 0) or levels.get("epsilon", "inf"),
        "delta": 0.0,
        "not_covered": ["anything else"],
        "value_rho": {"median": 1.0, "max": 2.0, "unit": "zCDP"},
        **levels,
    } | ({"epsilon_p": 2 * levels["epsilon_i"]} if private else {})


def setting(protocol, statement, model="mf"):
    """What a setting shares with its runs."""
    shared = {"engine": "cpu", "rounds": 3, "factors": 2, "step": 0.4, "at_least": None, "config": {}}
    return {"label": protocol, "model": model, "protocol": protocol, "budget": statement, **shared}


def write_experiment(folder, settings, ends, *, measure="rmse", baselines=None, metrics=None):
    """Records of two splits whose curves fall to the given ends."""
    about = {
        "name": folder.name,
        "title": "A task",
        "config": {},
        "dataset": "some",
        "data": {"users": 5, "items": 6, "scale": [1, 5], "checksum": "c"},
        "versions": {},
        "machine": "here",
    }
    numbers = baselines or {"bias": {"rmse": 0.94}, "item_mean": {"rmse": 1.02}}
    split = {"train": 8, "test": 2, "cold_users": 0, "cold_items": 0, "baselines": numbers}
    rows = [
        {
            "setting": number,
            "split_seed": seed,
            "seed": seed,
            "metrics": {measure: end + 0.01 * seed} | (metrics[number] if metrics else {}),
            "curve": [{"round": place + 1, measure: end + 0.01 * seed + 0.1 * (2 - place)} for place in range(3)],
            "seconds": 1.0,
            "bytes_per_client_round": 10.0,
            "value_rho": {"median": 1.0, "max": 2.0},
        }
        for seed in range(2)
        for number, end in enumerate(ends)
    ]
    write_records(folder, Shared(about, settings, {0: split, 1: split}), rows)


@pytest.fixture
def task1(tmp_path):
    """The twenty curves of Task 1."""
    settings = [setting("plain", budget()), setting("isgld", budget(epsilon=2.0, clamp=False))]
    settings += [setting("sdcf", budget(epsilon_i=4.0, epsilon_g=0.0))]
    settings += [setting("sdcf", budget(epsilon_i=i, epsilon_g=g)) for i in LEVELS for g in LEVELS]
    folder = tmp_path / "task1"
    write_experiment(
        folder, settings, [0.95, 1.4, 0.98, *(0.955 + 0.005 * place for _ in LEVELS for place in range(4))]
    )
    return folder


def texts(svg):
    """Every piece of text in a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_task_2_is_one_panel(tmp_path):
    """AUC by round for every ε_I, beside non-private and the most popular items."""
    settings = [setting("plain", budget(), "bpr")]
    settings += [setting("sdcf", budget(epsilon_i=level), "bpr") for level in LEVELS]
    popular = {"popularity": {"auc": 0.86}, "random": {"auc": 0.5}}
    write_experiment(tmp_path / "task2", settings, [0.85, 0.84, 0.84, 0.84, 0.84], measure="auc", baselines=popular)
    (study,) = read_studies([tmp_path / "task2"])
    shown = texts(paper_figures(study)["task2"][1])
    assert {"non-private", "sdcf ε_I = 4", "sdcf ε_I = 0.0625", "most popular"} <= set(shown)


def test_budget_groups_are_shown_apart(tmp_path):
    """One training with two budgets: a dot and a row of the table for the people of each, under the run's own name."""
    mixed = setting("sdcf", budget(epsilon_i=4.0, epsilon_g=4.0))
    mixed["label"] = "sdcf, 2 budget groups"
    mixed["config"] = {"groups": [{"epsilon_i": 4.0, "epsilon_g": 4.0}, {"epsilon_i": 0.25, "epsilon_g": 1.0}]}
    folder = tmp_path / "mixed"
    groups = {"rmse_at_epsilon_4_4": 0.96, "rmse_at_epsilon_0.25_1": 0.98}
    write_experiment(folder, [mixed, setting("plain", budget())], [0.97, 0.95], metrics=[groups, {}])
    (study,) = read_studies([folder])
    shown = texts(paper_figures(study)["groups"][1])
    assert {"people at ε_I=4, ε_g=4", "people at ε_I=0.25, ε_g=1", "everybody", "non-private", "bias model"} <= set(
        shown
    )
    assert {"0.960", "0.980", "0.975", "0.955"} <= set(shown)
    rows = {row.name: row for row in study_rows(study)}
    assert rows["sdcf, 2 budget groups: people at ε_I=0.25, ε_g=1"].values == ["0.980"]
    assert rows["sdcf, 2 budget groups"].protects == "which items: each their own ε, at most 8, profile-level"


def test_settings_that_differ_in_their_step_say_so(tmp_path):
    """Two steps of one budget are two rows with two names; the literal run keeps the name of its records."""
    slow, fast = setting("plain", budget()), {**setting("plain", budget()), "step": 0.8}
    literal = {**setting("plain", budget()), "step": 1e-6, "label": "plain, N=1", "config": {"data_weight": 1.0}}
    for entry in (slow, fast):
        entry["config"] = {"validation": True}
    write_experiment(tmp_path / "steps", [slow, fast, literal], [0.95, 0.96, 2.0])
    (study,) = read_studies([tmp_path / "steps"])
    assert "RMSE on the validation part (smaller is better)" in texts(plots.curves(study))
    assert [entry.label for entry in study.settings] == [
        "plain, not private, step 0.4",
        "plain, not private, step 0.8",
        "plain, N=1",
    ]


def test_curves_that_all_end_far_away_are_shown(tmp_path):
    """The literal algorithm learns nothing: its curve is on the plot all the same."""
    write_experiment(tmp_path / "far", [setting("plain", budget())], [2.7])
    (study,) = read_studies([tmp_path / "far"])
    shown = texts(plots.curves(study))
    assert "plain, not private" in shown
    assert not any("off the plot" in text for text in shown)


def test_another_experiment_has_plain_plots(tmp_path):
    """A few settings are no grid: the page shows its usual plots."""
    write_experiment(tmp_path / "few", [setting("plain", budget())], [0.95])
    (study,) = read_studies([tmp_path / "few"])
    assert paper_figures(study) == {}
    written = write_report([tmp_path / "few"], tmp_path / "page.html")
    assert sorted(path.name for path in written.plots) == ["curves.svg", "finals.svg"]


def test_a_report_of_task_1_shows_two_figures_of_four_panels_and_the_peers(task1, tmp_path):
    """A panel for each level of what is fixed, a curve for each level of what varies, the rest in every panel.

    Settings and peers have the mean ± deviation over the splits, from the records alone.
    """
    peers = {"splits": {"0": {"Surprise SVD": {"rmse": 0.93}}, "1": {"Surprise SVD": {"rmse": 0.95}}}}
    (task1 / "peers.json").write_text(json.dumps(peers))
    written = write_report([task1], tmp_path / "page.html")
    drawn = {path.name: path.read_text("utf-8") for path in written.plots}
    assert sorted(drawn) == ["task1-epsilon-g.svg", "task1-epsilon-i.svg"]
    for name, fixed, varied in (("task1-epsilon-g.svg", "ε_I", "ε_g"), ("task1-epsilon-i.svg", "ε_g", "ε_I")):
        shown = texts(drawn[name])
        assert [text for text in shown if text.startswith(f"{fixed} = ")] == [
            f"{fixed} = {level:g}" for level in LEVELS
        ]
        legend = {f"sdcf {varied} = {level:g}" for level in LEVELS} | {"non-private", "ISGLD ε = 2", "sdcf α = ∞"}
        assert legend <= set(shown)
        assert shown.count("bias model") == 4
        assert shown.count("↑ ISGLD ε = 2 ends at 1.40") == 4
    rows = {row.name: row.values[0] for row in study_rows(written.studies[0])}
    assert rows["Surprise SVD"] == "0.940 ± 0.014"
    assert rows["plain, not private"] == "0.955 ± 0.007"


def test_experiments_below_a_folder_are_found(task1, tmp_path):
    """A folder of records is read like the records themselves."""
    assert [study.title for study in read_studies([tmp_path])] == ["A task"]
