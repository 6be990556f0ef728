"""What all devices of an attempt must agree on: rules, keys, the roster, who shared, who survived."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import gammaln

from hushrec.errors import ParameterError
from hushrec.protocols.masked.secagg.primitives import (
    HASH_BYTES,
    KEY_BYTES,
    KEYS_LABEL,
    PARTNERS_LABEL,
    ROSTER_LABEL,
    SIGNATURE_BYTES,
    SURVIVORS_LABEL,
    digest,
    is_signed,
    number,
    refuse,
)

DEVICE_BYTES = 16
COMPLETE = 300  # cohorts up to this size draw everybody as neighbours
LARGEST_RISK = 1e-9  # that corrupt devices hold enough shares of anybody in the cohort
LARGEST_FAILURE = 1e-3  # that somebody's secret cannot be rebuilt, with the smallest cohort left


@dataclass(frozen=True)
class Rules:
    """The public numbers of a cohort, part of the signed announcement."""

    smallest: int  # n_min: fewer survivors, and nothing is revealed
    most_corrupt: int  # c_max
    neighbours: int  # k: each device draws so many itself
    threshold: int  # t: so many of the k give a secret

    def __post_init__(self) -> None:
        if not 0 <= self.most_corrupt < self.smallest:
            raise ParameterError(f"most_corrupt must be below smallest ({self.smallest}), got {self.most_corrupt}.")
        if not self.neighbours / 2 < self.threshold <= self.neighbours:
            raise ParameterError(
                f"threshold must be above half of the {self.neighbours} neighbours and at most all of them, "
                f"got {self.threshold}."
            )

    @property
    def most_partners(self) -> int:
        """How many pairwise masks a device accepts: those that it drew, and twice as many that drew it."""
        return 3 * self.neighbours

    def quorum(self, devices: int) -> int:
        """Return how many must sign one list of survivors: more than (devices + c_max)/2, so no two lists pass."""
        return (devices + self.most_corrupt) // 2 + 1

    def risk(self, devices: int) -> float:
        """Return a bound of the probability that c_max corrupt devices hold t shares of any honest one."""
        return devices * share_risk(devices, self.most_corrupt, self.neighbours, self.threshold)


def share_risk(devices: int, corrupt: int, neighbours: int, threshold: int) -> float:
    """Return P(at least t of k neighbours, drawn by one honest device among the others, are corrupt)."""
    return _drawn_marked(range(threshold, neighbours + 1), devices - 1, corrupt, min(neighbours, devices - 1))


def _drawn_marked(counts: range, others: int, marked: int, drawn: int) -> float:
    """Return the hypergeometric probability that `drawn` of `others` contain a number of marked ones in `counts`."""
    x = np.arange(max(counts.start, drawn + marked - others, 0), min(counts.stop, marked + 1, drawn + 1))
    logs = _log_choose(marked, x) + _log_choose(others - marked, drawn - x) - _log_choose(others, drawn)
    return float(np.exp(logs).sum())


def _log_choose(total: int, chosen: Any) -> Any:
    return gammaln(total + 1) - gammaln(np.add(chosen, 1)) - gammaln(np.subtract(total, chosen) + 1)


def choose_rules(devices: int, smallest: int, most_corrupt: int) -> Rules:
    """Return the fewest neighbours with t = ⌊k/2⌋ + 1 that keep secrets secret, and let the server rebuild them.

    Secrecy: `LARGEST_RISK` over all devices. Liveness: with the smallest cohort left and its corrupt members silent,
    everybody has t helpers, except with probability `LARGEST_FAILURE`. Small cohorts draw everybody.
    """
    if devices < 3:
        raise ParameterError(f"devices must be at least 3 for secure aggregation, got {devices}.")
    helpers = smallest - most_corrupt
    if smallest < (devices + most_corrupt) // 2 + 1:
        raise ParameterError(
            f"smallest must be above (devices + most_corrupt)/2, so that survivors have a quorum, got {smallest} of "
            f"{devices} with {most_corrupt} corrupt. Raise survivors or lower corrupt."
        )
    for neighbours in range(devices - 1 if devices <= COMPLETE else 20, devices):
        rules = Rules(smallest, most_corrupt, neighbours, neighbours // 2 + 1)
        stuck = _drawn_marked(range(rules.threshold), devices - 1, helpers - 1, neighbours)
        if rules.risk(devices) <= LARGEST_RISK and devices * stuck <= LARGEST_FAILURE:
            return rules
    raise ParameterError(
        f"no number of neighbours serves {devices} devices of which {smallest} may be left and {most_corrupt} corrupt. "
        "Raise survivors or lower corrupt."
    )


@dataclass(frozen=True)
class PublicKeys:
    """KEYS: what one device publishes for one attempt, signed with its own Ed25519 key."""

    device: bytes  # 16 bytes
    identity: bytes  # Ed25519
    mask_key: bytes  # S, X25519
    channel_key: bytes  # C, X25519
    seed_hash: bytes  # commits to b
    signature: bytes

    def __post_init__(self) -> None:
        lengths = [len(part) for part in self.parts()]
        if lengths != [DEVICE_BYTES, KEY_BYTES, KEY_BYTES, KEY_BYTES, HASH_BYTES, SIGNATURE_BYTES]:
            refuse(f"keys must have 16, 32, 32, 32, 32 and 64 bytes, got {lengths}")

    def parts(self) -> tuple[bytes, ...]:
        """Return the fields in the order in which they are hashed."""
        return self.device, self.identity, self.mask_key, self.channel_key, self.seed_hash, self.signature

    def is_genuine(self, announcement: bytes) -> bool:
        """Tell whether the device signed these keys for this announcement."""
        return is_signed(self.identity, self.signature, keys_text(announcement, *self.parts()[:-1]))


def device_name(name: int | str) -> bytes:
    """Return the name of a device in 16 bytes: 32 hexadecimal digits on the network, a number in simulations."""
    return name.to_bytes(DEVICE_BYTES, "big") if isinstance(name, int) else bytes.fromhex(name)


def keys_text(announcement: bytes, *fields: bytes) -> bytes:
    """Return what a device signs: label ‖ a ‖ device ‖ identity ‖ S ‖ C ‖ hash of b."""
    return b"".join((KEYS_LABEL, announcement, *fields))


@dataclass(frozen=True)
class Roster:
    """ROSTER: the keys of everybody who answered an announcement, in the order of their names."""

    announcement: bytes  # a
    entries: tuple[PublicKeys, ...]

    def __post_init__(self) -> None:
        names = [entry.device for entry in self.entries]
        if any(second <= first for first, second in itertools.pairwise(names)):
            refuse("a roster must name each device once, in ascending order")
        keys = {key for entry in self.entries for key in (entry.identity, entry.mask_key, entry.channel_key)}
        if len(keys) != 3 * len(names):
            refuse("a roster must not name a key twice")

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def digest(self) -> bytes:
        """R = SHA-256(label ‖ a ‖ number of devices ‖ all keys)."""
        parts = [part for entry in self.entries for part in entry.parts()]
        return digest(ROSTER_LABEL, self.announcement, number(len(self)), *parts)


def make_roster(announcement: bytes, keys: Sequence[PublicKeys]) -> Roster:
    """Return the roster of these devices; keys that were not signed for this announcement are refused."""
    if not all(entry.is_genuine(announcement) for entry in keys):
        refuse("keys must be signed by their device for this announcement", status_hint=401)
    return Roster(announcement, tuple(sorted(keys, key=lambda entry: entry.device)))


def partners_digest(roster: Roster, partners: Collection[int]) -> bytes:
    """Q = SHA-256(label ‖ R ‖ bitmap of who sent shares): in every mask, so that all devices see one list."""
    return digest(PARTNERS_LABEL, roster.digest, bitmap(partners, len(roster)))


def survivors_text(context: bytes, survivors: Collection[int], devices: int) -> bytes:
    """Return what a device signs about the survivors: label ‖ Q ‖ bitmap."""
    return SURVIVORS_LABEL + context + bitmap(survivors, devices)


def bitmap(positions: Collection[int], devices: int) -> bytes:
    """Return one bit per device, position 0 in the highest bit of the first byte."""
    bits = bytearray((devices + 7) // 8)
    for position in positions:
        if not 0 <= position < devices:
            refuse(f"a position must be from 0 to {devices - 1}, got {position}")
        bits[position // 8] |= 0x80 >> position % 8
    return bytes(bits)


def edges(drawn: Mapping[int, Collection[int]]) -> dict[int, set[int]]:
    """Return who shares a mask with whom: both sent shares, and one of them drew the other."""
    found: dict[int, set[int]] = {sender: set() for sender in drawn}
    for sender, recipients in drawn.items():
        for recipient in recipients:
            if recipient in found:
                found[sender].add(recipient)
                found[recipient].add(sender)
    return found
