"""docs/secure-aggregation.md: labels and chosen rules are those of the code."""

import re
from pathlib import Path

from hushrec.protocols.masked.secagg import primitives
from hushrec.protocols.masked.secagg.roster import choose_rules

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "secure-aggregation.md").read_text("utf-8")


def test_the_page_names_every_label() -> None:
    """And no other."""
    labels = {value.decode() for name, value in vars(primitives).items() if name.endswith("_LABEL")}
    assert set(re.findall(r"`(hushrec masked 1 \w+)`", PAGE)) == labels
    assert len(labels) == 15


def test_the_chosen_rules_are_computed() -> None:
    """Each row of the table."""
    for devices, smallest, corrupt in (
        (1000, 900, 45),
        (1000, 800, 40),
        (1000, 800, 80),
        (1000, 667, 66),
        (10_000, 8000, 400),
    ):
        rules = choose_rules(devices, smallest, corrupt)
        numbers = (devices, smallest, corrupt, rules.neighbours, rules.threshold, rules.most_omitted(devices))
        row = f"| {' | '.join(f'{number:,}' for number in numbers)} |"
        assert row in PAGE, row
    assert "the default terms it is 12." in PAGE
