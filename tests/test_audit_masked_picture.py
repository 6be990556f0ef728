"""Accuracy against leakage: the record is what its sources say, and the pictures are what the record says."""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import pytest
from scipy.stats import norm

from hushrec.budget.gaussian import run_mu
from hushrec.report.leakage import Point, Recovered, free_step, leakage_plot, leakage_record, read_points, recovered

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "experiments" / "records" / "leakage" / "ml-100k.json"


def module(path: Path) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_record_is_made_of_the_records_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python experiments/leakage.py` writes what is committed."""
    script = module(ROOT / "experiments" / "leakage.py")
    monkeypatch.setattr(script, "OUT", tmp_path / "leakage" / "ml-100k.json")
    script.main()
    assert (tmp_path / "leakage" / "ml-100k.json").read_text("utf-8") == RECORD.read_text("utf-8")


def test_the_picture_of_the_pages_is_drawn_from_the_record() -> None:
    """docs/pictures/leakage.svg, in README and docs/privacy.md."""
    record = json.loads(RECORD.read_text("utf-8"))
    drawn = leakage_plot(read_points(record), record["lines"])
    assert (ROOT / "docs" / "pictures" / "leakage.svg").read_text("utf-8") == drawn
    for page in (ROOT / "README.md", ROOT / "docs" / "privacy.md"):
        assert "pictures/leakage.svg" in page.read_text("utf-8")


def test_the_picture_says_what_the_pages_say() -> None:
    """masked at ε = 8 is at the left edge, more accurate than the bias model, SVD and SVD++; plain is at the right."""
    record = json.loads(RECORD.read_text("utf-8"))
    points = {point.label: point for point in read_points(record)}
    assert all(one.gained < 0.02 for one in points["masked ε=8"].recovered.values())
    assert points["masked ε=8"].rmse < min(value for name, value in record["lines"].items() if "myFM" not in name)
    assert all(one.gained > 0.99 for one in points["plain, not private"].recovered.values())


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_chance_that_the_page_states_is_what_epsilon_allows(epsilon: float) -> None:
    """Of a whole profile at 1 % false alarms, in the record: at most Φ(μ + Φ⁻¹(0.01)), and 4 deviations of it."""
    record = json.loads((ROOT / "experiments" / "records" / "audit" / "ml-100k-masked.json").read_text("utf-8"))
    label = f"masked ε={epsilon:g}"
    rates = [
        one["tpr_at_1pct_fpr"]
        for one in record["attacks"]
        if (one["protocol"], one["metric"]) == (label, "epsilon_ruled_out") and one["tpr_at_1pct_fpr"] is not None
    ]
    assert len(rates) >= 3
    assert max(rates) <= norm.cdf(run_mu(epsilon, 1e-6) + norm.ppf(0.01)) + 0.08


def attack(name: str, target: str, metric: str, value: float, **more: float) -> dict[str, object]:
    """One attack of a record."""
    return {"protocol": "p", "name": name, "target": target, "metric": metric, "value": value, **more}


def test_the_best_attack_is_put_beside_what_is_known_anyway() -> None:
    """By hand: 0.58 of the items where popularity finds 0.16 is half of the way to everything; cheating is left out."""
    record = {
        "attacks": [
            attack("popularity", "existence", "auc", 0.8, tpr_at_1pct_fpr=0.16),
            attack("sums", "existence", "auc", 0.7, tpr_at_1pct_fpr=0.58),
            attack("malicious V", "existence", "auc", 1.0, tpr_at_1pct_fpr=1.0),
            attack("guess", "value", "share_of_ratings_exact", 0.3, chance=0.4),
        ]
    }
    found = recovered(record, "p")
    assert found["items"] == Recovered("sums", 0.58, 0.16)
    assert math.isclose(found["items"].gained, 0.5)
    assert found["ratings"].gained == 0
    assert "taste" not in found


def test_a_record_reads_back_and_is_drawn_whatever_is_missing() -> None:
    """One panel for what there is; an error far off is written at the edge."""
    points = [
        Point("masked ε=8", "masked", 0.9, {"items": Recovered("a", 0.2, 0.2)}),
        Point("isgld ε=1", "isgld", 3.0, {"items": Recovered("b", 1.0, 0.2)}),
    ]
    again = read_points(json.loads(json.dumps(leakage_record(points, {"bias model": 0.95}, {"dataset": "x"}))))
    assert again == points
    drawn = leakage_plot(again, {"bias model": 0.95})
    assert "(3.00)" in drawn
    assert "bias model" in drawn


def test_names_of_marks_keep_clear_of_lines_and_of_each_other() -> None:
    """Free where it is; off a line, upwards first; off a line with a name above it, downwards."""
    assert free_step(0.95, 0.01, [0.90], []) == 0
    assert free_step(0.95, 0.01, [0.95], []) == 1
    assert free_step(0.95, 0.01, [0.95], [0.94]) == -1
