"""Synthetic ratings: reproducible, the same in blocks, MovieLens-like, and with something to learn."""

import time
import tracemalloc

import numpy as np
import pytest
from pace import slowness

from hushrec.data import describe, load, random_split, stream, synthetic, synthetic_truth
from hushrec.errors import ParameterError


def test_the_default_is_the_named_set_and_depends_on_the_seed_alone():
    """Same seed, same ratings; another seed, others."""
    ratings = load("synthetic")

    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (300, 400, 18_000)
    assert (
        ratings.checksum == synthetic().checksum == load("synthetic:users=300,items=400,ratings=18000,seed=0").checksum
    )
    assert ratings.checksum != synthetic(seed=1).checksum
    assert synthetic().titles == ratings.titles


@pytest.mark.parametrize("users_per_block", [1, 7, 300, 1000])
def test_blocks_put_together_are_the_whole_whatever_their_size(users_per_block):
    """A person's ratings do not depend on the block they are made in."""
    whole = synthetic(seed=5)
    blocks = list(stream(seed=5, users_per_block=users_per_block))

    assert len(blocks) == -(-300 // users_per_block)
    assert np.array_equal(np.concatenate([block.users for block in blocks]), whole.users)
    assert np.array_equal(np.concatenate([block.items for block in blocks]), whole.items)
    assert np.array_equal(np.concatenate([block.values for block in blocks]), whole.values)


def test_streaming_keeps_one_block_in_memory():
    """A million ratings take 24 MB; made in blocks, never more than a tenth of that plus the items."""
    tracemalloc.start()
    total = sum(len(block.users) for block in stream(20_000, 500, 1_000_000, seed=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert total == 1_000_000
    assert peak < 4e6


def test_the_shape_is_that_of_film_ratings():
    """Whole stars from 1 to 5, nobody below 20 ratings, long tails of people and of films, no pair twice."""
    ratings = synthetic(943, 1682, 100_000)
    summary = describe(ratings)

    assert set(summary["values"]) == {"1", "2", "3", "4", "5"}
    assert summary["per_user"]["min"] >= 20
    assert summary["per_user"]["max"] > 4 * summary["per_user"]["median"]
    assert summary["per_item"]["max"] > 8 * summary["per_item"]["median"]
    assert 3 < summary["mean"] < 4
    assert 0.9 < summary["standard_deviation"] < 1.2
    assert len(np.unique(ratings.users * ratings.n_items + ratings.items)) == 100_000


@pytest.mark.parametrize(
    ("n_users", "n_items", "n_ratings"), [(1, 1, 1), (3, 4, 12), (5, 7, 5), (50, 30, 700), (40, 9, 300)]
)
def test_any_possible_shape_has_exactly_the_ratings_asked_for(n_users, n_items, n_ratings):
    """Also when every person rates everything, and when each rates one."""
    ratings = synthetic(n_users, n_items, n_ratings)

    assert ratings.n_ratings == n_ratings
    assert len(np.unique(ratings.users * n_items + ratings.items)) == n_ratings
    assert np.bincount(ratings.users, minlength=n_users).min() >= 1


def test_titles_differ_and_attributes_are_those_of_films():
    """One title per film, with its year in brackets; at least one genre each."""
    ratings = synthetic(20, 5000, 1000)

    assert ratings.titles is not None
    assert len(set(ratings.titles)) == 5000
    assert ratings.attributes is not None
    years = ratings.attributes["year"].to_list()
    assert all(title.endswith(f"({year:.0f})") for title, year in zip(ratings.titles, years, strict=True))
    flags = ratings.attributes.drop("year").to_numpy()
    assert flags.sum(axis=1).min() >= 1


def rmse(values, predicted):
    """Root mean squared error."""
    return float(np.sqrt(np.mean((values - predicted) ** 2)))


def fit_biases(ratings, rows):
    """Mean plus user and item biases, each shrunk by three imaginary zeros, by ten sweeps."""
    users, items, values = ratings.users[rows], ratings.items[rows], ratings.values[rows]
    user_biases, item_biases = np.zeros(ratings.n_users), np.zeros(ratings.n_items)
    mean = values.mean()
    for _ in range(10):
        rest = values - mean - user_biases[users]
        item_biases = np.bincount(items, rest, ratings.n_items) / (np.bincount(items, minlength=ratings.n_items) + 3)
        rest = values - mean - item_biases[items]
        user_biases = np.bincount(users, rest, ratings.n_users) / (np.bincount(users, minlength=ratings.n_users) + 3)
    return mean + user_biases[ratings.users] + item_biases[ratings.items]


def fit_taste(ratings, rows, residuals, n_factors=4, ridge=3.0):
    """Alternating ridge regressions of the residuals on vectors of four."""
    rng = np.random.default_rng(0)
    user_vectors = rng.normal(0, 0.1, (ratings.n_users, n_factors))
    item_vectors = rng.normal(0, 0.1, (ratings.n_items, n_factors))
    sides = [
        (ratings.users, ratings.items, user_vectors, item_vectors),
        (ratings.items, ratings.users, item_vectors, user_vectors),
    ]
    for _ in range(10):
        for mine, others, solved, given in sides:
            for index in range(len(solved)):
                own = rows[mine[rows] == index]
                design = given[others[own]]
                solved[index] = np.linalg.solve(
                    design.T @ design + ridge * np.eye(n_factors), design.T @ residuals[own]
                )
    return np.einsum("rk,rk->r", user_vectors[ratings.users], item_vectors[ratings.items])


def test_a_personal_model_beats_the_biases_and_the_truth_beats_both():
    """On held-out ratings: mean > biases > biases and taste > truth, each by a clear step."""
    ratings = synthetic()
    split = random_split(ratings.n_ratings, 0)
    biases = fit_biases(ratings, split.train)
    taste = fit_taste(ratings, split.train, ratings.values - biases)
    truth = synthetic_truth().expected(ratings.users, ratings.items)
    held_out = ratings.values[split.test]

    errors = [rmse(held_out, guess[split.test]) for guess in (biases, biases + taste, truth)]
    assert held_out.std() > errors[0] + 0.05
    assert errors[0] > errors[1] + 0.1
    assert errors[1] > errors[2] + 0.05


def test_a_hundred_thousand_ratings_take_about_a_second():
    """Of computing; the bound leaves room for a slow machine."""
    start = time.process_time()
    synthetic(943, 1682, 100_000)
    assert time.process_time() - start < 3 * slowness()


def test_a_name_without_ratings_gets_a_number_that_fits():
    """About sixty per person, but never more than a third of the items."""
    assert load("synthetic:users=20").n_ratings == 1200
    assert load("synthetic:users=20,items=10").n_ratings == 60
    assert load("synthetic:users=2,items=1").n_ratings == 2


def test_synthetic_pairs_without_ratings():
    """`implicit` leaves the values out and keeps titles."""
    ratings = load("synthetic", implicit=True)
    assert ratings.values is None
    assert ratings.scale is None
    assert ratings.titles is not None


def test_a_block_of_nobody_is_refused():
    """A block has at least one user."""
    with pytest.raises(ParameterError, match="users_per_block"):
        stream(users_per_block=0)
