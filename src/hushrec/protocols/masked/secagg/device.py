"""The device side of secure aggregation: one function for each step.

A function raises `RemoteProtocolError` for a message of the server that a device must not accept.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hushrec.protocols.masked.secagg.primitives import (
    KEY_BYTES,
    PAIR_LABEL,
    SEED_LABEL,
    SELF_LABEL,
    SHARE_LABEL,
    Keystream,
    Table,
    agree,
    commitment,
    derive,
    digest,
    is_signed,
    load_private,
    public_half,
    refuse,
    seal,
    unseal,
)
from hushrec.protocols.masked.secagg.roster import (
    PublicKeys,
    Roster,
    Rules,
    keys_text,
    masks_text,
    partners_digest,
    survivors_text,
)
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES, split_secret
from hushrec.randomness import RandomStream


@dataclass(frozen=True, repr=False)
class Secrets:
    """The secrets of a device for one attempt; the caller deletes them afterwards."""

    mask_private: bytes  # private X25519 key for masks, s
    channel_private: bytes  # private X25519 key with which shares are encrypted, c
    seed: bytes  # seed of the device's own mask, b


class SealedShare(NamedTuple):
    """A device's shares of its mask key and seed for one neighbour: encrypted, with a hash of each for the server.

    With the hashes (`commitments`), the server later recognizes false shares.
    """

    sealed: bytes  # both shares, encrypted to the neighbour
    commitments: bytes  # hash of the share of the mask key, then of the share of the seed, 32 bytes each


@dataclass(frozen=True, repr=False)
class HeldShares:
    """The shares of another device's mask key and seed that this device holds; it reveals at most one of the two."""

    mask_share: bytes
    seed_share: bytes


@dataclass(frozen=True)
class Pairing:
    """The devices that take part in masking (`partners`), and those of them with which this device shares a mask.

    `context` is the hash from `partners_digest`, on which every mask depends.
    """

    context: bytes  # Q
    partners: frozenset[int]  # all devices that sent shares
    neighbours: frozenset[int]  # the partners that drew this device, or that it drew


def draw_secrets(*, rng: RandomStream) -> Secrets:
    """Return new random secrets for one attempt."""
    return Secrets(rng.bytes(KEY_BYTES), rng.bytes(KEY_BYTES), rng.bytes(KEY_BYTES))


def make_keys(secrets: Secrets, announcement: bytes, device: bytes, identity: Ed25519PrivateKey) -> PublicKeys:
    """Return the message KEYS: the public keys and the hash of the seed, signed with `identity`.

    `announcement` is the hash of the announcement, which the signature covers as well.
    """
    fields = (
        device,
        identity.public_key().public_bytes_raw(),
        public_half(secrets.mask_private),
        public_half(secrets.channel_private),
        digest(SEED_LABEL, secrets.seed),
    )
    return PublicKeys(*fields, signature=identity.sign(keys_text(announcement, *fields)))


def accept_roster(roster: Roster, announcement: bytes, keys: PublicKeys, rules: Rules) -> int:
    """Return this device's position in the roster; raise `RemoteProtocolError` if the roster is not acceptable.

    The roster must belong to the announcement that the device replied to, and contain the keys that it sent. It must be
    large enough for the noise, and so large that corrupt devices hardly ever get enough shares of a secret.
    """
    if roster.announcement != announcement:
        refuse("the roster must belong to the announcement that this device replied to")
    own = bisect_left(roster.entries, keys.device, key=lambda entry: entry.device)
    if roster.entries[own : own + 1] != (keys,):
        refuse("the roster must contain the keys that this device sent")
    if len(roster) < rules.smallest:
        refuse(f"the roster must have at least {rules.smallest} devices, got {len(roster)}")
    rules.check_risk(len(roster))
    return own


def draw_neighbours(rules: Rules, devices: int, own: int, *, rng: RandomStream) -> tuple[int, ...]:
    """Draw `rules.neighbours` other devices at random; return their positions in the roster, in ascending order.

    If there are not that many other devices, return all of them. `own` is this device's position in the roster.
    """
    others = np.delete(np.arange(devices), own)
    order = np.argsort(rng.random(len(others)), kind="stable")
    return tuple(sorted(int(other) for other in others[order[: rules.neighbours]]))


