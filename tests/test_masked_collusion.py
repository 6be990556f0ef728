"""A server with corrupt devices of its own: what each device checks, what it is promised, and what is beyond that.

A promise holds while at most c_max devices of a cohort are corrupt. Then their shares rebuild no secret of another
device, no two lists of survivors are signed by n_min devices each, and the honest devices' noise alone is what the
budget was priced with.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chi2
from test_masked_rounds import RUN, SERVER, SERVER_KEY, TABLE, Attempt, Person

from hushrec.audit.masked.cohorts import uniformity
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.masked.device_round import DeviceRound, Idle, State
from hushrec.protocols.masked.device_table import make_table
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.levels import describe_trust
from hushrec.protocols.masked.messages import (
    SEALED_BYTES,
    Announcement,
    Partners,
    Quorum,
    SealedShares,
    Survivors,
    announce,
)
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg import device as secagg
from hushrec.protocols.masked.secagg.primitives import SELF_LABEL, Keystream, derive, load_private
from hushrec.protocols.masked.secagg.roster import Roster, bitmap, choose_rules, partners_digest, survivors_text
from hushrec.protocols.masked.secagg.shamir import join_shares
from hushrec.protocols.masked.server_round import Phase, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SystemRandomness, SystemStream

SIZE = 4_000  # numbers of a table


@cache
def terms_of(devices: int, survivors: float, corrupt: float) -> MaskedTerms:
    """A run of one round with one block."""
    cohort = Cohort(devices, survivors, corrupt)
    rules = choose_rules(devices, cohort.smallest, cohort.most_corrupt)
    cohort = replace(cohort, omitted=rules.most_omitted(devices))
    plan = make_plan([[Block("counts", (SIZE,), 8.0, 1.0)]])
    return MaskedTerms(price_plan(plan, epsilon=8.0, delta=1e-6, cohort=cohort), rules)


# All corrupt devices draw one victim -------------------------------------------------------------------------------


class Scene:
    """A victim in a cohort of 1,000, up to its masked table; everybody else is keys and secrets.

    The first c_max positions after the victim's are corrupt, and all of them draw the victim.
    """

    def __init__(self) -> None:
        self.terms, rng = terms_of(1000, 0.9, 0.1), SystemStream()
        announcement = announce(SERVER, RUN, 1, 1, self.terms.digest, TABLE)
        self.identities = [Ed25519PrivateKey.generate() for _ in range(1000)]
        self.table = np.zeros(0, dtype=np.uint32)
        victim = self.victim(Idle())
        keys = [victim.report(announcement, table_digest=TABLE, rng=rng)]
        self.secrets = [victim.state.secrets]
        for number in range(1, 1000):
            self.secrets.append(secagg.draw_secrets(rng=rng))
            name = number.to_bytes(16, "big")
            keys.append(secagg.make_keys(self.secrets[-1], announcement.digest, name, self.identities[number]))
        self.roster = Roster(announcement.digest, tuple(keys))
        self.shares: SealedShares = victim.report(self.roster, table_digest=TABLE, rng=rng)
        self.drawn, self.shared = tuple(map(int, self.shares.recipients)), victim.state
        self.corrupt = range(1, 1 + self.terms.rules.most_corrupt)

    def victim(self, state: State) -> DeviceRound:
        """The victim in this state, at position 0 of the roster."""
        return DeviceRound(self.terms, RUN, SERVER_KEY, bytes(16), self.identities[0], self._make_table, state=state)

    def _make_table(self, announcement: Announcement) -> np.ndarray:
        blocks = [Entries(np.full(SIZE, 0.1))]
        self.table, _ = make_table(self.terms.priced, 1, blocks, TableAccountant(), randomness=SystemRandomness())
        return self.table

    def send_table(self, honest_senders: int) -> tuple[np.ndarray, secagg.Pairing]:
        """Tell the victim who drew it; return its masked table, and whom it shares masks with."""
        undrawn = [n for n in range(self.corrupt.stop, 1000) if n not in self.drawn]
        senders = [*self.corrupt, *undrawn[:honest_senders]]
        message = Partners(bitmap(range(1000), 1000), np.array(senders), (bytes(SEALED_BYTES),) * len(senders))
        victim = self.victim(self.shared)
        masked = victim.report(message, table_digest=TABLE, rng=SystemStream())
        return masked.numbers, victim.state.pairing

    def shares_of(self, helpers: list[int]) -> dict[int, secagg.HeldShares]:
        """The victim's shares that these devices can open, by position."""
        sealed = dict(zip(self.drawn, self.shares.sealed, strict=True))
        return {n: secagg.open_shares(self.secrets[n], self.roster, n, {0: sealed[n]})[0] for n in helpers}

    def strip(
        self, masked: np.ndarray, pairing: secagg.Pairing, others: Iterable[int], seed: bytes | None
    ) -> np.ndarray:
        """The table without the masks that it shares with `others`, and without its own if its seed is known."""
        left, keystream = masked.copy(), Keystream(SIZE)
        for other in pairing.neighbours.intersection(others):
            private = load_private(self.secrets[other].mask_private)
            keystream.subtract(left, secagg.pair_key(private, self.roster, pairing.context, other, 0))
        if seed is not None:
            keystream.subtract(left, derive(seed, SELF_LABEL, pairing.context, 0))
        return left


