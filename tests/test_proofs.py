"""docs/proofs.md: the tests that it names exist, and its tables are what the code computes."""

import math
import re
from pathlib import Path

from hushrec.budget.gaussian import Cohort, default_delta, epsilon_of_mu, mu_of_epsilon, run_mu, zcdp_epsilon
from hushrec.protocols.masked.encoding import code_block
from hushrec.protocols.masked.plan import Block

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "proofs.md").read_text("utf-8")


def test_every_test_that_a_proof_names_exists() -> None:
    """A proof that no test holds any more fails here."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    defined = {
        name for file in TESTS.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(named) > 30
    assert not named - defined


def test_the_numbers_on_the_page_are_computed() -> None:
    """Each row of the tables of sections 7 and 9."""
    for epsilon in (16, 8, 4, 1):
        mu = mu_of_epsilon(epsilon, 1e-6)
        row = f"| {epsilon} | {mu:.4f} | {epsilon_of_mu(2 * mu, 1e-6):.2f} | {zcdp_epsilon(mu**2 / 2, 1e-6):.2f} |"
        assert row in PAGE, row
    for devices, size in ((10, 1682), (943, 1682), (6040, 25_942), (10_000, 40_000), (480_000, 142_160)):
        row = exactness_row(devices, size)
        assert row in PAGE, row


def exactness_row(devices: int, size: int) -> str:
    """What rounding, discrete noise and whole variances add to the noise of one block."""
    mu = run_mu(8.0, default_delta(devices))
    code = code_block(Block("block", (size,), 5.0, 0.4), mu=mu, cohort=Cohort(devices))
    inflation = math.sqrt(code.norm_squared) / code.clip_units - 1
    extra = math.sqrt(devices * code.share_variance) * code.grid / (5.0 / (mu * math.sqrt(0.4))) - 1
    return f"| {devices:,} | {size:,} | {code.clip_units:,} | {code.share_variance:,} | {inflation:.6f} | {extra:.6f} |"
