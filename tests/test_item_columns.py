"""Public columns of items from any items file."""

import numpy as np
import polars as pl
import pytest

import hushrec
from hushrec.errors import ParameterError
from hushrec.models.item_columns import MOST_DETAILS, MOST_TASTE_COLUMNS, ItemColumns, item_columns
from hushrec.models.titles import title_rows

TITLES = ["Alien (1979)", "Aliens II (1986)", "City of Lost Children, The (Cite des enfants perdus, La) (1995)", "Heat"]


def test_a_catalogue_without_attributes_or_titles_has_no_columns() -> None:
    """Nothing is public but the number of items."""
    columns = item_columns(3, None, None)
    assert columns.taste.shape == columns.details.shape == (3, 0)
    assert columns.titles.matrix.shape == (3, 0)


def test_flags_share_the_norm_of_an_item_and_have_mean_zero() -> None:
    """Two genres count 1/√2 each before the mean is taken off."""
    attributes = pl.DataFrame({"genre=Action": [True, True, False], "genre=Drama": [True, False, False]})
    columns = item_columns(3, None, attributes)
    half = 2**-0.5
    expected = np.array([[half, half], [1, 0], [0, 0]])
    np.testing.assert_allclose(columns.taste, expected - expected.mean(axis=0))


def test_a_number_comes_with_its_square_and_a_missing_one_is_the_mean() -> None:
    """One deviation is 0.85; what is missing is 0 before the square's mean is taken off."""
    columns = item_columns(3, None, pl.DataFrame({"year": [1990.0, 2010.0, None]}))
    np.testing.assert_allclose(columns.taste[:, 0], [-0.85, 0.85, 0])
    square = 0.4 * 0.85**2
    np.testing.assert_allclose(columns.taste[:, 1], np.array([1, 1, -2]) * square / 3)


def test_a_column_that_says_nothing_is_left_out() -> None:
    """The same number or flag everywhere, and a number that nobody gave."""
    attributes = pl.DataFrame(
        {"year": [2000.0, 2000.0], "pages": pl.Series([None, None], dtype=pl.Float64), "kind=film": [True, True]}
    )
    assert item_columns(2, None, attributes).taste.shape == (2, 0)


def test_the_rarest_categories_of_a_long_list_are_details() -> None:
    """Taste columns are limited, since work grows with their square."""
    flags = np.random.default_rng(0).random((400, 60)) < np.linspace(0.5, 0.02, 60)
    columns = item_columns(400, None, pl.DataFrame({f"tag={k:02}": flags[:, k] for k in range(60)}))
    assert columns.taste.shape[1] == MOST_TASTE_COLUMNS
    assert columns.details.shape[1] >= 60 - MOST_TASTE_COLUMNS


def crossed_attributes(numbers: int, categories: int, items: int = 400) -> pl.DataFrame:
    """Items with so many numbers, and one of so many categories each."""
    rng = np.random.default_rng(2)
    kinds = np.arange(items) % categories
    columns = {f"n{k}": rng.normal(size=items) for k in range(numbers)}
    return pl.DataFrame(columns | {f"kind={k}": kinds == k for k in range(categories)})


def test_details_are_limited_to_those_of_largest_variance() -> None:
    """Every number times every category would be thousands of columns, and work grows with their cube."""
    many = item_columns(400, None, crossed_attributes(12, 90))
    assert many.details.shape[1] == MOST_DETAILS
    assert many.n_left_out == 90 + 2 * 12 - 40 + 11 * 12 + 12 * 90 - MOST_DETAILS  # rest, bumps and products
    few = item_columns(400, None, crossed_attributes(3, 20))
    assert few.n_left_out == 0
    assert few.details.shape[1] == 3 * 11 + 3 * 20


def test_columns_that_are_left_out_are_said() -> None:
    """Once, when a run begins; nothing is said where all are used."""
    rng = np.random.default_rng(4)
    users, items = np.repeat(np.arange(30), 10), np.concatenate([rng.permutation(400)[:10] for _ in range(30)])
    table = pl.DataFrame({"user": users, "item": items, "rating": rng.integers(1, 6, 300)})
    for count, expected in ((12, 1), (1, 0)):
        known = {"id": list(map(str, range(400))), "kind": [f"k{item % 90}" for item in range(400)]}
        file = pl.DataFrame(known | {f"n{k}": rng.normal(size=400) for k in range(count)})
        said: list[str] = []
        hushrec.train(hushrec.data.load(table, items=file), epsilon=8, final=True, remark=said.append)
        assert len([text for text in said if "left out" in text]) == expected


def test_details_tell_sequels_second_titles_and_places_in_a_series() -> None:
    """The columns of titles, before their means are taken off, worked out by hand."""
    titles = ["Rocky (1976)", "Rocky II (1979)", "Cinema Paradiso, Il (1988)", "Usual Suspects, The (1995)"]
    years = pl.DataFrame({"year": [1976.0, 1979.0, 1988.0, 1995.0]})
    details = item_columns(4, titles, years).details
    for expected in ([0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0.25, 0, 0]):
        centred = np.array(expected) - np.mean(expected)
        assert np.any(np.all(np.isclose(details, centred[:, None]), axis=0)), expected


@pytest.mark.parametrize("columns", [np.full((2, 1), np.nan), np.zeros((3, 1))])
def test_columns_must_be_finite_and_one_row_per_item(columns: np.ndarray) -> None:
    """Anything else is refused where the columns enter."""
    with pytest.raises(ParameterError, match="taste"):
        ItemColumns(columns, np.zeros((2, 0)), title_rows(["a", "b"]))
