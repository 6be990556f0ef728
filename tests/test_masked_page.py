"""The tables of model `gp` on docs/masked-accuracy.md come from the records."""

import json
from pathlib import Path

import rating_tables

from hushrec.budget.accountants import TableAccountant

ROOT = Path(__file__).parents[1]


def test_the_page_has_what_the_records_say() -> None:
    """Every set, budget, baseline, peer and protocol of the paper; every target; everything that was tried."""
    page = (ROOT / "docs" / "masked-accuracy.md").read_text("utf-8")
    assert all(page.count(rating_tables.START.format(name)) == 1 for name in ("gp", "targets", "tried"))
    assert rating_tables.with_ratings(page) == page, "run python docs/generate.py ratings"


def test_the_second_number_of_old_records_is_computed_anew() -> None:
    """From their mu and delta: as `hushrec budget` prints it today."""
    assert rating_tables.budgets({"epsilon": 8.0, "item_level": 18.66}) == ("ε = 8", "ε = 18.7")
    old = {"epsilon": 16.0, "item_level": "inf", "mu": 2.4, "delta": 1e-6}
    assert rating_tables.budgets(old) == (
        "ε = 16",
        f"ε = {TableAccountant(mu_squared=2.4**2).replaced_epsilon(1e-6):.3g}",
    )
    assert rating_tables.budgets({"epsilon": "inf", "item_level": "inf"}) == ("ε = ∞ (no noise)", "ε = ∞")


def test_a_budget_of_another_unit_names_it() -> None:
    """So that nobody takes it for one of a whole profile; without a budget a row is not private."""
    shown = rating_tables.other_unit({"epsilon": 4.0, "unit": "the value of one rating"})
    assert shown.startswith("none; ε = 4 ")
    assert "the value of one rating" in shown
    assert rating_tables.other_unit({"epsilon": "inf", "unit": "none"}) == "not private"


def test_what_was_tried_follows_its_record(tmp_path: Path) -> None:
    """Differences from the run as it is, a blank where a change was not measured, and the largest gain."""
    record = {
        "ml-100k, epsilon 8": {"splits": 3, "rmse": {"as it is": 0.91, "one": 0.9112, "two": 0.9075}},
        "ml-1m, epsilon 8": {"splits": 1, "rmse": {"as it is": 0.85, "one": 0.84998}},
    }
    (tmp_path / "masked-tried.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.tried_table(tmp_path)
    assert "| change | MovieLens-100K, ε = 8, mean of 3 splits | MovieLens-1M, ε = 8, one split |" in made
    assert "| one | +0.0012 | +0.0000 |" in made
    assert "| two | −0.0025 |  |" in made
    assert "0.0025 (two; MovieLens-100K, ε = 8)" in made
