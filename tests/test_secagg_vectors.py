"""Known answers: every primitive as secure aggregation uses it, and one whole attempt written down in docs/vectors.

The published vectors are those of RFC 7748, RFC 8032, FIPS 197 and the GCM specification. The attempt is computed a
second time here from its written secrets, with the standard library's HMAC for HKDF and plain integers for polynomials.
"""

import hashlib
import hmac
import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from secagg_vectors import PLACE, attempt, word

from hushrec.errors import RemoteProtocolError
from hushrec.protocols.masked.secagg.primitives import (
    Keystream,
    agree,
    derive,
    is_signed,
    load_private,
    public_half,
    seal,
    unseal,
)

VECTORS = json.loads(PLACE.read_text("utf-8"))
PRIME = 2**521 - 1
SHARES = ("mask_share", "seed_share")


def test_agreement_is_that_of_rfc_7748() -> None:
    """Section 6.1: the keys of Alice and Bob, and their secret; a key of 31 bytes is refused."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert public_half(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_half(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = agree(load_private(alice), public_half(bob))
    assert shared == agree(load_private(bob), public_half(alice))
    assert shared.hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    with pytest.raises(RemoteProtocolError, match="X25519"):
        agree(load_private(alice), bytes(31))


def test_signatures_are_those_of_rfc_8032() -> None:
    """Section 7.1, test 1: the empty message; a changed signature and a key that is no point are not good."""
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b"
    )
    assert is_signed(public, signature, b"")
    assert not is_signed(public, signature, b"x")
    assert not is_signed(public, signature[:-1], b"")
    assert not is_signed(public[:-1], signature, b"")


def test_a_keystream_starts_with_the_known_block_and_counts_up() -> None:
    """AES-256 of zeros under the key of zeros is dc95c078…; the next block is that of the counter 1."""
    table = np.zeros(8, dtype=np.uint32)
    Keystream(8).add(table, bytes(32))
    assert table.tobytes()[:16].hex() == "dc95c078a2408989ad48a21492842087"
    block = Cipher(algorithms.AES256(bytes(32)), modes.ECB()).encryptor().update(bytes(15) + b"\1")
    assert table.tobytes()[16:] == block
    Keystream(8).subtract(table, bytes(32))
    assert not table.any()


def test_sealing_is_that_of_the_gcm_specification() -> None:
    """Test case 14: a block of zeros under a key and nonce of zeros."""
    sealed = seal(bytes(32), bytes(16))
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    assert unseal(bytes(32), sealed) == bytes(16)
    assert unseal(bytes(31) + b"\1", sealed) is None


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt and 32 bytes of output, from HMAC alone."""
    key = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(key, info + b"\1", "sha256")


def test_derived_keys_are_hkdf_with_label_context_and_positions() -> None:
    """Info is the plain concatenation, positions in four bytes."""
    info = b"label" + b"context" + (5).to_bytes(4, "big") + (300).to_bytes(4, "big")
    assert derive(b"secret", b"label", b"context", 5, 300) == hkdf(b"secret", info)


def test_the_written_attempt_is_what_the_code_computes() -> None:
    """Guards change: a device in another language relies on every value of the file."""
    assert json.loads(json.dumps(attempt())) == VECTORS


def test_the_written_attempt_follows_from_its_secrets() -> None:
    """Hashes, keys, shares and tables by other means than the code's."""
    devices, numbers = VECTORS["devices"], [n.to_bytes(4, "big") for n in range(5)]
    fields = ("device", "identity", "mask_key", "channel_key", "seed_hash", "keys_signature")
    entries = b"".join(bytes.fromhex(entry[name]) for entry in devices for name in fields)
    text = b"hushrec masked 1 announcement" + VECTORS["announcement"]["run_id"].encode() + numbers[1] * 2
    announcement = hashlib.sha256(text + word("terms") + word("table")).digest()
    assert announcement.hex() == VECTORS["announcement_digest"]
    server = Ed25519PrivateKey.from_private_bytes(word("server"))
    signed = server.sign(text.replace(b"announcement", b"probe") + word("terms") + word("table"))
    assert signed.hex() == VECTORS["probe_signature"]
    roster = hashlib.sha256(b"hushrec masked 1 roster" + announcement + numbers[4] + entries).digest()
    context = hashlib.sha256(b"hushrec masked 1 partners" + roster + b"\xf0").digest()
    assert (roster.hex(), context.hex()) == (VECTORS["roster_digest"], VECTORS["partners_digest"])
    for entry, label in zip(devices, numbers, strict=False):
        seed = bytes.fromhex(entry["seed"])
        assert hashlib.sha256(b"hushrec masked 1 seed" + seed).hexdigest() == entry["seed_hash"]
        assert hkdf(seed, b"hushrec masked 1 self" + context + label).hex() == entry["self_key"]
        identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(entry["identity_private"]))
        assert identity.sign(b"hushrec masked 1 masks" + context).hex() == entry["masks_signature"]
    for one in VECTORS["sealed"]:
        sender = devices[one["sender"]]
        for name, secret, raw in zip(SHARES, ("mask_private", "seed"), sender["coefficients"], strict=True):
            slope = int(raw, 16) >> 7
            assert int(one[name], 16) == (int(sender[secret], 16) + slope * (one["recipient"] + 1)) % PRIME
        assert (
            unseal(bytes.fromhex(one["key"]), bytes.fromhex(one["sealed"])).hex()
            == one["mask_share"] + one["seed_share"]
        )
        hashes = [hashlib.sha256(b"hushrec masked 1 commitment" + bytes.fromhex(one[name])) for name in SHARES]
        assert "".join(hash.hexdigest() for hash in hashes) == one["commitments"]
    assert VECTORS["survivors_text"] == (b"hushrec masked 1 survivors" + context + b"\xe0").hex()


def test_the_written_tables_follow_from_the_written_keys() -> None:
    """Own stream and those of upper positions are added, those of lower ones taken off; the sum is without device 3."""
    streams = {name: stream(name) for name in [one["self_key"] for one in VECTORS["devices"]]}
    pairs = {(pair["lower"], pair["upper"]): stream(pair["key"]) for pair in VECTORS["pairs"]}
    for entry in VECTORS["devices"]:
        n = entry["position"]
        table = np.array(entry["unmasked_table"], dtype=np.uint32) + streams[entry["self_key"]]
        for (lower, upper), words in pairs.items():
            table += words if n == lower else -words if n == upper else np.uint32(0)
        assert table.tolist() == entry["table"]
    assert VECTORS["sum"] == [6, 2**32 - 6, 3000]
    kinds = {(one["helper"], one["owner"]): one["share"] for one in VECTORS["revealed"]}
    shares = {(one["recipient"], one["sender"]): one for one in VECTORS["sealed"]}
    for (helper, owner), share in kinds.items():
        assert share == shares[helper, owner]["mask_share" if owner == 3 else "seed_share"]


def stream(key: str) -> np.ndarray:
    """Three words of AES-256-CTR."""
    raw = Cipher(algorithms.AES256(bytes.fromhex(key)), modes.CTR(bytes(16))).encryptor().update(bytes(12))
    return np.frombuffer(raw, dtype="<u4").astype(np.uint32)
