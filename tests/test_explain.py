"""Why an item is recommended: `likeness`, `Result.explain` and `recommend --why`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import run

from hushrec.data import Ratings, Scale, load
from hushrec.data.synthetic import synthetic, synthetic_truth
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import item_columns
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import VectorPredictor, likeness_between
from hushrec.protocols.masked.protocol import Masked
from hushrec.recommender import Recommender
from hushrec.simulation.results import Result
from hushrec.simulation.results import load as load_run
from hushrec.simulation.training import train
from hushrec.simulation.training_problem import make_problem


def test_likeness_by_hand() -> None:
    """The mean of (3, 1), (1, 1), (2, 1), (2, 1) is (2, 1): the first two point apart, the others nowhere."""
    vectors = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    assert likeness_between(vectors, [0], range(4))[0] == pytest.approx([1, -1, 0, 0])
    assert likeness_between(vectors, [0, 1], [1]) == pytest.approx(np.array([[-1], [1]]))


@pytest.fixture(scope="module")
def result() -> Result:
    """A non-private run that has learned something of the known truth."""
    return train("synthetic", protocol="plain", rounds=400, factors=5, step=0.6)


def test_learned_likeness_goes_with_true_likeness(result: Result) -> None:
    """Among films with 60 ratings or more, what the vectors call alike is alike in the known truth: correlation > 0.4.

    A fixed seed. Were the two unrelated, a correlation of 0.4 over this many pairs would be 10 deviations off.
    """
    truth = synthetic_truth().item_vectors
    often = np.flatnonzero(np.bincount(synthetic().items, minlength=len(truth)) >= 60)
    learned = likeness_between(result.predictor.item_vectors, often, often)
    true = likeness_between(truth, often, often)
    above = np.triu_indices(len(often), 1)
    assert np.corrcoef(learned[above], true[above])[0, 1] > 0.4


def test_reasons_are_the_persons_own_high_ratings(result: Result) -> None:
    """Each was rated by this person, not below their mean, and the strongest comes first."""
    ratings = synthetic()
    assert ratings.values is not None
    reasons = result.explain("1", result.recommend("1", 1)[0].item, 5)
    mine = ratings.users == 0
    rated = {
        ratings.item_ids[item]: value for item, value in zip(ratings.items[mine], ratings.values[mine], strict=True)
    }
    assert reasons
    assert all(rated[reason.item] == reason.rating >= np.mean(list(rated.values())) - 0.5 for reason in reasons)
    assert [reason.likeness for reason in reasons] == sorted((reason.likeness for reason in reasons), reverse=True)
    assert all(reason.title for reason in reasons)


def test_a_reason_does_not_show_its_rating(result: Result) -> None:
    """A rating does not reach a log by way of a repr."""
    (reason, *_) = result.explain("1", result.recommend("1", 1)[0].item)
    assert str(reason.rating) not in repr(reason)


def test_the_unknown_is_refused(result: Result) -> None:
    """An item, a user and a number that make no sense."""
    with pytest.raises(ParameterError, match=r"item .* nonsense"):
        result.explain("1", "nonsense")
    with pytest.raises(ParameterError, match=r"user .* nobody"):
        result.explain("nobody", "1")
    with pytest.raises(ParameterError, match=r"^n must"):
        result.explain("1", "1", 0)


def test_the_command_says_why(result: Result, tmp_path: Path) -> None:
    """--why names the user's own films, in a table and as JSON; a folder keeps what is needed for it."""
    result.save(tmp_path / "run")
    first = load_run(tmp_path / "run").recommend("1", 1)[0]
    reasons = load_run(tmp_path / "run").explain("1", first.item)
    shown = run("recommend", tmp_path / "run", "--user", "1", "-n", 1, "--why", columns=200)
    assert f"{reasons[0].title}: {reasons[0].rating:g}" in shown.out
    assert '"reasons"' in run("recommend", tmp_path / "run", "--user", "1", "--why", "--json").out
    assert '"reasons"' not in run("recommend", tmp_path / "run", "--user", "1", "--json").out


