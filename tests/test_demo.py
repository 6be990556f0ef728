"""`hushrec demo`: what it trains, prints and writes, and what it does not touch."""

import json
import stat
from pathlib import Path

import pytest
from command import run

from hushrec import demo
from hushrec.errors import RunError
from hushrec.simulation.results import load as load_run


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> demo.Demo:
    """A demo of three rounds: everything but the learning."""
    return demo.run_demo(tmp_path_factory.mktemp("demo") / "out", rounds=3)


def test_every_protocol_and_several_budgets_are_trained(short: demo.Demo) -> None:
    """Masked sums at two budgets, non-private, isgld, and sdcf at two budgets, each with its unit."""
    labels = [setting.label for setting in short.study.settings]
    assert labels == [
        "masked ε=8",
        "masked ε=1",
        "plain, not private",
        "isgld ε=4",
        "sdcf ε_I=4, ε_g=4",
        "sdcf ε_I=0.25, ε_g=4",
    ]
    assert all(setting.unit and setting.not_covered for setting in short.study.settings)
    assert list(short.study.baselines) == ["global_mean", "user_mean", "item_mean", "bias"]


def test_the_folder_holds_runs_plots_one_page_and_sample_files(short: demo.Demo) -> None:
    """Run folders that load, private to their owner; SVG plots; the page; files to imitate."""
    names = sorted(path.name for path in short.folder.iterdir())
    assert names == [".hushrec-demo", "items.csv", "plots", "ratings.csv", "report.html", "runs"]
    for name in demo.SETTINGS:
        folder = short.folder / "runs" / name
        loaded = load_run(folder).record
        assert loaded["rounds"] == 3 or loaded["protocol"] == "masked"  # whose plan fixes the number
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.suffix for path in (short.folder / "plots").iterdir()} == {".svg", ".pdf", ".csv", ".tex"}


def test_what_is_trained_is_attacked_and_drawn(short: demo.Demo) -> None:
    """Plain gives everything away, masked next to nothing; the picture is on the page and beside it."""
    recovered = {point.label: point.recovered for point in short.points}
    assert list(recovered) == [setting.label for setting in short.study.settings]
    assert recovered["plain, not private"]["items"].gained == 1
    assert recovered["masked ε=8"]["items"].gained < 0.1
    assert "Accuracy against what a server recovers" in short.page.read_text("utf-8")
    assert (short.folder / "plots" / "leakage.svg").read_text("utf-8").startswith("<?xml")


def test_the_sample_files_are_the_ratings_that_were_trained_on(short: demo.Demo) -> None:
    """Read back as anyone's file, they are the built-in set, titles and genres included."""
    from hushrec.data import load, synthetic

    read = load(short.folder / "ratings.csv", items=short.folder / "items.csv")
    made = synthetic()
    assert read.values is not None
    assert made.values is not None
    assert made.titles is not None
    assert read.titles is not None
    assert list(read.values) == list(made.values)
    assert {*read.titles} <= {*made.titles}
    assert read.attributes is not None
    assert "genre=Drama" in read.attributes.columns


def test_one_person_is_told_why(short: demo.Demo) -> None:
    """Five films with titles, predictions, the truth, and reasons among the person's own ratings."""
    assert len(short.advice.suggestions) == demo.SHOWN
    text = short.page.read_text("utf-8")
    for entry in short.advice.suggestions:
        assert entry.item.title is not None
        assert entry.item.title in text
        assert 1 <= entry.truth <= 5
    assert f"Recommended to person {short.advice.person}, and why" in text


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


def test_the_command_prints_json(short: demo.Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object, alone on stdout."""
    monkeypatch.setattr(demo, "run_demo", lambda out, **_: short)
    found = json.loads(run("demo", "--out", tmp_path / "out", "--json").out)
    assert len(found["study"]["settings"]) == len(demo.SETTINGS)
    assert len(found["recommendations"]) == demo.SHOWN
    assert found["page"] == str(short.folder / "report.html")


def test_ctrl_c_is_quiet_and_exits_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No traceback; what the demo made so far is its own, so that the next run starts over."""

    def interrupted(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "attack", interrupted)
    outcome = run("demo", "--out", tmp_path / "out")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err
    assert demo.prepare(tmp_path / "out").is_dir()