def seal_shares(
    secrets: Secrets, roster: Roster, own: int, drawn: Collection[int], rules: Rules, *, rng: RandomStream
) -> dict[int, SealedShare]:
    """Return the message SHARES: for each neighbour that this device drew, encrypted shares of its mask key and seed.

    A share is the value of a random polynomial at the neighbour's position plus one (see `shamir`). The encryption key
    for device i to neighbour j is HKDF(X25519(c_i, C_j), "share" ‖ R ‖ i ‖ j), with i's private and j's public channel
    key and the roster's hash R. `own` is i, the position of this device in the roster. The message also has a hash of
    each share, its commitment, with which the server can later check that a neighbour reveals the share that it was
    sent. A hash does not reveal its share: a random number of 521 bits cannot be guessed.
    """
    _require_genuine(roster, drawn)
    points = [position + 1 for position in drawn]
    if len(points) < rules.threshold:
        refuse(f"neighbours that a device has drawn must be at least {rules.threshold}, got {len(points)}")
    of_mask = split_secret(secrets.mask_private, points, rules.threshold, rng=rng)
    of_seed = split_secret(secrets.seed, points, rules.threshold, rng=rng)
    channel = load_private(secrets.channel_private)
    found = {}
    for position in drawn:
        both = of_mask[position + 1], of_seed[position + 1]
        sealed = seal(_share_key(channel, roster, own, position, own), b"".join(both))
        found[position] = SealedShare(sealed, b"".join(map(commitment, both)))
    return found


def accept_partners(
    roster: Roster, own: int, drawn: Collection[int], partners: Collection[int], senders: Collection[int], rules: Rules
) -> Pairing:
    """Return the devices to share masks with; raise `RemoteProtocolError` if the list of partners is not acceptable.

    All devices are given by their positions in the roster. `own` is this device, `drawn` are the neighbours that it
    drew, `partners` the devices that sent shares, and `senders` the partners that drew this device. At least
    `rules.threshold` of `drawn` must be partners, or nobody could rebuild this device's secrets. A device has at most
    `rules.most_neighbours` neighbours, which limits its work.
    """
    everybody = frozenset(partners)
    if own not in everybody or not everybody.issuperset(senders) or own in senders:
        refuse("partners must contain this device and all senders of its shares")
    if len(everybody) < rules.smallest:
        refuse(f"partners must be at least {rules.smallest} devices, got {len(everybody)}")
    helpers = len(everybody.intersection(drawn))
    if helpers < rules.threshold:
        refuse(f"partners must include at least {rules.threshold} neighbours that this device drew, got {helpers}")
    neighbours = everybody.intersection((*drawn, *senders))
    if len(neighbours) > rules.most_neighbours:
        refuse(f"neighbours of a device must be at most {rules.most_neighbours}, got {len(neighbours)}")
    _require_genuine(roster, set(senders).difference(drawn))
    return Pairing(partners_digest(roster, everybody), everybody, neighbours)


def open_shares(secrets: Secrets, roster: Roster, own: int, sealed: Mapping[int, bytes]) -> dict[int, HeldShares]:
    """Return the decrypted shares that other devices sent to this device, by position of the sender.

    Shares that cannot be decrypted are left out. `own` is this device's position in the roster.
    """
    held, channel = {}, load_private(secrets.channel_private)
    for sender, ciphertext in sealed.items():
        text = unseal(_share_key(channel, roster, own, sender, sender), ciphertext)
        if text is not None and len(text) == 2 * SHARE_BYTES:
            held[sender] = HeldShares(text[:SHARE_BYTES], text[SHARE_BYTES:])
    return held


def mask_table(secrets: Secrets, roster: Roster, own: int, pairing: Pairing, table: Table) -> Table:
    """Return the message TABLE: the noisy `table` of device i, at position `own`, plus all its masks, modulo 2³².

    The masks are PRG(HKDF(b, "self" ‖ Q ‖ i)) and, for each neighbour j, ± PRG(HKDF(X25519(s_i, S_j), "pair" ‖ Q ‖
    min(i, j) ‖ max(i, j))), added if i < j and subtracted if i > j. b is the seed of i, s_i its private mask key, S_j
    the public mask key of j, and Q = `pairing.context`.
    """
    masked = np.array(table, dtype=np.uint32)
    keystream = Keystream(len(masked))
    keystream.add(masked, derive(secrets.seed, SELF_LABEL, pairing.context, own))
    mask_key = load_private(secrets.mask_private)
    for other in sorted(pairing.neighbours):
        key = pair_key(mask_key, roster, pairing.context, own, other)
        (keystream.add if own < other else keystream.subtract)(masked, key)
    return masked


