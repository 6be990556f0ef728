"""Crafted public tables and profiles, through a whole device round: no exception, no vector beyond its norm bound."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from hushrec.budget.gaussian import Cohort
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.errors import RemoteProtocolError
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import ItemColumns
from hushrec.models.titles import title_rows
from hushrec.protocols.masked.encoding import code_block, encode_block, exact_norm_squared
from hushrec.protocols.masked.gp.table import PublicTable
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.plan import (
    AUDIENCE,
    BIAS,
    COUNTS,
    FACTORS,
    MOMENTS,
    PRIOR,
    Block,
    Round,
    curvature_of,
    prior_size,
)
from hushrec.protocols.masked.protocol import Masked
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.training_problem import make_problem

ITEMS, LENGTH, TASTE, AUDIENCES, DIRECTIONS = 9, 5, 2, 3, 2
EXTREMES = np.array([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e-45, 1e6, -1e6, 999_999.0])
TABLES = 100


def block(name: str, shape: tuple[int, ...], clip: float) -> list[Block]:
    """An item block with its curvature."""
    width = shape[-1]
    return [Block(name, shape, clip, 0.1), Block(curvature_of(name), (width * (width + 1),), 20 * clip, 0.1)]


ROUND = Round(
    (
        Block(COUNTS, (ITEMS,), 4.0, 0.1),
        Block(MOMENTS, (prior_size(TASTE + 1),), 15.0, 0.1),
        *block(AUDIENCE, (ITEMS, AUDIENCES), 5.0),
        *block(BIAS, (ITEMS, 1), 3.0),
        *block(FACTORS, (ITEMS, DIRECTIONS + 1), 5.0),
        Block(PRIOR, (prior_size(LENGTH),), 12.0, 0.1),
    )
)
CODES = [code_block(one, mu=1.5, cohort=Cohort(100)) for one in ROUND.blocks]


def arrays(rng: np.random.Generator) -> dict[str, Any]:
    """A table of extremes and ordinary numbers, of the shapes that devices accept."""
    shapes = {
        **dict.fromkeys(("offsets", "variances", "weights", "factor_weights", "log_counts"), (ITEMS,)),
        "rows": (ITEMS, LENGTH),
        "directions": (LENGTH, DIRECTIONS),
        "description_centre": (TASTE + 1,),
        "description_map": (TASTE + 1, AUDIENCES),
        "length_squared": (1,),
    }
    found = {}
    for name, shape in shapes.items():
        hostile = rng.choice(EXTREMES, shape)
        found[name] = np.where(rng.random(shape) < rng.choice([0.0, 0.3, 1.0]), hostile, rng.normal(size=shape))
    for name in ("variances", "length_squared"):
        found[name] = np.maximum(np.abs(found[name]), 1e-44)
    for name in ("weights", "factor_weights"):
        found[name] = np.abs(found[name])
    return found


def test_no_hostile_table_lengthens_what_a_device_sends() -> None:
    """By search, on the device and in the compiled loop over people: every block of every table stays within Δ²."""
    rng = np.random.default_rng(8)
    for number in range(TABLES):
        table = PublicTable(**arrays(rng))
        taste = rng.choice(EXTREMES, (ITEMS, TASTE)) if number % 2 else rng.normal(size=(ITEMS, TASTE))
        model = GaussianProcess(ItemColumns(taste, np.zeros((ITEMS, 0)), title_rows([""] * ITEMS)))
        items = np.sort(rng.permutation(ITEMS)[: rng.integers(1, ITEMS + 1)])
        values = rng.choice([1.0, 5.0, 3.3], len(items))
        entries = learning_of(model).entries(ROUND.blocks, table, items, values)
        rounding = SeededRandomness(number).stream(Purpose.TABLE_ROUNDING, 1)
        for code, own in zip(CODES, entries, strict=True):
            assert exact_norm_squared(encode_block(code, *own, rounding=rounding)) <= code.norm_squared
        users = np.zeros(len(items), np.int64)
        problem = make_problem(
            users, items, values, n_users=1, n_items=ITEMS, model=model, protocols=[Masked(8.0)], seed=number
        )
        summed = CpuMaskedEngine(problem).sum_integers(ROUND, CODES, table, np.ones(1, np.bool_))
        for code, integers in zip(CODES, summed, strict=True):
            assert exact_norm_squared(integers) <= code.norm_squared


def fitting() -> tuple[Any, dict[str, Any]]:
    """The model's learning, and a table that fits `ROUND`."""
    columns = ItemColumns(np.ones((ITEMS, TASTE)), np.zeros((ITEMS, 0)), title_rows([f"{n}" for n in range(ITEMS)]))
    return learning_of(GaussianProcess(columns)), arrays(np.random.default_rng(0))


SHORT = Block(BIAS, (ITEMS - 1, 1), 3.0, 0.1)
UNKNOWN = Block("neighbours", (ITEMS,), 3.0, 0.1)


@pytest.mark.parametrize(
    ("change", "blocks"),
    [
        pytest.param({}, (SHORT, Block(curvature_of(BIAS), (2,), 60.0, 0.1)), id="too few rows in a block"),
        pytest.param({}, (UNKNOWN,), id="a block that the model does not have"),
        pytest.param({"rows": (ITEMS, LENGTH + 1), "directions": (LENGTH + 1, DIRECTIONS)}, ROUND.blocks, id="prior"),
        pytest.param({"directions": (LENGTH, DIRECTIONS + 1)}, ROUND.blocks, id="one factor more"),
        pytest.param({"directions": (LENGTH, DIRECTIONS - 1)}, ROUND.blocks, id="one factor less"),
        pytest.param({"description_map": (TASTE + 1, AUDIENCES + 1)}, ROUND.blocks, id="one audience more"),
        pytest.param({"description_centre": (TASTE,), "description_map": (TASTE, AUDIENCES)}, ROUND.blocks, id="short"),
    ],
)
def test_a_table_that_does_not_fit_its_round_is_refused_whatever_is_rated(change: Any, blocks: Any) -> None:
    """Else only those who rated the last items would fail, and the server would see who they are."""
    learning, table = fitting()
    learning.check_fits([ROUND], learning.table_from(table))
    hostile = table | {name: np.ones(shape) for name, shape in change.items()}
    with pytest.raises(RemoteProtocolError, match=r"fit|rows|description_centre"):
        learning.check_fits([Round(tuple(blocks))], learning.table_from(hostile))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1.1e6, 1e39])
def test_a_table_with_a_number_that_is_none_or_too_large_is_refused(number: float) -> None:
    """In every array, before any formula sees it."""
    whole = arrays(np.random.default_rng(1))
    for entry in fields(PublicTable):
        spoiled = whole[entry.name].copy()
        spoiled.flat[-1] = number
        with pytest.raises(RemoteProtocolError, match=entry.name):
            PublicTable(**{**whole, entry.name: spoiled})