@pytest.fixture(scope="module")
def scene() -> Scene:
    """One victim for all tests, up to its shares."""
    return Scene()


def test_corrupt_devices_that_all_draw_one_victim_cannot_unmask_its_table(scene: Scene) -> None:
    """c_max devices draw it, and would rebuild its secrets if shares went to whoever draws: theirs are below t.

    Beside the server, which learns b in every round, they remove b's mask and their own: what is left is uniform.
    """
    rules, true = scene.terms.rules, scene.secrets[0]
    assert len(scene.corrupt) == rules.most_corrupt >= 2 * rules.threshold
    shares = scene.shares_of([n for n in scene.drawn if n in scene.corrupt])
    assert len(shares) < rules.threshold
    for kind, secret in (("mask_share", true.mask_private), ("seed_share", true.seed)):
        assert join_shares({n + 1: getattr(one, kind) for n, one in shares.items()} or {1: bytes(66)}) != secret

    masked, pairing = scene.send_table(honest_senders=10)
    assert pairing.neighbours == {*scene.corrupt, *scene.drawn, *pairing.neighbours}
    helpers = scene.shares_of([n for n in scene.drawn if n not in scene.corrupt][: rules.threshold])
    seed = join_shares({n + 1: one.seed_share for n, one in helpers.items()})
    assert seed == true.seed  # as honest devices reveal it for a survivor
    for known in (None, seed):
        left = scene.strip(masked, pairing, scene.corrupt, known)
        assert uniformity([left - scene.table]) > 1e-6
        assert uniformity([left]) > 1e-6
    assert join_shares({n + 1: one.mask_share for n, one in helpers.items()}) == true.mask_private  # nobody reveals it
    assert np.array_equal(scene.strip(masked, pairing, range(1, 1000), seed), scene.table)  # the attack itself is right


def test_a_victim_that_too_many_draw_sends_no_table(scene: Scene) -> None:
    """The corrupt devices, and honest ones beyond what chance makes: more than 3 k neighbours are refused."""
    before = scene.table
    with pytest.raises(RemoteProtocolError, match="neighbours"):
        scene.send_table(honest_senders=60)
    assert scene.table is before


# Two lists of survivors --------------------------------------------------------------------------------------------


class TwoLists:
    """A cohort of real devices, up to their tables. The last `corrupt` of them sign whatever the server likes.

    One half of the honest devices is told that the victim, at position 0, survived, the other that it dropped out.
    """

    def __init__(self, terms: MaskedTerms, corrupt: int) -> None:
        devices, self.terms = terms.priced.cohort.devices, terms
        announcement = announce(SERVER, RUN, 1, 1, terms.digest, TABLE)
        self.people = [Person(number, terms) for number in range(devices)]
        self.roster = Roster(announcement.digest, tuple(one.report(announcement) for one in self.people))
        sealed = [dict(zip(map(int, m.recipients), m.sealed, strict=True)) for m in self.told([self.roster] * devices)]
        self.others = [[n for n in range(devices) if n != own] for own in range(devices)]  # all are neighbours
        shown = [np.array(others) for others in self.others]
        inboxes = [tuple(sealed[n][own] for n in others) for own, others in enumerate(self.others)]
        everybody = bitmap(range(devices), devices)
        self.tables = self.told([Partners(everybody, s, inbox) for s, inbox in zip(shown, inboxes, strict=True)])
        self.honest, self.corrupt = list(range(devices - corrupt)), list(range(devices - corrupt, devices))
        self.context = partners_digest(self.roster, range(devices))

    def told(self, messages: list[Any]) -> list[Any]:
        return [one.report(message) for one, message in zip(self.people, messages, strict=True)]

    def secret(self, told: list[int], survivors: list[int], kind: str) -> bytes:
        """The victim's secret from the shares that these honest devices reveal for this list, and corrupt ones have."""
        text, signatures = survivors_text(self.context, survivors, len(self.people)), {}
        for own in told:
            owners = [n for n in self.others[own] if n in survivors]
            signed = tuple(self.tables[n].signature for n in owners)
            message = Survivors(bitmap(survivors, len(self.people)), np.array(owners), signed)
            signatures[own] = self.people[own].report(message).signature
        signatures |= {own: self.people[own].identity.sign(text) for own in self.corrupt}
        signers = sorted(signatures)
        quorum = Quorum(np.array(signers), tuple(signatures[n] for n in signers))
        shares = {n + 1: getattr(self.people[n].round.state.held[0], f"{kind}_share") for n in self.corrupt}
        for own in set(told) - {0}:
            revealed = self.people[own].report(quorum)
            shares[own + 1] = dict(zip(map(int, revealed.owners), revealed.shares, strict=True))[0]
        return join_shares(dict(list(shares.items())[: self.terms.rules.threshold]))

    def read(self) -> np.ndarray:
        """The victim's table without masks, from both of its secrets."""
        half, everybody = len(self.honest) // 2, list(range(len(self.people)))
        seed = self.secret(self.honest[:half], everybody, "seed")
        private = load_private(self.secret(self.honest[half:], everybody[1:], "mask"))
        table, stream = self.tables[0].numbers.copy(), Keystream(SIZE)
        stream.subtract(table, derive(seed, SELF_LABEL, self.context, 0))
        for other in self.others[0]:
            stream.subtract(table, secagg.pair_key(private, self.roster, self.context, 0, other))
        return table


