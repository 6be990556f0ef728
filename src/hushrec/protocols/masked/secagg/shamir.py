"""Shamir's secret sharing over the prime field of 2⁵²¹ − 1 [Shamir1979].

A secret of 32 bytes is the value at 0 of a random polynomial of degree t − 1. A share is the value of the polynomial at
a point x ≥ 1. Any t shares determine the secret; t − 1 shares reveal nothing about it.
"""

from collections.abc import Mapping, Sequence

from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def split_secret(secret: bytes, points: Sequence[int], threshold: int, *, rng: RandomStream) -> dict[int, bytes]:
    """Return the shares of the secret, 66 bytes each, by point; any `threshold` of them determine the secret.

    A coefficient of the polynomial is 521 random bits. The value 2⁵²¹ − 1 counts as 0, which is a bias of 2⁻⁵²¹.
    """
    if not (len(secret) == SECRET_BYTES and 1 <= threshold <= len(set(points)) == len(points) and min(points) >= 1):
        raise ParameterError(
            f"secret must have 32 bytes, and points must be at least {threshold} distinct numbers from 1 on, got"
            f" {len(secret)} bytes and {len(points)} points."
        )
    raw = rng.bytes(SHARE_BYTES * (threshold - 1))
    parts = [raw[start : start + SHARE_BYTES] for start in range(0, len(raw), SHARE_BYTES)]
    coefficients = [(int.from_bytes(part, "big") >> 7) % PRIME for part in parts]
    coefficients.append(int.from_bytes(secret, "big"))
    return {point: _evaluate(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in points}


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    """Return the value of a polynomial at `point`, by Horner's rule; coefficients start with the highest power.

    The value is reduced modulo the prime only once, at the end. A point is a small number, so the products grow slowly,
    and a division in each step would cost more.
    """
    value = 0
    for coefficient in coefficients:
        value = value * point + coefficient
    return value % PRIME


def join_shares(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret that these shares determine, or None if the result does not fit into 32 bytes.

    `shares` maps a point to its share; all of them are used, by Lagrange interpolation at 0: Σᵢ yᵢ Πⱼ xⱼ/(xⱼ − xᵢ). A
    wrong share gives a wrong secret, so the caller must check the result.
    """
    points = list(shares)
    numerators, denominators = [], []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other, below * (other - point)
        numerators.append(above % PRIME)
        denominators.append(below % PRIME)
    value = 0
    for share, above, inverse in zip(shares.values(), numerators, _inverses(denominators), strict=True):
        value += int.from_bytes(share, "big") * above % PRIME * inverse
    value %= PRIME
    return value.to_bytes(SECRET_BYTES, "big") if value < 2 ** (8 * SECRET_BYTES) else None


def _inverses(numbers: Sequence[int]) -> list[int]:
    """Return the inverses of all numbers modulo the prime, with a single inversion (Montgomery's trick)."""
    products = [1]
    for one in numbers:
        products.append(products[-1] * one % PRIME)
    inverse, found = pow(products[-1], -1, PRIME), []
    for place in range(len(numbers) - 1, -1, -1):
        found.append(inverse * products[place] % PRIME)
        inverse = inverse * numbers[place] % PRIME
    return found[::-1]
