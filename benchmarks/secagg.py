"""Processor time of one masked round: of a device, step by step, and of the server, per report.

python benchmarks/secagg.py [--devices 1000] [--items 5000] [--columns 8] [--neighbours 100] [--cohort 300]

The device is one of `devices`; it draws `neighbours` and is drawn by about as many. Its block has 200 rated items. The
server's part is a whole cohort of `cohort` devices, a tenth of which leave after their shares; the sum is checked.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measure import write_record

from hushrec.budget.gaussian import Cohort, run_mu
from hushrec.errors import AttemptFailed
from hushrec.protocols.masked.encoding import add_share, code_block, encode_block
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.secagg import device as steps
from hushrec.protocols.masked.secagg.roster import Roster, Rules, make_roster, survivors_text
from hushrec.protocols.masked.secagg.server import recover_sum
from hushrec.randomness import SystemStream

ANNOUNCEMENT = bytes(32)
RATED = 200


class Clock:
    """Processor milliseconds by step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add what happens inside to this step."""
        start = time.process_time()
        yield
        self.spent[name] = self.spent.get(name, 0.0) + 1000 * (time.process_time() - start)


def members(count: int) -> tuple[list[Ed25519PrivateKey], list[steps.Secrets], Roster]:
    """Devices in the order of the roster."""
    rng = SystemStream()
    identities = [Ed25519PrivateKey.from_private_bytes(rng.bytes(32)) for _ in range(count)]
    secrets = [steps.draw_secrets(rng=rng) for _ in range(count)]
    keys = [steps.make_keys(secrets[n], ANNOUNCEMENT, n.to_bytes(16, "big"), identities[n]) for n in range(count)]
    return identities, secrets, make_roster(ANNOUNCEMENT, keys)


def encode(code: Any, columns: int, clock: Clock) -> np.ndarray:
    """A block of 200 rated items, as integers with noise."""
    rng = np.random.default_rng(0)
    items = rng.choice(code.size // columns, RATED, replace=False)
    places = (items[:, None] * columns + np.arange(columns)).ravel()
    values = rng.normal(size=len(places))
    with clock.step("encode and noise"):
        integers = encode_block(code, values, places, rounding=SystemStream())
        return add_share(code, integers, noise=SystemStream())


def device_round(options: argparse.Namespace, world: Any) -> dict[str, float]:
    """One device's milliseconds by step."""
    (identities, secrets, roster), code, rules, senders, inbox = world
    clock, own, rng = Clock(), 0, SystemStream()
    with clock.step("keys"):
        steps.make_keys(steps.draw_secrets(rng=rng), ANNOUNCEMENT, bytes(16), identities[own])
    with clock.step("roster"):
        fresh = Roster(ANNOUNCEMENT, roster.entries)
        steps.accept_roster(fresh, ANNOUNCEMENT, roster.entries[own], rules)
        _ = fresh.digest
    with clock.step("shares"):
        drawn = steps.draw_neighbours(rules, len(fresh), own, rng=rng)
        steps.seal_shares(secrets[own], fresh, own, drawn, rules, rng=rng)
    with clock.step("partners"):
        pairing = steps.accept_partners(fresh, own, drawn, range(len(fresh)), senders, rules)
        held = steps.open_shares(secrets[own], fresh, own, inbox)
    table = encode(code, options.columns, clock)
    with clock.step("masks"):
        steps.mask_table(secrets[own], fresh, own, pairing, table)
        steps.sign_masks(identities[own], pairing)
    survivors = list(range(len(fresh)))
    text = survivors_text(pairing.context, survivors, len(fresh))
    signatures = {n: identities[n].sign(text) for n in survivors[: rules.smallest]}
    known, masked_for = fresh.identities, {n: steps.sign_masks(identities[n], pairing) for n in senders}
    with clock.step("consent"):
        steps.sign_survivors(identities[own], known, own, pairing, survivors, held, masked_for, rules)
    with clock.step("quorum and unmask"):
        revealed = steps.reveal_shares(held, known, pairing, survivors, signatures, rules)
    assert len(revealed) == len(inbox)
    return clock.spent | {"masks shared": len(pairing.neighbours)}


