"""The device's side of secure aggregation: one function per step, each refusing what the device did not accept."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
    LARGEST_RISK,
    PublicKeys,
    Roster,
    Rules,
    keys_text,
    partners_digest,
    survivors_text,
)
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES, split_secret
from hushrec.randomness import RandomStream


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a device keeps for one attempt, and deletes after it."""

    mask_private: bytes  # s
    channel_private: bytes  # c
    seed: bytes  # b


@dataclass(frozen=True, repr=False)
class HeldShares:
    """One neighbour's shares of its s and b, of which at most one is ever revealed."""

    mask_share: bytes
    seed_share: bytes


@dataclass(frozen=True)
class Pairing:
    """Whom this device shares masks with, and the hash that binds them all."""

    context: bytes  # Q
    partners: frozenset[int]  # everybody who sent shares
    neighbours: frozenset[int]  # those of them who drew this device, or whom it drew


def draw_secrets(*, rng: RandomStream) -> Secrets:
    """Return fresh secrets for one attempt."""
    return Secrets(rng.bytes(KEY_BYTES), rng.bytes(KEY_BYTES), rng.bytes(KEY_BYTES))


def make_keys(secrets: Secrets, announcement: bytes, device: bytes, identity: Ed25519PrivateKey) -> PublicKeys:
    """Return KEYS: the public halves and the seed's hash, signed together with the announcement."""
    fields = (
        device,
        identity.public_key().public_bytes_raw(),
        public_half(secrets.mask_private),
        public_half(secrets.channel_private),
        digest(SEED_LABEL, secrets.seed),
    )
    return PublicKeys(*fields, signature=identity.sign(keys_text(announcement, *fields)))


def accept_roster(roster: Roster, announcement: bytes, keys: PublicKeys, rules: Rules) -> int:
    """Return this device's position in the roster, or refuse the roster.

    It must be of the announcement that the device answered and hold the very keys it sent; it must be large enough for
    the noise, and for the neighbours to be mostly honest.
    """
    if roster.announcement != announcement:
        refuse("a roster must be of the announcement that was answered")
    if keys not in roster.entries:
        refuse("a roster must hold the keys that this device sent")
    if len(roster) < max(rules.smallest, rules.quorum(len(roster))):
        refuse(f"a roster must have at least {rules.smallest} devices and a quorum, got {len(roster)}")
    if rules.risk(len(roster)) > LARGEST_RISK:
        refuse(f"neighbours must be enough for {rules.most_corrupt} corrupt devices, got {rules.neighbours}")
    return roster.entries.index(keys)


def draw_neighbours(rules: Rules, devices: int, own: int, *, rng: RandomStream) -> tuple[int, ...]:
    """Return the positions of k other devices, drawn by this device alone; of all others where there are no more."""
    others = np.delete(np.arange(devices), own)
    order = np.argsort(rng.random(len(others)), kind="stable")
    return tuple(sorted(int(other) for other in others[order[: rules.neighbours]]))


def seal_shares(
    secrets: Secrets, roster: Roster, own: int, drawn: Collection[int], rules: Rules, *, rng: RandomStream
) -> dict[int, bytes]:
    """Return SHARES: for each neighbour that this device drew, its shares of s and b, sealed to that neighbour.

    The place of a share is the neighbour's position plus one. The key is HKDF(X25519(c_i, C_j), "share" ‖ R ‖ i ‖ j).
    """
    _require_genuine(roster, drawn)
    places = [position + 1 for position in drawn]
    if len(places) < rules.threshold:
        refuse(f"a device must have at least {rules.threshold} neighbours, got {len(places)}")
    of_mask = split_secret(secrets.mask_private, places, rules.threshold, rng=rng)
    of_seed = split_secret(secrets.seed, places, rules.threshold, rng=rng)
    channel = load_private(secrets.channel_private)
    return {
        position: seal(_share_key(channel, roster, own, position, own), of_mask[position + 1] + of_seed[position + 1])
        for position in drawn
    }


def accept_partners(
    roster: Roster, own: int, drawn: Collection[int], partners: Collection[int], senders: Collection[int], rules: Rules
) -> Pairing:
    """Return with whom to share masks, or refuse the list of partners.

    `senders` drew this device. At least t of those that this device drew must have sent shares, or its own secrets
    could not be rebuilt; more partners than `most_partners` are a flood.
    """
    everybody = frozenset(partners)
    if own not in everybody or not everybody.issuperset(senders) or own in senders:
        refuse("partners must hold this device, and all whose shares it got")
    if len(everybody) < rules.smallest:
        refuse(f"partners must be at least {rules.smallest}, got {len(everybody)}")
    if len(everybody.intersection(drawn)) < rules.threshold:
        refuse(f"at least {rules.threshold} of the neighbours of this device must be partners")
    neighbours = everybody.intersection((*drawn, *senders))
    if len(neighbours) > rules.most_partners:
        refuse(f"a device must have at most {rules.most_partners} partners, got {len(neighbours)}")
    _require_genuine(roster, set(senders).difference(drawn))
    return Pairing(partners_digest(roster, everybody), everybody, neighbours)


