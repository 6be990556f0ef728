"""Similarity of titles: items whose titles share words, and items that belong to the same series.

Titles are public and cost no privacy budget. Each item j gets a sparse row t_j with one entry per word of its title and
one for its series, so that

    t_j · t_k = WORD_VARIANCE · cos(w_j, w_k) + SERIES_VARIANCE · [j and k are of one series],

where w_j holds the inverse document frequencies of the words of title j. Added to the kernel of a Gaussian process,
this product gives every person a random preference with mean 0 for each word and each series: a person who dislikes one
*Police Academy* probably dislikes the next.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from hushrec.arrays import IntArray

WORD_VARIANCE = 0.15  # chosen on validation parts of ML-100K and ML-1M
SERIES_VARIANCE = 0.25
STEM_WORDS = 3  # titles whose first words agree, up to this number, are of one series

FOREIGN_ARTICLES = frozenset("le la les il el der das die lo los un une l den det".split())  # noqa: SIM905
_SMALL_WORDS = FOREIGN_ARTICLES | frozenset("the a an of and in to for with on at my i from by".split())  # noqa: SIM905
_NUMERALS = frozenset("i ii iii iv v vi vii viii ix x 2 3 4 5 6 7 8 9 10 part episode volume vol".split())  # noqa: SIM905


@dataclass(frozen=True, eq=False)
class TitleRows:
    """The sparse title rows of items: row j has the entries `starts[j]` … `starts[j + 1]` − 1 of the other arrays."""

    starts: IntArray  # (n_items + 1,)
    columns: IntArray  # the column of each entry, which stands for a word or a series; ascending in a row, (n_entries,)
    weights: np.ndarray  # the value of each entry, (n_entries,)

    @property
    def matrix(self) -> sp.csr_array:
        """The title rows as a sparse matrix, `(n_items, n_columns)`, with a column for each word and each series."""
        n_columns = int(self.columns.max()) + 1 if len(self.columns) else 0
        return sp.csr_array((self.weights, self.columns, self.starts), shape=(len(self.starts) - 1, n_columns))


def own_titles(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Return the titles of items with these (id, title) pairs; "" if the title is the id.

    Readers of catalogues show the id of an item that has no title. Words and numbers of ids say nothing of what the
    items are like.
    """
    return ["" if title == item else title for item, title in entries]


def title_words(title: str) -> list[str]:
    """Return the words of a title, without text in brackets (such as the year), stop words and numerals."""
    return [word for word in words_of(without_brackets(title)) if word not in _SMALL_WORDS and word not in _NUMERALS]


def series_stem(title: str) -> str:
    """Return the first three words of a title that are not stop words, up to a colon or a numeral.

    A numeral that is the first of these words does not end the stem; words such as "part" count as numerals. Titles
    with the same stem are one series. The stem may be empty.
    """
    stem: list[str] = []
    for word in words_of(without_brackets(title).partition(":")[0]):
        if word in _NUMERALS and stem:
            break
        if word not in _SMALL_WORDS:
            stem.append(word)
    return " ".join(stem[:STEM_WORDS])


def series_of(titles: Sequence[str]) -> IntArray:
    """Return the series number of each title; −1 for a title that shares its `series_stem` with no other title."""
    stems = [series_stem(title) for title in titles]
    shared = sorted(stem for stem, count in Counter(stems).items() if stem and count > 1)
    numbers = {stem: number for number, stem in enumerate(shared)}
    return np.array([numbers.get(stem, -1) for stem in stems], dtype=np.int64)


def title_rows(titles: Sequence[str]) -> TitleRows:
    """Return the sparse title rows of these titles.

    A word has the weight log(number of titles / number of titles with it). The words of a title are scaled so that
    their squares sum to `WORD_VARIANCE`. The entry of a series has the square `SERIES_VARIANCE`.
    """
    words = [sorted(set(title_words(title))) for title in titles]
    frequency = Counter(word for own in words for word in own)
    column = {word: number for number, word in enumerate(sorted(frequency))}
    weight = {word: np.log(len(titles) / count) for word, count in frequency.items()}
    series = series_of(titles)
    starts, columns, weights = [0], [], []
    for own, number in zip(words, series, strict=True):
        norm = np.sqrt(sum(weight[word] ** 2 for word in own))
        if norm > 0:
            columns += [column[word] for word in own]
            weights += [np.sqrt(WORD_VARIANCE) * weight[word] / norm for word in own]
        if number >= 0:
            columns.append(len(column) + int(number))
            weights.append(np.sqrt(SERIES_VARIANCE))
        starts.append(len(columns))
    return TitleRows(np.array(starts), np.array(columns, dtype=np.int64), np.array(weights, dtype=np.float64))


def without_brackets(title: str) -> str:
    """Return a title without the text in brackets, such as the year."""
    return re.sub(r"\([^)]*\)", " ", title)


def words_of(text: str) -> list[str]:
    """Return the lower-case words and numbers of a text, in any alphabet."""
    return re.findall(r"[^\W_]+", text.lower())
