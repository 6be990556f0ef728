"""Tables that a malicious server leaves out of a sum: chance allows a few, and the noise is sized without them."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from test_masked_rounds import RUN, SERVER, TABLE, Person

from hushrec.budget.gaussian import Cohort
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import item_columns
from hushrec.protocols.configured import Fleet
from hushrec.protocols.masked.device_round import Idle
from hushrec.protocols.masked.messages import Partners, Quorum, SealedShares, Survivors, announce
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.protocol import Masked
from hushrec.protocols.masked.secagg.chance import LARGEST_RISK, most_omitted
from hushrec.protocols.masked.secagg.device import pair_key
from hushrec.protocols.masked.secagg.primitives import SELF_LABEL, Keystream, derive, load_private
from hushrec.protocols.masked.secagg.roster import Roster, bitmap, choose_rules, partners_digest
from hushrec.protocols.masked.secagg.shamir import join_shares
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SystemStream

DEVICES = 310  # more than 300, so that each device draws some neighbours only


def terms_of(devices: int) -> MaskedTerms:
    """A run of one short block, in which a fifth of the devices may drop out, and none is corrupt."""
    cohort = Cohort(devices, 0.8)
    rules = choose_rules(devices, cohort.smallest, 0)
    cohort = replace(cohort, omitted=rules.most_omitted(devices))
    plan = make_plan([[Block("counts", (40,), 8.0, 1.0)]])
    return MaskedTerms(price_plan(plan, epsilon=8.0, delta=1e-6, cohort=cohort), rules)


class Honest(Person):
    """A real device round with keys of its own."""

    def __init__(self, number: int, terms: MaskedTerms) -> None:
        self.name, self.identity = number.to_bytes(16, "big"), Ed25519PrivateKey.generate()
        self.table, self.terms = np.zeros(0, np.uint32), terms
        self.round = self.restarted(Idle())

    def hear(self, message: object) -> object:
        return self.round.report(message, table_digest=TABLE, rng=SystemStream())


def choose_omitted(drawers: dict[int, set[int]], most_gone: int) -> tuple[set[int], set[int]]:
    """Return whom a greedy server omits, and whom it calls dropped out for that: all others that drew them.

    `drawers` has, for each honest device, the honest devices that drew it.
    """
    omitted, gone = set[int](), set[int]()
    while True:
        left = drawers.keys() - omitted - gone
        best = min(left, key=lambda device: len(drawers[device] - gone - omitted))
        if len(gone | (drawers[best] - omitted)) > most_gone:
            break
        omitted.add(best)
        gone |= drawers[best] - omitted
    others = sorted(left)
    return omitted, gone | set(others[: most_gone - len(gone)])


def test_a_server_that_omits_tables_reads_a_sum_that_the_noise_allows_for() -> None:
    """It hides from all devices who of the omitted ones drew them. The exact sum has fewer than n_min tables."""
    terms = terms_of(DEVICES)
    rules, cohort = terms.rules, terms.priced.cohort
    people = [Honest(number, terms) for number in range(DEVICES)]
    announcement = announce(SERVER, RUN, 1, 1, terms.digest, TABLE)
    roster = Roster(announcement.digest, tuple(one.hear(announcement) for one in people))
    sealed = []
    for one in people:
        shares = one.hear(roster)
        assert isinstance(shares, SealedShares)
        sealed.append(dict(zip(map(int, shares.recipients), shares.sealed, strict=True)))
    drawers = {device: {other for other in range(DEVICES) if device in sealed[other]} for device in range(DEVICES)}
    omitted, gone = choose_omitted(drawers, DEVICES - rules.smallest)
    survivors = sorted(set(range(DEVICES)) - gone)
    in_sum = [device for device in survivors if device not in omitted]
    assert len(survivors) == rules.smallest

    tables = {}
    for device in range(DEVICES):
        senders = sorted(drawers[device] - omitted)
        shown = tuple(sealed[sender][device] for sender in senders)
        tables[device] = people[device].hear(Partners(bitmap(range(DEVICES), DEVICES), np.array(senders), shown))
    consents = {}
    for device in survivors:  # the omitted ones sign too
        owners = sorted(drawers[device].intersection(in_sum))
        signed = tuple(tables[owner].signature for owner in owners)
        consents[device] = people[device].hear(Survivors(bitmap(survivors, DEVICES), np.array(owners), signed))
    quorum = Quorum(np.array(survivors), tuple(consents[device].signature for device in survivors))
    revealed = {}
    for device in in_sum:
        said = people[device].hear(quorum)
        revealed[device] = dict(zip(map(int, said.owners), said.shares, strict=True))

    def secret(owner: int) -> bytes:
        found = {device + 1: own[owner] for device, own in revealed.items() if owner in own}
        return join_shares(dict(list(found.items())[: rules.threshold]))

    context = partners_digest(roster, range(DEVICES))
    total = np.sum([tables[device].numbers for device in in_sum], axis=0, dtype=np.uint32)
    stream = Keystream(len(total))
    for device in in_sum:
        stream.subtract(total, derive(secret(device), SELF_LABEL, context, device))
    for absent in gone:
        key = load_private(secret(absent))
        for device in in_sum:
            if device in sealed[absent] or absent in sealed[device]:
                mask = pair_key(key, roster, context, absent, device)
                (stream.subtract if device < absent else stream.add)(total, mask)
    np.testing.assert_array_equal(total, np.sum([people[device].table for device in in_sum], axis=0, dtype=np.uint32))
    assert cohort.honest <= len(in_sum) < rules.smallest


@pytest.mark.parametrize(("devices", "survivors", "corrupt"), [(400, 0.8, 0.05), (1000, 0.8, 0.0), (1000, 0.9, 0.05)])
def test_what_a_greedy_server_finds_is_within_the_bound(devices: int, survivors: float, corrupt: float) -> None:
    """In a hundred draws; it finds some, so that the bound is not there for nothing."""
    cohort, rng, found = Cohort(devices, survivors, corrupt), np.random.default_rng(devices), 0
    rules = choose_rules(devices, cohort.smallest, cohort.most_corrupt)
    for _ in range(100):
        order = rng.random((devices, devices))
        np.fill_diagonal(order, 2.0)
        drawn = np.argpartition(order, rules.neighbours, axis=1)[:, : rules.neighbours]
        chosen = np.zeros((devices, devices), dtype=bool)
        np.put_along_axis(chosen, drawn, True, axis=1)
        chosen[: cohort.most_corrupt] = False  # corrupt devices need not mask anything
        drawers = {device: set(np.flatnonzero(chosen[:, device])) for device in range(cohort.most_corrupt, devices)}
        omitted, _ = choose_omitted(drawers, devices - cohort.smallest)
        found = max(found, len(omitted))
    assert 0 < found <= rules.most_omitted(devices) <= (devices - cohort.smallest) // 10


@pytest.mark.parametrize(
    ("devices", "smallest", "corrupt", "neighbours"),
    [(60, 50, 2, 30), (80, 70, 0, 25), (80, 78, 1, 40), (50, 50, 0, 30), (100, 55, 1, 10), (100, 55, 11, 20)],
)
def test_the_bound_by_exact_fractions(devices: int, smallest: int, corrupt: int, neighbours: int) -> None:
    """Both bounds for every size of the sum, and the smallest size that neither excludes."""
    threshold, honest = neighbours // 2 + 1, smallest - corrupt
    possible = []
    for size in range(1, honest + 1):
        omitted = honest - size
        ways = math.factorial(devices) // math.factorial(size) // math.factorial(omitted)
        ways //= math.factorial(devices - honest)
        miss = Fraction(math.comb(devices - 1 - omitted, neighbours), math.comb(devices - 1, neighbours))
        others, marked = smallest - 1, min(size - 1 + corrupt, smallest - 1)
        drawn = min(neighbours, others)
        closed = sum(
            Fraction(math.comb(marked, n) * math.comb(others - marked, drawn - n), math.comb(others, drawn))
            for n in range(threshold, drawn + 1)
        )
        risk = min(ways * miss**size, math.comb(devices, size) * closed**size)
        if risk > Fraction(LARGEST_RISK) / honest:
            possible.append(size)
    assert most_omitted(devices, smallest, corrupt, neighbours, threshold) == honest - possible[0]


def test_nothing_can_be_omitted_where_all_are_neighbours() -> None:
    """More neighbours, and fewer drop-outs, leave less to omit."""
    assert most_omitted(200, 160, 8, 199, 100) == 0
    by_neighbours = [most_omitted(1000, 800, 40, k, k // 2 + 1) for k in (40, 67, 100, 200)]
    assert by_neighbours == sorted(by_neighbours, reverse=True)
    assert by_neighbours[0] > by_neighbours[-1]
    by_smallest = [most_omitted(1000, smallest, 0, 67, 34) for smallest in (700, 800, 900, 1000)]
    assert by_smallest == sorted(by_smallest, reverse=True)
    assert by_smallest[-1] == 0


def test_noise_is_sized_without_the_tables_that_can_be_omitted() -> None:
    """In the terms of a run. A device refuses less noise, and so few neighbours that more can be omitted."""
    model = GaussianProcess(item_columns(10, [f"Film {n}" for n in range(10)], None))
    protocol = Masked(8.0, survivors=0.8, corrupt=0.05)
    terms = protocol.make_terms(Fleet(10, 1000, np.ones(1000, np.int64), [protocol], model, 0), {})
    cohort, rules = terms.priced.cohort, terms.rules
    assert cohort.omitted == rules.most_omitted(1000) > 0
    assert cohort.honest == 800 - 40 - cohort.omitted
    assert all(block.honest == cohort.honest for block in terms.priced.table_sent(0).blocks)
    protocol.check_terms(terms)
    few = replace(terms.priced, cohort=replace(cohort, omitted=cohort.omitted - 1))
    with pytest.raises(RemoteProtocolError, match="neighbours"):
        protocol.check_terms(MaskedTerms(few, rules))
    with pytest.raises(RemoteProtocolError, match="neighbours"):
        protocol.check_terms(MaskedTerms(terms.priced, replace(rules, neighbours=60, threshold=31)))
    with pytest.raises(ParameterError, match="omitted"):
        Cohort(10, omitted=-1)
