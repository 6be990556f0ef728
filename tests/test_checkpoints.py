"""Checkpoints: a run that is cut short loses little, and goes on bit for bit; and stopping early by patience."""

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run as command

from hushrec.client import Client
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.errors import ParameterError, RunError
from hushrec.simulation.checkpoints import FORMAT, checkpoint_path, load_checkpoint
from hushrec.simulation.results import Result
from hushrec.simulation.results import load as load_run
from hushrec.simulation.run import Run, measure
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import ranking_task, rating_task
from hushrec.simulation.training import train

DATA = "synthetic:users=40,items=60,ratings=900,seed=1"
QUICK = {"model": "mf", "rounds": 8, "factors": 4, "checkpoint_every": 3, "compare": False}


class Cut(Exception):
    """Stands for whatever ends a process."""


def cut_after(last: int, protocol: str = "sdcf", error: type[BaseException] = Cut):
    """A progress callback that ends the run after a round."""

    def progress(what: str, round_number: int, rounds: int, headline: float) -> None:
        if what == protocol and round_number == last:
            raise error

    return progress


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Forty users by sixty items."""
    return load_ratings(DATA)


def assert_same(first: Result, second: Result) -> None:
    """Every bit but the time it took."""
    np.testing.assert_array_equal(first.predictor.user_vectors, second.predictor.user_vectors)
    np.testing.assert_array_equal(first.predictor.item_vectors, second.predictor.item_vectors)
    assert Settings(**first.record["settings"]) == Settings(**second.record["settings"])
    timed = {"seconds", "seconds_per_round", "seconds_in_all", "settings"}
    assert {name: value for name, value in first.record.items() if name not in timed} == {
        name: value for name, value in second.record.items() if name not in timed
    }


@pytest.mark.parametrize(("engine", "model"), [("cpu", "mf"), ("reference", "mf"), ("reference", "bpr")])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(ratings, tmp_path, engine, model):
    """Cut after round 7 and resumed from round 6, everything but the clock is as if nothing had happened."""
    settings = {**QUICK, "engine": engine, "model": model, "epoch_rounds": 5}
    whole = train(ratings, **settings)
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(7), **settings)
    kept = load_checkpoint(checkpoint_path(tmp_path / "run", "sdcf"))
    assert kept is not None
    assert len(kept.curve) == 6
    resumed = train(ratings, out=tmp_path / "run", resume=True, **settings)

    assert_same(whole, resumed)
    assert_same(whole, load_run(tmp_path / "run"))


def test_a_run_cut_in_its_comparisons_goes_on_there(ratings, tmp_path):
    """The private run is not trained again, and the non-private one goes on from its own checkpoint."""
    settings = {**QUICK, "compare": True}
    whole = train(ratings, **settings)
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(5, "plain"), **settings)
    played: list[tuple[str, int]] = []
    resumed = train(
        ratings,
        out=tmp_path / "run",
        resume=True,
        progress=lambda what, number, rounds, headline: played.append((what, number)),
        **settings,
    )

    assert_same(whole, resumed)
    assert played[0] == ("plain", 4)


def test_a_finished_run_says_that_it_is_finished(ratings, tmp_path):
    """Resuming it is no mistake about the folder: there is just nothing left to do. It stays as it is."""
    whole = train(ratings, out=tmp_path / "run", **QUICK)
    with pytest.raises(RunError, match="resumed"):
        train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert_same(whole, load_run(tmp_path / "run"))


def test_a_killed_run_loses_at_most_as_many_rounds_as_lie_between_checkpoints(ratings, tmp_path):
    """SIGKILL after round 20 or later, at a moment of no one's choosing; the run then goes on to the same end.

    A run that is quicker than the signal waits for it in round 50.
    """
    out = tmp_path / "run"
    settings = {"model": "mf", "rounds": 60, "factors": 4, "engine": "reference", "compare": False}
    code = (
        "import signal, hushrec\n"
        "def progress(what, number, rounds, headline):\n"
        "    print(number, flush=True)\n"
        "    if number == 50: signal.pause()\n"
        f"hushrec.train({DATA!r}, out={str(out)!r}, checkpoint_every=4, progress=progress, **{settings!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = 0
    for line in process.stdout:
        last = int(line)
        if last >= 20:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    kept = load_checkpoint(checkpoint_path(out, "sdcf"))
    assert kept is not None
    assert last - 4 < len(kept.curve) < 60
    resumed = train(ratings, out=out, resume=True, checkpoint_every=4, **settings)

    assert_same(train(ratings, **settings), resumed)


def test_a_finished_run_leaves_no_checkpoint_and_its_folder_is_private(ratings, tmp_path):
    """Checkpoints hold user vectors: they lie in a folder of mode 0700 and go when they are not needed."""
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(3), **QUICK)
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700
    train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["items.parquet", "model.npz", "run.json"]
    with pytest.raises(RunError, match="resumed"):
        train(ratings, out=tmp_path / "run", resume=True, **QUICK)


def test_control_c_keeps_the_last_checkpoint_to_resume_from(ratings, tmp_path):
    """The folder says that the run was interrupted, and resuming finishes it."""
    with pytest.raises(KeyboardInterrupt):
        train(ratings, out=tmp_path / "run", progress=cut_after(5, error=KeyboardInterrupt), **QUICK)
    assert load_run(tmp_path / "run").record["interrupted"]
    resumed = train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert_same(train(ratings, **QUICK), resumed)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_control_c_before_the_first_checkpoint_loses_no_whole_round(ratings, tmp_path, engine):
    """After round 2 of a checkpoint every 3: round 2 is kept, and the run goes on from there."""
    settings = {**QUICK, "engine": engine}
    with pytest.raises(KeyboardInterrupt):
        train(ratings, out=tmp_path / "run", progress=cut_after(2, error=KeyboardInterrupt), **settings)
    kept = load_checkpoint(checkpoint_path(tmp_path / "run", "sdcf"))
    assert kept is not None
    assert len(kept.curve) == 2
    resumed = train(ratings, out=tmp_path / "run", resume=True, **settings)
    assert_same(train(ratings, **settings), resumed)


def test_control_c_in_the_middle_of_a_round_keeps_the_last_whole_one(ratings, tmp_path, monkeypatch):
    """Half of the clients have reported round 5: the checkpoint of round 3 stays, and the run goes on from it."""
    settings = {**QUICK, "engine": "reference"}
    report, reports = Client.report, iter(range(10**6))

    def interrupted(self, address, announcement):
        if next(reports) == 4 * 40 + 20:
            raise KeyboardInterrupt
        return report(self, address, announcement)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(ratings, out=tmp_path / "run", **settings)
    kept = load_checkpoint(checkpoint_path(tmp_path / "run", "sdcf"))
    assert kept is not None
    assert len(kept.curve) == 3
    resumed = train(ratings, out=tmp_path / "run", resume=True, **settings)
    assert_same(train(ratings, **settings), resumed)


def test_files_of_others_are_left_alone(ratings, tmp_path):
    """Resuming in a folder with somebody's files is refused, whatever they are called, and changes none of them."""
    theirs = tmp_path / "checkpoint-epoch7.pth"
    theirs.write_text("weights")
    (tmp_path / "checkpoint-old").mkdir()
    mode = os.stat(tmp_path).st_mode
    with pytest.raises(RunError, match="empty folder"):
        train(ratings, out=tmp_path, resume=True, **QUICK)
    assert theirs.read_text() == "weights"
    assert os.stat(tmp_path).st_mode == mode