def prepare(options: argparse.Namespace) -> Any:
    """Everything around the measured device: roster, rules, and what about k others sealed for it."""
    cohort = Cohort(options.devices, survivors=0.8, corrupt=0.1)
    k = min(options.neighbours, options.devices - 1)
    rules = Rules(cohort.smallest, cohort.most_corrupt, k, k // 2 + 1)
    world = members(options.devices)
    _, secrets, roster = world
    rng = SystemStream()
    others = np.random.default_rng(1)
    senders = [n for n in range(1, options.devices) if others.random() < k / (options.devices - 1)]
    inbox = {}
    for sender in senders:
        drawn = sorted({0, *steps.draw_neighbours(rules, options.devices, sender, rng=rng)[: k - 1]})
        inbox[sender] = steps.seal_shares(secrets[sender], roster, sender, drawn, rules, rng=rng)[0].sealed
    code = code_block(Block("table", (options.items * options.columns,), 5.0, 0.4), mu=run_mu(8.0, 1e-6), cohort=cohort)
    return world, code, rules, senders, inbox


def commitments_of(sealed: dict[int, dict[int, steps.SealedShare]]) -> dict[int, dict[int, bytes]]:
    """What the server knows of the shares, by sender and recipient."""
    return {n: {other: made.commitments for other, made in own.items()} for n, own in sealed.items()}


def server_round(options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the server per report: checking keys, adding tables, taking off masks."""
    count, size = options.cohort, options.items * options.columns
    k = min(options.neighbours, count - 1)
    rules = Rules(int(0.8 * count), 0, k, k // 2 + 1)
    identities, secrets, roster = members(count)
    rng = SystemStream()
    drawn = {n: steps.draw_neighbours(rules, count, n, rng=rng) for n in range(count)}
    sealed = {n: steps.seal_shares(secrets[n], roster, n, drawn[n], rules, rng=rng) for n in range(count)}
    survivors = list(range(count // 10, count))
    clock, total, held, pairings = Clock(), np.zeros(size, dtype=np.uint32), {}, {}
    for n in survivors:
        inbox = {other: sealed[other][n].sealed for other in drawn if n in sealed[other]}
        pairings[n] = steps.accept_partners(roster, n, drawn[n], drawn, inbox, rules)
        held[n] = steps.open_shares(secrets[n], roster, n, inbox)
        table = steps.mask_table(secrets[n], roster, n, pairings[n], np.full(size, n, dtype=np.uint32))
        with clock.step("add table"):
            total += table
    text = survivors_text(pairings[survivors[0]].context, survivors, count)
    signatures = {n: identities[n].sign(text) for n in survivors[: rules.smallest]}
    known = roster.identities
    revealed = {n: steps.reveal_shares(held[n], known, pairings[n], survivors, signatures, rules) for n in survivors}
    with clock.step("verify keys"):
        assert all(entry.is_genuine(ANNOUNCEMENT) for entry in roster.entries)
    with clock.step("unmask"):
        found = recover_sum(roster, rules, commitments_of(sealed), survivors, total, revealed)
    assert np.all(found == sum(survivors))
    return {name: spent / len(survivors) for name, spent in clock.spent.items()}


def rebuild_times(devices: int = 200, neighbours: int = 100) -> dict[str, float]:
    """Seconds in which the server rebuilds the secrets of a cohort, or finds that it cannot, with liars of three kinds.

    c_max is a twentieth of the devices, all of whom send a table. `silent` devices do not reply in phase UNMASK.
    """
    corrupt, threshold = devices // 20, neighbours // 2 + 1
    rules, rng = Rules(int(0.8 * devices), corrupt, neighbours, threshold), SystemStream()
    _, secrets, roster = members(devices)
    drawn = {n: steps.draw_neighbours(rules, devices, n, rng=rng) for n in range(devices)}
    sealed = {n: steps.seal_shares(secrets[n], roster, n, drawn[n], rules, rng=rng) for n in range(devices)}
    held: dict[int, dict[int, bytes]] = {n: {} for n in range(devices)}
    for n in range(devices):
        inbox = {other: sealed[other][n].sealed for other in drawn if n in sealed[other]}
        held[n] = {o: shares.seed_share for o, shares in steps.open_shares(secrets[n], roster, n, inbox).items()}
    everybody, total = list(range(devices)), np.zeros(1, dtype=np.uint32)

    def spent(liars: int, silent: int) -> float:
        revealed = {n: held[n] if n >= liars else dict.fromkeys(held[n], bytes(66)) for n in everybody[silent:]}
        started = time.process_time()
        with suppress(AttemptFailed):
            recover_sum(roster, rules, commitments_of(sealed), everybody, total, revealed)
        return round(time.process_time() - started, 3)

    return {
        "no liar": spent(0, 0),
        "c_max liars": spent(corrupt, 0),
        "everybody lies": spent(devices, 0),
        "too few shares": spent(0, devices // 2),
    }


def fastest(work: Callable[[], dict[str, float]], turns: int) -> dict[str, float]:
    """The turn with the smallest sum, rounded to hundredths, and its total."""
    found = min((work() for _ in range(turns)), key=lambda one: sum(one.values()))
    return {name: round(spent, 2) for name, spent in found.items()}


def main() -> None:
    """Both sides."""
    parser = argparse.ArgumentParser()
    for name, default in (("devices", 1000), ("items", 5000), ("columns", 8), ("neighbours", 100), ("cohort", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    world = prepare(options)
    of_device = fastest(lambda: device_round(options, world), 5)
    masks = int(of_device.pop("masks shared"))
    of_server = fastest(lambda: server_round(options), 1)
    write_record(
        "secagg",
        {
            "settings": vars(options) | {"masks shared": masks, "table bytes": 4 * options.items * options.columns},
            "device milliseconds": of_device | {"total": round(sum(of_device.values()), 2)},
            "server milliseconds per report": of_server | {"total": round(sum(of_server.values()), 2)},
            "seconds to rebuild the secrets of 200 devices": rebuild_times(),
        },
    )


if __name__ == "__main__":
    main()
