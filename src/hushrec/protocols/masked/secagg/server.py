"""The server side of secure aggregation: rebuilds one secret per device and removes the masks from the sum."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np

from hushrec.errors import AttemptFailed
from hushrec.protocols.masked.secagg.device import pair_key
from hushrec.protocols.masked.secagg.primitives import (
    HASH_BYTES,
    SEED_LABEL,
    SELF_LABEL,
    Keystream,
    Table,
    commitment,
    derive,
    digest,
    load_private,
    public_half,
)
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, Rules, edges, partners_digest
from hushrec.protocols.masked.secagg.shamir import join_shares

Drawn = Mapping[int, Mapping[int, bytes]]  # sender of shares → neighbour that it drew → commitments to both shares
Revealed = Mapping[int, Mapping[int, bytes]]  # device that replied in phase UNMASK → owner of a secret → share


def recover_sum(
    roster: Roster, rules: Rules, drawn: Drawn, survivors: Collection[int], total: Table, revealed: Revealed
) -> Table:
    """Return the sum of the survivors' tables without masks, modulo 2³².

    `drawn` maps each device that sent shares to the neighbours that it drew, each with the hashes (commitments) of the
    two shares that the neighbour was sent. `total` is the sum of the survivors' masked tables. `revealed` maps each
    device that replied in phase UNMASK to the shares that it revealed, by position of the secret's owner. Raise
    `AttemptFailed` if there are too few survivors or shares; the next attempt then starts with new secrets.
    """
    if len(survivors) < rules.smallest:
        raise AttemptFailed(f"there must be at least {rules.smallest} survivors, got {len(survivors)}.")
    secrets = _rebuild_all(roster, rules, drawn, survivors, revealed)
    context = partners_digest(roster, drawn)
    result = np.array(total, dtype=np.uint32)
    keystream = Keystream(len(result))
    for owner in sorted(survivors):
        keystream.subtract(result, derive(secrets[owner], SELF_LABEL, context, owner))
    partners = edges(drawn)
    for owner in sorted(set(drawn).difference(survivors)):
        private = load_private(secrets[owner])
        for other in partners[owner].intersection(survivors):
            # The survivor added the mask if its position is lower, and subtracted it otherwise.
            remove = keystream.subtract if other < owner else keystream.add
            remove(result, pair_key(private, roster, context, owner, other))
    return result


def _rebuild_all(
    roster: Roster, rules: Rules, drawn: Drawn, survivors: Collection[int], revealed: Revealed
) -> dict[int, bytes]:
    """Return one secret of each device that sent shares: the seed of a survivor, the private mask key of any other.

    A secret is rebuilt from shares that match the commitments of its owner; all other shares are ignored, so that the
    work does not depend on how many devices lie. Raise `AttemptFailed` if a secret cannot be rebuilt. The error names
    these devices as culprits:

    - an owner whose shares match its commitments, but give a secret that does not match its KEYS (`_is_published`),
    - the devices that `_liars` finds,
    - if neither rule finds a device, every owner for whose secret too few matching shares were revealed. This rule
      applies only if `most_corrupt` is above 0 and at least `smallest` devices replied. An honest owner is then among
      the culprits with a probability of at most `LARGEST_FAILURE` (see `choose_rules`).
    """
    secrets: dict[int, bytes] = {}
    culprits: set[int] = set()
    disputes: defaultdict[int, set[int]] = defaultdict(set)
    for owner, commitments in sorted(drawn.items()):
        survived = owner in survivors
        right = {}
        for neighbour in sorted(commitments.keys() & revealed.keys()):
            share = revealed[neighbour].get(owner, b"")
            if commitment(share) == commitments[neighbour][HASH_BYTES * survived :][:HASH_BYTES]:
                right[neighbour + 1] = share
            else:
                disputes[owner].add(neighbour)
                disputes[neighbour].add(owner)
        if len(right) >= rules.threshold:
            secret = join_shares(dict(itertools.islice(right.items(), rules.threshold)))
            if secret is not None and _is_published(secret, roster.entries[owner], survived):
                secrets[owner] = secret
            else:
                culprits.add(owner)
    if len(secrets) == len(drawn):
        return secrets
    culprits |= _liars(disputes, max(1, rules.most_corrupt))
    if not culprits and rules.most_corrupt and len(revealed) >= rules.smallest:
        culprits = set(drawn) - set(secrets)
    raise AttemptFailed(
        f"too few {'devices stayed' if len(revealed) < rules.smallest else 'right shares arrived'}:"
        f" {len(drawn) - len(secrets)} of {len(drawn)} secrets cannot be rebuilt ({rules.threshold} shares each are"
        " needed).",
        frozenset(culprits),
    )


def _is_published(secret: bytes, keys: PublicKeys, survived: bool) -> bool:
    """Return whether `secret` is the secret that the owner of `keys` committed to.

    If the owner `survived`, the secret is a seed, and its hash must be the published one. Otherwise it is a private
    mask key, and its public half must be the published mask key.
    """
    return digest(SEED_LABEL, secret) == keys.seed_hash if survived else public_half(secret) == keys.mask_key


def _liars(disputes: dict[int, set[int]], most_corrupt: int) -> set[int]:
    """Return the devices that must have lied; `disputes` maps each device to the devices that it has a dispute with.

    A device and a neighbour are in a dispute if the neighbour did not reveal the share that the device committed to.
    One of the two has lied, so an honest device is in at most `most_corrupt` disputes. As long as some device is in
    more than `most_corrupt` disputes, the device with the most disputes is a liar. It is removed from `disputes`, with
    all its disputes, so the argument is changed in place.
    """
    found: set[int] = set()
    while disputes:
        worst = max(disputes, key=lambda device: len(disputes[device]))
        if len(disputes[worst]) <= most_corrupt:
            break
        for other in disputes.pop(worst):
            disputes[other].remove(worst)
        found.add(worst)
    return found