def test_a_run_is_not_resumed_as_another(ratings, tmp_path):
    """Another protocol than the folder is for is refused, be it one that was compared with; nothing is lost."""
    settings = {**QUICK, "compare": True}
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(5, "plain"), **settings)
    for protocol in ("plain", "isgld"):
        with pytest.raises(RunError, match=f"protocol .* {protocol}"):
            train(ratings, out=tmp_path / "run", resume=True, protocol=protocol, **settings)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["checkpoint-plain.npz", "checkpoint-sdcf.npz"]


def test_two_runs_do_not_share_a_folder(ratings, tmp_path):
    """While one trains, another into the same folder is refused, new or resumed; the first one ends well."""
    refused = []

    def second(what: str, round_number: int, rounds: int, headline: float) -> None:
        if round_number in (2, 4):
            with pytest.raises(RunError, match="another run") as refusal:
                train(ratings, out=tmp_path / "run", resume=round_number == 4, **QUICK)
            refused.append(str(refusal.value))

    result = train(ratings, out=tmp_path / "run", progress=second, **QUICK)
    assert len(refused) == 2
    assert_same(result, load_run(tmp_path / "run"))


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    """Files may not grow beyond 2 kB: the run ends with exit 1, no traceback and no half file."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY));"
        "from hushrec.cli import main; main()"
    )
    words = [
        "train",
        DATA,
        "--model",
        "mf",
        "--engine",
        "reference",
        "--rounds",
        "2",
        "--factors",
        "3",
        "--checkpoint-every",
        "1",
    ]
    command_line = [sys.executable, "-c", code, *words, "--no-compare", "--out", str(tmp_path / "run")]
    outcome = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert "checkpoint-sdcf.npz cannot be written" in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr
    assert list((tmp_path / "run").iterdir()) == []


def test_other_attributes_are_other_data(tmp_path):
    """A factorization machine cut short on one table of attributes is not resumed on another."""
    rows = [f"{user},{(3 * user + n) % 20},{1 + (user + n) % 5}" for user in range(15) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    settings = {**QUICK, "model": "fm", "engine": "reference"}
    for kind in ("a", "b"):
        items = [f"{item},Film {item},{kind if item % 2 else 'c'}" for item in range(20)]
        (tmp_path / f"{kind}.csv").write_text("item,title,genre\n" + "\n".join(items[: 20 if kind == "a" else 10]))
    first, second = (load_ratings(tmp_path / "ratings.csv", items=tmp_path / f"{kind}.csv") for kind in "ab")
    with pytest.raises(Cut):
        train(first, out=tmp_path / "run", progress=cut_after(3), **settings)
    with pytest.raises(RunError, match="data"):
        train(second, out=tmp_path / "run", resume=True, **settings)


def test_resuming_where_nothing_was_kept_yet_starts_at_the_beginning(ratings, tmp_path):
    """A run killed before its first checkpoint, even while writing it, starts again."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint-sdcf.part").write_bytes(b"half")
    resumed = train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert_same(train(ratings, **QUICK), resumed)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-100], "checksum does not match"),
        (lambda content: content[:-50] + bytes([content[-50] ^ 1]) + content[-49:], "checksum does not match"),
        (lambda content: content[10:], "damaged or was written by another version"),
        (lambda content: b"", "damaged or was written by another version"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(ratings, tmp_path, damage, message):
    """Cut off, one bit flipped, without its head, empty: never guessed from, and never overwritten."""
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(3), **QUICK)
    path = checkpoint_path(tmp_path / "run", "sdcf")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=message) as refusal:
        train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert "checkpoint-sdcf.npz" in str(refusal.value)


