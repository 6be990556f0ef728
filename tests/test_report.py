"""`hushrec report`: from run.json alone to tables, plots and one page."""

import csv
import json
import re
import shlex
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command import run
from hypothesis import given
from hypothesis import strategies as st

from hushrec.errors import RunError
from hushrec.experiment_records import read_records
from hushrec.files import stamp
from hushrec.report import Section, figures, read_studies, study_rows, write_report
from hushrec.report.figures import paper_figures
from hushrec.report.labels import command_of, distinct_labels
from hushrec.report.page import make_page, study_plots
from hushrec.report.studies import make_study, spread
from hushrec.report.tables import verdict

TASK1 = Path(__file__).parents[1] / "experiments" / "records" / "task1-ml-100k"

HOSTILE = '<script>alert(1)</script> & "quotes" [red]$x_1$ \'\x1b[31m'

SDCF: dict[str, Any] = {
    "unit": "profile-level: which items are reported, over all rounds, for two profiles of the same number of ratings",
    "epsilon": 8.0,
    "delta": 0.0,
    "epsilon_i": 4.0,
    "epsilon_p": 8.0,
    "epsilon_g": 4.0,
    "profile_cap": None,
    "not_covered": ["the gradient values", "a malicious server"],
}
PLAIN: dict[str, Any] = {"unit": "none", "epsilon": "inf", "delta": 0.0, "not_covered": ["anything a person rated"]}


