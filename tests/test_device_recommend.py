"""What a device recommends: from the person's ratings and the public item vectors, whatever rounds it answered."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from command import run
from offline_kit import N_ITEMS, OfflineServer, make_small_offer
from service_kit import new_device

from hushrec import Device
from hushrec.data.synthetic import synthetic
from hushrec.device import joining
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.protocols.gradient import fit
from hushrec.protocols.gradient.fit import fit_user_vector
from hushrec.simulation.training import train

ROOT = Path(__file__).parents[1]


def trained_server(rng: np.random.Generator) -> OfflineServer:
    """A server whose rounds are over, with item vectors in which every item has a quality and a kind."""
    server = OfflineServer(make_small_offer(), is_over=True)
    quality, kind = rng.uniform(0.6, 1.4, N_ITEMS), np.where(np.arange(N_ITEMS) % 2, 1.0, -1.0)
    server.item_vectors = np.column_stack([2 * quality, kind, rng.normal(0, 0.05, N_ITEMS)])
    return server


def newcomer(folder: Path, server: OfflineServer, ratings: dict[str, float]) -> Device:
    """A device that joins a run which is over."""
    device = Device.create(folder)
    device.add_ratings(ratings)
    server.run(joining.join(device._session))
    assert server.run(device._session.step()) == "run over"
    return device


def test_newcomers_to_a_finished_run_get_the_same_list_for_the_same_ratings(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Three devices with the same ratings: one list. It holds what is like the items rated high, and nothing rated."""
    server = trained_server(rng)
    ratings = {f"item-{n}": 5.0 if n % 2 else 1.0 for n in range(12)}
    lists = []
    for n in range(3):
        with newcomer(tmp_path / str(n), server, ratings) as device:
            lists.append(device.recommend(9))
            assert device.budget()["spent"] == 0
    assert lists[0] == lists[1] == lists[2]
    assert all(int(entry.item.split("-")[1]) % 2 == 1 for entry in lists[0])
    assert not {entry.item for entry in lists[0]} & set(ratings)
    assert "POST" not in " ".join(server.asked).replace("POST /v1/devices", "")  # nothing left but the enrolments


def test_a_device_that_has_not_joined_compares_no_items(tmp_path: Path) -> None:
    """It has nothing to compare them by: the answer is no, like the empty list of `reasons`, and no error."""
    with Device.create(tmp_path) as device:
        assert device.compares_items is False
        assert device.reasons(["item-1"]) == [[]]


def test_a_rating_given_after_the_last_round_counts(tmp_path: Path, rng: np.random.Generator) -> None:
    """Rated the other way round, the other kind of item is recommended at once."""
    server = trained_server(rng)
    with newcomer(tmp_path / "device", server, {f"item-{n}": 5.0 if n % 2 else 1.0 for n in range(12)}) as device:
        asked = len(server.asked)
        device.add_ratings({f"item-{n}": 1.0 if n % 2 else 5.0 for n in range(12)})
        assert all(int(entry.item.split("-")[1]) % 2 == 0 for entry in device.recommend(9))
        assert len(server.asked) == asked


def test_predictions_are_within_the_scale_and_ranked_by_score(tmp_path: Path, rng: np.random.Generator) -> None:
    """Item vectors that overshoot are shown as the top of the scale, in the order of their raw scores."""
    server = trained_server(rng)
    server.item_vectors[20:, 0] *= 3
    with newcomer(tmp_path / "device", server, {f"item-{n}": 5.0 for n in range(12)}) as device:
        best = device.recommend(6)
        scores = [entry.score for entry in best]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] > scores[1] > 5
        assert [entry.predicted for entry in best] == [min(5, max(1, score)) for score in scores]
        assert (device.predict().min() >= 1, device.predict().max()) == (True, 5)
    shown = run("device", "recommend", "-n", 6, "--store", tmp_path / "device").out
    assert shown.count("5.00") == sum(score >= 4.995 for score in scores)
    shown = json.loads(run("device", "recommend", "-n", 6, "--json", "--store", tmp_path / "device").out)
    assert [entry["score"] for entry in shown["items"]] == scores


