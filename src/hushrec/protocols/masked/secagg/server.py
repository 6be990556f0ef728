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
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES, Decoded, decode_shares, join_shares


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

    A device that revealed a share which is not on the polynomial of a secret is doubted, and its shares come last for
    all other secrets. It is only doubted: the owner of the secret may have sent it a wrong share. Owners whose secrets
    are not found are tried again at the end, when more devices are doubted.

    Raise `AttemptFailed` if a secret has too few shares, or cannot be rebuilt. Culprits of the error are the owners of
    such secrets, where `_is_owners_fault` says so. If that holds for half of all owners or more, the devices that
    revealed the shares must have lied, and the error has no culprits.
    """
    given = {owner: _given(owner, drawn, revealed, rules) for owner in sorted(drawn)}
    secrets: dict[int, bytes] = {}
    doubted: set[int] = set()
    tried_with = dict.fromkeys(given, -1)  # how many devices were doubted
    for owner in [*given, *given]:
        if owner not in secrets and len(doubted) > tried_with[owner]:
            tried_with[owner] = len(doubted)
            keys = roster.entries[owner]
            is_right = _is_seed_of(keys) if owner in survivors else _is_mask_key_of(keys)
            found = _rebuild(given[owner], doubted, rules, is_right)
            if found is not None:
                secrets[owner] = found.secret
                doubted |= {point - 1 for point in found.wrong}
    missing = given.keys() - secrets.keys()
    if missing:
        culprits = frozenset(owner for owner in missing if _is_owners_fault(given[owner], rules))
        raise AttemptFailed(
            "shares of a secret must rebuild the secret whose hash or public key its owner published, but some do not.",
            culprits if 2 * len(culprits) < len(drawn) else frozenset(),
        )
    return secrets


def _is_seed_of(keys: PublicKeys) -> Callable[[bytes], bool]:
    return lambda found: digest(SEED_LABEL, found) == keys.seed_hash


def _is_mask_key_of(keys: PublicKeys) -> Callable[[bytes], bool]:
    return lambda found: public_half(found) == keys.mask_key


def _given(
    owner: int, drawn: Mapping[int, Collection[int]], revealed: Mapping[int, Mapping[int, bytes]], rules: Rules
) -> dict[int, bytes]:
    """Return the share of a secret of `owner` from each device that it drew and that replied, by position.

    A share of wrong length, or that was left out, is empty. Raise `AttemptFailed` if too few devices have replied.
    """
    helpers = [helper for helper in sorted(drawn[owner]) if helper in revealed]
    if len(helpers) < rules.threshold:
        raise AttemptFailed(
            f"each secret must have at least {rules.threshold} shares, got {len(helpers)} for one secret."
        )
    shares = {helper: revealed[helper].get(owner, b"") for helper in helpers}
    return {helper: share if len(share) == SHARE_BYTES else b"" for helper, share in shares.items()}


def _rebuild(
    given: Mapping[int, bytes], doubted: Collection[int], rules: Rules, is_right: Callable[[bytes], bool]
) -> Decoded | None:
    """Return the secret that is rebuilt from these shares and confirmed by `is_right`; None if none is right.

    First t shares are joined, where t is the threshold, of devices that are not doubted if there are as many. If they
    give a wrong secret, all m shares are decoded, of which up to (m − t)/2 may be wrong; then those of devices that are
    not doubted. At last every other run of t consecutive shares, in a circle, is joined: this finds the secret with
    fewer shares if the wrong ones are few and close together.
    """
    shares = {helper + 1: share for helper, share in given.items() if share}
    trusted = {point: share for point, share in shares.items() if point - 1 not in doubted}
    if len(shares) < rules.threshold:
        return None
    twice = 2 * list((trusted | shares).items())
    joined = (join_shares(dict(twice[start : start + rules.threshold])) for start in range(len(shares)))
    if (secret := next(joined)) is not None and is_right(secret):
        return Decoded(secret, frozenset())
    for chosen in [shares, trusted] if rules.threshold <= len(trusted) < len(shares) else [shares]:
        found = decode_shares(chosen, rules.threshold)
        if found is not None and is_right(found.secret):
            return found
    right = next((secret for secret in joined if secret is not None and is_right(secret)), None)
    return None if right is None else Decoded(right, frozenset())


def _is_owners_fault(given: Mapping[int, bytes], rules: Rules) -> bool:
    """Return whether `most_corrupt` devices that lie about an honest owner's secret could not have hidden it.

    Let h devices reply, of which a leave out the share. If the owner is honest, a ≤ c_max, and at most c_max − a of the
    other h − a shares are wrong. Decoding then finds the secret if h − a ≥ t + 2 (c_max − a). So the owner has sent
    wrong shares if a > c_max, or if h + a ≥ t + 2 c_max. Otherwise it may be honest.
    """
    left_out = sum(not share for share in given.values())
    return left_out > rules.most_corrupt or len(given) + left_out >= rules.threshold + 2 * rules.most_corrupt
