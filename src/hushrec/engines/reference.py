"""One `Client` object per user, one `Server`, every message real: the truth that other engines are compared with."""

import json
from typing import ClassVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.engines import Remark, State
from hushrec.engines.gradient import GradientEngine, GradientProblem, initial_item_vectors, initial_user_vectors
from hushrec.errors import LocalProtocolError
from hushrec.messages import GradientReport
from hushrec.protocols.gradient.protocols import Draws
from hushrec.randomness import SeededRandomness
from hushrec.server import Phase, Server


class ReferenceEngine(GradientEngine):
    """Plays every round message by message. `recorded_draws` keeps each client's choices when asked to."""

    name: ClassVar[str] = "reference"

    def __init__(self, problem: GradientProblem, *, record_draws: bool = False, remark: Remark | None = None) -> None:
        super().__init__(problem)
        self.clients = {int(user): _make_client(problem, int(user)) for user in problem.active_users}
        self.server = Server(problem.terms, problem.model, initial_item_vectors(problem), self.clients)
        self.recorded_draws: list[dict[int, Draws]] | None = [] if record_draws else None
        self._initial_user_vectors = initial_user_vectors(problem)
        self._numbers_sent = 0

    @property
    def round_number(self) -> int:
        """The last round that was played to its end."""
        return self.server.round_number - (self.server.phase is not Phase.PUBLISHED)

    @property
    def item_vectors(self) -> FloatArray:
        return self.server.item_vectors

    @property
    def user_vectors(self) -> FloatArray:
        vectors = self._initial_user_vectors.copy()
        for user, client in self.clients.items():
            vectors[user] = client._private_user_vector
        return vectors

    def run_round(self) -> None:
        announcement = self.server.start_round()
        for user, client in self.clients.items():
            for message in client.answer(announcement):
                self.server.receive(user, message)
                if isinstance(message, GradientReport):
                    self._numbers_sent += message.items.size + message.gradients.size
        assert self.server.phase is Phase.SUMMED  # everybody finished
        self.server.publish()
        if self.recorded_draws is not None:
            self.recorded_draws.append({user: client._private_draws for user, client in self.clients.items()})

    def value_rho(self) -> FloatArray:
        rho = np.zeros(self.problem.n_users)
        for user, client in self.clients.items():
            rho[user] = client.ledger.value_rho
        return rho

    def bytes_per_client_round(self) -> float:
        return 4 * self._numbers_sent / (len(self.clients) * max(self.round_number, 1))

    def state(self) -> State:
        """Clients' private states side by side: what a checkpoint of a simulation holds; not while a round is open."""
        if self.server.phase is not Phase.PUBLISHED:
            raise LocalProtocolError("a round is open: some clients have answered it, and some have not.")
        states = [client.private_state() for client in self.clients.values()]
        ledgers = [json.dumps(client.ledger.to_record()) for client in self.clients.values()]
        stacked = {f"client_{name}": np.stack([state[name] for state in states]) for name in states[0]}
        return {
            **stacked,
            "ledgers": np.array(ledgers),
            "item_vectors": self.item_vectors,
            "round_number": np.array(self.round_number),
            "numbers_sent": np.array(self._numbers_sent),
        }

    def restore(self, state: State) -> None:
        problem = self.problem
        for row, client in enumerate(self.clients.values()):
            client.ledger = Ledger.from_record(json.loads(str(state["ledgers"][row])))
            client.restore_private_state(
                {name[len("client_") :]: rows[row] for name, rows in state.items() if name.startswith("client_")}
            )
        self.server = Server(
            problem.terms,
            problem.model,
            np.asarray(state["item_vectors"], dtype=np.float64),
            self.clients,
            round_number=int(state["round_number"]),
        )
        self._numbers_sent = int(state["numbers_sent"])


def _make_client(problem: GradientProblem, user: int) -> Client:
    protocol = problem.protocol(user)
    n_epochs = problem.terms.epoch(problem.terms.max_rounds) + 1  # simulated people agree to every announced epoch
    client = Client(
        problem.terms,
        problem.model,
        protocol,
        randomness=SeededRandomness(problem.seed, user),
        ledger=Ledger(max_selection_epsilon=n_epochs * protocol.selection_limit),
    )
    rows = slice(problem.starts[user], problem.starts[user + 1])
    client.add_ratings(problem.items[rows], problem.values[rows])
    return client