def open_shares(secrets: Secrets, roster: Roster, own: int, sealed: Mapping[int, bytes]) -> dict[int, HeldShares]:
    """Return the shares that others sealed to this device; what cannot be opened is left out."""
    held, channel = {}, load_private(secrets.channel_private)
    for sender, ciphertext in sealed.items():
        text = unseal(_share_key(channel, roster, own, sender, sender), ciphertext)
        if text is not None and len(text) == 2 * SHARE_BYTES:
            held[sender] = HeldShares(text[:SHARE_BYTES], text[SHARE_BYTES:])
    return held


def mask_table(secrets: Secrets, roster: Roster, own: int, pairing: Pairing, upload: Table) -> Table:
    """Return TABLE: the upload, with its noise, under all masks. The result is as random as its masks.

    y = upload + PRG(HKDF(b, "self" ‖ Q ‖ i)) + Σⱼ ± PRG(HKDF(X25519(s_i, S_j), "pair" ‖ Q ‖ min ‖ max)) modulo 2³²,
    plus where i < j and minus where i > j.
    """
    table = np.array(upload, dtype=np.uint32)
    keystream = Keystream(len(table))
    keystream.add(table, derive(secrets.seed, SELF_LABEL, pairing.context, own))
    mask_key = load_private(secrets.mask_private)
    for other in sorted(pairing.neighbours):
        key = pair_key(mask_key, roster, pairing.context, own, other)
        (keystream.add if own < other else keystream.subtract)(table, key)
    return table


def pair_key(private: X25519PrivateKey, roster: Roster, context: bytes, own: int, other: int) -> bytes:
    """Return the key of the mask that two devices share, from the private mask key of one of them."""
    secret = agree(private, roster.entries[other].mask_key)
    return derive(secret, PAIR_LABEL, context, min(own, other), max(own, other))


def sign_survivors(
    identity: Ed25519PrivateKey, roster: Roster, own: int, pairing: Pairing, survivors: Collection[int], rules: Rules
) -> bytes:
    """Return CONSENT, the signature of a list of survivors, or refuse it: one list per attempt, which the caller keeps.

    The device must be on it, everybody on it must have sent shares, and they must be at least n_min.
    """
    if own not in survivors or not pairing.partners.issuperset(survivors):
        refuse("survivors must hold this device, and only partners")
    if len(set(survivors)) < rules.smallest:
        refuse(f"survivors must be at least {rules.smallest}, got {len(set(survivors))}")
    return identity.sign(survivors_text(pairing.context, survivors, len(roster)))


def reveal_shares(
    held: Mapping[int, HeldShares],
    roster: Roster,
    pairing: Pairing,
    survivors: Collection[int],
    signatures: Mapping[int, bytes],
    rules: Rules,
) -> dict[int, bytes]:
    """Return UNMASK: the share of b of each survivor, and of s of each other partner, never both.

    `survivors` is the list that this device signed; more than (roster + c_max)/2 survivors must have signed it too.
    """
    text = survivors_text(pairing.context, survivors, len(roster))
    on_list = frozenset(survivors)
    _require_quorum(roster, text, {who: signatures[who] for who in on_list.intersection(signatures)}, rules)
    return {
        sender: shares.seed_share if sender in on_list else shares.mask_share
        for sender, shares in held.items()
        if sender in pairing.partners
    }


def _require_quorum(roster: Roster, text: bytes, signatures: Mapping[int, bytes], rules: Rules) -> None:
    """Verify signatures until there are enough, or refuse."""
    signed, quorum = 0, rules.quorum(len(roster))
    for position, signature in signatures.items():
        signed += is_signed(roster.entries[position].identity, signature, text)
        if signed == quorum:
            return
    refuse(f"at least {quorum} devices must have signed the same survivors, got {signed}")


def _share_key(channel: X25519PrivateKey, roster: Roster, own: int, other: int, sender: int) -> bytes:
    """Return the key that seals shares from `sender` to the other device of the pair."""
    secret = agree(channel, roster.entries[other].channel_key)
    return derive(secret, SHARE_LABEL, roster.digest, sender, other if sender == own else own)


def _require_genuine(roster: Roster, positions: Collection[int]) -> None:
    """Refuse a roster in which one of these devices did not sign its keys."""
    if not all(roster.entries[position].is_genuine(roster.announcement) for position in positions):
        refuse("keys of the roster must be signed by their devices for this announcement")
