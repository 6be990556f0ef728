"""Poisoning attacks: some devices promote one item, under a loose or a tight norm bound of the server."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.devices import report_of
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.judge import TOP
from hushrec.client import Client
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.engines.reference import make_client
from hushrec.errors import RemoteProtocolError
from hushrec.messages import Address
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.protocols.gradient.plausible import LARGEST_GRADIENT, LARGEST_ITEM_NORM
from hushrec.protocols.gradient.server import GradientServer
from hushrec.server import Server

SHARES = (0.01, 0.02, 0.05, 0.1)
ROUNDS, PATIENT_ROUNDS = 5, 20  # rounds with promoters, under the default bound and under a tight one
PEOPLE = 100  # devices of the rounds with promoters
GOAL = 3.0  # norm to which promoters move the item's vector, in multiples of the longest item vector


@dataclass(frozen=True, eq=False)
class Promoter:
    """A hostile device that moves the vector of item `target` in a `direction` that people like, to rank it first.

    Its gradients are not longer than the server's norm bound (`bound`). It moves the vector to at most `GOAL` times the
    length of the longest item vector, so that honest devices still accept the table.
    """

    target: int
    direction: FloatArray
    bound: float

    def report(self, address: Address, announcement: ItemVectors) -> GradientReport:
        """Return the report of one round, which holds only a gradient of the promoted item."""
        vectors = announcement.item_vectors
        longest = float(np.linalg.norm(vectors, axis=1).max())
        goal = self.direction / np.linalg.norm(self.direction) * min(GOAL * longest, LARGEST_ITEM_NORM / 2)
        gradient = goal - vectors[self.target]
        gradient *= min(1.0, 0.999 * self.bound / (float(np.linalg.norm(gradient)) + 1e-12))
        return GradientReport(address.round_number, np.array([self.target]), gradient[None])


@dataclass(frozen=True, eq=False)
class Stage:
    """A trained model, and the people who take part in a few further rounds; some of them promote an item."""

    problem: GradientProblem
    user_vectors: FloatArray  # after the training
    item_vectors: FloatArray
    people: IntArray  # users who take part in the further rounds
    target: int  # the promoted item
    last_round: int  # of the training


def attack_integrity(problem: GradientProblem, engine: GradientEngine, *, rng: np.random.Generator) -> list[Finding]:
    """Return findings on the exposure of a promoted item, for several fractions of promoters and two norm bounds.

    The item is the one that people like least. Its exposure is the fraction of honest people with the item in their top
    ten.
    """
    people = np.sort(rng.choice(problem.active_users, min(PEOPLE, len(problem.active_users)), replace=False))
    last = problem.terms.max_rounds
    more = replace(problem, terms=replace(problem.terms, max_rounds=last + PATIENT_ROUNDS))
    target = int(np.argmin(engine.item_vectors @ engine.user_vectors[people].mean(axis=0)))
    stage = Stage(more, engine.user_vectors, engine.item_vectors, people, target, last)
    loose = LARGEST_GRADIENT * more.terms.step_size(more.terms.max_rounds) * more.terms.data_weight
    shown, n_honest = exposure(stage, 0.0, loose, ROUNDS)
    alone, findings = shown / n_honest, []
    for bound, rounds, label in (
        (loose, ROUNDS, "the default norm bound"),
        (honest_norm(stage), PATIENT_ROUNDS, "a norm bound at the honest 99th percentile"),
    ):
        for share in SHARES:
            shown, n_honest = exposure(stage, share, bound, rounds)
            name = f"promotion by {share:.0%} of devices in {rounds} rounds, {label}"
            subject = Subject(problem.protocol(0).name, name, "integrity", "none: poisoning is not covered")
            findings.append(subject.share("exposure_at_10", shown, n_honest, chance=alone))
    return findings


def exposure(stage: Stage, share: float, bound: float, rounds: int) -> tuple[int, int]:
    """Return the number of honest people who get the promoted item recommended, and the number of all honest people.

    The item is recommended if it is in a person's top ten after `rounds` further rounds. `share` is the fraction of
    promoters (hostile devices) among all people, `bound` the largest gradient norm that the server accepts.
    """
    n_promoters = round(share * len(stage.people))
    liars, honest = np.split(stage.people, [n_promoters])
    devices: dict[int, Client | Promoter] = {int(user): trained_device(stage, int(user)) for user in honest}
    if n_promoters:
        shared = stage.user_vectors[liars].mean(axis=0)  # the promoters agree on one direction
        devices |= {int(user): Promoter(stage.target, shared, bound) for user in liars}
    side = GradientServer(stage.problem.terms, stage.problem.model, stage.item_vectors, max_gradient_norm=bound)
    server = Server(side, devices, round_number=stage.last_round)
    for _ in range(rounds):
        server.start_round()
        for user, device in devices.items():
            with suppress(RemoteProtocolError):  # the server refuses honest reports that exceed a tight bound
                message: ItemVectors = server.inbox(user)  # type: ignore[assignment]
                server.receive(user, server.address, device.report(server.address, message))
        server.close_phase()
    clients = [device for device in devices.values() if isinstance(device, Client)]
    shown = sum(stage.target in _recommended(device, side, stage) for device in clients)
    return int(shown), len(clients)


def _recommended(device: Client, side: GradientServer, stage: Stage) -> IntArray:
    rows = stage.problem.model.item_rows(side.item_vectors)
    return device.recommend(stage.problem.model.predict(device.private_state()["user_vector"], rows), TOP)


def trained_device(stage: Stage, user: int) -> Client:
    """Return a device that holds one person's trained user vector and has not drawn its permanent bits yet."""
    device = make_client(replace(stage.problem, seed=stage.problem.seed + 3), user)
    state = {"user_vector": stage.user_vectors[user], "last_round": np.array(stage.last_round)}
    device.restore_private_state({**device.private_state(), **state})
    return device


def honest_norm(stage: Stage) -> float:
    """Return a norm bound that 99 % of honest reports satisfy in the round after the training.

    It is the 99th percentile of the largest gradient norm in a report, over the people of `stage`.
    """
    announcement = ItemVectors(stage.problem.terms, stage.last_round + 1, stage.item_vectors)
    reports = [report_of(trained_device(stage, int(user)), announcement) for user in stage.people]
    longest = [np.linalg.norm(report.gradients, axis=1).max() for report in reports if report is not None]
    return float(np.quantile(longest, 0.99))
