"""The engine `reference`: one `Client` per user, one `Server` and every message between them. It is the test oracle."""

import json
from collections.abc import Set

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.engines import Remark, State
from hushrec.errors import Diverged
from hushrec.messages import Address, payload_bytes
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.simulated import SIMULATED_RUN, simulated_membership, simulated_secret
from hushrec.randomness import SeededRandomness
from hushrec.server import Server, Stage
from hushrec.simulation.training_problem import AnyProblem


class ReferenceEngine:
    """An engine that runs the code of real devices and of the server, and passes every message between them."""

    def __init__(self, problem: AnyProblem, *, remark: Remark | None = None) -> None:
        self.problem = problem
        self._protocol: ConfiguredProtocol = problem.protocol(0)
        self.clients = {int(user): make_client(problem, int(user)) for user in problem.active_users}
        side = self._protocol.make_server(problem.terms, problem.model, problem.seed)
        side.sign_as(SIMULATED_RUN, simulated_secret(problem.seed))
        self.server = Server(side, self.clients)
        self.absent = self._absent_users  # returns the users who do not report in a phase; tests replace it
        self._bytes_sent = 0

    @property
    def round_number(self) -> int:
        return self.server.round_number - (self.server.stage is not Stage.IDLE)

    def run_round(self) -> None:
        self.server.start_round()
        while self.server.stage is Stage.OPEN:
            absent = self.absent(self.server.address)
            for user in self.clients.keys() - absent:
                self._ask(user)
            self.server.close_phase()
        for client in self.clients.values():
            client.rest()

    def _ask(self, user: int) -> None:
        """Deliver the open phase's message to one device, and the device's report to the server."""
        client, address, message = self.clients[user], self.server.address, self.server.inbox(user)
        if message is None:
            return
        if client.lacks(message):
            client.take_public(self.server.side.public)
        report = client.report(address, message)
        if report is not None:
            self._bytes_sent += payload_bytes(report)
            self.server.receive(user, address, report)

    def _absent_users(self, address: Address) -> Set[int]:
        present = self._protocol.present(self.problem.seed, address.round_number, self.problem.n_users)
        return set(np.flatnonzero(~present).tolist())

    def predictor(self) -> Predictor:
        private = {user: client.private_state() for user, client in self.clients.items()}
        return self._protocol.make_predictor(self.problem, self.server.side.public, private)

    def predictor_from(self, arrays: Arrays) -> Predictor:
        return self._protocol.predictor_from(self.problem, arrays)

    def losses(self) -> dict[str, FloatArray]:
        found: dict[str, FloatArray] = {}
        for user, client in self.clients.items():
            for name, loss in self.problem.protocol(user).losses(client.ledger).items():
                found.setdefault(name, np.zeros(self.problem.n_users))[user] = loss
        return found

    def bytes_per_client_round(self) -> float:
        return self._bytes_sent / (len(self.clients) * max(self.round_number, 1))

    def failure(self, round_number: int) -> Diverged:
        return self._protocol.failure(self.problem.terms, self.server.side.public, round_number)

    def state(self) -> State:
        """Return the states of the server and of all devices for a checkpoint; no round may be open."""
        server = {f"server_{name}": array for name, array in self.server.state().items()}
        states = [client.private_state() for client in self.clients.values()]
        ledgers = [json.dumps(client.ledger.to_record()) for client in self.clients.values()]
        stacked = {f"client_{name}": np.stack([state[name] for state in states]) for name in states[0]}
        return {**server, **stacked, "ledgers": np.array(ledgers), "bytes_sent": np.array(self._bytes_sent)}

    def restore(self, state: State) -> None:
        for row, client in enumerate(self.clients.values()):
            client.ledger = Ledger.from_record(json.loads(str(state["ledgers"][row])))
            client.restore_private_state({name: rows[row] for name, rows in _part(state, "client_").items()})
        self.server.restore(_part(state, "server_"))
        self._bytes_sent = int(state["bytes_sent"])


def _part(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def make_client(problem: AnyProblem, user: int) -> Client:
    """Return a new simulated device that holds one user's ratings and has not reported yet."""
    protocol = problem.protocol(user)
    client = Client(
        problem.terms,
        problem.model,
        protocol,
        randomness=SeededRandomness(problem.seed, user),
        ledger=protocol.make_ledger(problem.terms),
        membership=simulated_membership(problem.seed, user),
    )
    client.add_ratings(*problem.profile(user))
    return client