def record(protocol: str = "sdcf", rmse: float = 0.95, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A run.json of three rounds that ends at `rmse`."""
    return {
        "format": 1,
        "dataset": "toy",
        "model": "mf",
        "protocol": protocol,
        "engine": "reference",
        "seed": seed,
        "split_seed": seed,
        "rounds": 3,
        "factors": 2,
        "step": 0.4,
        "metrics": {"rmse": rmse, "mae": rmse - 0.2},
        "curve": [{"round": number, "rmse": rmse + 0.1 * (3 - number)} for number in (1, 2, 3)],
        "baselines": {"global_mean": {"rmse": 1.1, "mae": 0.9}, "bias": {"rmse": 0.94, "mae": 0.74}},
        "comparisons": {},
        "budget": SDCF if protocol == "sdcf" else PLAIN,
        "data": {"users": 5, "items": 7, "train": 20, "test": 5, "scale": [1, 5], "checksum": "c"},
        **changes,
    }


def write_run(folder: Path, content: dict[str, Any]) -> Path:
    """A run folder with nothing in it but run.json: a report needs no more."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(content))
    return folder


class Reader(HTMLParser):
    """Notes everything that would reach past the page, and every script."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.outside.append(f"{tag} {name}")


def read_page(text: str) -> Reader:
    """What a page is made of."""
    reader = Reader()
    reader.feed(text)
    return reader


def test_seeds_of_one_setting_are_joined_and_others_kept_apart(tmp_path: Path) -> None:
    """Two seeds of sdcf are one setting with mean and spread; plain is another."""
    write_run(tmp_path / "a", record(rmse=0.95, seed=0))
    write_run(tmp_path / "b", record(rmse=0.97, seed=1))
    write_run(tmp_path / "c", record("plain", rmse=0.93))
    (study,) = read_studies([tmp_path])
    sdcf, plain = study.settings
    assert sdcf.label == "sdcf ε_I=4, ε_g=4"
    assert sdcf.mean("rmse") == pytest.approx(0.96)
    assert spread(sdcf.metrics["rmse"]) == pytest.approx(0.0141421, abs=1e-6)
    assert sdcf.curve is not None
    assert (sdcf.curve.low[-1], sdcf.curve.high[-1]) == pytest.approx((0.95, 0.97))
    assert (plain.label, plain.private) == ("plain, not private", False)


def test_the_table_is_sorted_and_shows_the_bias_model_where_it_lies() -> None:
    """Best first: plain 0.93, bias 0.94, sdcf 0.95; gaps are to the best baseline; each budget has its unit."""
    study = make_study([record(rmse=0.95), record("plain", rmse=0.93)])
    rows = study_rows(study)
    assert [row.name for row in rows][:3] == ["plain, not private", "bias model", "sdcf ε_I=4, ε_g=4"]
    assert [row.gap for row in rows[:3]] == ["-0.010", "0.000", "+0.010"]
    assert rows[2].protects == "list of items: ε 8 profile-level, all rounds"
    assert [row.kind == "better" for row in rows[:3]] == [True, False, False]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([0.95], "The private setting does not beat the bias model: it loses by 0.010 (0.950)."),
        ([0.93], "The private setting beats the bias model: it wins by 0.010 (0.930)."),
        (
            [0.95, 0.96],
            "Of 2 private settings none beats the bias model: the best of them, sdcf ε_I=4, α=∞, loses by 0.010",
        ),
        (
            [0.93, 0.96],
            "Of 2 private settings 1 beats the bias model: the best of them, sdcf ε_I=4, α=∞, wins by 0.010",
        ),
        (
            [0.93, 0.92],
            "Of 2 private settings 2 beat the bias model: the best of them, sdcf ε_I=4, ε_g=1, wins by 0.020",
        ),
    ],
)
def test_the_verdict_names_whom_private_settings_are_measured_against(errors: list[float], said: str) -> None:
    """Against the bias model, by how much; "none beats it" was read as the non-private model."""
    records = [record(rmse=error, budget={**SDCF, "epsilon_g": float(number)}) for number, error in enumerate(errors)]
    text = verdict(make_study([*records, record("plain", rmse=0.9)]))
    assert "the bias model: RMSE 0.940." in text
    assert "plain, not private: wins by 0.040 (0.900)." in text
    assert said in text


def test_what_a_run_was_compared_with_stands_in_where_it_has_no_run() -> None:
    """A single run's report shows the non-private model; a run of its own takes its place."""
    compared = {"plain": {"rmse": 0.93, "mae": 0.7, "budget": PLAIN}}
    study = make_study([record(comparisons=compared)])
    assert [setting.label for setting in study.settings] == ["sdcf ε_I=4, ε_g=4", "plain, not private"]
    assert study.settings[1].curve is None
    study = make_study([record(comparisons=compared), record("plain", rmse=0.91)])
    assert [setting.mean("rmse") for setting in study.settings] == [0.95, 0.91]


def test_ranking_runs_with_comparisons_are_drawn_together() -> None:
    """Two budgets of `bpr` make the panel of Task 2; the model that they were compared with has no curve to draw."""
    shared = {
        "metrics": {"auc": 0.88},
        "curve": [{"round": 1, "auc": 0.8}, {"round": 2, "auc": 0.88}],
        "baselines": {"popularity": {"auc": 0.86}, "random": {"auc": 0.5}},
        "comparisons": {"plain": {"auc": 0.9, "budget": PLAIN}},
    }
    budgets = [{**SDCF, "epsilon_g": None, "epsilon_i": level} for level in (4.0, 1.0)]
    study = make_study([record(budget=budget, **shared) for budget in budgets])
    assert [setting.protocol for setting in study.settings] == ["sdcf", "sdcf", "plain"]
    _, svg = paper_figures(study)["task2"]
    assert "sdcf ε_I = 1" in svg
    assert "non-private" not in svg


def test_the_larger_auc_is_the_better() -> None:
    """One-class runs are measured by AUC, and a setting beats the most popular items from above."""
    run_record = record(
        metrics={"auc": 0.88},
        curve=[{"round": 1, "auc": 0.8}, {"round": 2, "auc": 0.88}],
        baselines={"popularity": {"auc": 0.86}, "random": {"auc": 0.5}},
        budget={**SDCF, "epsilon_g": None},
    )
    study = make_study([run_record])
    assert [row.name for row in study_rows(study)] == ["sdcf ε_I=4", "most popular", "random order"]
    assert study.beats(study.settings[0])
    assert "larger is better" in study_plots(study)["curves"][1]


def test_the_page_needs_nothing_outside_itself(tmp_path: Path) -> None:
    """No address, no script, no handler; both colour schemes; the plots are in it and beside it."""
    write_run(tmp_path / "runs" / "a", record())
    write_run(tmp_path / "runs" / "b", record(rmse=0.96, seed=1))
    written = write_report([tmp_path / "runs"], tmp_path / "report.html")
    text = written.page.read_text("utf-8")
    page = read_page(text)
    assert page.outside == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert "prefers-color-scheme: dark" in text
    assert "url(http" not in text
    assert "@import" not in text
    assert [path.name for path in written.plots] == ["finals.svg", "curves.svg"]
    for path in written.plots:
        ET.fromstring(path.read_text("utf-8"))


def test_what_no_budget_covers_is_on_the_page(tmp_path: Path) -> None:
    """Each unit with its list."""
    write_run(tmp_path / "a", record())
    text = write_report([tmp_path], tmp_path / "r.html").page.read_text("utf-8")
    for words in [*SDCF["not_covered"], SDCF["unit"]]:
        assert words in text


def test_several_seeds_draw_a_band() -> None:
    """One seed is a line, two are a line with a filled area."""
    one = study_plots(make_study([record()]))["curves"][1]
    two = study_plots(make_study([record(), record(rmse=0.99, seed=1)]))["curves"][1]
    assert "FillBetweenPolyCollection" not in one
    assert "FillBetweenPolyCollection" in two


def test_a_setting_far_off_does_not_flatten_the_others() -> None:
    """A curve that ends far above the worst baseline is named as off the plot; the others keep their room."""
    far = record(rmse=3.0, budget={**SDCF, "epsilon_g": 1.0})
    svg = study_plots(make_study([record(), far]))["curves"][1]
    assert "sdcf ε_I=4, ε_g=1 (ends off the plot)" in svg
    assert "sdcf ε_I=4, ε_g=4 (ends off" not in svg


def test_a_plot_is_the_same_bytes_every_time() -> None:
    """No date, no random id."""
    study = make_study([record()])
    assert study_plots(study) == study_plots(study)


def test_the_pages_colours_reach_the_plots() -> None:
    """Every colour of a plot inside the page is one of the page's variables."""
    study = make_study([record(), record("plain")])
    text = make_page([study], [study_plots(study)], title="t")
    svgs = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert svgs
    assert not {colour for svg in svgs for colour in re.findall(r"#[0-9a-f]{6}\b(?=[;\"])", svg)}


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    """Markup in a data set's name, a unit, a list or a section is shown, not run, on the page and in a terminal."""
    budget = {**PLAIN, "unit": HOSTILE, "not_covered": [HOSTILE]}
    write_run(tmp_path / "a", record("plain", dataset=HOSTILE, model=HOSTILE, budget=budget))
    section = Section(HOSTILE, [HOSTILE], [HOSTILE, "b"], [[HOSTILE, HOSTILE]])
    text = write_report([tmp_path], tmp_path / "r.html", title=HOSTILE, sections=[section]).page.read_text("utf-8")
    page = read_page(text)
    assert "script" not in page.tags
    assert page.outside == []
    shown = run("report", tmp_path / "a", "--out", tmp_path / "s.html")
    assert shown.code == 0
    assert "[red]$x_1$" in shown.out
    assert "\x1b" not in shown.out


@given(name=st.text(min_size=1, max_size=40))
def test_any_name_leaves_the_page_whole(name: str) -> None:
    """Whatever a section is called, the page has the tags it has without it."""
    study = make_study([record()])
    figures = {"curves": ("c", "<svg ></svg>")}
    tags = read_page(make_page([study], [figures], title="t", sections=[Section("s", ["p"], ["h"], [["c"]])])).tags
    sections = [Section(name, [name], [name], [[name]])]
    assert read_page(make_page([study], [figures], title=name, sections=sections)).tags == tags


def test_the_command_writes_and_prints(tmp_path: Path) -> None:
    """A table in eighty columns, the page where it was asked for, JSON on request."""
    write_run(tmp_path / "a", record())
    write_run(tmp_path / "b", record("plain", rmse=0.93))
    outcome = run("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "r.html", "--plots", tmp_path / "p")
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "bias model" in outcome.out
    assert sorted(path.name for path in (tmp_path / "p").glob("*.svg")) == ["curves.svg", "finals.svg"]
    outcome = run("report", tmp_path, "--out", tmp_path / "r.html", "--json")
    (study,) = json.loads(outcome.out)["studies"]
    assert [setting["beats_best_baseline"] for setting in study["settings"]] == [False, True]


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    """A missing folder, an empty one, one of another version and a damaged one: one sentence each."""
    with pytest.raises(RunError, match="must be a folder with runs"):
        read_studies([tmp_path / "none"])
    with pytest.raises(RunError, match=r"run\.json"):
        read_studies([tmp_path])
    write_run(tmp_path / "old", {**record(), "format": 0})
    with pytest.raises(RunError, match="format"):
        read_studies([tmp_path / "old"])
    damaged = record()
    del damaged["metrics"]
    write_run(tmp_path / "bad", damaged)
    with pytest.raises(RunError, match=r"bad/run\.json is damaged: KeyError"):
        read_studies([tmp_path / "bad"])
    assert run("report", tmp_path / "bad").code == 1


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """The folder of the page must exist or be makeable."""
    write_run(tmp_path / "a", record())
    (tmp_path / "file").write_text("")
    outcome = run("report", tmp_path / "a", "--out", tmp_path / "file" / "r.html")
    assert outcome.code == 1
    assert "r.html must be writable" in outcome.err


# What a report tells a stranger --------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_factors_have_different_labels() -> None:
    """Two runs of one budget were two curves of one name; so were the models that they were compared with."""
    compared = {"plain": {"rmse": 0.93, "mae": 0.7, "budget": PLAIN, "step": 0.4}}
    study = make_study([record(factors=10, comparisons=compared), record(factors=50, comparisons=compared)])
    labels = [setting.label for setting in study.settings]
    assert labels == [
        f"{name}, K={factors}" for name in ("sdcf ε_I=4, ε_g=4", "plain, not private") for factors in (10, 50)
    ]
    again = make_study([record(rounds=3, step=0.4), record(rounds=5, step=0.2), record("plain")])
    assert [setting.label for setting in again.settings] == [
        "sdcf ε_I=4, ε_g=4, 3 rounds, step 0.4",
        "sdcf ε_I=4, ε_g=4, 5 rounds, step 0.2",
        "plain, not private",
    ]


def test_no_two_settings_ever_have_the_same_label() -> None:
    """Any option that differs is named; where nothing that is known does, a number is."""
    options = [{"no_fallback": True}, {}, {"attributes": "genre"}]
    study = make_study([record(settings=own) for own in options])
    labels = [setting.label for setting in study.settings]
    assert len(set(labels)) == 3
    assert any("no fallback" in label for label in labels)
    assert distinct_labels(["a", "a", "b"], [{}, {}, {}]) == ["a (1)", "a (2)", "b"]


def test_a_curve_without_privacy_is_not_marked_as_noisy_ratings() -> None:
    """`plain` records ε = ∞; its colour is that of what is not private."""
    settings = {setting.protocol: setting for setting in make_study(read_records(TASK1)).settings}
    assert figures._mark(settings["plain"]) == figures.NOT_PRIVATE
    assert figures._mark(settings["isgld"]) != figures.NOT_PRIVATE


def test_a_budget_that_is_no_part_of_a_grid_makes_no_panels() -> None:
    """Four settings of which two share both budgets were drawn as a grid of four: one panel empty, two curves alike."""
    pairs = [(4.0, 4.0, None), (4.0, 0.25, None), (0.25, 4.0, None), (4.0, 4.0, 100)]
    budgets = [{**SDCF, "epsilon_i": i, "epsilon_g": g, "profile_cap": cap} for i, g, cap in pairs]
    study = make_study([record(budget=budget) for budget in budgets])
    assert paper_figures(study) == {}
    assert set(study_plots(study)) == {"finals", "curves"}
    whole = [{**SDCF, "epsilon_i": i, "epsilon_g": g} for i in (4.0, 1.0) for g in (4.0, 1.0)]
    drawn = paper_figures(make_study([record(budget=budget) for budget in whole]))
    assert all(drawing.wide for _, drawing in drawn.values())
    assert not any("Task" in caption for caption, _ in drawn.values())


def test_the_page_says_when_by_what_and_from_which_splits_it_was_made(tmp_path: Path) -> None:
    """Date, version, command, seeds, what ± means, how to run each setting again, and a list of contents."""
    made = {"written": {"date": "2026-01-02", "hushrec": "9.9"}}
    for seed in (0, 1):
        options = {"protocol": "sdcf", "seed": seed, "split_seed": seed, "factors": 2, "epsilon_i": 4.0}
        write_run(tmp_path / "runs" / f"{seed}", record(seed=seed, rmse=0.9 + seed / 100, settings=options, **made))
    page = write_report([tmp_path / "runs"], tmp_path / "page.html").page.read_text("utf-8")
    for words in (
        stamp()["date"],
        f"by hushrec {stamp()['hushrec']}: hushrec report runs",
        "2 splits (seeds 0 to 1)",
        "± is the standard deviation",
        "Runs of hushrec 9.9; 2026-01-02.",
        "hushrec train toy --protocol sdcf --seed 0 --split-seed 0 --factors 2 --epsilon-i 4.0",
        'href="#budgets"',
        'href="#part-1"',
    ):
        assert words in page, words
    assert str(tmp_path) not in page
    one = write_report([tmp_path / "runs" / "0"], tmp_path / "one.html").page.read_text("utf-8")
    assert "One split (seed 0)" in one


def test_tables_and_plots_are_exported(tmp_path: Path) -> None:
    """CSV with full precision, LaTeX that escapes names, PDF beside every SVG."""
    write_run(tmp_path / "runs" / "a", record(rmse=0.95123456))
    write_run(tmp_path / "runs" / "b", record("plain", rmse=0.93, dataset="toy"))
    written = write_report([tmp_path / "runs"], tmp_path / "page.html", plots_folder=tmp_path / "p")
    names = {path.name for path in written.exports}
    assert names == {"finals.pdf", "curves.pdf", "table.csv", "table.tex"}
    rows = list(csv.DictReader((tmp_path / "p" / "table.csv").read_text("utf-8").splitlines()))
    by_name = {row["name"]: row for row in rows}
    assert by_name["sdcf ε_I=4, ε_g=4"]["rmse_mean"] == "0.95123456"
    assert (by_name["sdcf ε_I=4, ε_g=4"]["epsilon"], by_name["bias model"]["kind"]) == ("8.0", "baseline")
    latex = (tmp_path / "p" / "table.tex").read_text("utf-8")
    assert r"sdcf $\varepsilon$\_I=4, $\varepsilon$\_g=4 & 0.951" in latex
    assert latex.count(r"\\") == 1 + len(rows)
    assert all((tmp_path / "p" / name).read_bytes().startswith(b"%PDF") for name in ("finals.pdf", "curves.pdf"))
    assert run("report", tmp_path / "runs", "--out", tmp_path / "r.html", "--json").code == 0


def test_runs_with_different_items_files_are_different_studies(tmp_path: Path) -> None:
    """The checksum of the data is without the items file; headings and commands name what was given."""
    listed = {"source": "d/a b.csv", "items": "d/items.csv"}
    settings = {"protocol": "sdcf", "seed": 0}
    runs = [
        record(seed=0, reading=listed, settings=settings),
        record(seed=1, reading={**listed, "data_dir": "here"}, settings=settings),
        record(reading={"source": "d/a b.csv"}, settings=settings),
        record(reading=None, settings=settings),
        record(settings=settings),
    ]
    for number, content in enumerate(runs):
        write_run(tmp_path / str(number), content)
    with_items, without = read_studies([tmp_path])
    assert [with_items.dataset, without.dataset] == ["toy --items d/items.csv", "toy"]
    assert [len(one.settings[0].metrics["rmse"]) for one in (with_items, without)] == [2, 3]
    assert [command_of(run) for run in runs] == [
        "hushrec train 'd/a b.csv' --items d/items.csv --protocol sdcf --seed 0",
        "hushrec train 'd/a b.csv' --items d/items.csv --data-dir here --protocol sdcf --seed 0",
        "hushrec train 'd/a b.csv' --protocol sdcf --seed 0",
        None,
        "hushrec train toy --protocol sdcf --seed 0  # the options for reading the data are not recorded",
    ]


def test_older_runs_with_and_without_an_items_file_are_different_studies(tmp_path: Path) -> None:
    """Older run folders have no reading options, but the number of items that no items file lists."""
    for unlisted in (0, 7):
        content = record()
        write_run(tmp_path / str(unlisted), {**content, "data": {**content["data"], "unlisted": unlisted}})
    assert len(read_studies([tmp_path])) == 2


def test_the_command_on_the_page_repeats_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a folder, with every kind of option: a path, a scale, a flag's opposite, an empty text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    rows = [f"u{user},i{item},{(user * item) % 10}" for user in range(12) for item in range(8)]
    (tmp_path / "d" / "own.csv").write_text("\n".join(["who,what,stars", *rows, "u0,i1,"]) + "\n")
    (tmp_path / "d" / "items.csv").write_text("id,genre\n" + "".join(f"i{item},g{item % 2}\n" for item in range(8)))
    given = ["--columns", "who,what,stars", "--scale", "0,10", "--items", "d/items.csv", "--missing", ""]
    first = run("train", "d/own.csv", *given, "--out", "first")
    assert first.code == 0, first.err
    (study,) = read_studies(["first"])
    command = study.settings[0].command
    assert command is not None
    again = run(*shlex.split(command)[1:], "--out", "second")
    assert again.code == 0, again.err
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("first", "second")]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert records[0]["reading"] == records[1]["reading"]
    assert str(tmp_path) not in command
