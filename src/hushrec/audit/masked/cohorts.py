"""What the server sees of single devices in one round of secure aggregation: masked tables, message by message."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chi2

from hushrec.arrays import FloatArray
from hushrec.audit.findings import Finding
from hushrec.audit.masked.pairs import KEYS_TWICE
from hushrec.audit.masked.sums import SeenRun
from hushrec.audit.masked.watched import Watched
from hushrec.audit.statistics import auc, auc_interval, rate_at
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort
from hushrec.protocols.masked.device_round import DeviceRound
from hushrec.protocols.masked.encoding import Table
from hushrec.protocols.masked.messages import MaskedTable, announce
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg.primitives import digest
from hushrec.protocols.masked.secagg.roster import DEVICE_BYTES, PublicKeys, choose_rules
from hushrec.protocols.masked.server_round import EXPECTED, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.masked.upload import BlockValues, make_upload
from hushrec.randomness import RandomStream, SeededRandomness

RUN_ID = "0" * 32
COHORT = 60  # devices of the round that runs message by message
CELLS = 256  # values of the leading byte of a number


class SeenCohort(NamedTuple):
    """What the server got in one attempt: public keys and a masked table of each device, and the sum."""

    keys: list[PublicKeys]
    tables: list[Table]
    total: Table


def watch_cohort(
    terms: MaskedTerms, uploads: Sequence[Table], *, attempts: int = 1, rng: RandomStream
) -> list[SeenCohort]:
    """Run attempts of one round among real devices with these uploads, and keep what the server gets."""
    server, *identities = (Ed25519PrivateKey.from_private_bytes(rng.bytes(32)) for _ in range(len(uploads) + 1))
    names = [number.to_bytes(DEVICE_BYTES, "big") for number in range(len(uploads))]
    table = digest(b"table")
    devices = {
        name: DeviceRound(
            terms,
            RUN_ID,
            server.public_key().public_bytes_raw(),
            name,
            identity,
            functools.partial(lambda own, _: own, upload),
        )
        for name, identity, upload in zip(names, identities, uploads, strict=True)
    }
    members = {name: identity.public_key().public_bytes_raw() for name, identity in zip(names, identities, strict=True)}
    return [
        _attempt(
            ServerRound(terms, announce(server, RUN_ID, 1, number, terms.digest, table), members), devices, table, rng
        )
        for number in range(1, attempts + 1)
    ]


def _attempt(
    server: ServerRound, devices: Mapping[bytes, DeviceRound], table_digest: bytes, rng: RandomStream
) -> SeenCohort:
    keys, tables = list[PublicKeys](), list[Table]()
    while server.phase in EXPECTED:
        for name, device in devices.items():
            report = device.report(server.question(name), table_digest=table_digest, rng=rng)
            if isinstance(report, PublicKeys):
                keys.append(report)
            if isinstance(report, MaskedTable):
                tables.append(report.numbers)
            server.receive(name, report)
        server.close()
    assert server.sum is not None  # SUMMED
    return SeenCohort(keys, tables, server.sum)


def keys_seen_twice(attempts: Sequence[SeenCohort]) -> float:
    """Return the part of mask keys, channel keys and hashes of seeds that came more than once.

    With the mask key of a device that dropped out of one attempt, rebuilt by the server, and its seed as a survivor of
    another, a device that keeps its keys is stripped of all masks.
    """
    every = [key for one in attempts for keys in one.keys for key in (keys.mask_key, keys.channel_key, keys.seed_hash)]
    return 1 - len(set(every)) / len(every)


def table_scores(tables: Sequence[Table], expected: FloatArray) -> FloatArray:
    """Return how well each masked table fits what one profile would send: their scalar product."""
    return np.asarray([table.view(np.int32).astype(np.float64) @ expected for table in tables])


def uniformity(tables: Sequence[Table]) -> float:
    """Return the p-value of "the leading bytes are uniform", by the chi-square test."""
    leading = np.concatenate([table >> np.uint32(24) for table in tables]).astype(np.int64)
    counts = np.bincount(leading, minlength=CELLS)
    expected = len(leading) / CELLS
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), CELLS - 1))


def attack_tables(run: Watched) -> list[Finding]:
    """Look at single tables of a real cohort: half of the devices sent one person's profile, half zeros."""
    priced = run.problem.terms.priced
    few = price_plan(priced.plan, epsilon=priced.epsilon, delta=priced.delta, cohort=Cohort(COHORT))
    terms = MaskedTerms(few, choose_rules(COHORT, COHORT, 0))
    first = SeenRun(run.seen.with_codes(few.codes).rounds[:1], run.seen.learning)
    profile = run.profile(run.victims[run.longest])
    entries = run.seen.learning.entries(first.rounds[0].one.blocks, first.rounds[0].table, *profile)
    blocks = [BlockValues(*own) for own in entries]
    coins = run.draws(20).permutation(np.arange(COHORT) < COHORT // 2)
    uploads = [
        make_upload(few, 1, blocks if coin else None, TableAccountant(), randomness=SeededRandomness(number))[0]
        for number, coin in enumerate(coins)
    ]
    attempts = watch_cohort(terms, uploads, attempts=2, rng=run.draws(21))
    tables = attempts[0].tables
    own = run.tables(profile, first)
    expected = np.concatenate([own.dense(place, block.code.size) for place, block in enumerate(first.blocks)])
    scores = table_scores(tables, expected.astype(np.float64))
    claim = f"a masked table is uniformly random (chi-square test: p = {uniformity(tables):.2f})"
    return [
        run.finding(
            "one masked table alone",
            "metadata",
            "auc",
            auc(scores, coins),
            claim,
            auc=auc(scores, coins),
            rate=rate_at(scores, coins),
            interval=auc_interval(scores, coins, rng=run.draws(22)),
            chance=0.5,
        ),
        run.finding(
            "keys of two attempts",
            "metadata",
            KEYS_TWICE,
            keys_seen_twice(attempts),
            "every attempt has new keys",
            chance=0.0,
        ),
    ]
