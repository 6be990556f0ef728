"""The maths of model `audience`, against NumPy's formulas."""

import numpy as np
import pytest
from scipy import optimize

from hushrec.models import audience
from hushrec.models.audience import Description, ItemTable

N_ITEMS, WIDTH = 9, 4
OFFSET, USUAL, LIMIT, PRIOR = 5.0, 1.2, 2.0, 5.0
AUDIENCE, DENSITY, TASTE = 0.3, 0.6, 0.5
SHAPE = np.array([AUDIENCE, DENSITY, TASTE, PRIOR])
NO_KERNEL = np.empty((0, 0))


@pytest.fixture
def rng() -> np.random.Generator:
    """Draws of this file."""
    return np.random.default_rng(8)


@pytest.fixture
def description(rng: np.random.Generator) -> Description:
    """Public numbers that make a description of four numbers."""
    rows = rng.standard_normal((N_ITEMS, WIDTH))
    shape = np.array([OFFSET, USUAL, LIMIT])
    return Description(rows, 0.1 * rng.standard_normal(WIDTH), rng.standard_normal(WIDTH), shape)


@pytest.fixture
def table(rng: np.random.Generator, description: Description) -> ItemTable:
    """Public numbers that items are scored by."""
    places, counts = rng.standard_normal((3, N_ITEMS)), rng.uniform(1, 50, N_ITEMS)
    crowd = audience.item_density(counts, places)
    features = rng.standard_normal((5, N_ITEMS))
    features -= np.average(features, axis=1, weights=counts)[:, None]
    audiences = rng.standard_normal((N_ITEMS, WIDTH))
    return ItemTable(np.log(counts), counts, audiences, *description, places, crowd, features, SHAPE)


def variances_of(table: ItemTable) -> np.ndarray:
    """The mean square of each feature."""
    return np.asarray(audience.feature_variances(table.log_counts, table.features))


def taste_scores(met: np.ndarray, table: ItemTable) -> np.ndarray:
    """What a person's taste adds to each score."""
    return np.asarray(audience.taste_scores(met, table.log_counts, table.features, variances_of(table)))


def kernel_of(places: np.ndarray) -> np.ndarray:
    """k of all pairs by its definition."""
    return np.exp(-0.5 * ((places[:, :, None] - places[:, None, :]) ** 2).sum(axis=0))


def shortened(vector: np.ndarray) -> np.ndarray:
    """The vector with norm at most limit · √K."""
    return vector / max(1.0, np.linalg.norm(vector) / np.sqrt(len(vector)) / LIMIT)


@pytest.mark.parametrize("items", [[3], [0, 2, 5], list(range(N_ITEMS))])
def test_a_description_is_the_shrunk_mean_of_the_rows(description: Description, items: list[int]) -> None:
    """z = Σ p_j / (h + o) + s (log h − usual) + b, shortened."""
    plain = description.rows[items].sum(axis=0) / (len(items) + OFFSET)
    plain += description.slope * (np.log(len(items)) - USUAL) + description.base
    found = audience.describe_person(np.array(items), description)
    np.testing.assert_allclose(found, shortened(plain), rtol=1e-12)


def test_long_descriptions_are_shortened(description: Description) -> None:
    """Rows a hundred times as long: the norm is the limit."""
    long = description._replace(rows=100 * description.rows)
    found = audience.describe_person(np.array([1, 4]), long)
    assert np.linalg.norm(found) == pytest.approx(LIMIT * np.sqrt(WIDTH))


def test_leaving_one_item_out_is_describing_the_others(description: Description) -> None:
    """Row i has the sum of all but item i, divided by (h − 1 + o); the number of items is not left out."""
    items = np.array([0, 3, 4, 8])
    found = audience.describe_without_each(items, description)
    for place, item in enumerate(items):
        others = items[items != item]
        plain = description.rows[others].sum(axis=0) / (len(others) + OFFSET)
        plain += description.slope * (np.log(len(items)) - USUAL) + description.base
        np.testing.assert_allclose(found[place], shortened(plain), rtol=1e-12)