@pytest.mark.parametrize(("devices", "corrupt"), [(10, 0.0), (20, 0.05), (60, 0.05)])
def test_as_many_corrupt_devices_as_the_device_said_get_no_second_list_signed(devices: int, corrupt: float) -> None:
    """With more, up to 2 n_min − n, two lists have n_min signatures each, and the server reads the victim's table."""
    terms = terms_of(devices, 0.8, corrupt)
    most, enough = terms.most_colluding, 2 * terms.rules.smallest - devices
    assert terms.rules.most_corrupt < most < enough
    with pytest.raises(RemoteProtocolError, match="signatures"):
        TwoLists(terms, most).read()
    attack = TwoLists(terms, enough)
    assert np.array_equal(attack.read(), attack.people[0].table)


# A roster of the server's own devices ------------------------------------------------------------------------------


class Empty(Person):
    """An honest person without ratings: the table is noise alone."""

    def _table(self, round_number: int) -> np.ndarray:
        zeros = [Entries(np.zeros(SIZE))]
        self.table, _ = make_table(self.terms.priced, 1, zeros, TableAccountant(), randomness=SystemRandomness())
        return self.table


class Corrupt(Person):
    """A device of the server: its table is zeros without noise."""

    def _table(self, round_number: int) -> np.ndarray:
        self.table = np.zeros(SIZE, dtype=np.uint32)
        return self.table


class Rigged(Attempt):
    """A cohort of which the server runs the last `corrupt` devices; the others are honest."""

    def __init__(self, terms: MaskedTerms, corrupt: int) -> None:
        devices = terms.priced.cohort.devices
        self.terms = terms
        self.people = [(Corrupt if n >= devices - corrupt else Empty)(n, terms) for n in range(devices)]
        self.announcement = announce(SERVER, RUN, 1, 1, terms.digest, TABLE)
        self.server = ServerRound(terms, self.announcement, [person.name for person in self.people])

    def noise(self, lost: int) -> float:
        """The variance of what the server reads, its own tables taken out; so many honest devices drop out."""
        self.play(lost={Phase.TABLE: set(range(lost))})
        assert self.server.sum is not None
        return float(np.mean(self.server.sum.view(np.int32).astype(np.float64) ** 2))


def expected_noise(terms: MaskedTerms, honest: int) -> tuple[float, float]:
    """Bounds of the variance that so many shares of noise have; one false alarm in a million."""
    variance = honest * terms.priced.codes[0][0].share_variance
    low, high = chi2.ppf([5e-7, 1 - 5e-7], SIZE) / SIZE
    return variance * low, variance * high


def test_the_noise_of_the_honest_devices_is_enough_for_c_max_of_the_servers_own() -> None:
    """The worst that the terms allow: n_min survivors, c_max of them without noise. ε is that of the terms."""
    terms = terms_of(10, 0.7, 0.1)
    rules = terms.rules
    assert (rules.smallest, rules.most_corrupt) == (7, 1)
    low, high = expected_noise(terms, rules.smallest - rules.most_corrupt)
    assert low <= Rigged(terms, rules.most_corrupt).noise(lost=3) <= high
    assert terms.priced.epsilon_if(rules.smallest - rules.most_corrupt) <= 8.0


@pytest.mark.parametrize("corrupt", [4, 9])
def test_beyond_c_max_the_noise_shrinks_to_what_the_device_said(corrupt: int) -> None:
    """No device can tell who runs the others: it says beforehand what 4 of 10, or all of them, would make of its ε."""
    terms = terms_of(10, 1.0, 0.0)
    low, high = expected_noise(terms, 10 - corrupt)
    assert low <= Rigged(terms, corrupt).noise(lost=0) <= high
    assert (terms.most_colluding, terms.honest_among(4)) == (4, 6)
    noisy, alone = terms.priced.epsilon_if(6), terms.priced.epsilon_if(1)
    assert 8.0 < noisy < alone
    words = describe_trust(terms, 8.0)
    assert f"If 4 did, ε 8 would be {noisy:.3g}" in words
    assert f"{alone:.3g}" in words
