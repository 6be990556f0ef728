"""docs/data-flow.md, run: three people, three items, one factor, one round, every number checkable by hand.

V = (1, 2, 1), u = 1 for everybody, no prior, step 0.5, N = 1, no noise. Anna rated items 0 and 1 with 2 and 4, Ben
item 1 with 1, Cleo item 2 with 5; the draws below say what each reports.
"""

from pathlib import Path

import numpy as np
import pytest
from parties import report_on, statement_of

from hushrec.budget.calibrate import calibrate_selection
from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import ItemVectors, Terms
from hushrec.protocols.gradient.protocols import Sdcf
from hushrec.protocols.gradient.server import GradientServer
from hushrec.protocols.masked.encoding import BlockCode, decode_sum, encode_block, norm_bound
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.server import Server

MODEL = MatrixFactorization(1)
TERMS = Terms(
    model="mf",
    n_factors=1,
    n_items=3,
    reports_per_client=1.5,
    data_weight=1.0,
    step=0.5,
    decay=0.6,
    max_rounds=1,
    epoch_rounds=None,
    user_regularization=np.zeros(1),
    item_regularization=np.zeros(1),
)
RATINGS = {"anna": ([0, 1], [2.0, 4.0]), "ben": ([1], [1.0]), "cleo": ([2], [5.0])}


def make_draws(selected: list[int], fakes: list[float]) -> Draws:
    """These items, these fakes, no noise."""
    return Draws(np.array(selected), np.array(fakes), np.zeros((len(selected), 1)), np.zeros(1))


# Anna reports items 0 and 2 (2 is a fake), Ben his item 1, Cleo a fake for item 0.
DRAWS = {"anna": make_draws([0, 2], [0.4]), "ben": make_draws([1], []), "cleo": make_draws([0], [-0.2])}


@pytest.fixture
def clients() -> dict[str, Client]:
    """Step 1: ratings are stored, each on its own device."""
    made = {}
    for user, (name, (items, values)) in enumerate(RATINGS.items()):
        protocol = Sdcf(epsilon_i=1.0, epsilon_g=1.0)
        ledger = Ledger(selection=2.0)
        client = Client(TERMS, MODEL, protocol, randomness=SeededRandomness(0, user), ledger=ledger)
        client.add_ratings(np.array(items), np.array(values))
        state = client.private_state()
        client.restore_private_state({**state, "user_vector": np.ones(1)})
        made[name] = client
    return made


def test_one_rating_from_the_device_to_the_recommendation(clients):
    """The eight steps of docs/data-flow.md with their numbers."""
    server = Server(GradientServer(TERMS, MODEL, np.array([[1.0], [2.0], [1.0]])), clients)
    server.start_round()

    reports = {}
    for name, client in clients.items():
        # Steps 2 to 5: select, error, gradient, report. Anna's error on item 0 is 2 − 1·1 = 1.
        reports[name] = report_on(client, server.inbox(name), DRAWS[name])
        server.receive(name, server.address, reports[name])  # step 6

    np.testing.assert_allclose(reports["anna"].gradients[:, 0], [0.5 * 1.0, 0.5 * 0.4])
    np.testing.assert_allclose(reports["ben"].gradients[:, 0], [0.5 * (1 - 2)])
    np.testing.assert_allclose(reports["cleo"].gradients[:, 0], [0.5 * -0.2])

    # Step 7: item 0 moves by the mean of 0.5 and −0.1, item 1 by −0.5, item 2 by 0.2.
    server.close_phase()
    vectors = server.side.public["item_vectors"]
    np.testing.assert_allclose(vectors[:, 0], [1 + 0.2, 2 - 0.5, 1 + 0.2])

    # Step 8: Anna's u moves by 0.5 · mean(1·1, 2·2) = 1.25; Ben's by 0.5·(−1)·2 = −1; Cleo's by 0.5·4·1 = 2.
    moved = {name: float(client.private_state()["user_vector"][0]) for name, client in clients.items()}
    assert moved == pytest.approx({"anna": 2.25, "ben": 0.0, "cleo": 3.0})
    assert clients["anna"].recommend(vectors[:, 0] * moved["anna"], 3).tolist() == [2]
    assert clients["cleo"].recommend(vectors[:, 0] * moved["cleo"], 3).tolist() == [1, 0]


def test_the_ledger_of_the_walk_through(clients):
    """One round at ε_I = 1 of at most ε_P = 2, and the price of the values: η Σ ‖e u‖² / 2 = 0.5 (1 + 0.16)/2."""
    announcement = ItemVectors(TERMS, 1, np.array([[1.0], [2.0], [1.0]]))
    report_on(clients["anna"], announcement, DRAWS["anna"])
    statement = statement_of(clients["anna"])
    assert statement["spent"] == 1
    assert statement["committed"] == 2
    assert statement["value_rho"] == pytest.approx(0.5 * (1 + 0.4**2) / 2)


def test_the_probabilities_of_the_walk_through_are_those_of_the_page():
    """Anna: 2 of 3 items, ε_I = 1, ε_P = 2, z = 1.5. The page shows three digits of each."""
    page = (Path(__file__).parents[1] / "docs" / "data-flow.md").read_text()
    found = calibrate_selection(2, 3, 1.5, 1.0, 2.0)
    shown = {"f = ": found.prob_randomize, "p = ": found.prob_send_zero, "q = ": found.prob_send_one}
    shown |= {"p* = ": found.prob_send_unrated, "q* = ": found.prob_send_rated}
    for letter, value in shown.items():
        assert f"{letter}{value:.3f}" in page
    assert f"a flip having probability {found.prob_randomize / 2:.3f}" in page.replace("\n", " ")


def test_one_masked_table_from_residuals_to_the_sum():
    """The numbers of "One table in numbers": residuals, clip, grid, noise, sum, and the page that shows them."""
    page = (Path(__file__).parents[1] / "docs" / "data-flow.md").read_text()
    code = BlockCode(size=3, clip=2.0, clip_units=4, norm_squared=norm_bound(4, 3), share_variance=16)
    residuals = np.array([[-1.5, 0.5, 0], [0, -3, 0], [0, 0, 1]])  # one row for each of Anna, Ben and Cleo
    noise = np.array([[1, 0, -1], [0, -1, 2], [-1, 1, 0]])
    rounding = SeededRandomness(0, 0).stream(Purpose.TABLE_ROUNDING, 1)
    integers = np.array([encode_block(code, row, rounding=rounding) for row in residuals])
    masks = np.array([[7, 8, 9], [2**32 - 5, 1, 1], [2**32 - 2, 2**32 - 9, 2**32 - 10]], dtype=np.uint32)  # add up to 0
    masked = (integers + noise).astype(np.uint32) + masks
    found = decode_sum(code, masked.sum(axis=0, dtype=np.uint32), 3).values

    def shown(rows: np.ndarray) -> str:
        cells = (", ".join(f"{number:g}" for number in row) for row in rows)
        return " | ".join(cells).replace("-", "−")

    assert shown(integers) == "−3, 1, 0 | 0, −4, 0 | 0, 0, 2"
    assert found.tolist() == [-1.5, -1.5, 1.5]
    for rows in (residuals, integers, noise, integers + noise):
        assert f"| {shown(rows)} |" in page
    assert f"multiplies it by the grid: {shown([found])}." in page.replace("\n", " ")
