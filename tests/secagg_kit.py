"""A cohort that runs one attempt of secure aggregation in memory, with drop-outs after any step."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.protocols.masked.secagg.device import (
    HeldShares,
    Pairing,
    SealedShare,
    Secrets,
    accept_partners,
    accept_roster,
    draw_neighbours,
    draw_secrets,
    make_keys,
    mask_table,
    open_shares,
    reveal_shares,
    seal_shares,
    sign_masks,
    sign_survivors,
)
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, Rules, make_roster
from hushrec.protocols.masked.secagg.server import recover_sum
from hushrec.randomness import Purpose, RandomStream, SeededRandomness

ANNOUNCEMENT = bytes(range(32))
STEPS = ("keys", "shares", "table", "consent", "unmask")


@dataclass
class Party:
    """One device: its identity, and what it knows after each step."""

    name: bytes
    identity: Ed25519PrivateKey
    rng: RandomStream
    table: np.ndarray
    secrets: Secrets
    keys: PublicKeys
    own: int = -1
    drawn: tuple[int, ...] = ()
    sealed: dict[int, SealedShare] = field(default_factory=dict)
    held: dict[int, HeldShares] = field(default_factory=dict)
    pairing: Pairing | None = None


def make_party(number: int, size: int, announcement: bytes = ANNOUNCEMENT) -> Party:
    """A device with a table of `size` random integers, everything from the number."""
    rng = SeededRandomness(7, number).stream(Purpose.NOISE_SHARES)
    identity = Ed25519PrivateKey.from_private_bytes(rng.bytes(32))
    secrets = draw_secrets(rng=rng)
    name = (number * 2654435761 % 2**32).to_bytes(16, "big")
    table = np.frombuffer(rng.bytes(4 * size), dtype=np.uint32)
    return Party(name, identity, rng, table, secrets, make_keys(secrets, announcement, name, identity))


class Cohort:
    """All devices and the server; `drops` says who leaves before which step (`STEPS`), by number."""

    def __init__(self, devices: int, rules: Rules, drops: dict[str, set[int]] | None = None, size: int = 50) -> None:
        self.rules = rules
        self.parties = [make_party(number, size) for number in range(devices)]
        self.drops = drops or {}
        self.gone: set[int] = set()
        self.roster: Roster | None = None
        self.tables: dict[int, np.ndarray] = {}
        self.masked_for: dict[int, bytes] = {}  # the signatures that go with the tables
        self.signatures: dict[int, bytes] = {}
        self.revealed: dict[int, dict[int, bytes]] = {}

    def alive(self, step: str) -> list[Party]:
        """Who takes this step: not yet gone, and in the roster from there on."""
        self.gone |= self.drops.get(step, set())
        return [party for number, party in enumerate(self.parties) if number not in self.gone]

    def enrol(self) -> None:
        """KEYS and ROSTER."""
        alive = self.alive("keys")
        self.roster = make_roster(ANNOUNCEMENT, [party.keys for party in alive])
        for party in alive:
            party.own = accept_roster(self.roster, ANNOUNCEMENT, party.keys, self.rules)

    def share(self) -> None:
        """SHARES and PARTNERS; the server delivers what was sealed."""
        alive = self.alive("shares")
        for party in alive:
            party.drawn = draw_neighbours(self.rules, len(self.roster), party.own, rng=party.rng)
            party.sealed = seal_shares(party.secrets, self.roster, party.own, party.drawn, self.rules, rng=party.rng)
        self.drawn = {
            party.own: {recipient: made.commitments for recipient, made in party.sealed.items()} for party in alive
        }
        for party in alive:
            inbox = {other.own: other.sealed[party.own].sealed for other in alive if party.own in other.sealed}
            party.pairing = accept_partners(self.roster, party.own, party.drawn, self.drawn, inbox, self.rules)
            party.held = open_shares(party.secrets, self.roster, party.own, inbox)

    def send_tables(self) -> None:
        """TABLE."""
        for party in self.alive("table"):
            self.tables[party.own] = mask_table(party.secrets, self.roster, party.own, party.pairing, party.table)
            self.masked_for[party.own] = sign_masks(party.identity, party.pairing)

    def consent(self) -> None:
        """SURVIVORS and CONSENT."""
        for party in self.alive("consent"):
            self.signatures[party.own] = self.sign(party, self.survivors)

    def sign(self, party: Party, survivors: Collection[int], pairing: Pairing | None = None) -> bytes:
        """CONSENT of one device to a list of survivors."""
        pairing = pairing or party.pairing
        given = party.identity, self.roster.identities, party.own, pairing, survivors, party.held, self.masked_for
        return sign_survivors(*given, self.rules)

    def unmask(self) -> None:
        """UNMASK."""
        for party in self.alive("unmask"):
            self.revealed[party.own] = reveal_shares(
                party.held, self.roster.identities, party.pairing, self.survivors, self.signatures, self.rules
            )

    @property
    def survivors(self) -> list[int]:
        """Whose tables arrived."""
        return sorted(self.tables)

    def total(self) -> np.ndarray:
        """The sum of the masked tables."""
        return np.sum(list(self.tables.values()), axis=0, dtype=np.uint32)

    def recover(self) -> np.ndarray:
        """What the server computes in the end."""
        return recover_sum(self.roster, self.rules, self.drawn, self.survivors, self.total(), self.revealed)

    def play(self) -> np.ndarray:
        """All steps, and the sum."""
        for step in (self.enrol, self.share, self.send_tables, self.consent, self.unmask):
            step()
        return self.recover()

    def plain_sum(self) -> np.ndarray:
        """The sum of the survivors' tables, which nobody should be able to tell from what `recover` returns."""
        own_tables = [party.table for party in self.parties if party.own in self.tables]
        return np.sum(own_tables, axis=0, dtype=np.uint32)
