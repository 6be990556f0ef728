"""Runs of people with few ratings each: their plan is chosen by the mean number of ratings per person."""

from pathlib import Path
from typing import Any

import pytest
from masked_kit import catalogue, masked_settings

import hushrec
from hushrec.data.shards import write_shards
from hushrec.errors import ParameterError
from hushrec.service.setup import make_run
from hushrec.simulation.sharded import train_shards
from hushrec.simulation.training import train

SPARSE = "synthetic:users=2000,items=1500,ratings=8000"  # 4 ratings each


def said(record: dict[str, Any]) -> int:
    """How often the record says that the plan depends on the number of ratings."""
    return sum("--ratings-per-person" in line for line in record["budget"]["not_covered"])


def test_a_run_of_short_profiles_is_more_accurate_than_one_with_the_usual_plan() -> None:
    """The mean is counted, and the result says so. With the usual plan the run is worse than the bias model."""
    found = {mean: hushrec.train(SPARSE, ratings_per_person=mean) for mean in (None, 4, 100)}
    errors = {mean: one.metrics["rmse"] for mean, one in found.items()}
    assert errors[None] == errors[4] < found[4].record["baselines"]["bias"]["rmse"] < errors[100] - 0.01
    assert [said(one.record) for one in found.values()] == [1, 0, 0]


def test_long_profiles_are_not_said_to_choose_the_plan() -> None:
    """Nor has model `audience` such a plan."""
    for data, model in (("synthetic:users=40,items=50,ratings=1300", "gp"), (SPARSE, "audience")):
        assert said(train(hushrec.data.load(data), model=model).record) == 0


def test_a_run_of_short_profiles_is_the_same_on_shards(tmp_path: Path) -> None:
    """Their manifest has the numbers of ratings and of people."""
    data = hushrec.data.load("synthetic:users=400,items=300,ratings=3000")
    write_shards(data, tmp_path / "shards", ratings_per_shard=1000)
    ours, theirs = train(data).record, train_shards(tmp_path / "shards")[0]
    assert theirs["metrics"]["rmse"] == pytest.approx(ours["metrics"]["rmse"], abs=1e-9)
    assert said(ours) == said(theirs) == 1


def test_an_operator_names_the_mean_in_the_terms() -> None:
    """A server cannot count; without the option it takes profiles for long."""
    usual, short = (
        make_run(masked_settings(4, terms=own).terms, catalogue())[0] for own in ({}, {"ratings_per_person": 6.25})
    )
    assert short.options["ratings_per_person"] == 6.25
    clips = [next(offer.terms.priced.plan.blocks).clip for offer in (usual, short)]
    assert clips[1] == clips[0] / 2


@pytest.mark.parametrize("mean", [0.5, float("inf")])
def test_an_impossible_number_of_ratings_per_person_is_refused(mean: float) -> None:
    """A person without ratings learns and teaches nothing; infinity is never a count."""
    with pytest.raises(ParameterError, match=rf"ratings_per_person must be at least 1 and finite, got {mean}"):
        hushrec.train("synthetic:users=40,items=30", ratings_per_person=mean)
