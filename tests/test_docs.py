"""Docs that drift fail the build: names that pages mention must exist."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# Where the names of docs/data-flow.md's table live.
STEPS = {
    "Client.add_ratings": "client",
    "Client.report": "client",
    "Client.predict": "client",
    "Client.recommend": "client",
    "GradientDevice.report": "protocols.gradient.device",
    "GradientServer.close": "protocols.gradient.server",
    "Selection.draw_permanent": "protocols.gradient.selection",
    "PermanentChoice.select_items": "protocols.gradient.selection",
    "permanent_bits": "mechanisms.randomized_response",
    "instantaneous_items": "mechanisms.randomized_response",
    "fake_errors": "mechanisms.fake_errors",
    "MatrixFactorization.item_gradients": "models.mf",
    "langevin_noise": "mechanisms.langevin",
    "GradientReport": "protocols.gradient.messages",
    "ItemVectors": "protocols.gradient.messages",
    "Ledger.charge": "budget.ledger",
    "Server.receive": "server",
    "Server.close_phase": "server",
}


@pytest.mark.parametrize(("name", "module"), STEPS.items())
def test_every_step_of_the_data_flow_exists_and_is_mentioned(name, module):
    """The table names real functions."""
    found = importlib.import_module(f"hushrec.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert f"{name}`" in (ROOT / "docs" / "data-flow.md").read_text()


def test_the_dictionary_names_exist_in_the_code():
    """Every name in code font in docs/notation.md's third column occurs in the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    rows = [line.split("|") for line in (ROOT / "docs" / "notation.md").read_text().replace(r"\|", "").splitlines()]
    names = {name for row in rows if len(row) > 5 for name in re.findall(r"`([A-Za-z_.]+)`", row[3])}
    assert len(names) > 25
    missing = {name for name in names if name.split(".")[-1] not in source}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    """Relative links and the files they name exist."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
