"""Grids of runs as files, and the loop that runs them as batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")

from hushrec.engines.gpu import engine, user_arrays  # noqa: E402
from hushrec.experiments import grid as grids  # noqa: E402
from hushrec.experiments.grid import Grid, GridResult, main, make_problems, run_grid  # noqa: E402

PLANS = [
    {"protocol": "plain"},
    {"protocol": "isgld", "epsilon": 4.0, "clamp": True},
    {"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 1.0},
]


@pytest.fixture
def small_grid(rng):
    """Three curves on two splits of 40 users and 25 items."""
    users, items = np.nonzero(rng.random((40, 25)) < 0.4)
    held_out = np.zeros((2, len(users)), dtype=bool)
    for row in held_out:
        row[rng.permutation(len(users))[: len(users) // 5]] = True
    shared = {"model": "mf", "factors": 3, "rounds": 4, "step": 0.3}
    runs = [{**shared, **plan, "split": split, "seed": split} for plan in PLANS for split in range(2)]
    return Grid(40, 25, users, items, rng.integers(1, 6, len(users)).astype(float), held_out, runs)


def test_a_grid_survives_its_file(small_grid, tmp_path):
    """Every number and every setting."""
    small_grid.save(tmp_path / "grid.npz")
    back = Grid.load(tmp_path / "grid.npz")
    assert (back.n_users, back.n_items, back.runs) == (40, 25, small_grid.runs)
    for name in ("users", "items", "values", "held_out"):
        np.testing.assert_array_equal(getattr(back, name), getattr(small_grid, name))


def test_runs_of_a_split_share_its_ratings(small_grid):
    """So that a batch places them once; nothing held out is trained on."""
    problems = make_problems(small_grid, small_grid.runs)
    assert problems[0].values is problems[2].values is problems[4].values
    assert problems[0].values is not problems[1].values
    assert len(problems[0].items) == np.count_nonzero(~small_grid.held_out[0])


def test_a_shared_problem_equals_one_made_alone(small_grid):
    """Whatever a run differs in from the first of its split: terms and ratings are those of its own problem."""
    others = [
        {**small_grid.runs[4], **change} for change in ({}, {"step": 0.2}, {"reports_per_client": 3.0}, {"seed": 5})
    ]
    runs = [small_grid.runs[0], *others]
    for run, problem in zip(runs, make_problems(small_grid, runs), strict=True):
        alone = make_problems(small_grid, [run])[0]
        for name in ("step", "reports_per_client", "data_weight", "max_rounds", "epoch_rounds"):
            assert getattr(problem.terms, name) == pytest.approx(getattr(alone.terms, name))
        np.testing.assert_array_equal(problem.terms.user_regularization, alone.terms.user_regularization)
        np.testing.assert_array_equal(problem.items, alone.items)
        assert problem.seed == alone.seed


def test_a_grid_is_the_same_however_it_is_cut(small_grid, monkeypatch):
    """All runs at once, two at a time, and cut again when memory runs out: the same curves to rounding."""
    monkeypatch.setattr(engine, "default_device", lambda: "cpu")
    whole = run_grid(small_grid)
    assert whole.about["batches"] == 1
    assert np.isfinite(whole.curve).all()
    monkeypatch.setattr(user_arrays, "runs_at_once", lambda *arguments: 2)
    cut = run_grid(small_grid)
    assert cut.about["batches"] == 3
    monkeypatch.setattr(user_arrays, "runs_at_once", lambda *arguments: 6)
    run_batch = grids._run_batch

    def too_much(grid, numbers, *rest):
        if len(numbers) > 3:
            raise torch.OutOfMemoryError
        return run_batch(grid, numbers, *rest)

    monkeypatch.setattr(grids, "_run_batch", too_much)
    again = run_grid(small_grid)
    assert again.about["batches"] == 2
    few = run_grid(small_grid, splits_at_once=1)
    assert few.about["batches"] == 2
    for other in (cut, again, few):
        np.testing.assert_allclose(other.curve, whole.curve, atol=1e-4)
        np.testing.assert_allclose(other.bytes_per_client_round, whole.bytes_per_client_round, rtol=1e-6)


def test_the_loop_keeps_what_succeeds(small_grid, tmp_path, capsys):
    """A broken file is reported, the grid after it is run, and the exit code says that one failed."""
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    small_grid.save(tmp_path / "good.npz")
    code = main([str(tmp_path / "out"), str(tmp_path / "broken.npz"), str(tmp_path / "good.npz")])
    assert code == 1
    assert "broken: failed" in capsys.readouterr().out
    result = GridResult.load(tmp_path / "out" / "good.npz")
    assert result.curve.shape == (6, 4)
    assert result.about["runs"] == 6
    assert main([str(tmp_path / "out"), str(tmp_path / "good.npz")]) == 0


def test_a_grid_that_takes_too_long_keeps_whole_splits(small_grid, tmp_path, capsys):
    """After the first batch there is no time for the second: its runs stay without a curve, and the file says so."""
    small_grid.save(tmp_path / "grid.npz")
    arguments = ["--seconds", "0.000001", "--splits-at-once", "1", str(tmp_path / "out"), str(tmp_path / "grid.npz")]
    assert main(arguments) == 0
    assert "3 of 6 runs" in capsys.readouterr().out
    result = GridResult.load(tmp_path / "out" / "grid.npz")
    whole = [bool(np.isfinite(row).all()) for row in result.curve]
    assert whole == [run["split"] == 0 for run in result.about["run_settings"]]
