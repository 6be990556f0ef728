"""docs/secure-aggregation.md: labels, chosen rules and measured times are those of the code and the record."""

import json
import re
from pathlib import Path

from hushrec.protocols.masked.secagg import primitives
from hushrec.protocols.masked.secagg.roster import choose_rules

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "secure-aggregation.md").read_text("utf-8")
RECORD = json.loads((ROOT / "benchmarks" / "records" / "secagg.json").read_text("utf-8"))


def test_the_page_names_every_label() -> None:
    """And no other."""
    labels = {value.decode() for name, value in vars(primitives).items() if name.endswith("_LABEL")}
    assert set(re.findall(r"`(hushrec masked 1 \w+)`", PAGE)) == labels
    assert len(labels) == 11


def test_the_chosen_rules_are_computed() -> None:
    """Each row of the table."""
    for devices, smallest, corrupt in ((1000, 900, 45), (1000, 800, 80), (1000, 667, 66), (10_000, 9000, 900)):
        rules = choose_rules(devices, smallest, corrupt)
        row = f"| {devices:,} | {smallest:,} | {corrupt} | {rules.neighbours} | {rules.threshold} |"
        assert row in PAGE, row


def test_the_times_are_those_of_the_record_and_within_the_target() -> None:
    """Every step of the record is on the page; a device stays below 200 ms."""
    for step, spent in RECORD["device milliseconds"].items():
        assert f"| {step} | {spent:.2f} |" in PAGE
    assert f"spends {RECORD['server milliseconds per report']['total']:.2f} ms per report" in PAGE
    assert RECORD["settings"]["items"] * RECORD["settings"]["columns"] == 40_000
    assert RECORD["device milliseconds"]["total"] < 200
