"""A plan of the masked protocol: shapes, clips and shares of the budget."""

import dataclasses
import math

import pytest

from hushrec.errors import ParameterError
from hushrec.protocols.masked.gp.plan import choose_plan
from hushrec.protocols.masked.plan import FACTORS, MOMENTS, MOST_REPEATS, PRIOR, Block, Plan, Round, make_plan

COUNTS = Block("counts", (3,), 8.0, 0.25)
BIAS = Block("bias", (3, 1), 5.0, 0.75)


def test_sizes_add_up() -> None:
    """A round is as long as its blocks together."""
    assert Round((COUNTS, BIAS)).size == 6
    assert [block.name for block in Plan((Round((COUNTS,)), Round((BIAS,)))).blocks] == ["counts", "bias"]


def test_shares_of_a_plan_add_up_to_one() -> None:
    """`make_plan` scales them, and a plan refuses anything else."""
    plan = make_plan(
        [[Block("counts", (3,), 8.0, 0.5)], [Block("bias", (3, 1), 5.0, 0.9), Block("last", (2,), 1, 0.6)]]
    )
    assert [block.share for block in plan.blocks] == pytest.approx([0.25, 0.45, 0.3])
    with pytest.raises(ParameterError, match="shares"):
        Plan((Round((COUNTS,)),))


@pytest.mark.parametrize(
    ("name", "values"),
    [("shape", ((), 1.0, 0.5)), ("shape", ((0, 2), 1.0, 0.5)), ("clip", ((1,), float("inf"), 0.5)),
     ("clip", ((1,), 0.0, 0.5)), ("share", ((1,), 1.0, 0.0)), ("share", ((1,), 1.0, 1.5))],
)  # fmt: skip
def test_a_block_refuses_what_has_no_noise(name: str, values: tuple[tuple[int, ...], float, float]) -> None:
    """Shapes, clips and shares must be positive, and clips finite."""
    with pytest.raises(ParameterError, match=name):
        Block("counts", *values)


def test_a_round_refuses_two_blocks_of_one_name() -> None:
    """A block is found by its name."""
    with pytest.raises(ParameterError, match="name"):
        Round((COUNTS, COUNTS))
    with pytest.raises(ParameterError, match="block"):
        Round(())


def test_a_long_catalogue_is_no_reason_to_learn_less() -> None:
    """Items that nobody rates cost nothing. A short catalogue has more people per item, and needs fewer devices."""
    for mu, alike in ((0.1, True), (0.24, False), (0.84, True), (1.53, True)):
        short, long = (choose_plan(10_000, items, 2, mu) for items in (700, 17_770))
        names = [[[block.name for block in one.blocks] for one in plan.rounds] for plan in (short, long)]
        assert (names[0] == names[1]) == alike
        assert len(short.rounds) >= len(long.rounds)


def test_few_devices_learn_no_columns_even_without_noise() -> None:
    """At ε = ∞ the number of devices decides alone."""
    few, many = (choose_plan(devices, 1_682, 20, math.inf) for devices in (299, 300))
    assert FACTORS not in {block.name for block in few.blocks}
    assert FACTORS in {block.name for block in many.blocks}


@pytest.mark.parametrize(
    ("mean", "items", "mu", "learns"),
    [(math.inf, 17_770, 0.6, True), (65, 17_770, 0.6, True), (50, 17_770, 0.6, False), (50, 17_770, 0.8, True),
     (21, 1_000, 0.31, True), (20, 1_000, 0.31, False), (1, 17_770, math.inf, True)],
)  # fmt: skip
def test_the_shorter_profiles_are_the_more_devices_learn_columns(
    mean: float, items: int, mu: float, learns: bool
) -> None:
    """10,000 devices of 50 ratings need (65/50)² times the strength; a short catalogue 65 ratings · μ per item."""
    assert (FACTORS in {block.name for block in choose_plan(10_000, items, 20, mu, mean).blocks}) == learns


@pytest.mark.parametrize("devices", [100, 10**6])
def test_short_profiles_lower_the_clips_of_item_blocks(devices: int) -> None:
    """By the root of the mean number of ratings, over 25. Shares stay, and so does what does not grow with ratings."""
    usual, long, short = (choose_plan(devices, 1_766, 20, 1.0, mean) for mean in (math.inf, 25, 6.25))
    assert long == usual
    for before, after in zip(usual.blocks, short.blocks, strict=True):
        factor = 1.0 if before.name in {PRIOR, MOMENTS} else 0.5
        assert after == dataclasses.replace(before, clip=before.clip * factor)


def test_counts_get_more_of_the_budget_where_noise_would_hide_them() -> None:
    """29 % of it with fewer than 300 devices while devices · μ is below 400, else 19 %; the others in proportion."""
    mu = 2.0
    faint, loud = (choose_plan(devices, 1_682, 20, mu) for devices in (199, 200))
    assert {block.name for block in faint.blocks} == {block.name for block in loud.blocks}
    (few, *others), (many, *rest) = (list(plan.blocks) for plan in (faint, loud))
    assert (few.name, round(few.share, 2), round(many.share, 2)) == ("counts", 0.29, 0.19)
    assert [block.share / (1 - few.share) for block in others] == pytest.approx(
        [block.share / (1 - many.share) for block in rest]
    )
    assert [next(choose_plan(devices, 9, 2, 0.2).blocks).share > 0.25 for devices in (299, 300)] == [True, False]


@pytest.mark.parametrize(("devices", "mu", "reserve"), [(100, 1.5, 0.25), (943, 1.5, 0.25), (6_040, 1.5, 0.2)])
def test_a_reserve_pays_for_a_second_attempt_of_any_round(devices: int, mu: float, reserve: float) -> None:
    """As docs/operating.md says: a quarter of the budget for every plan, a fifth for those with factor columns."""
    plan = choose_plan(devices, 1_682, 20, mu)
    dearest = max(math.fsum(block.share for block in one.blocks) for one in plan.rounds)
    assert (1 - reserve) * dearest <= reserve


def test_a_repeated_plan_shares_the_budget_of_each_round() -> None:
    """Three rounds in place of each, with a third of its share."""
    plan = Plan((Round((COUNTS,)), Round((BIAS,)))).repeated(3)
    assert [one.blocks[0].name for one in plan.rounds] == ["counts"] * 3 + ["bias"] * 3
    assert [block.share for block in plan.blocks] == pytest.approx([0.25 / 3] * 3 + [0.25] * 3)
    groups = [[one.blocks[0].name for one in plan.groups_until(number)] for number in range(1, 7)]
    assert groups == [["counts"]] * 3 + [["counts", "bias"]] * 3


def test_a_plan_refuses_groups_of_different_rounds() -> None:
    """Also a group that is not whole, and a number of repeats that is not possible."""
    counts, bias = Round((COUNTS,)), Round((BIAS,))
    with pytest.raises(ParameterError, match="repeats"):
        Plan((counts, bias), repeats=2)
    with pytest.raises(ParameterError, match="repeats"):
        Plan((Round((Block("counts", (3,), 8.0, 1.0),)),), repeats=2)
    for repeats in (0, -1, MOST_REPEATS + 1):
        with pytest.raises(ParameterError, match="repeats"):
            Plan((counts, bias), repeats=repeats)
