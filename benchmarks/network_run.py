"""A network run inside one process: clients as devices hold them, the server object, the terms that `serve` offers.

What `hostile.py` and `fleet_size.py` share. Nothing is simplified but the transport: every report is made by a real
`Client` from the announcement, and checked and summed by a real `Server` as `hushrec serve` makes it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.client import Client
from hushrec.data import Ratings, random_split
from hushrec.errors import RemoteProtocolError
from hushrec.evaluate import rmse
from hushrec.messages import Offer
from hushrec.models import make_model
from hushrec.models.baselines import rating_baselines
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.protocols.gradient.plausible import LEAST_REPORTS
from hushrec.protocols.gradient.protocols import Sdcf
from hushrec.protocols.gradient.server import GradientServer
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.server import Server
from hushrec.service.settings import TermsSettings
from hushrec.service.setup import Items, make_run

EPSILON_I, EPSILON_G = 4.0, 4.0  # what `hushrec device init` proposes
RUN_ID = "0" * 32
HOSTILE = "hostile"

Attack = Callable[[ItemVectors], GradientReport]


@dataclass(frozen=True)
class Played:
    """What became of a run."""

    rmse: float | None  # of the honest devices' own predictions of their held-out ratings; None if none finished
    finished: int  # honest devices that reported in every round
    refused: int  # reports of the hostile device that the server did not take


@dataclass(frozen=True)
class People:
    """The training and held-out ratings of some people."""

    ratings: Ratings
    users: IntArray
    split_seed: int = 1  # the server's bounds were chosen with split 0

    def rows(self, part: str) -> IntArray:
        """Rows of the file that belong to these people, of `train` or `test`."""
        rows: IntArray = getattr(random_split(self.ratings.n_ratings, self.split_seed), part)
        return rows[np.isin(self.ratings.users[rows], self.users)]

    def baselines(self) -> dict[str, float]:
        """Test RMSE of the models without taste, fitted on these people's ratings alone."""
        data, train, test = self.ratings, self.rows("train"), self.rows("test")
        fitted = rating_baselines(data.users[train], data.items[train], data.values[train], data.n_users, data.n_items)
        truth = data.values[test]
        return {name: rmse(predict(data.users[test], data.items[test]), truth) for name, predict in fitted.items()}


def draw_people(ratings: Ratings, count: int, seed: int) -> People:
    """So many people of the file, at random."""
    users = np.random.default_rng(seed).permutation(np.unique(ratings.users))[:count]
    return People(ratings, np.sort(users))


def offer_for(n_items: int, settings: TermsSettings, model: MatrixFactorization, seed: int) -> Offer:
    """The offer of `hushrec serve`, with a seeded regularization, so that two runs can be compared."""
    names = [str(n) for n in range(n_items)]
    offer, _ = make_run(settings, Items(names, names))
    rng = SeededRandomness(seed).stream(Purpose.REGULARIZATION)
    drawn = {
        "user_regularization": model.draw_regularization(rng=rng),
        "item_regularization": model.draw_regularization(rng=rng),
    }
    return replace(offer, run_id=RUN_ID, terms=replace(offer.terms, **drawn))


def play(
    people: People,
    *,
    seed: int,
    settings: TermsSettings = TermsSettings(protocol="sdcf"),
    attack: Attack | None = None,
    bounded: bool = True,
) -> Played:
    """Play all rounds with the devices of these people, and with one hostile device beside them.

    `bounded=False` is the server without its bounds on a device's influence.
    """
    model = make_model(settings.model_name, settings.options["factors"])
    offer = offer_for(people.ratings.n_items, settings, model, seed)
    clients = _clients(people, offer, model, seed)
    names = [*clients, *([HOSTILE] if attack else [])]
    vectors = model.initial_vectors(offer.terms.n_items, rng=SeededRandomness(seed).stream(Purpose.ITEM_VECTORS))
    alive, refused = dict(clients), 0
    for round_number in range(1, offer.terms.max_rounds + 1):
        least = LEAST_REPORTS if bounded else 1
        side = GradientServer(offer.terms, model, vectors, least_reports=least, bounds_reports=bounded)
        server = Server(side, names, round_number=round_number - 1)
        server.start_round()
        alive = {user: client for user, client in alive.items() if _reports(server, user, client)}
        if attack is not None:
            refused += not _attacks(server, attack(server.inbox(HOSTILE)))
        server.close_phase()
        vectors = side.item_vectors
    finished = len(alive)
    return Played(_rmse(people, clients, vectors) if finished == len(clients) else None, finished, refused)


def _clients(people: People, offer: Offer, model: MatrixFactorization, seed: int) -> dict[int, Client]:
    data, rows = people.ratings, people.rows("train")
    protocol = Sdcf(EPSILON_I, EPSILON_G, profile_cap=int(offer.options["profile_cap"]))
    clients = {}
    for user in people.users.tolist():
        own = rows[data.users[rows] == user]
        client = Client(
            offer.terms,
            model,
            protocol,
            randomness=SeededRandomness(seed, user),
            ledger=protocol.make_ledger(offer.terms),
        )
        client.add_ratings(data.items[own], data.values[own])
        clients[user] = client
    return clients


def _reports(server: Server, user: int, client: Client) -> bool:
    """Whether the device took part; one that refuses, or is refused, stops for good."""
    try:
        server.receive(user, server.address, client.report(server.address, server.inbox(user)))
    except RemoteProtocolError:
        return False
    return True


def _attacks(server: Server, report: GradientReport) -> bool:
    """Whether the server took the report."""
    try:
        server.receive(HOSTILE, server.address, report)
    except RemoteProtocolError:
        return False
    return True


def _rmse(people: People, clients: dict[int, Client], vectors: FloatArray) -> float:
    data, rows = people.ratings, people.rows("test")
    predicted = np.empty(len(rows))
    for user, client in clients.items():
        own = data.users[rows] == user
        predicted[own] = client.predict({"item_vectors": vectors})[data.items[rows[own]]]
    return rmse(predicted, data.values[rows])