def test_a_checkpoint_that_cannot_be_read_is_refused_by_name(tmp_path):
    """A folder in its place."""
    path = checkpoint_path(tmp_path, "sdcf")
    path.mkdir()
    with pytest.raises(RunError, match="checkpoint"):
        load_checkpoint(path)


def npz(**arrays: np.ndarray) -> bytes:
    """An NPZ in memory."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        lambda about, state: b"",
        lambda about, state: b"hello",
        lambda about, state: npz(a=np.zeros(1)),
        lambda about, state: npz(about=np.array("[1]")),
        lambda about, state: npz(about=np.array(json.dumps({**about, "settings": None})), **state),
        lambda about, state: npz(about=np.array(json.dumps(about))),
        lambda about, state: npz(about=np.array(json.dumps(about)), **{**state, "state_round_number": np.array(99)}),
        lambda about, state: npz(about=np.array(json.dumps(about)), **{**state, "state_value_rho": np.zeros(3)}),
        lambda about, state: npz(about=np.array(json.dumps({**about, "curve": about["curve"][1:]})), **state),
    ],
    ids=["empty", "text", "nothing about it", "a list", "no settings", "no state", "round 99", "shape", "short curve"],
)
def test_a_whole_envelope_around_something_else_is_refused_by_name(ratings, tmp_path, content):
    """The checksum is right and the content is not: one sentence, and the file stays as it was."""
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(3), **QUICK)
    path = checkpoint_path(tmp_path / "run", "sdcf")
    kept = load_checkpoint(path)
    assert kept is not None
    about = {name: value for name, value in vars(kept).items() if name not in ("state", "best")}
    inside = content(about, {f"state_{name}": array for name, array in kept.state.items()})
    forged = FORMAT + b" " + hashlib.sha256(inside).hexdigest().encode() + b"\n" + inside
    path.write_bytes(forged)
    with pytest.raises(RunError, match=r"checkpoint-sdcf\.npz"):
        train(ratings, out=tmp_path / "run", resume=True, **QUICK)
    assert path.read_bytes() == forged


def test_a_checkpoint_of_other_settings_or_data_is_refused(ratings, tmp_path):
    """The message says which setting differs."""
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(3), **QUICK)
    with pytest.raises(RunError, match=r"factors must be 4 .* got 5"):
        train(ratings, out=tmp_path / "run", resume=True, **{**QUICK, "factors": 5})
    with pytest.raises(RunError, match="data"):
        train("synthetic:users=40,items=60,ratings=900,seed=2", out=tmp_path / "run", resume=True, **QUICK)


def test_what_makes_no_sense_is_refused(ratings, tmp_path):
    """Resuming nowhere, checkpoints every zero rounds, a patience of zero."""
    with pytest.raises(ParameterError, match="`resume` needs `out`"):
        train(ratings, resume=True, **QUICK)
    with pytest.raises(ParameterError, match="checkpoint_every"):
        train(ratings, out=tmp_path / "run", **{**QUICK, "checkpoint_every": 0})
    with pytest.raises(ParameterError, match="patience"):
        train(ratings, patience=0, **QUICK)


def test_patience_stops_when_the_validation_part_no_longer_improves(ratings):
    """A step too large for the data gets worse soon; the budget counts the rounds that were played."""
    settings = {**QUICK, "rounds": 60, "protocol": "plain"}
    result = train(ratings, patience=3, **settings)
    record = result.record
    assert record["rounds"] < 60
    assert record["rounds"] == record["best_round"] + 3
    assert record["budget"]["rounds"] == record["rounds"] == len(record["curve"])
    assert record["data"]["train"] + record["data"]["validation"] + record["data"]["test"] == 900
    assert record["data"]["validation"] == 144
    whole = train(ratings, **settings).record
    assert whole["rounds"] == 60
    assert whole["best_round"] is None


@pytest.mark.parametrize("engine", ["cpu", "reference", "gpu"])
def test_with_patience_the_model_of_the_best_round_is_kept(ratings, tmp_path, engine):
    """Vectors, metrics and recommendations are those of a run on the same part that ends there; so is what is saved."""
    if engine == "gpu":
        pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")
    settings = {**QUICK, "rounds": 60, "protocol": "plain", "engine": engine}
    kept = train(ratings, patience=3, out=tmp_path / "run", **settings)
    best_round = kept.record["best_round"]
    assert best_round == kept.record["rounds"] - 3
    run = Run(ratings, Settings(protocol="plain", factors=4, rounds=60, patience=3, engine=engine))
    for _ in range(best_round):
        run.engine.run_round()
    np.testing.assert_array_equal(kept.predictor.user_vectors, run.engine.predictor().user_vectors)
    np.testing.assert_array_equal(kept.predictor.item_vectors, run.engine.predictor().item_vectors)
    assert kept.record["metrics"] == measure(run.task, run.engine) | run.task.list_metrics(run.engine.predictor())
    assert kept.record["metrics"]["rmse"] == kept.record["curve"][best_round - 1]["rmse"]
    saved = load_run(tmp_path / "run")
    np.testing.assert_array_equal(saved.predictor.item_vectors, kept.predictor.item_vectors)
    assert (saved.metrics, saved.record["best_round"]) == (kept.metrics, best_round)


@pytest.mark.parametrize("last", [4, "best", "after"])
def test_patience_survives_a_resume(ratings, tmp_path, last):
    """The best round and its model are part of the checkpoint: cut before, in or after that round, nothing differs."""
    settings = {**QUICK, "rounds": 60, "patience": 3, "protocol": "plain", "checkpoint_every": 1}
    whole = train(ratings, **settings)
    best_round = whole.record["best_round"]
    assert best_round > 4
    cut = {"best": best_round, "after": best_round + 2}.get(last, last)
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(cut, "plain"), **settings)
    assert_same(whole, train(ratings, out=tmp_path / "run", resume=True, **settings))


def test_an_interrupted_run_with_patience_keeps_the_best_so_far(ratings, tmp_path):
    """Ctrl-C two rounds after the best one: the folder holds that one, and resuming ends as if nothing had happened."""
    settings = {**QUICK, "rounds": 60, "patience": 3, "protocol": "plain"}
    whole = train(ratings, **settings)
    best_round = whole.record["best_round"]
    with pytest.raises(KeyboardInterrupt):
        train(ratings, out=tmp_path / "run", progress=cut_after(best_round + 2, "plain", KeyboardInterrupt), **settings)
    kept = load_run(tmp_path / "run")
    assert (kept.record["rounds"], kept.record["best_round"]) == (best_round + 2, best_round)
    np.testing.assert_array_equal(kept.predictor.item_vectors, whole.predictor.item_vectors)
    assert_same(whole, train(ratings, out=tmp_path / "run", resume=True, **settings))


@pytest.mark.parametrize(
    "damage",
    [
        {"best_user_vectors": None},
        {"best_item_vectors": np.zeros((3, 4))},
        {"round_number": 9},
    ],
    ids=["no best users", "shape", "a round to come"],
)
def test_a_best_model_that_fits_no_such_run_is_refused_by_name(ratings, tmp_path, damage):
    """Whole envelope, wrong content."""
    settings = {**QUICK, "patience": 5}
    with pytest.raises(Cut):
        train(ratings, out=tmp_path / "run", progress=cut_after(3), **settings)
    path = checkpoint_path(tmp_path / "run", "sdcf")
    kept = load_checkpoint(path)
    assert kept is not None
    about = {name: value for name, value in vars(kept).items() if name not in ("state", "best")}
    about["patience"] |= {name: value for name, value in damage.items() if name == "round_number"}
    arrays = {f"state_{name}": array for name, array in kept.state.items()}
    arrays |= {f"best_{name}": array for name, array in kept.best.items()} | damage
    arrays = {name: array for name, array in arrays.items() if array is not None and name != "round_number"}
    inside = npz(about=np.array(json.dumps(about)), **arrays)
    path.write_bytes(FORMAT + b" " + hashlib.sha256(inside).hexdigest().encode() + b"\n" + inside)
    with pytest.raises(RunError, match=r"checkpoint-sdcf\.npz"):
        train(ratings, out=tmp_path / "run", resume=True, **settings)


@pytest.mark.parametrize(
    ("short", "written_out"),
    [
        (
            {"model": "mf"},
            {"factors": 50, "step": 0.4, "epsilon_i": 4.0, "epsilon_p": 8.0, "epsilon_g": 4.0, "engine": "cpu"},
        ),
        ({"protocol": "isgld"}, {"epsilon": 4.0, "clamp": False, "rounds": 100}),
        ({"model": "bpr"}, {"factors": 10, "step": 4.0}),
        ({"model": "fm"}, {"order": 2, "step": 0.2}),
    ],
    ids=["sdcf", "isgld", "bpr", "fm"],
)
def test_a_default_that_is_written_out_is_the_same_setting(short, written_out):
    """So that a run is resumed with or without it; another value is another setting."""
    assert Settings(**short).as_record() == Settings(**short, **written_out).as_record()
    for name, value in written_out.items():
        if isinstance(value, float):
            assert Settings(**short, **{name: value + 1}).as_record() != Settings(**short).as_record()


def test_a_run_resumes_with_its_defaults_written_out(ratings, tmp_path):
    """And the other way round."""
    settings = {**QUICK, "rounds": 4, "model": "bpr"}
    del settings["factors"]
    whole = train(ratings, **settings)
    for first, second in (({}, {"step": 4.0, "factors": 10}), ({"epsilon_i": 4.0, "epsilon_p": 8.0}, {})):
        folder = tmp_path / str(len(first))
        with pytest.raises(Cut):
            train(ratings, out=folder, progress=cut_after(3), **settings, **first)
        assert_same(whole, train(ratings, out=folder, resume=True, **settings, **second))


def test_the_validation_part_comes_out_of_the_training_part(ratings):
    """Ratings: a fifth of the training rows. One-class: one more item of each user. The test rows are in neither."""
    task = rating_task(ratings, 0)
    inner = task.validation(0)
    assert sorted([*inner.split.train, *inner.split.test]) == sorted(task.split.train)
    ranking = ranking_task(ratings, 0)
    held_out = ranking.validation(0)
    pairs = {tuple(pair) for pair in zip(*ranking.training()[:2], strict=True)}
    inside = {tuple(pair) for pair in zip(*held_out.training()[:2], strict=True)}
    rows = held_out.split.test
    validation = set(zip(held_out.ratings.users[rows], held_out.ratings.items[rows], strict=True))
    assert inside | validation == pairs
    assert not inside & validation


def test_the_command_keeps_checkpoints_and_resumes(tmp_path):
    """`--checkpoint-every`, `--resume` and `--patience` reach the run; a refusal is one sentence and exit code 1."""
    options = [
        DATA,
        "--model",
        "mf",
        "--rounds",
        4,
        "--factors",
        3,
        "--no-compare",
        "--out",
        tmp_path / "run",
        "--json",
    ]
    first = command("train", *options, "--checkpoint-every", 2, "--patience", 2)
    assert first.code == 0
    assert json.loads(first.out)["patience"] == 2
    again = command("train", *options, "--resume")
    assert again.code == 1
    assert "unfinished" in again.err
    assert Path(tmp_path / "run" / "run.json").exists()