def test_the_only_item_of_a_person_does_not_describe_them(description: Description) -> None:
    """With one item, whatever its row is, z without it is the same."""
    first, second = (audience.describe_without_each(np.array([item]), description) for item in (2, 7))
    np.testing.assert_array_equal(first, second)


def test_the_crowd_is_the_density_of_everybody(table: ItemTable) -> None:
    """g_j = Σ n_i k(i, j) / Σ n_i."""
    counts = np.exp(table.log_counts)
    np.testing.assert_allclose(table.crowd, counts @ kernel_of(table.places) / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("items", [[6], [1, 2, 7]])
def test_a_score_is_popularity_audience_density_and_preference(
    description: Description, table: ItemTable, items: list[int]
) -> None:
    """The formula of the module's head, with and without a kept kernel."""
    met = np.array(items)
    person, kernel = audience.describe_person(met, description), kernel_of(table.places)
    fit = table.audiences @ person - 0.5 * (table.audiences**2).sum(axis=1)
    density = np.log((kernel[met].sum(axis=0) + PRIOR * table.crowd) / ((len(met) + PRIOR) * table.crowd))
    expected = table.log_counts + AUDIENCE * fit + DENSITY * density
    expected += TASTE * taste_scores(met, table)
    for kept in (NO_KERNEL, kernel):
        np.testing.assert_allclose(audience.score_items(met, table, variances_of(table), kept), expected, rtol=1e-11)


def test_somebody_who_met_nothing_gets_what_is_popular(description: Description, table: ItemTable) -> None:
    """No description, no density: the order of log n_j, and no number that is none."""
    nothing = np.empty(0, np.int64)
    found = audience.score_items(nothing, table, variances_of(table), NO_KERNEL)
    np.testing.assert_array_equal(found, table.log_counts)
    np.testing.assert_array_equal(audience.describe_person(nothing, description), np.zeros(WIDTH))


def test_a_person_whose_items_lie_as_the_crowds_do_gains_nothing_from_density(rng: np.random.Generator) -> None:
    """Everybody met everything once: own density is h times the crowd's, and its logarithm is 0."""
    places, counts = rng.standard_normal((2, 6)), np.ones(6)
    crowd, none = audience.item_density(counts, places), np.zeros((0, 6))
    description = Description(np.zeros((6, 0)), np.zeros(0), np.zeros(0), np.array([OFFSET, USUAL, LIMIT]))
    table = ItemTable(np.zeros(6), counts, none.T, *description, places, crowd, none, SHAPE)
    found = audience.score_items(np.arange(6), table, np.zeros(0), NO_KERNEL)
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_a_taste_follows_the_items_that_a_person_met(table: ItemTable) -> None:
    """A few steps reach nine tenths of the way up the log posterior; the items met get likelier."""
    met = np.array([1, 2, 7])

    def posterior(u: np.ndarray) -> float:
        fit = u @ table.features
        weights = table.log_counts + fit
        return float(fit[met].sum() - len(met) * np.log(np.exp(weights).sum()) - u @ u / 2)

    found = taste_scores(met, table)
    assert found[met].mean() > np.average(found, weights=np.exp(table.log_counts))
    before, after = np.zeros(5), np.linalg.lstsq(table.features.T, found, rcond=None)[0]
    best = optimize.minimize(lambda u: -posterior(u), before).x
    assert posterior(before) < posterior(after) <= posterior(best) + 1e-9
    assert posterior(best) - posterior(after) < 0.1 * (posterior(best) - posterior(before))


def test_a_profile_like_the_crowds_has_no_taste_of_its_own(table: ItemTable) -> None:
    """Everybody met everything once: the sum of features is what the crowd's choice makes of it."""
    everything = table._replace(log_counts=np.zeros(N_ITEMS))
    np.testing.assert_allclose(taste_scores(np.arange(N_ITEMS), everything), 0, atol=1e-12)
