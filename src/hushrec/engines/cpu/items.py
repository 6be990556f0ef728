"""The server side of a gradient run on engine `cpu`: it computes item vectors from the sums of a round's reports."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.cpu import kernels
from hushrec.engines.cpu.kernels import Rows
from hushrec.engines.cpu.layout import FEWEST_BLOCKS, make_step, make_streams, padded
from hushrec.engines.cpu.people import in_threads
from hushrec.engines.gradient import GradientProblem
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.prediction import initial_item_vectors


class Known(NamedTuple):
    """The gradient noise of a round that was drawn user by user, and the recorded reports.

    The noise of an item's other gradients is drawn later, as one sum.
    """

    noise: FloatArray  # for each item, the sum of the noise that was drawn user by user, (n_items, width)
    counts: IntArray  # for each item, the number of gradients with this noise, (n_items,)
    reports: dict[int, GradientReport]  # complete reports of the users in `CpuEngine(record_users=…)`

    @staticmethod
    def nothing(rows: Rows) -> "Known":
        """Return a `Known` without noise and reports; `rows` are the item rows, `(n_items, width)`."""
        return Known(np.zeros(rows.shape), np.zeros(len(rows), np.int64), {})


class Items:
    """The server of a simulated run, which updates the item vectors; their rows are padded for the kernels."""

    def __init__(self, problem: GradientProblem, dtype: npt.DTypeLike) -> None:
        self._problem, self._dtype = problem, np.dtype(dtype)
        self._threads = ThreadPoolExecutor(numba.get_num_threads())

    def initial_vectors(self) -> Rows:
        """Return the item vectors before the first round, with padded rows."""
        return padded(self._problem, initial_item_vectors(self._problem), self._dtype)

    def kernel_rows(self, items: Rows) -> Rows:
        """Return the rows that kernels multiply by user vectors: the item vectors, or for `fm` rows made from them."""
        model = self._problem.model
        if not isinstance(model, FactorizationMachine):
            return items
        rows = model.item_rows(self.table(items))
        rows = np.concatenate([np.ones((len(rows), 1)), rows[:, 1:], rows[:, :1]], axis=1)
        return padded(self._problem, rows, self._dtype)

    def table(self, items: Rows) -> FloatArray:
        """Return the public table, `(n_items + n_side_rows, item_width)`: the rows without padding, as float64."""
        return items[:, : self._problem.model.item_width].astype(np.float64)

    def move(self, round_number: int, items: Rows, sums: Rows, counts: IntArray, known: Known) -> tuple[Rows, int]:
        """Return the item vectors after a round, and the number of gradients that changed them.

        For each block of users, `sums` `(n_blocks, n_items, width)` holds the sum of error times user vector over the
        users who report the item, and `counts` `(n_blocks, n_items)` the number of these users. The blocks are added
        up in order, and `sums` may be overwritten. `known` holds the noise that was drawn before.
        """
        move = self._derive if isinstance(self._problem.model, FactorizationMachine) else self._step
        return move(round_number, items, sums, counts, known)

    def _step(self, round_number: int, items: Rows, sums: Rows, counts: IntArray, known: Known) -> tuple[Rows, int]:
        """Return the result of `move` for models `mf` and `bpr`: every item vector changes by its mean gradient."""
        step = make_step(self._problem, round_number, self._dtype)
        stream = make_streams(self._problem, round_number).item_noise
        moved = np.empty_like(items)
        common = (sums, counts, step, stream, known.noise, known.counts, items, moved)

        def move(_: int, first: int, stop: int) -> int:
            return int(kernels.move_items(first, stop, *common))

        return moved, sum(in_threads(self._threads, move, np.arange(FEWEST_BLOCKS + 1) * len(moved) // FEWEST_BLOCKS))

    def _derive(self, round_number: int, items: Rows, sums: Rows, counts: IntArray, known: Known) -> tuple[Rows, int]:
        """Return the result of `move` for model `fm`.

        The public table of `fm` has further rows below the items, for attributes and a constant; they change too.
        """
        problem, width = self._problem, self._problem.model.item_width
        step = make_step(problem, round_number, self._dtype)
        table, counted = self.table(items), counts.sum(axis=0)
        total = sums.sum(axis=0, dtype=np.float64)  # Σ e (w, u², u³, 1)
        data = step.size * step.data_weight * np.concatenate([total[:, width : width + 1], total[:, 1:width]], axis=1)
        noise = kernels.item_normals(make_streams(problem, round_number).item_noise, problem.n_items, width)
        noise *= np.sqrt(step.size * (counted - known.counts))[:, None]
        noise += known.noise[:, :width]
        prior = step.size * problem.terms.item_regularization
        moves = data - counted[:, None] * prior * table[: problem.n_items] + noise
        moved = problem.model.move_items(table, moves, counted, prior)
        return padded(problem, moved, self._dtype), int(counted.sum())
