"""Other people's protocols, simulated: each attack recovers what its message shows, and nothing from none."""

import math
from dataclasses import replace

import numpy as np
import pytest
import rival_protocols as rivals

from hushrec.data.synthetic import synthetic
from hushrec.report.leakage import recovered
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

LEAST = {  # of items, ratings and taste that are found; None: not asked
    "exact sums": (1.0, 0.95, 0.999),
    "Slope One": (1.0, 0.6, None),
    "perturbed": (0.3, None, None),
    "noise in": (1.0, None, 0.0),
    "public group": (0.0, None, None),
}


@pytest.fixture
def scene(people: rivals.Scene) -> rivals.Scene:
    """The same people and the same draws for every test, in whatever order tests run."""
    return replace(people, rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def people() -> rivals.Scene:
    """Forty people on sixty items."""
    data = synthetic(n_users=40, n_items=60, n_ratings=900, seed=5)
    settings = Settings(protocol="masked", model="gp", epsilon=math.inf)
    task = settings.make_task(data)
    problem = task_problem(task, settings)
    popularity = np.bincount(problem.items, minlength=problem.n_items) / problem.n_users
    return rivals.Scene(task, problem, np.arange(10), popularity, np.random.default_rng(0))


@pytest.mark.parametrize("rival", rivals.RIVALS, ids=lambda rival: rival.label.split(" (")[0])
def test_every_rival_shows_what_its_messages_hold(rival: rivals.Rival, scene: rivals.Scene) -> None:
    """The attacks that need not guess make no mistake."""
    record = rivals.attack_rival(rival, scene)
    found = recovered(record, rival.label)
    least = next(values for name, values in LEAST.items() if rival.label.startswith(name))
    for kind, bound in zip(("items", "ratings", "taste"), least, strict=True):
        assert (kind in found) == (bound is not None)
        if bound is not None:
            assert found[kind].value >= bound
    assert record["simulated"]
    assert record["left_out"]
    assert record["rmse"] is None or 0.5 < record["rmse"] < 2


def test_a_rating_is_put_on_the_grid_by_hand() -> None:
    """‖u‖ = 2: errors along u and scores of three items whose ratings are 1, 3 and 5."""
    scores = np.array([0.7, 1.1, 1.9])
    errors = np.array([1.0, 3.0, 5.0]) - 2 * scores
    found = rivals._ratings_on_grid(errors * 2, scores, np.ones(3, dtype=bool))
    assert found.tolist() == [1.0, 3.0, 5.0]


def test_noise_in_categories_is_all_that_changes_a_perturbed_profile(
    scene: rivals.Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise the profile is sent as it is."""
    monkeypatch.setattr(rivals, "PERTURBED_EPSILON", 1e9)
    sent = rivals.perturbed_profiles(scene).items > rivals.SURE / 2
    own = np.zeros_like(sent)
    for row, user in enumerate(scene.victims):
        own[row, scene.problem.profile(user)[0]] = True
    assert np.array_equal(sent, own)


def test_slope_one_predicts_by_hand(scene: rivals.Scene) -> None:
    """A constant shift between two items is what the sums hold, so that errors are near those of a simple model."""
    assert rivals.slope_one_error(scene) < scene.task.baselines()["global_mean"]["rmse"]
