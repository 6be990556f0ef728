"""Factorization machines: predict a rating from a user, an item and the item's attributes.

The model of [SDCF], section 5, after [Rendle2012]. A row x describes a rating: it has a 1 in the column of its user, a
1 in the column of its item, and the values of the item's attributes. Column c has a bias w_c and, for each order l from
2 to d, a vector v^l_c (the superscript is the order, not a power):

    ŷ(x) = w_0 + Σ_c w_c x_c + Σ_{l=2}^{d} Σ_{c_1 < … < c_l} Σ_f Π_i x_{c_i} v^l_{c_i f}

The inner sums are elementary symmetric polynomials e_l, so that all computations take time linear in the number of
non-zeros. Over the *public* columns of item j alone (the column of the item and those of its attributes) the
polynomials are

    e_1 = Σ x v,     e_2 = (e_1² − Σ x² v²) / 2,     e_3 = (e_1³ − 3 e_1 Σ x² v² + 2 Σ x³ v³) / 6,

where superscripts are powers. The prediction is linear in the parameters of the user's column, (w, u², u³), where the
superscripts of u and v are orders again:

    ŷ = w + base_j + u² · e_1(v²) + u³ · e_2(v³),     base_j = w_0 + Σ w_c x_c + Σ_f e_2(v²) + Σ_f e_3(v³).

The parameters of the user's column are private: they never leave the device. The public table has one row (w, v², v³)
per item, then one row per attribute, then one row that holds only w_0. For an item a device reports the row

    η (N e (1, u², u³) − prior of the item's row) + noise

with the step size η, the data weight N, and the error e: the rating minus ŷ, or a fake error for an unrated item. From
this row the server derives the gradient of *every* public column of that item, because each of these gradients is
linear in e (1, u², u³) with public coefficients. Attributes therefore need no reports of their own, and learning them
reveals nothing beyond the reported items.

Departs from [SDCF]: the "other variables" of the paper are limited to attributes of items. An attribute of a person or
of a single rating (age, time) would need a public column that only that person's reports change.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from scipy import sparse

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError
from hushrec.models.mf import MatrixFactorization
from hushrec.randomness import RandomStream

Sparse: TypeAlias = Any  # a `csr_array`, whose stubs do not say that its product with an array is an array


@dataclass(frozen=True, eq=False)
class FactorizationMachine(MatrixFactorization):
    """Model `fm`: a factorization machine of order 2 or 3. Its vectors have `n_factors` numbers for each order."""

    name: ClassVar[str] = "fm"

    order: int = 2
    attributes: FloatArray | None = field(default=None, repr=False)  # of the items, (n_items, n_attributes), public

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in (2, 3):
            raise ParameterError(f"order must be 2 or 3, got {self.order}.")
        if self.attributes is not None and not (self.attributes.ndim == 2 and np.all(np.isfinite(self.attributes))):
            n_bad = np.count_nonzero(~np.isfinite(self.attributes))
            raise ParameterError(
                "attributes must be a two-dimensional array of finite numbers with one row per item, got shape"
                f" {self.attributes.shape} with {n_bad} numbers that are not finite."
            )
        if self.order == 3 and self.n_side_rows == 1:
            raise ParameterError("order must be 2 for a model without attributes, got 3. Use order 2.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any], attributes: FloatArray | None = None) -> Self:
        return cls(options["factors"], options["order"], attributes)

    @property
    def user_width(self) -> int:
        return 1 + (self.order - 1) * self.n_factors

    @property
    def n_side_rows(self) -> int:
        """The number of rows after the items in the public table: one per attribute, and one for the constant."""
        return 1 if self.attributes is None else self.attributes.shape[1] + 1

    @property
    def n_attributes(self) -> int:
        return self.n_side_rows - 1

    @property
    def _second(self) -> slice:
        return slice(1, 1 + self.n_factors)

    @property
    def _third(self) -> slice:
        return slice(1 + self.n_factors, 1 + 2 * self.n_factors)

    @cached_property
    def _powers(self) -> tuple[Sparse, ...]:
        """The attributes raised elementwise to the powers 0 to 3, as sparse matrices; zeros stay 0, even in power 0."""
        assert self.attributes is not None
        x = sparse.csr_array(self.attributes)
        return tuple(sparse.csr_array((x.data**power, x.indices, x.indptr), shape=x.shape) for power in range(4))

    def initial_vectors(self, count: int, *, rng: RandomStream) -> FloatArray:
        """Return initial parameters, `(count, item_width)`: biases are 0, vectors are drawn as in model `mf`."""
        rows = rng.random((count, self.item_width)) * (0.3 * math.sqrt(50 / self.n_factors))
        rows[:, 0] = 0
        return rows

    def initial_items(self, n_items: int, *, rng: RandomStream) -> FloatArray:
        """Return the public table before the first round: item rows are drawn, all other rows are 0."""
        self._check(n_items)
        return np.concatenate([self.initial_vectors(n_items, rng=rng), np.zeros((self.n_side_rows, self.item_width))])

    def draw_regularization(self, *, rng: RandomStream) -> FloatArray:
        """Return prior precisions, `(item_width,)`: a random draw for the biases, and one per factor of each order."""
        return MatrixFactorization(self.item_width).draw_regularization(rng=rng)

    def item_rows(self, table: FloatArray) -> FloatArray:
        """Return the row of each item from which ratings are predicted, `(n_items, item_width)`.

        The first number is the part of the prediction that does not depend on the user; the other numbers are the
        factors that multiply the user's vectors. Both combine the parameters of the item and of its attributes.
        """
        items, columns = self._split(table)
        rows = items.copy()
        rows[:, 0] += table[-1, 0]
        if self.attributes is not None:
            _, x, x2, x3 = self._powers
            rows += x @ columns  # Σ x v, biases too
            second = self._second
            rows[:, 0] += 0.5 * np.sum(rows[:, second] ** 2 - _power_sum(items, columns, x2, second, 2), axis=1)
        if self.order == 3:
            third = self._third
            e1, p2 = rows[:, third], _power_sum(items, columns, x2, third, 2)
            p3 = _power_sum(items, columns, x3, third, 3)
            rows[:, 0] += np.sum(e1**3 - 3 * e1 * p2 + 2 * p3, axis=1) / 6
            rows[:, third] = (e1**2 - p2) / 2
        return rows

    def direction(self, user_vector: FloatArray) -> FloatArray:
        """Return `user_vector` with the user's bias, its first number, replaced by 1: (1, u²), in order 3 (1, u², u³).

        The error times this vector is the data term of the gradient of an item's row.
        """
        return np.concatenate([[1.0], user_vector[1:]])

    def predict(self, user_vector: FloatArray, item_rows: FloatArray) -> FloatArray:
        """Return the predicted rating of each item.

        It is the sum of the first numbers of the user vector and the item's row, plus the product of the other numbers.
        """
        return np.asarray(user_vector[0] + item_rows[:, 0] + item_rows[:, 1:] @ user_vector[1:])

    def predict_pairs(
        self, user_vectors: FloatArray, item_rows: FloatArray, users: IntArray, items: IntArray
    ) -> FloatArray:
        u, v = user_vectors[users], item_rows[items]
        return np.asarray(u[:, 0] + v[:, 0] + np.einsum("nk,nk->n", u[:, 1:], v[:, 1:]))

    def predict_all(self, user_vectors: FloatArray, item_rows: FloatArray) -> FloatArray:
        return np.asarray(user_vectors[:, :1] + item_rows[:, 0] + user_vectors[:, 1:] @ item_rows[:, 1:].T)

    def item_directions(self, item_rows: FloatArray) -> FloatArray:
        """Return `item_rows` with the first number of each row replaced by 1: (1, e_1), in order 3 (1, e_1, e_2).

        The products of the errors and these rows are the data terms of the user's gradient.
        """
        rows = item_rows.copy()
        rows[:, 0] = 1
        return rows

    def move_items(self, table: FloatArray, sums: FloatArray, counts: IntArray, prior: FloatArray) -> FloatArray:
        """Return the public table after one round's reports.

        The row of an item changes by the mean over the item's gradients, the row of an attribute by the mean over the
        gradients of all items with the attribute, and the constant w_0 by the mean over all gradients. With
        (s, S², S³) = Σ η N e (1, u², u³) over the gradients of one item, where e is the error, this item contributes to
        a row (w, v², v³), its own or that of one of its attributes,

            x s,     x (S² + s (e_1 − x v²)),     x (S³ (e_1 − x v³) + s (e_2 − x v³ (e_1 − x v³))),

        where x is the value of the attribute for the item, 1 for the item's own row, and e_1 and e_2 are the item's
        symmetric polynomials of the vectors of the same order as v. The superscripts of u, v and S are orders, not
        powers. A row changes by the sum of the contributions, divided by the number of gradients, minus the prior term
        of the row; w_0 has no prior. Gradients already contain the prior term of the item's row, so the term is first
        removed from `sums`. The noise in the gradients stays. `MatrixFactorization.move_items` explains the arguments.
        """
        items, columns = self._split(table)
        data = sums + counts[:, None] * prior * items
        item_sums, column_sums, column_counts = data, np.zeros_like(columns), np.zeros(len(columns))
        if self.attributes is not None:
            item_sums = self._item_sums(columns, data)
            column_sums = self._column_sums(items, columns, data)
            column_counts = self._powers[0].T @ counts
        constant = np.zeros((1, self.item_width))
        constant[0, 0] = data[:, 0].sum() / max(int(counts.sum()), 1)
        moved = [_mean_move(items, item_sums, counts, prior), _mean_move(columns, column_sums, column_counts, prior)]
        return np.concatenate([*moved, table[-1:] + constant])

    def _item_sums(self, columns: FloatArray, data: FloatArray) -> FloatArray:
        """Return what each item contributes to its own row, by the formula in `move_items`; `data` has (s, S², S³)."""
        _, x, x2, _ = self._powers
        others, moves, s = x @ columns, data.copy(), data[:, :1]  # e_1 − v of the item itself
        moves[:, self._second] += s * others[:, self._second]
        if self.order == 3:
            e1 = others[:, self._third]
            e2 = (e1**2 - x2 @ columns[:, self._third] ** 2) / 2
            moves[:, self._third] = data[:, self._third] * e1 + s * e2
        return moves

    def _column_sums(self, items: FloatArray, columns: FloatArray, data: FloatArray) -> FloatArray:
        """Return the sum of what items contribute to each attribute's row, by the formula in `move_items`.

        `data` has (s, S², S³) of each item.
        """
        _, x, x2, x3 = self._powers
        e1, s = items + x @ columns, data[:, :1]
        moves: FloatArray = x.T @ data
        second, third = self._second, self._third
        moves[:, second] += x.T @ (s * e1[:, second]) - (x2.T @ s) * columns[:, second]
        if self.order == 3:
            v, e1, data3 = columns[:, third], e1[:, third], data[:, third]
            e2 = (e1**2 - _power_sum(items, columns, x2, third, 2)) / 2
            moves[:, third] = x.T @ (data3 * e1 + s * e2) - v * (x2.T @ (data3 + s * e1))
            moves[:, third] += v**2 * (x3.T @ s)
        return moves

    def _split(self, table: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the rows of the items and the rows of the attributes in the public table, without the constant."""
        n_items = len(table) - self.n_side_rows
        self._check(n_items)
        return table[:n_items], table[n_items:-1]

    def _check(self, n_items: int) -> None:
        if self.attributes is not None and len(self.attributes) != n_items:
            raise ParameterError(f"attributes must have {n_items} rows, one per item, got {len(self.attributes)}.")


def _power_sum(items: FloatArray, columns: FloatArray, x: Sparse, part: slice, power: int) -> FloatArray:
    """Return, for each item, the sum of (x v)^p over its own column and the columns of its attributes.

    p is `power`. The argument `x` holds the values of the attributes, already raised to the power p. `part` selects the
    vector v in a row.
    """
    return np.asarray(items[:, part] ** power + x @ columns[:, part] ** power)


def _mean_move(rows: FloatArray, sums: FloatArray, counts: FloatArray | IntArray, prior: FloatArray) -> FloatArray:
    """Return each row plus sum / count (its mean gradient) minus `prior` · row; a row with count 0 does not change."""
    touched = (counts > 0)[:, None]
    return np.where(touched, rows + sums / np.maximum(counts, 1)[:, None] - prior * rows, rows)


def sent_columns(attributes: FloatArray | None, titles: Sequence[str], details: FloatArray | None) -> dict[str, Any]:
    """Return the keyword arguments of `FactorizationMachine.from_options` for the catalogue of a run on a network.

    They are a dict with one entry, `attributes`. `titles` and `details` are not used.
    """
    return {"attributes": attributes}
