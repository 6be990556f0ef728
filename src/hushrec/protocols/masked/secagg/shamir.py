"""Shamir's secret sharing over the prime field of 2⁵²¹ − 1 [Shamir1979].

A secret of 32 bytes is the value at 0 of a random polynomial of degree t − 1. A share is the value of the polynomial at
a point x ≥ 1. Any t shares determine the secret; t − 1 shares reveal nothing about it. Shares of which some are wrong
are a word of a Reed–Solomon code with errors, and are decoded as such [Gao2003].
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


@dataclass(frozen=True, repr=False)
class Decoded:
    """A secret that was rebuilt from shares of which some may be wrong."""

    secret: bytes
    wrong: frozenset[int]  # points whose shares are not on the polynomial of the secret


def split_secret(secret: bytes, points: Sequence[int], threshold: int, *, rng: RandomStream) -> dict[int, bytes]:
    """Return one share of the secret for each of these points; any `threshold` of the shares determine the secret.

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
    """Return the value of a polynomial at `point`, by Horner's rule; coefficients start with the highest power."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


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
    return _as_secret(value % PRIME)


def decode_shares(shares: Mapping[int, bytes], threshold: int) -> Decoded | None:
    """Return the secret that all but a few of these shares determine, or None if there is no such secret.

    Of m shares, up to e = ⌊(m − t)/2⌋ may be wrong, whichever they are. Two polynomials of degree below t agree at
    t − 1 points at most, so only one can agree with m − e shares. Gao's algorithm finds it. Let f be that polynomial,
    w that of lowest degree that is 0 at the wrong points, g that of degree below m through all shares, and
    G = Πᵢ (x − xᵢ). Then w f − w g is 0 at every point, hence w f = w g + u G for some u. The extended Euclidean
    algorithm for G and g goes through remainders r = v g + u G of falling degree, and the first of degree below
    (m + t)/2 has v = w and r = w f, up to a constant factor. So f = r/v.

    Coefficients start with that of x⁰. As with `join_shares`, the caller must check the secret.
    """
    values = {point: int.from_bytes(share, "big") % PRIME for point, share in shares.items()}
    rest, previous = _interpolate(values)
    locator, locator_before = [1], [0]
    while 2 * (len(rest) - 1) >= len(values) + threshold:
        quotient, remainder = _divide(previous, rest)
        previous, rest = rest, remainder
        locator_before, locator = locator, _subtract(locator_before, _multiply(quotient, locator))
    found, remainder = _divide(rest, locator)
    secret = _as_secret(found[0] if found else 0)
    if remainder or len(found) > threshold or secret is None:
        return None
    highest_first = found[::-1]
    wrong = frozenset(point for point, value in values.items() if _evaluate(highest_first, point) != value)
    return Decoded(secret, wrong)


def _as_secret(value: int) -> bytes | None:
    return value.to_bytes(SECRET_BYTES, "big") if value < 2 ** (8 * SECRET_BYTES) else None


def _interpolate(values: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Return the polynomial of degree below m through these m points, and Πᵢ (x − xᵢ); by Newton's interpolation.

    Each point adds a multiple of the product of the earlier factors, which leaves the earlier values as they are.
    """
    found, product = [0], [1]
    for point, value in values.items():
        step = (value - _evaluate(found[::-1], point)) * pow(_evaluate(product[::-1], point), -1, PRIME) % PRIME
        found = _subtract(found, [-step * one for one in product])
        product = _subtract([0, *product], [point * one for one in product])
    return found, product


def _subtract(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Return the difference of two polynomials, without leading zeros; that of equal ones is empty."""
    pairs = itertools.zip_longest(left, right, fillvalue=0)
    found = [(one - other) % PRIME for one, other in pairs]
    while found and not found[-1]:
        found.pop()
    return found


def _multiply(left: Sequence[int], right: Sequence[int]) -> list[int]:
    found = [0] * (len(left) + len(right) - 1)
    for place, one in enumerate(left):
        for other_place, other in enumerate(right):
            found[place + other_place] += one * other
    return found


def _divide(dividend: Sequence[int], divisor: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return quotient and remainder of two polynomials, both without leading zeros."""
    rest, inverse = list(dividend), pow(divisor[-1], -1, PRIME)
    quotient = [0] * (len(dividend) - len(divisor) + 1)
    for place in range(len(quotient) - 1, -1, -1):
        quotient[place] = factor = rest[place + len(divisor) - 1] * inverse % PRIME
        for offset, one in enumerate(divisor):
            rest[place + offset] = (rest[place + offset] - factor * one) % PRIME
    return quotient, _subtract(rest, [])


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
