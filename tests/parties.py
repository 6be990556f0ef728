"""Small problems, clients and servers that several tests build on."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.messages import Address
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.device import Draws, _DeviceRound, permanent_from
from hushrec.protocols.gradient.messages import REPORT, GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol, Sdcf
from hushrec.protocols.gradient.selection import PermanentChoice
from hushrec.protocols.gradient.server import GradientServer
from hushrec.randomness import SeededRandomness
from hushrec.server import Server
from hushrec.simulation.training_problem import TrainingProblem, make_problem

N_ITEMS, N_FACTORS = 20, 3
MODEL = MatrixFactorization(N_FACTORS)
SDCF = Sdcf(epsilon_i=4.0, epsilon_g=1.0)


def make_terms(**changes: Any) -> Terms:
    """Terms of a small `sdcf` run."""
    settings: dict[str, Any] = {
        "model": "mf",
        "n_factors": N_FACTORS,
        "n_items": N_ITEMS,
        "reports_per_client": 5.0,
        "data_weight": 50.0,
        "step": 0.4,
        "decay": 0.6,
        "max_rounds": 10,
        "epoch_rounds": None,
        "user_regularization": np.full(N_FACTORS, 0.01),
        "item_regularization": np.full(N_FACTORS, 0.02),
    }
    return Terms(**{**settings, **changes})


def make_vectors(n_items: int = N_ITEMS, width: int = N_FACTORS, seed: int = 0) -> np.ndarray:
    """Item vectors of ordinary size."""
    return np.random.default_rng(seed).uniform(0.2, 1.0, (n_items, width))


def make_announcement(round_number: int = 1, **changes: Any) -> ItemVectors:
    """What a server would announce under those terms."""
    terms = make_terms(**changes)
    return ItemVectors(terms, round_number, make_vectors(terms.n_items))


def statement_of(client: Client) -> dict[str, Any]:
    """What the device shows its person about the budget spent."""
    return client._protocol.ledger_statement(client.ledger).to_dict()


def make_client(
    protocol: GradientProtocol = SDCF, *, user: int = 0, limit: float = 8.0, rated: bool = True, **changes: Any
) -> Client:
    """A client with six ratings."""
    if protocol.selection is None:
        changes = {"reports_per_client": None, **changes}
    terms = make_terms(**changes)
    client = Client(terms, MODEL, protocol, randomness=SeededRandomness(7, user), ledger=Ledger(selection=limit))
    if rated:
        client.add_ratings(np.array([1, 3, 4, 8, 12, 19]), np.array([5.0, 4.0, 1.0, 3.0, 3.5, 2.0]))
    return client


def make_server(clients: tuple[int | str, ...] = (0, 1, 2), **changes: Any) -> Server:
    """A server with those clients enrolled, between rounds."""
    terms = make_terms(**changes)
    return Server(GradientServer(terms, MODEL, make_vectors(terms.n_items)), clients)


def report_on(client: Client, announcement: ItemVectors, draws: Draws | None = None) -> GradientReport:
    """What a client reports on an announcement, with these draws instead of its own if they are given."""
    with nullcontext() if draws is None else patch.object(_DeviceRound, "_draw", lambda *_: draws):
        return client.report(Address(announcement.round_number, 1, REPORT), announcement)


@contextmanager
def recorded_draws() -> Iterator[dict[int, Draws]]:
    """The draws of the last report of each simulated user, filled while the context is open."""
    drawn, honest = {}, _DeviceRound._draw

    def draw(device: _DeviceRound, *given: Any) -> Draws:
        made = drawn[device._private.randomness._user] = honest(device, *given)
        return made

    with patch.object(_DeviceRound, "_draw", draw):
        yield drawn


def user_vector(client: Client) -> np.ndarray:
    """A client's own vector."""
    return client.private_state()["user_vector"]


def permanent(client: Client) -> PermanentChoice | None:
    """A client's permanent bits."""
    return permanent_from(client.private_state())


def small_problem(
    *protocols: GradientProtocol,
    n_users: int = 30,
    n_items: int = N_ITEMS,
    rounds: int = 5,
    seed: int = 1,
    **changes: Any,
) -> TrainingProblem:
    """Random ratings of about a third of all pairs; user 0 has none."""
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((n_users, n_items)) < 0.35)
    keep = users != 0
    users, items = users[keep], items[keep]
    values = rng.integers(1, 6, len(users)).astype(np.float64)
    settings: dict[str, Any] = {"step": 0.3, "model": MODEL, **changes}
    return make_problem(
        users,
        items,
        values,
        n_users=n_users,
        n_items=n_items,
        protocols=protocols or (SDCF,),
        rounds=rounds,
        seed=seed,
        **settings,
    )