def sign_masks(identity: Ed25519PrivateKey, pairing: Pairing) -> bytes:
    """Return the signature that goes with TABLE: this device has masked its table for `pairing.context`.

    The device signs only one context in an attempt. Other devices reveal shares of its seed only if that context is
    also theirs (`sign_survivors`).
    """
    return identity.sign(masks_text(pairing.context))


def pair_key(private: X25519PrivateKey, roster: Roster, context: bytes, own: int, other: int) -> bytes:
    """Return the key of the mask that positions `own` and `other` share; `private` is the private mask key of `own`.

    `context` is the hash from `partners_digest`.
    """
    secret = agree(private, roster.entries[other].mask_key)
    return derive(secret, PAIR_LABEL, context, min(own, other), max(own, other))


def sign_survivors(
    identity: Ed25519PrivateKey,
    identities: Sequence[bytes],
    own: int,
    pairing: Pairing,
    survivors: Collection[int],
    held: Collection[int],
    signatures: Mapping[int, bytes],
    rules: Rules,
) -> bytes:
    """Return the message CONSENT: this device's signature of the list of survivors.

    Raise `RemoteProtocolError` unless the list contains this device, only partners, and at least `rules.smallest`
    devices. The caller must sign only one list in an attempt. `own` is this device's position in the roster.
    `identities` are the public Ed25519 keys of all devices, in the order of the roster.

    `held` are the positions of the devices whose shares this device holds, and `signatures` those from `sign_masks`, by
    position. Raise `RemoteProtocolError` also unless every survivor in `held` has signed this device's own context.
    Otherwise a server could show one device another list of partners, take some of its neighbours for dropped out, get
    shares of its seed from the others, and so remove all masks from its table.
    """
    if own not in survivors or not pairing.partners.issuperset(survivors):
        refuse("survivors must contain this device, and only partners")
    if len(set(survivors)) < rules.smallest:
        refuse(f"survivors must be at least {rules.smallest} devices, got {len(set(survivors))}")
    text = masks_text(pairing.context)
    if not all(is_signed(identities[n], signatures.get(n, b""), text) for n in frozenset(survivors).intersection(held)):
        refuse("survivors that gave shares to this device must have signed the list of partners that this device has")
    return identity.sign(survivors_text(pairing.context, survivors, len(identities)))


def reveal_shares(
    held: Mapping[int, HeldShares],
    identities: Sequence[bytes],
    pairing: Pairing,
    survivors: Collection[int],
    signatures: Mapping[int, bytes],
    rules: Rules,
) -> dict[int, bytes]:
    """Return the message UNMASK: one share for each partner that sent shares to this device, by the partner's position.

    For a survivor it is the share of the seed, and for any other partner the share of the mask key. `held` has the
    shares that this device holds, by position of the sender. `survivors` is the list that this device signed, and
    `signatures` has the signatures of that list by position of the signer. `identities` are the public Ed25519 keys of
    all devices, in the order of the roster. Raise `RemoteProtocolError` unless at least `rules.smallest` survivors have
    signed the list: two lists with so many signatures each need 2 n_min − n corrupt devices, which sign both.
    """
    text = survivors_text(pairing.context, survivors, len(identities))
    on_list = frozenset(survivors)
    signed = 0
    for position in on_list.intersection(signatures):
        signed += is_signed(identities[position], signatures[position], text)
        if signed == rules.smallest:
            break
    else:
        refuse(f"at least {rules.smallest} signatures of the survivors must be valid, got {signed}")
    return {
        sender: shares.seed_share if sender in on_list else shares.mask_share
        for sender, shares in held.items()
        if sender in pairing.partners
    }


def _share_key(channel: X25519PrivateKey, roster: Roster, own: int, other: int, sender: int) -> bytes:
    """Return the key that encrypts the shares that one of two devices sends to the other.

    The devices are at positions `own` and `other` of the roster, and `sender` is the position of the one that sends.
    `channel` is the private channel key of the device at position `own`.
    """
    secret = agree(channel, roster.entries[other].channel_key)
    return derive(secret, SHARE_LABEL, roster.digest, sender, other if sender == own else own)


def _require_genuine(roster: Roster, positions: Collection[int]) -> None:
    """Raise `RemoteProtocolError` unless the keys of the devices at these positions have valid signatures."""
    if not all(roster.entries[position].is_genuine(roster.announcement) for position in positions):
        refuse("keys in the roster must be signed by their devices for this announcement")
