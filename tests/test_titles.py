"""Likeness of titles: words, series, and the kernel that they add up to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushrec.models.titles import (
    SERIES_VARIANCE,
    WORD_VARIANCE,
    own_titles,
    series_of,
    series_stem,
    title_rows,
    title_words,
)

TITLES = [
    "Police Academy (1984)",
    "Police Academy 2: Their First Assignment (1985)",
    "Godfather, The (1972)",
    "Godfather: Part II, The (1974)",
    "2001: A Space Odyssey (1968)",
    "Space Jam (1996)",
    "Alien (1979)",
]


def test_words_of_a_title_leave_out_year_brackets_small_words_and_numerals():
    """What is left tells titles apart."""
    assert title_words("Postman, The (Il postino) (1994)") == ["postman"]
    assert title_words("Rocky IV (1985)") == ["rocky"]
    assert title_words("Амели 2 (2001)") == ["амели"]


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("Police Academy 2: Their First Assignment (1985)", "police academy"),
        ("Godfather: Part II, The (1974)", "godfather"),
        ("Star Wars: Episode V - The Empire Strikes Back (1980)", "star wars"),
        ("8 (2000)", "8"),
        ("", ""),
    ],
)
def test_a_stem_ends_at_a_colon_or_a_numeral(title, stem):
    """Sequels keep the words that they begin with."""
    assert series_stem(title) == stem


def test_an_id_that_stands_for_a_title_is_no_title():
    """An item without a title is shown by its id; only real titles are compared."""
    assert own_titles([("7", "Alien"), ("8", "8"), ("Heat", "Heat (1995)")]) == ["Alien", "", "Heat (1995)"]


def test_a_series_has_at_least_two_titles():
    """A title that stands alone has no series."""
    series = series_of(TITLES)
    assert series[0] == series[1] != series[2]
    assert series[2] == series[3]
    assert set(series[4:]) == {-1}


def test_products_of_rows_are_the_kernel_worked_by_hand():
    """Two of seven titles share "space": its weight against those of its neighbours gives the cosine."""
    matrix = title_rows(TITLES).matrix
    kernel = (matrix @ matrix.T).toarray()
    space, alone = np.log(7 / 2), np.log(7)
    # "2001" and "odyssey" stand beside "space" in one title, "jam" in the other
    first, second = np.sqrt(space**2 + 2 * alone**2), np.sqrt(space**2 + alone**2)
    assert kernel[4, 5] == pytest.approx(WORD_VARIANCE * space**2 / (first * second))
    assert kernel[6, 6] == pytest.approx(WORD_VARIANCE)
    assert kernel[0, 0] == pytest.approx(WORD_VARIANCE + SERIES_VARIANCE)
    assert kernel[2, 3] == pytest.approx(WORD_VARIANCE + SERIES_VARIANCE)  # the same word, and the same series
    assert kernel[0, 6] == 0


@given(st.lists(st.text(max_size=30), max_size=12))
def test_any_titles_give_a_row_each_with_a_bounded_norm(titles):
    """Empty, strange and equal titles are titles too; no squared norm exceeds the two variances."""
    rows = title_rows(titles)
    assert len(rows.starts) == len(titles) + 1
    squares = np.asarray(rows.matrix.multiply(rows.matrix).sum(axis=1)) if titles else np.zeros(0)
    assert np.all(squares <= WORD_VARIANCE + SERIES_VARIANCE + 1e-12)
    assert all(np.all(np.diff(rows.columns[a:b]) > 0) for a, b in zip(rows.starts, rows.starts[1:], strict=False))
