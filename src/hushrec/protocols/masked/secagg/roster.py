"""The data on which all devices of an attempt must agree: rules, keys, roster, partners and survivors."""

import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from hushrec.errors import ParameterError
from hushrec.protocols.masked.secagg.chance import LARGEST_RISK, drawn_marked, most_omitted, share_risk
from hushrec.protocols.masked.secagg.primitives import (
    HASH_BYTES,
    KEY_BYTES,
    KEYS_LABEL,
    MASKS_LABEL,
    PARTNERS_LABEL,
    ROSTER_LABEL,
    SIGNATURE_BYTES,
    SURVIVORS_LABEL,
    check_order,
    digest,
    is_signed,
    number,
    refuse,
)

DEVICE_BYTES = 16
KEYS_LENGTHS = (DEVICE_BYTES, KEY_BYTES, KEY_BYTES, KEY_BYTES, HASH_BYTES, SIGNATURE_BYTES)  # of `PublicKeys`
COMPLETE = 300  # in cohorts up to this size all other devices are neighbours
FEWEST_NEIGHBOURS = 20  # in larger cohorts
LARGEST_FAILURE = 1e-3  # largest probability that the smallest cohort cannot rebuild some device's secret


@dataclass(frozen=True)
class Rules:
    """The public rules of secure aggregation in a cohort, which are part of the terms of a run."""

    smallest: int  # n_min: so many devices must sign the same list of survivors, or nothing is revealed
    most_corrupt: int  # c_max: the largest number of corrupt devices that the rules protect against
    neighbours: int  # k: the number of neighbours that each device draws
    threshold: int  # t: the number of shares that rebuild a secret

    def __post_init__(self) -> None:
        if not 0 <= self.most_corrupt < self.smallest:
            raise ParameterError(f"most_corrupt must be below smallest ({self.smallest}), got {self.most_corrupt}.")
        if not self.neighbours / 2 < self.threshold <= self.neighbours:
            raise ParameterError(
                f"threshold must be above neighbours / 2 and at most neighbours, with neighbours = {self.neighbours},"
                f" got {self.threshold}."
            )

    @property
    def most_neighbours(self) -> int:
        """The largest number of neighbours that a device accepts: 3 times `neighbours`.

        It draws `neighbours` devices itself, and on average as many draw it. The limit allows for twice as many.
        """
        return 3 * self.neighbours

    def most_omitted(self, devices: int) -> int:
        """Return how many honest survivors' tables a server may leave out of a sum of up to so many devices.

        It is 0 if all devices are neighbours of each other. More are possible with probability `LARGEST_RISK` at most.
        """
        return most_omitted(devices, self.smallest, self.most_corrupt, self.neighbours, self.threshold)

    def check_risk(self, devices: int) -> None:
        """Raise `RemoteProtocolError` if `risk` is above `LARGEST_RISK` in a cohort of so many devices.

        The risk is that corrupt devices can rebuild a secret of an honest device.
        """
        if self.risk(devices) > LARGEST_RISK:
            refuse(
                f"neighbours must be so many that {self.most_corrupt} corrupt devices of {devices} cannot rebuild a"
                f" secret, got {self.neighbours}"
            )

    def risk(self, devices: int) -> float:
        """Return a bound on the probability that corrupt devices can rebuild a secret of any honest device.

        `devices` is the size of the roster, of which `most_corrupt` are corrupt.
        """
        return devices * share_risk(devices, self.most_corrupt, self.neighbours, self.threshold)

    def most_colluding(self, devices: int) -> int:
        """Return the largest number of corrupt devices in a cohort of so many devices with which a sum is still large.

        More than `most_corrupt` devices leave out more noise than the budget allows for, but masks still hide each
        table as long as the corrupt devices are too few

        - to sign two lists of survivors, each with other honest devices, and so to learn both secrets of one device:
          2 n_min − n are enough;
        - to hold t shares of a secret;
        - to let the server leave more tables out of a sum than `choose_rules` allows.
        """
        corrupt = self.most_corrupt
        while corrupt + 1 < 2 * self.smallest - devices:
            more = replace(self, most_corrupt=corrupt + 1)
            risk = max(more.risk(size) for size in (self.smallest, devices))
            if risk > LARGEST_RISK or more.most_omitted(devices) > _acceptable_omitted(devices, self.smallest):
                break
            corrupt += 1
        return corrupt


