"""The tables of model `gp` on docs/masked-accuracy.md and docs/evaluate.md come from the records."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import rating_tables

from hushrec.budget.accountants import TableAccountant
from hushrec.protocols.masked.gp.constants import Constants

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", rating_tables.PAGES)
def test_the_page_has_what_the_records_say(name: str) -> None:
    """Every set, budget, baseline, peer and protocol of the paper; every target and constant; what was tried."""
    page, tables = (ROOT / "docs" / name).read_text("utf-8"), rating_tables.PAGES[name]
    assert all(page.count(rating_tables.START.format(table)) == 1 for table in tables)
    assert rating_tables.with_tables(page, tables) == page, "run python docs/generate.py ratings"


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
        "ml-100k, epsilon 8": {
            "splits": 3,
            "devices": 943,
            "people": 943,
            "rmse": {"as it is": 0.91, "one": 0.9112, "two": 0.9075},
        },
        "ml-1m, epsilon 8": {"splits": 1, "devices": 6040, "people": 1000, "rmse": {"as it is": 0.85, "one": 0.84998}},
    }
    (tmp_path / "masked-tried.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.tried_table(tmp_path)
    assert "| change | MovieLens-100K, ε = 8, mean of 3 splits, 943 people | " in made
    assert " | MovieLens-1M, ε = 8, one split, 1,000 people of 6,040 |" in made
    assert "| one | +0.0012 | +0.0000 |" in made
    assert "| two | −0.0025 |  |" in made
    assert "0.0025 (two; MovieLens-100K, ε = 8)" in made


def test_constants_follow_their_record(tmp_path: Path) -> None:
    """Each value beside the chosen one; better is what gains clearly wherever it was tried, not only on one set."""
    one, two = {"chosen": "3", "tried": {"2": 0.9094, "4": 0.911}}, {"chosen": "3", "tried": {"2": 0.8493, "4": 0.849}}
    record = {
        "ml-100k, epsilon 8": {
            "splits": 2,
            "devices": 943,
            "people": 943,
            "rmse": {"as it is": 0.91, "clip": one, "other": one},
        },
        "ml-1m, epsilon 8": {"splits": 1, "people": 500, "rmse": {"as it is": 0.85, "clip": two}},
    }
    (tmp_path / "masked-constants.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.constants_table(tmp_path)
    assert "| as it is |  |  | 0.9100 | 0.8500 |" in made
    assert "| clip | 3 | 2 / 4 | −0.0006 / +0.0010 | −0.0007 / −0.0010 |" in made
    assert "| other | 3 | 2 / 4 | −0.0006 / +0.0010 |  |" in made
    assert made.endswith("wherever it was tried: clip 2, other 2.")


def test_lists_of_small_fleets_follow_their_record(tmp_path: Path) -> None:
    """One row for each fleet and budget, one column for each share of counts."""
    cell = {"devices · μ": 153.1, "strength": 234.5, "most popular": 0.1141, "0.19": {"rmse": 1.0031, "ndcg": 0.0831}}
    (tmp_path / "masked-plan.json").write_text(json.dumps({"counts": {"ml-1m, 100 devices, epsilon 8": cell}}), "utf-8")
    made = rating_tables.counts_table(tmp_path)
    assert made.startswith("| set, devices, ε | devices · μ | most popular | 19% of the budget |")
    assert made.endswith("| MovieLens-1M, 100, 8 | 153 | 0.114 | 0.083, 1.003 |")


def test_small_fleets_stand_beside_both_kinds_of_popularity(tmp_path: Path) -> None:
    """Paired differences over the draws, with their standard errors."""
    popular = {"popular, exact counts": [0.1, 0.12], "popular, the whole ε for counts": [0.09, 0.09]}
    own = {"gp, 0.29": [0.08, 0.1], "rmse, 0.29": [1.0, 1.1], "gp, 0.5": [0.09, 0.13], "rmse, 0.5": [1.01, 1.13]}
    cell = popular | own
    record = {"ml-1m, ids, 100 devices, epsilon 8": cell}
    (tmp_path / "masked-small-fleets.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.small_fleets_table(tmp_path)
    assert "| MovieLens-1M, ids, 100 | 0.110 | 0.090 | 0.090 | +0.020 ± 0.010 | 1.050 | +0.0200 ± 0.0100 |" in made
    assert "Lists are not below popularity at the same ε in 1 of 1 rows with 100 devices." in made
    assert made.endswith("RMSE is better in 0 rows and worse in 1.")


def test_kernels_without_attributes_follow_their_record(tmp_path: Path) -> None:
    """What the last part of the kernel adds, for titles and for ids alone."""
    titles = {"rows": [0.94, 0.94], "rows, titles": [0.93, 0.93], "rows, titles, nearness": [0.93, 0.932]}
    record = {
        "ml-1m, titles, epsilon 8": {"rmse": titles},
        "ml-1m, ids, epsilon 1": {"rmse": {"rows": [1.0, 1.0], "rows, nearness": [1.0, 1.002]}},
    }
    (tmp_path / "masked-alike.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.alike_table(tmp_path)
    assert "| MovieLens-1M, titles, 8 | 0.9400 | 0.9300 | 0.9310 | +0.0010 ± 0.0010 |" in made
    assert "| MovieLens-1M, ids, 1 | 1.0000 |  | 1.0010 | +0.0010 ± 0.0010 |" in made
    assert "rows, titles 0.9300 (titles)" in made


def test_numbers_of_factor_columns_follow_their_record(tmp_path: Path) -> None:
    """One row for each budget; the strength of the fleet is not shown."""
    cells = {
        "ml-1m, epsilon 8": {"strength": 14167, "4": 0.8555, "5": 0.854},
        "ml-1m, epsilon inf": {"4": 0.85, "5": 0.84},
    }
    (tmp_path / "masked-plan.json").write_text(json.dumps({"factor columns": cells}), "utf-8")
    made = rating_tables.factors_table(tmp_path)
    assert made.startswith("| set, ε | 4 columns | 5 columns |")
    assert made.endswith("| MovieLens-1M, ε = ∞ | 0.8500 | 0.8400 |")


def test_plans_follow_their_record(tmp_path: Path) -> None:
    """One row for each set and budget: what the choice depends on, both plans and the bias model."""
    cell = {"strength": 938, "devices · μ per item": 10.21, "small": 0.9321, "large": 0.89, "bias": 0.9963}
    record = {"plans": {"ml-100k, epsilon 8": cell, "synthetic:users=400,items=60, epsilon 8": cell}}
    (tmp_path / "masked-plan.json").write_text(json.dumps(record), "utf-8")
    made = rating_tables.plans_table(tmp_path)
    assert "| MovieLens-100K; 8 | 938 | 10.21 | 0.9321 | 0.8900 | 0.9963 |" in made
    assert "| users 400, items 60; 8 | 938 |" in made


def test_every_constant_of_the_protocol_was_measured() -> None:
    """The record of the constants has each field of `Constants`: none is used that was not compared with others."""
    record = json.loads((ROOT / "experiments" / "records" / "masked-constants.json").read_text("utf-8"))
    measured = {name for cell in record.values() for name in cell["rmse"]}
    assert {one.name for one in fields(Constants)} <= measured
