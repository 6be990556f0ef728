"""The tables of model `gp` on docs/masked-accuracy.md come from the records."""

from pathlib import Path

import rating_tables

from hushrec.budget.accountants import TableAccountant

ROOT = Path(__file__).parents[1]


def test_the_page_has_what_the_records_say() -> None:
    """Every set, budget, baseline and peer."""
    page = (ROOT / "docs" / "masked-accuracy.md").read_text("utf-8")
    assert rating_tables.START in page
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
