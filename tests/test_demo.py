"""`hushrec demo`: what it trains, prints and writes, and what it does not touch."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import run
from test_readme import generator_of_pages, same

from hushrec import demo
from hushrec.data import synthetic
from hushrec.errors import RunError
from hushrec.simulation.results import load as load_run


@pytest.fixture(scope="module")
def printed_and_made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, demo.Demo]:
    """The demo, run once by its command: what it printed, and what it made."""
    folder, run_demo, made = tmp_path_factory.mktemp("demo"), demo.run_demo, []

    def keep(*arguments: Any, **settings: Any) -> demo.Demo:
        made.append(run_demo(*arguments, **settings))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_demo", keep)
        printed = generator_of_pages().demo_output(folder)
    return printed, replace(made[0], folder=folder / made[0].folder, page=folder / made[0].page)


@pytest.fixture
def made(printed_and_made: tuple[str, demo.Demo]) -> demo.Demo:
    """What the demo made."""
    return printed_and_made[1]


def test_the_demos_output_in_the_docs_is_the_demos_output(printed_and_made: tuple[str, demo.Demo]) -> None:
    """All words, and all numbers to ±0.03; `make docs` brings it up to date."""
    printed, made = printed_and_made
    pages = generator_of_pages()
    assert max(map(len, printed.splitlines())) <= 80
    shown = pages.FIRST_HOUR.read_text("utf-8").partition(pages.START)[2].partition(pages.END)[0]
    assert same(f"```text\n{printed}\n```", shown, 0.03), printed
    assert made.page is not None
    assert made.page.is_file()


def test_every_protocol_and_several_budgets_are_trained(made: demo.Demo) -> None:
    """Masked sums at two budgets, non-private, isgld, and sdcf at two budgets, each with its unit."""
    labels = [setting.label for setting in made.study.settings]
    assert labels == [
        "masked ε=8",
        "masked ε=1",
        "plain, not private",
        "isgld ε=4",
        "sdcf ε_I=4, ε_g=4",
        "sdcf ε_I=0.25, ε_g=4",
    ]
    assert all(setting.unit and setting.not_covered for setting in made.study.settings)
    assert list(made.study.baselines) == ["global_mean", "user_mean", "item_mean", "bias"]


def test_the_folder_holds_runs_plots_one_page_and_sample_files(made: demo.Demo) -> None:
    """Run folders that load, private to their owner; SVG plots; the page; files to imitate."""
    names = sorted(path.name for path in made.folder.iterdir())
    assert names == [".hushrec-demo", "items.csv", "plots", "ratings.csv", "report.html", "runs"]
    for name in demo.SETTINGS:
        folder = made.folder / "runs" / name
        loaded = load_run(folder).record
        if loaded["protocol"] != "masked":  # whose plan fixes the number
            assert loaded["rounds"] == demo.COMMON["rounds"]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.suffix for path in (made.folder / "plots").iterdir()} == {".svg", ".pdf", ".csv", ".tex"}


def test_what_is_trained_is_attacked_and_drawn(made: demo.Demo) -> None:
    """Plain gives everything away, masked next to nothing; the picture is on the page and beside it."""
    recovered = {point.label: point.recovered for point in made.points}
    assert list(recovered) == [setting.label for setting in made.study.settings]
    assert recovered["plain, not private"]["items"].gained == 1
    assert recovered["masked ε=8"]["items"].gained < 0.1
    assert "Accuracy against what a server recovers" in made.page.read_text("utf-8")
    assert (made.folder / "plots" / "leakage.svg").read_text("utf-8").startswith("<?xml")


def test_the_sample_files_are_the_ratings_that_were_trained_on(made: demo.Demo) -> None:
    """Read back as anyone's file, they are the built-in set, titles and genres included."""
    from hushrec.data import load, synthetic

    read = load(made.folder / "ratings.csv", items=made.folder / "items.csv")
    trained = synthetic()
    assert read.titles is not None
    assert read.attributes is not None
    np.testing.assert_array_equal(read.values, trained.values)
    assert {*read.titles} <= {*trained.titles}
    assert "genre=Drama" in read.attributes.columns


def test_one_person_is_told_why(made: demo.Demo) -> None:
    """Five films with titles, predictions, the truth, and reasons among the person's own ratings."""
    assert len(made.advice.suggestions) == demo.SHOWN
    text = made.page.read_text("utf-8")
    for entry in made.advice.suggestions:
        assert entry.item.title is not None
        assert entry.item.title in text
    assert f"Recommended to person {made.advice.person}, and why" in text


def test_a_second_run_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    """What the demo made is made anew; a file of somebody else's in the folder stays."""
    folder = demo.prepare(tmp_path / "out")
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "report.html").write_text("old")
    (folder / "mine.txt").write_text("keep")
    demo.prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".hushrec-demo", "mine.txt"]


def test_a_folder_that_is_not_the_demos_is_refused_and_left_alone(tmp_path: Path) -> None:
    """No mark, no deletion."""
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError, match="folder"):
        demo.prepare(tmp_path)
    assert (tmp_path / "runs").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="folder"):
        demo.prepare(tmp_path / "file")
    with pytest.raises(RunError, match="must be writable"):
        demo.prepare(tmp_path / "file" / "below")


def test_the_command_prints_json(made: demo.Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object, alone on stdout."""
    monkeypatch.setattr(demo, "run_demo", lambda out, **_: made)
    found = json.loads(run("demo", "--out", tmp_path / "out", "--json").out)
    assert len(found["study"]["settings"]) == len(demo.SETTINGS)
    assert len(found["recommendations"]) == demo.SHOWN
    assert found["page"] == str(made.folder / "report.html")


def test_ctrl_c_is_quiet_and_exits_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No traceback; what the demo made so far is its own, so that the next run starts over."""

    def interrupted(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "attack", interrupted)
    outcome = run("demo", "--out", tmp_path / "out")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err
    assert demo.prepare(tmp_path / "out").is_dir()


def test_attacks_beside_training_have_a_frame_of_their_own() -> None:
    """An executor pickles in another thread, and Polars deadlocks if training reads the same frame then."""
    ratings, copies = synthetic(), []
    beside = SimpleNamespace(submit=lambda function, own, settings: copies.append(own))
    demo.attack(ratings, beside)  # type: ignore[arg-type]
    assert len(copies) == len(demo.SETTINGS)
    for own in copies:
        assert own.attributes._df is not ratings.attributes._df
        assert own.checksum == ratings.checksum