@lru_cache(maxsize=64)
def choose_rules(devices: int, smallest: int, most_corrupt: int) -> Rules:
    """Return the rules with the smallest number of neighbours k ≥ `FEWEST_NEIGHBOURS` that meet three conditions.

    The threshold is ⌊k/2⌋ + 1. Secrecy: the probability that corrupt devices can rebuild a secret is at most
    `LARGEST_RISK`. Liveness: if only `smallest` devices survive and the corrupt ones among them do not help, some
    secret has too few shares with probability at most `LARGEST_FAILURE`. Completeness: a server can leave out of a sum
    at most a tenth as many tables (`most_omitted`) as devices may drop out. In a cohort of up to `COMPLETE` devices,
    every device draws all others instead: k = devices − 1. Raise `ParameterError` if no number meets all conditions.
    """
    if devices < 3:
        raise ParameterError(f"devices must be at least 3 for secure aggregation, got {devices}.")
    helpers, least = smallest - most_corrupt, (devices + most_corrupt) // 2 + 1
    if smallest < least:
        raise ParameterError(
            f"smallest cohort must be at least {least} of {devices} devices with {most_corrupt} corrupt, or two lists"
            f' of survivors could be signed, got {smallest}. Raise the option "survivors" (0.8 is usual), or lower'
            ' the option "corrupt".'
        )
    for neighbours in range(devices - 1 if devices <= COMPLETE else FEWEST_NEIGHBOURS, devices):
        rules = Rules(smallest, most_corrupt, neighbours, neighbours // 2 + 1)
        stuck = drawn_marked(range(rules.threshold), devices - 1, helpers - 1, neighbours)
        if rules.risk(devices) > LARGEST_RISK or devices * stuck > LARGEST_FAILURE:
            continue
        if rules.most_omitted(devices) <= _acceptable_omitted(devices, smallest):
            return rules
    raise ParameterError(
        f"no number of neighbours is safe for {devices} devices of which only {smallest} may survive and {most_corrupt}"
        ' may be corrupt. Raise the option "survivors", or lower the option "corrupt".'
    )


def _acceptable_omitted(devices: int, smallest: int) -> int:
    return (devices - smallest) // 10


@dataclass(frozen=True)
class PublicKeys:
    """The message KEYS: the public keys of one device for one attempt, signed with the device's Ed25519 key."""

    device: bytes  # name of the device, 16 bytes
    identity: bytes  # public Ed25519 key
    mask_key: bytes  # public X25519 key for masks, S
    channel_key: bytes  # public X25519 key with which shares are encrypted, C
    seed_hash: bytes  # hash of the seed of the device's own mask, b
    signature: bytes

    def __post_init__(self) -> None:
        lengths = tuple(map(len, self.parts()))
        if lengths != KEYS_LENGTHS:
            refuse(
                "device, identity, mask_key, channel_key, seed_hash and signature must have 16, 32, 32, 32, 32 and 64"
                f" bytes, got {', '.join(map(str, lengths))}"
            )

    def parts(self) -> tuple[bytes, ...]:
        """Return all fields, in the order in which the hash of the roster uses them."""
        return self.device, self.identity, self.mask_key, self.channel_key, self.seed_hash, self.signature

    def check_keys(self) -> None:
        """Raise `RemoteProtocolError` if two of `identity`, `mask_key` and `channel_key` are equal.

        Raise it also if `agree` refuses the mask key or the channel key.
        """
        if len({self.identity, self.mask_key, self.channel_key}) != 3:
            refuse("identity, mask_key and channel_key must be distinct")
        check_order(self.mask_key)
        check_order(self.channel_key)

    def is_genuine(self, announcement: bytes) -> bool:
        """Return whether the signature of these keys is valid for the announcement with this hash."""
        return is_signed(self.identity, self.signature, keys_text(announcement, *self.parts()[:-1]))


def device_name(name: int | str) -> bytes:
    """Return a device's name as 16 bytes; `name` is 32 hexadecimal digits or, in simulations, a user number."""
    return name.to_bytes(DEVICE_BYTES, "big") if isinstance(name, int) else bytes.fromhex(name)


def keys_text(announcement: bytes, *fields: bytes) -> bytes:
    """Return the bytes that a device signs for KEYS: label ‖ hash of the announcement ‖ fields of `PublicKeys`."""
    return b"".join((KEYS_LABEL, announcement, *fields))


@dataclass(frozen=True)
class Roster:
    """The message ROSTER: the keys of all devices that replied to an announcement, in the order of their names."""

    announcement: bytes  # a: hash of the announcement
    entries: tuple[PublicKeys, ...]  # in ascending order of `device`

    def __post_init__(self) -> None:
        names = [entry.device for entry in self.entries]
        if any(map(operator.ge, names, names[1:])):
            refuse("devices of a roster must be distinct and in ascending order")
        keys = {key for entry in self.entries for key in (entry.identity, entry.mask_key, entry.channel_key)}
        if len(keys) != 3 * len(names):
            refuse("keys of a roster must be distinct")

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def identities(self) -> tuple[bytes, ...]:
        """The public Ed25519 keys of all devices, in roster order; they verify signatures of the list of survivors."""
        return tuple(entry.identity for entry in self.entries)

    @cached_property
    def digest(self) -> bytes:
        """The hash of the roster: SHA-256(label ‖ hash of the announcement ‖ number of devices ‖ all entries).

        An entry is all fields of a device's `PublicKeys`: name, public keys, hash of the seed, and signature.
        """
        parts = [part for entry in self.entries for part in entry.parts()]
        return digest(ROSTER_LABEL, self.announcement, number(len(self)), *parts)


def without_copies(keys: Collection[PublicKeys]) -> list[PublicKeys]:
    """Return the entries without those that use a key of another entry, so that all keys in a roster are distinct.

    If a device uses the identity key of another device as its mask or channel key, only the device that does so is left
    out: the signature of the other device proves that it owns the identity key. Nothing proves who owns a mask or
    channel key, so all devices that use the same one are left out. An honest device always stays: other devices cannot
    copy its mask and channel keys, which are new in every attempt, and which only the server sees before the roster.
    """
    identities = Counter(entry.identity for entry in keys)
    exchanged = Counter(key for entry in keys for key in (entry.mask_key, entry.channel_key))
    return [
        entry
        for entry in keys
        if identities[entry.identity] == exchanged[entry.mask_key] == exchanged[entry.channel_key] == 1
        and not {entry.mask_key, entry.channel_key} & identities.keys()
    ]


def make_roster(announcement: bytes, keys: Sequence[PublicKeys]) -> Roster:
    """Return the roster of these keys; raise `RemoteProtocolError` if a signature is not valid for the announcement."""
    if not all(entry.is_genuine(announcement) for entry in keys):
        refuse("keys must be signed by their device for this announcement", status_hint=401)
    return Roster(announcement, tuple(sorted(keys, key=lambda entry: entry.device)))


def partners_digest(roster: Roster, partners: Collection[int]) -> bytes:
    """Return SHA-256(label ‖ hash of the roster ‖ bitmap of partners).

    Every mask depends on this hash, so masks cancel only if the server showed all devices the same list of partners.
    """
    return digest(PARTNERS_LABEL, roster.digest, bitmap(partners, len(roster)))


def masks_text(context: bytes) -> bytes:
    """Return the bytes that a device signs when it sends its table: label ‖ context.

    `context` is the hash from `partners_digest`, on which the masks of the table depend.
    """
    return MASKS_LABEL + context


def survivors_text(context: bytes, survivors: Collection[int], devices: int) -> bytes:
    """Return the bytes that a device signs to consent to a list of survivors: label ‖ context ‖ bitmap of survivors.

    `context` is the hash from `partners_digest`.
    """
    return SURVIVORS_LABEL + context + bitmap(survivors, devices)


def bitmap(positions: Collection[int], devices: int) -> bytes:
    """Return a bitmap with a one at each position; position 0 is the highest bit of the first byte."""
    bits = bytearray((devices + 7) // 8)
    for position in positions:
        if not 0 <= position < devices:
            refuse(f"positions must be from 0 to {devices - 1}, got {position}")
        bits[position // 8] |= 0x80 >> position % 8
    return bytes(bits)


def edges(drawn: Mapping[int, Collection[int]]) -> dict[int, set[int]]:
    """Return, for each device that sent shares, the set of devices with which it shares a mask.

    `drawn` maps a device that sent shares to the neighbours that it drew. Two devices share a mask if both sent shares
    and one of them drew the other.
    """
    found: dict[int, set[int]] = {sender: set() for sender in drawn}
    for sender, recipients in drawn.items():
        for recipient in recipients:
            if recipient in found:
                found[sender].add(recipient)
                found[recipient].add(sender)
    return found
