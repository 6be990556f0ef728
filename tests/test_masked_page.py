"""The tables of model `gp` on docs/masked-accuracy.md come from the records."""

from pathlib import Path

import rating_tables

ROOT = Path(__file__).parents[1]


def test_the_page_has_what_the_records_say() -> None:
    """Every set, budget, baseline and peer."""
    page = (ROOT / "docs" / "masked-accuracy.md").read_text("utf-8")
    assert rating_tables.START in page
    assert rating_tables.with_ratings(page) == page, "run python docs/generate.py ratings"


def test_a_budget_without_a_proof_is_called_so() -> None:
    """No number is shown for one rating where only the whole profile has a bound."""
    assert rating_tables.budgets({"epsilon": 8.0, "item_level": 18.66}) == ("ε = 8", "ε = 18.7")
    assert rating_tables.budgets({"epsilon": 16.0, "item_level": "inf"}) == ("ε = 16", "not proven")
    assert rating_tables.budgets({"epsilon": "inf", "item_level": "inf"}) == ("ε = ∞ (no noise)", "ε = ∞")
