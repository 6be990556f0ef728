"""What the command line says besides results: its version, small shares, what is left after Ctrl-C."""

from importlib.metadata import version
from pathlib import Path

import pytest
from command import run

import hushrec
import hushrec.engines
import hushrec.simulation.run
from hushrec.cli.app import as_percentage
from hushrec.experiments import running

TRAIN = ("train", "synthetic:users=30,items=40,ratings=500", "--protocol", "plain", "--rounds", 8, "--factors", 3)
FILE = """
name = "two"
title = "Two runs"
[data]
set = "synthetic:users=30,items=40,ratings=500"
[splits]
count = 2
[run]
factors = 3
rounds = 2
[[curves]]
protocol = "plain"
"""


def interrupting(original, after: int):
    """The same function, with Ctrl-C at its call number `after`."""
    calls = []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == after:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    return interrupted


def test_the_version_is_the_packages_on_the_command_line_and_in_python() -> None:
    """Alone on stdout, as scripts and bug reports want it."""
    outcome = run("--version")
    assert (outcome.code, outcome.out) == (0, f"hushrec {version('hushrec')}\n")
    assert hushrec.__version__ == version("hushrec")


def test_a_small_share_is_not_shown_as_none() -> None:
    """`0.00 % of all pairs` said that a file of a million ratings held none."""
    assert as_percentage(0.063046) == "6.30 %"
    assert as_percentage(0.0000123) == "0.0012 %"
    assert as_percentage(0.0) == "0.00 %"
    assert as_percentage(1.0) == "100.00 %"


def test_ctrl_c_says_what_a_run_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder: up to which round, and how to go on; that advice works. Without one: that nothing was kept."""
    monkeypatch.setattr(hushrec.simulation.run, "run_round", interrupting(hushrec.engines.run_round, 5))
    outcome = run(*TRAIN, "--out", tmp_path / "run")
    assert outcome.code == 130
    assert "4 rounds" in outcome.err
    assert "--resume" in outcome.err
    assert run(*TRAIN, "--out", tmp_path / "run", "--resume").code == 0
    monkeypatch.setattr(hushrec.simulation.run, "run_round", interrupting(hushrec.engines.run_round, 2))
    assert "--out" in run(*TRAIN).err
    monkeypatch.setattr(hushrec.simulation.run, "run_round", interrupting(hushrec.engines.run_round, 1))
    assert "no round was finished" in run(*TRAIN, "--out", tmp_path / "none").err


def test_ctrl_c_says_how_many_runs_of_an_experiment_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same command with --resume ends it."""
    file = tmp_path / "two.toml"
    file.write_text(FILE)
    command = ("experiment", file, "--out", tmp_path)
    monkeypatch.setattr(running, "run_plan", interrupting(running.run_plan, 2))
    outcome = run(*command)
    assert outcome.code == 130
    assert "1 of 2 runs kept" in outcome.err
    assert run(*command, "--resume").code == 0
