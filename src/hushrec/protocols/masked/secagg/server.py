"""The server side of secure aggregation: rebuilds one secret per device and removes the masks from the sum."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from hushrec.errors import AttemptFailed
from hushrec.protocols.masked.secagg.device import pair_key
from hushrec.protocols.masked.secagg.primitives import (
    SEED_LABEL,
    SELF_LABEL,
    Keystream,
    Table,
    derive,
    digest,
    load_private,
    public_half,
)
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, Rules, edges, partners_digest
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES, join_shares


def recover_sum(
    roster: Roster,
    rules: Rules,
    drawn: Mapping[int, Collection[int]],
    survivors: Collection[int],
    total: Table,
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Table:
    """Return the sum of the survivors' tables without masks, modulo 2³².

    `drawn` maps each device that sent shares to the neighbours that it drew. `total` is the sum of the survivors'
    masked tables. `revealed` maps each device that replied in phase UNMASK to its shares, by position of the owner.
    Raise `AttemptFailed` if there are too few survivors or shares; the next attempt then starts with new secrets.
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
    roster: Roster,
    rules: Rules,
    drawn: Mapping[int, Collection[int]],
    survivors: Collection[int],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> dict[int, bytes]:
    """Return one secret of each device that sent shares: the seed of a survivor, the private mask key of any other.

    Raise `AttemptFailed` if a secret has too few shares, or if its shares give a wrong secret. In the second case its
    owner has sent wrong shares, and is a culprit of the error. If that holds for half of all owners or more, the
    devices that revealed the shares must have lied, and the error has no culprits.
    """
    found = {}
    for owner in sorted(drawn):
        keys = roster.entries[owner]
        is_right = _is_seed_of(keys) if owner in survivors else _is_mask_key_of(keys)
        found[owner] = _rebuild(owner, drawn, revealed, rules, is_right)
    secrets = {owner: secret for owner, secret in found.items() if secret is not None}
    culprits = frozenset(found.keys() - secrets.keys())
    if culprits:
        raise AttemptFailed(
            "shares of a secret must rebuild the secret whose hash or public key its owner published, but some do not.",
            culprits if 2 * len(culprits) < len(drawn) else frozenset(),
        )
    return secrets


def _is_seed_of(keys: PublicKeys) -> Callable[[bytes], bool]:
    return lambda found: digest(SEED_LABEL, found) == keys.seed_hash


def _is_mask_key_of(keys: PublicKeys) -> Callable[[bytes], bool]:
    return lambda found: public_half(found) == keys.mask_key


def _rebuild(
    owner: int,
    drawn: Mapping[int, Collection[int]],
    revealed: Mapping[int, Mapping[int, bytes]],
    rules: Rules,
    is_right: Callable[[bytes], bool],
) -> bytes | None:
    """Return the secret of `owner`, rebuilt from revealed shares and confirmed by `is_right`; None if none is right.

    With more shares than the threshold t, each run of t consecutive shares is tried, so that wrong shares can be
    skipped. Raise `AttemptFailed` if too few devices that `owner` drew have replied.
    """
    helpers = [helper for helper in sorted(drawn[owner]) if helper in revealed]
    if len(helpers) < rules.threshold:
        raise AttemptFailed(
            f"each secret must have at least {rules.threshold} shares, got {len(helpers)} for one secret."
        )
    given = [(helper + 1, revealed[helper].get(owner, b"")) for helper in helpers]
    shares = [(point, share) for point, share in given if len(share) == SHARE_BYTES]
    for start in range(len(shares) if len(shares) >= rules.threshold else 0):
        secret = join_shares(dict((shares + shares)[start : start + rules.threshold]))
        if secret is not None and is_right(secret):
            return secret
    return None