def test_without_item_vectors_there_is_nothing_to_recommend(tmp_path: Path) -> None:
    """Before a server was joined, and before its first round: the sentence says what to do."""
    with new_device(tmp_path / "device") as device:
        with pytest.raises(LocalProtocolError, match="not joined a server"):
            device.recommend()
        OfflineServer().run(joining.join(device._session))
        with pytest.raises(LocalProtocolError, match="public table"):
            device.recommend()


def test_the_first_list_is_what_most_people_like(tmp_path: Path) -> None:
    """Without a text, search begins with items that more people rated, and rated higher, than in catalogue order."""
    data = synthetic(n_users=300, n_items=120, n_ratings=9_000, seed=1)
    trained = train(data, protocol="sdcf", model="mf", factors=4, rounds=30, epsilon_i=4, epsilon_g=4)
    server = OfflineServer(make_small_offer(data.n_items, factors=4), is_over=True)
    server.item_vectors = trained.predictor.arrays()["item_vectors"]
    count = np.bincount(data.items, minlength=data.n_items)
    mean = np.bincount(data.items, data.values, minlength=data.n_items) / np.maximum(count, 1)
    with Device.create(tmp_path / "device") as device:  # without any rating
        server.run(joining.join(device._session))
        found = device.search()
        first = [int(item.split("-")[1]) for item, _ in found.items]
        assert (found.count, len(first)) == (data.n_items, 12)
        assert count[first].mean() > 1.25 * count[:12].mean()
        assert mean[first].mean() > mean[:12].mean() + 0.25
        following = [item for item, _ in device.search(first=12).items]
        assert not set(following) & {item for item, _ in found.items}


def test_before_anything_is_public_the_first_list_is_the_catalogue(tmp_path: Path) -> None:
    """A device that joined and saw no round yet lists the items as the server does."""
    with new_device(tmp_path / "device") as device:
        OfflineServer().run(joining.join(device._session))
        assert [item for item, _ in device.search(count=3).items] == ["item-0", "item-1", "item-2"]


def test_a_fit_by_hand() -> None:
    """One factor: (Σ r v + κ m v̄) / (Σ v² + κ v̄²); with no rating, the mean item gets the middle of the scale."""
    items = np.array([[1.0], [3.0]])
    values, rated = np.array([5.0]), items[:1]
    expected = (5 * 1 + fit.LEVEL_RATINGS * 3 * 2) / (1 + fit.LEVEL_RATINGS * 4)
    assert fit_user_vector(values, rated, items) == pytest.approx([expected])
    assert items.mean(axis=0) @ fit_user_vector(np.empty(0), np.empty((0, 1)), items) == pytest.approx(3)


def test_many_ratings_are_reproduced(rng: np.random.Generator) -> None:
    """With a thousand ratings the prior hardly counts: the fit is the vector that made them."""
    items, true = rng.normal(1, 0.5, (1000, 3)), np.array([1.0, 0.5, -0.5])
    assert fit_user_vector(items @ true, items, items) == pytest.approx(true, abs=0.02)


def test_vectors_without_a_mean_are_fitted_too() -> None:
    """Item vectors whose mean is zero, or nearly, have no common direction; the system stays solvable."""
    items = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for shift in (0.0, 1e-170, 1e-12):
        assert np.all(np.abs(fit_user_vector(np.array([5.0]), items[:1], items + shift)) < 10)


def test_item_vectors_that_no_honest_run_has_are_not_taken(tmp_path: Path, rng: np.random.Generator) -> None:
    """A server that answers a newcomer with huge or vanishing vectors is refused, and nothing is stored."""
    for factor in (1e6, 1e-6):
        server = trained_server(rng)
        server.item_vectors *= factor
        with Device.create(tmp_path / f"{factor:g}") as device:
            device.add_rating("item-1", 4)
            server.run(joining.join(device._session))
            with pytest.raises(RemoteProtocolError, match="item_vectors"):
                server.run(device._session.step())
            assert device._store.get("public") is None


def test_the_constants_are_those_that_validation_people_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/records/newcomers.json has the choice, and what it brings newcomers beside their own mean."""
    record = json.loads((ROOT / "benchmarks" / "records" / "newcomers.json").read_text("utf-8"))
    assert (record["taste_weight"], record["level_ratings"]) == (fit.TASTE_WEIGHT, fit.LEVEL_RATINGS)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("newcomers")
    assert fit.TASTE_WEIGHT in script.TASTE_WEIGHTS
    assert fit.LEVEL_RATINGS in script.LEVEL_RATINGS
