"""The Ed25519 keys of simulated devices and of their server, derived from the seed so that a run can be repeated."""

from functools import cache

from hushrec.protocols.parties import Membership
from hushrec.randomness import Purpose, SeededRandomness

SIMULATED_RUN = "0" * 32
_SERVER = 2**32  # the server's user number in random streams; no person has it


def simulated_secret(seed: int, user: int = _SERVER) -> bytes:
    """Return the private Ed25519 key of a user's device, 32 bytes, or of the server if no user is given."""
    return SeededRandomness(seed, user).stream(Purpose.SIMULATED_KEYS).bytes(32)


def simulated_membership(seed: int, user: int) -> Membership:
    """Return the identity of a simulated device in its run, with keys derived from the seed."""
    return Membership(SIMULATED_RUN, _server_key(seed), user, simulated_secret(seed, user))


@cache
def _server_key(seed: int) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # most simulations never need it

    return Ed25519PrivateKey.from_private_bytes(simulated_secret(seed)).public_key().public_bytes_raw()
