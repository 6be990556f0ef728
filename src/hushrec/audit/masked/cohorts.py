"""Run one round of secure aggregation with the protocol's own device code, and record the server's view."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chisquare

from hushrec.arrays import FloatArray
from hushrec.protocols.masked.device_round import DeviceRound, Keyed, Sent, Shared
from hushrec.protocols.masked.encoding import Table
from hushrec.protocols.masked.messages import MaskedTable, announce
from hushrec.protocols.masked.secagg.device import Pairing, Secrets
from hushrec.protocols.masked.secagg.primitives import digest
from hushrec.protocols.masked.secagg.roster import DEVICE_BYTES, Roster
from hushrec.protocols.masked.server_round import EXPECTED, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import RandomStream

RUN_ID = "0" * 32
COHORT = 60  # number of devices in the round
CELLS = 256  # number of values of the leading byte of a number


class SeenCohort(NamedTuple):
    """One attempt of a round: what the server sees, and each device's secrets (for attacks with collusion only).

    The lists have one entry per device, in the order of the roster.
    """

    roster: Roster
    tables: list[Table]  # masked
    total: Table  # the sum of all tables, without masks
    pairings: list[Pairing]  # with which neighbours each device shares masks
    secrets: list[Secrets]


def watch_cohort(terms: MaskedTerms, tables: Sequence[Table], *, attempts: int, rng: RandomStream) -> list[SeenCohort]:
    """Run `attempts` attempts of a round in which devices mask and send `tables`; return a `SeenCohort` for each."""
    server, *identities = (Ed25519PrivateKey.from_private_bytes(rng.bytes(32)) for _ in range(len(tables) + 1))
    names = [number.to_bytes(DEVICE_BYTES, "big") for number in range(len(tables))]
    table_digest = digest(b"table")
    devices = {
        name: DeviceRound(
            terms,
            RUN_ID,
            server.public_key().public_bytes_raw(),
            name,
            identity,
            functools.partial(lambda own, _: own, table),
        )
        for name, identity, table in zip(names, identities, tables, strict=True)
    }
    members = {name: identity.public_key().public_bytes_raw() for name, identity in zip(names, identities, strict=True)}
    seen = []
    for number in range(1, attempts + 1):
        announcement = announce(server, RUN_ID, 1, number, terms.digest, table_digest)
        seen.append(_attempt(ServerRound(terms, announcement, members), devices, table_digest, rng))
    return seen


def _attempt(
    server: ServerRound, devices: Mapping[bytes, DeviceRound], table_digest: bytes, rng: RandomStream
) -> SeenCohort:
    """Run all phases of one attempt, with devices in the order of the roster; return what the server sees."""
    tables, secrets, pairings, rosters = list[Table](), list[Secrets](), list[Pairing](), list[Roster]()
    while server.phase in EXPECTED:
        for name, device in devices.items():
            report = device.report(server.question(name), table_digest=table_digest, rng=rng)
            if isinstance(device.state, Keyed):
                secrets.append(device.state.secrets)
            if isinstance(device.state, Shared):
                rosters.append(device.state.roster)
            if isinstance(report, MaskedTable):
                assert isinstance(device.state, Sent)
                tables.append(report.numbers)
                pairings.append(device.state.pairing)
            server.receive(name, report)
        server.close()
    assert server.sum is not None  # SUMMED
    return SeenCohort(rosters[0], tables, server.sum, pairings, secrets)


def keys_seen_twice(attempts: Sequence[SeenCohort]) -> float:
    """Return the fraction of mask keys, channel keys and seed hashes that repeat an earlier one; 0 if all are fresh.

    The server rebuilds the mask key of a device that drops out of an attempt, and the seed of a survivor. If a device
    used one mask key and seed in two attempts and dropped out of only one attempt, the server could get the key and the
    seed, and remove all masks of the device.
    """
    every = [
        key
        for one in attempts
        for keys in one.roster.entries
        for key in (keys.mask_key, keys.channel_key, keys.seed_hash)
    ]
    return 1 - len(set(every)) / len(every)


def table_scores(tables: Sequence[Table], expected: FloatArray) -> FloatArray:
    """Return the scalar product of each table with `expected`, a profile's table without noise and masks."""
    return np.asarray([table.view(np.int32).astype(np.float64) @ expected for table in tables])


def uniformity(tables: Sequence[Table]) -> float:
    """Return the p-value of a chi-square test that the leading bytes of all table entries are uniformly distributed."""
    leading = np.concatenate([table >> np.uint32(24) for table in tables]).astype(np.int64)
    return float(chisquare(np.bincount(leading, minlength=CELLS)).pvalue)