@pytest.mark.parametrize("model", ["gp", "audience"])
def test_a_run_that_knows_nothing_of_the_items_gives_no_reasons(model: str, tmp_path: Path) -> None:
    """Ids alone and a small run: similarity would be that of popularity and quality, 1 or −1, and means nothing."""
    ratings = synthetic()
    items = [f"i{item}" for item in ratings.items] if model == "gp" else ratings.items * 40  # or a long catalogue
    table = pl.DataFrame({"user": ratings.users, "item": items, "rating": ratings.values})
    known = pl.DataFrame({"id": list(map(str, range(400 * 40)))})
    data = load(table, items=None if model == "gp" else known).rows(np.arange(3000))
    result = train(data, model=model, epsilon=0.5)
    assert not result.compares_items
    first = result.recommend(data.user_ids[0], 1)[0].item
    assert result.explain(data.user_ids[0], first) == []
    result.save(tmp_path / "run")
    shown = run("recommend", tmp_path / "run", "--user", data.user_ids[0], "-n", 1, "--why", "--as-measured")
    assert "There are no reasons" in shown.err
    assert "similar to" not in shown.out
    assert (
        '"reasons": []'
        in run(
            "recommend", tmp_path / "run", "--user", data.user_ids[0], "-n", 1, "--why", "--as-measured", "--json"
        ).out
    )


@pytest.mark.parametrize("titles", [None, ["Alien", "Aliens", "Heat", "Alien 3"]])
def test_a_device_says_whether_it_can_compare_items(titles: list[str] | None) -> None:
    """As a simulated run does: without titles and attributes it has no reasons."""
    users = np.repeat(np.arange(12), 3)
    items = np.concatenate([np.delete(np.arange(4), user % 4) for user in range(12)])
    problem = make_problem(
        users, items, np.full(36, 4.0), n_users=12, n_items=4, model=GaussianProcess(item_columns(4, titles, None)),
        protocols=[Masked(8.0)], seed=3,
    )  # fmt: skip
    engine = ReferenceEngine(problem)
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    public, client = engine.server.side.public, engine.clients[0]
    assert client.compares_items(public) == (titles is not None)
    if titles is None:
        assert [len(found) for found in client.reasons(public, np.arange(4), 2)] == [0] * 4


def test_attributes_titles_and_learned_columns_give_reasons() -> None:
    """Each of the three is enough to compare items."""
    ratings = synthetic()
    changes = [{"attributes": None}, {"titles": None}, {"titles": None, "attributes": None}]
    found = [train(replace(ratings, catalogue=None, **change), epsilon=1).compares_items for change in changes]
    assert found == [True, True, False]
    bare = replace(ratings, catalogue=None, titles=None, attributes=None)
    assert train(bare, epsilon=np.inf).compares_items


def test_a_catalogue_of_ids_gives_no_reasons() -> None:
    """Ids that share words or numbers, such as item_2 and item_3, say nothing of what the items are like."""
    users, items = np.repeat(np.arange(20), 4), np.tile(np.arange(8), 10)
    rows = [(f"p{user}", f"item_{item}", 1 + item % 5) for user, item in zip(users, items, strict=True)]
    catalogue = pl.DataFrame({"id": [f"item_{item}" for item in range(9)]})
    found = Recommender().fit(rows, items=catalogue)
    assert not found.compares_items
    assert found.explain("p0", found.recommend("p0", 1)["item"][0]).is_empty()
    assert found.recommend("p0", 1)["title"][0] == found.recommend("p0", 1)["item"][0]


def test_equal_ratings_are_all_liked_whatever_the_scale() -> None:
    """On the scale 1 to 10, three ratings of 6 have a mean that is above them by rounding; they are reasons still."""
    users, items = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    names = [f"p{user}" for user in range(6)], [f"i{item}" for item in range(4)]
    ratings = Ratings("sixes", *names, np.append(users, 0), np.append(items, 3), np.full(19, 6.0), Scale(1, 10))
    predictor = VectorPredictor(MatrixFactorization(2), np.ones((6, 2)), np.array([[2.0, 1], [2, 1], [0, 1], [2, 1]]))
    result = Result({"model": "mf"}, ratings, predictor)
    assert [reason.item for reason in result.explain_to({"i0": 6, "i1": 6, "i2": 6}, "i3")] == ["i0", "i1"]
    assert [reason.item for reason in result.explain("p1", "i3")] == ["i0", "i1"]
