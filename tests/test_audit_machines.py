"""Attacks on model `fm`: everything is read where nothing hides it, and nothing where messages are of somebody else."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from audit_kit import QUIET, unrelated
from command import run

from hushrec.audit.attacks.machines import MACHINES
from hushrec.audit.judge import judge
from hushrec.audit.machines import likely_bias, read_reports
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth, item_popularity, record
from hushrec.audit.rating_levels import WHOLE_STARS
from hushrec.data.synthetic import synthetic
from hushrec.models.fm import FactorizationMachine
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings


@cache
def watched(protocol: str) -> tuple[Observation, Truth]:
    """A small run without Langevin noise."""
    data = synthetic(n_users=40, n_items=60, n_ratings=1_000, seed=1)
    settings = Settings(model="fm", protocol=protocol, rounds=25, factors=5)
    problem = task_problem(settings.make_task(data), settings)
    problem = replace(problem, terms=replace(problem.terms, data_weight=QUIET))
    victims = problem.active_users[:10]
    observation, truth, _ = record(problem, victims, victims[:1], item_popularity(problem, problem.active_users[10:]))
    return observation, truth


def values(protocol: str, truth: Truth | None = None) -> dict[str, float]:
    """What is found, by target."""
    observation, known = watched(protocol)
    truth, rng = known if truth is None else truth, np.random.default_rng(0)
    found = [one for attack in MACHINES for one in judge(attack, observation, truth, rng=rng)]
    main = [one for one in found if "popularity" not in one.name and "reported" not in one.metric]
    return {one.target: one.value for one in main if one.metric != "overlap_at_10"}


def test_plain_gives_every_item_rating_and_taste_away() -> None:
    """No mistake at all."""
    found = values("plain")
    assert (found["existence"], found["value"]) == (1.0, 1.0)
    assert found["model"] > 0.99


def test_sdcf_gives_most_of_them_away() -> None:
    """Fakes are smaller than real errors, and the taste is in every gradient."""
    found = values("sdcf")
    assert found["existence"] > 0.9
    assert found["value"] > 0.5
    assert found["model"] > 0.95


@pytest.mark.parametrize("protocol", ["plain", "sdcf"])
def test_messages_of_somebody_else_say_nothing(protocol: str) -> None:
    """Items are told no better than by chance (ten people, 60 items), and ratings no better than blindly."""
    found = values(protocol, unrelated(watched(protocol)[1]))
    assert abs(found["existence"] - 0.5) < 0.1
    assert found["value"] < 0.5


def test_a_device_that_sends_nothing_shows_nothing() -> None:
    """No rating, no size, no taste."""
    observation, _ = watched("plain")
    assert isinstance(observation.model, FactorizationMachine)
    silent = [None] * observation.n_rounds
    found = read_reports(observation.model, observation.announcements, silent, WHOLE_STARS, follows_bias=True)
    assert np.isnan(found.ratings).all()
    assert not found.sizes.any()
    assert not found.direction.any()


def test_a_bias_by_hand() -> None:
    """Ratings of 2 and 5, off by a bias of 0.3: near 0 it is 0.3, to the width of the grid."""
    found = likely_bias(np.array([1.7, 4.7]), np.ones(2), 0.0, WHOLE_STARS, wide=False)
    assert found == pytest.approx(0.3, abs=0.003)


def test_the_command_audits_fm() -> None:
    """`audit --model fm` no longer refuses."""
    small = "synthetic:users=24,items=30,ratings=300"
    outcome = run(
        "audit", small, "--model", "fm", "--protocol", "plain", "--users", 4, "--rounds", 5, "--factors", 3, "--json"
    )
    assert outcome.code == 0, outcome.err
    assert set(json.loads(outcome.out)["worst"]) == {"plain"}
