"""Writes docs/vectors/secagg.json: every value of one attempt of four devices, for a device in another language.

python tests/secagg_vectors.py

Secrets are hashes of words, so that anybody can compute them; the coefficients of the polynomials are given.
"""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.protocols.masked.messages import announce
from hushrec.protocols.masked.secagg import device as steps
from hushrec.protocols.masked.secagg.primitives import PAIR_LABEL, SELF_LABEL, SHARE_LABEL, agree, derive, load_private
from hushrec.protocols.masked.secagg.roster import Rules, make_roster, survivors_text
from hushrec.protocols.masked.secagg.server import recover_sum

PLACE = Path(__file__).parents[1] / "docs" / "vectors" / "secagg.json"
DEVICES = 4
RULES = Rules(smallest=3, most_corrupt=0, neighbours=3, threshold=2)


def word(text: str) -> bytes:
    """32 bytes that anybody can compute."""
    return hashlib.sha256(text.encode()).digest()


RUN_ID = "00112233445566778899aabbccddeeff"
SERVER = Ed25519PrivateKey.from_private_bytes(word("server"))


class Coefficients:
    """A stream of 66-byte coefficients: two hashes and two zero bytes each, by device."""

    def __init__(self, number: int) -> None:
        self.number, self.drawn = number, 0

    def bytes(self, length: int) -> bytes:
        assert length == 66  # threshold 2: one coefficient for each secret
        self.drawn += 1
        return (
            word(f"coefficient {self.number} {self.drawn} a")
            + word(f"coefficient {self.number} {self.drawn} b")
            + b"\0\0"
        )


def attempt() -> dict[str, Any]:
    """All values of the attempt: device 3 drops out after its shares, so that both kinds of share are revealed."""
    announced = announce(SERVER, RUN_ID, 1, 1, word("terms"), word("table"))
    announcement = announced.digest
    identities = [Ed25519PrivateKey.from_private_bytes(word(f"identity {n}")) for n in range(DEVICES)]
    secrets = [steps.Secrets(word(f"mask {n}"), word(f"channel {n}"), word(f"seed {n}")) for n in range(DEVICES)]
    own_tables = [np.array([n + 1, 2**32 - 1 - n, 1000 * n], dtype=np.uint32) for n in range(DEVICES)]
    keys = [steps.make_keys(secrets[n], announcement, bytes([n]) * 16, identities[n]) for n in range(DEVICES)]
    roster = make_roster(announcement, keys)
    drawn = {n: tuple(other for other in range(DEVICES) if other != n) for n in range(DEVICES)}
    sealed = {n: steps.seal_shares(secrets[n], roster, n, drawn[n], RULES, rng=Coefficients(n)) for n in range(DEVICES)}
    pairings = [steps.accept_partners(roster, n, drawn[n], drawn, drawn[n], RULES) for n in range(DEVICES)]
    inboxes = {n: {other: sealed[other][n].sealed for other in drawn[n]} for n in range(DEVICES)}
    commitments = {n: {other: sealed[n][other].commitments for other in drawn[n]} for n in range(DEVICES)}
    held = {n: steps.open_shares(secrets[n], roster, n, inboxes[n]) for n in range(DEVICES)}
    tables = [steps.mask_table(secrets[n], roster, n, pairings[n], own_tables[n]) for n in range(DEVICES)]
    survivors = [0, 1, 2]
    known = roster.identities
    masked_for = {n: steps.sign_masks(identities[n], pairings[n]) for n in range(DEVICES)}
    signatures = {
        n: steps.sign_survivors(identities[n], known, n, pairings[n], survivors, held[n], masked_for, RULES)
        for n in survivors
    }
    revealed = {n: steps.reveal_shares(held[n], known, pairings[n], survivors, signatures, RULES) for n in survivors}
    total = tables[0] + tables[1] + tables[2]
    context = pairings[0].context
    return {
        "server_private": word("server").hex(),
        "server_key": SERVER.public_key().public_bytes_raw().hex(),
        "announcement": {
            "run_id": RUN_ID,
            "round_number": 1,
            "attempt": 1,
            "terms_digest": word("terms").hex(),
            "table_digest": word("table").hex(),
            "signature": announced.signature.hex(),
            "probe": False,
        },
        "probe_signature": announce(SERVER, RUN_ID, 1, 1, word("terms"), word("table"), probe=True).signature.hex(),
        "announcement_digest": announcement.hex(),
        "rules": vars(RULES),
        "devices": [
            {
                "position": n,
                "device": keys[n].device.hex(),
                "identity_private": word(f"identity {n}").hex(),
                "identity": keys[n].identity.hex(),
                "mask_private": secrets[n].mask_private.hex(),
                "mask_key": keys[n].mask_key.hex(),
                "channel_private": secrets[n].channel_private.hex(),
                "channel_key": keys[n].channel_key.hex(),
                "seed": secrets[n].seed.hex(),
                "seed_hash": keys[n].seed_hash.hex(),
                "keys_signature": keys[n].signature.hex(),
                "coefficients": [
                    Coefficients.bytes(stream, 66).hex() for stream in [Coefficients(n)] for _ in range(2)
                ],
                "self_key": derive(secrets[n].seed, SELF_LABEL, context, n).hex(),
                "unmasked_table": own_tables[n].tolist(),
                "table": tables[n].tolist(),
                "masks_signature": masked_for[n].hex(),
            }
            for n in range(DEVICES)
        ],
        "roster_digest": roster.digest.hex(),
        "sealed": [
            {
                "sender": sender,
                "recipient": recipient,
                "key": derive(
                    agree(load_private(secrets[sender].channel_private), keys[recipient].channel_key),
                    SHARE_LABEL,
                    roster.digest,
                    sender,
                    recipient,
                ).hex(),
                "mask_share": held[recipient][sender].mask_share.hex(),
                "seed_share": held[recipient][sender].seed_share.hex(),
                "sealed": sealed[sender][recipient].sealed.hex(),
                "commitments": sealed[sender][recipient].commitments.hex(),
            }
            for sender in range(DEVICES)
            for recipient in drawn[sender]
        ],
        "partners_digest": context.hex(),
        "pairs": [
            {
                "lower": lower,
                "upper": upper,
                "key": derive(
                    agree(load_private(secrets[lower].mask_private), keys[upper].mask_key),
                    PAIR_LABEL,
                    context,
                    lower,
                    upper,
                ).hex(),
            }
            for lower, upper in itertools.combinations(range(DEVICES), 2)
        ],
        "survivors": survivors,
        "survivors_text": survivors_text(context, survivors, DEVICES).hex(),
        "survivors_signatures": [signatures[n].hex() for n in survivors],
        "revealed": [
            {"helper": n, "owner": owner, "share": revealed[n][owner].hex()}
            for n in survivors
            for owner in sorted(revealed[n])
        ],
        "total": total.tolist(),
        "sum": recover_sum(roster, RULES, commitments, survivors, total, revealed).tolist(),
    }


if __name__ == "__main__":
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(json.dumps(attempt(), indent=1) + "\n", "utf-8")
