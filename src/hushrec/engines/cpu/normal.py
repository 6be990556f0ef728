"""The normal distribution for compiled kernels: CDF, inverse CDF, normal draws, and fake errors by the inverse CDF.

Tests compare the results with `mechanisms.fake_errors` and `budget.calibrate.fake_error_bound`.
"""

import math

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.engines.cpu.philox import FIRST_BLOCK, draw_block, fill_words

FUSED = {"contract"}  # fast-math flag that allows fused multiply-add

_SQRT_HALF = math.sqrt(0.5)
_LOG_SQRT_2PI = math.log(2 * math.pi) / 2
_CENTRAL = 0.425  # for probabilities within ±0.425 of 1/2 one rational function gives the inverse
_NARROW = 1e-4  # standard deviations; across a narrower interval the normal density is exponential to within 5e-9
_DEEP = 1e-270  # smaller probabilities are handled by their logarithm

_SHIFT = np.uint64(12)
_LAYER, _SIGN = np.uint64(255), np.uint64(256)  # the bits of a random word that select a layer and a sign
_ONE = np.uint64(1)
_OWN_BLOCKS = 16  # draw number k may need further random numbers: those from block (k + 1) · 2^16 on
_LAST_EDGE, _AREA = 3.6541528853610088, 4.92867323399e-3  # constants of a ziggurat with 256 layers


def ziggurat() -> tuple[FloatArray, FloatArray]:
    """Return the right edges of the ziggurat's layers, the lowest first, and the heights exp(−x²/2) at these edges.

    The lowest layer consists of the tail and the rectangle beside it. It has no right edge; in its place, the array has
    the width of a rectangle with the height and area of the lowest layer.
    """
    edges = np.empty(257)
    edges[0], edges[1], edges[256] = _AREA * math.exp(_LAST_EDGE**2 / 2), _LAST_EDGE, 0.0
    for layer in range(1, 255):
        edges[layer + 1] = math.sqrt(-2 * math.log(_AREA / edges[layer] + math.exp(-(edges[layer] ** 2) / 2)))
    return edges, np.exp(-(edges**2) / 2)


_EDGES, _HEIGHTS = ziggurat()


@njit(inline="always")
def open_uniform(word):  # type: ignore[no-untyped-def]
    """Map a random 64-bit word to a uniform number in (0, 1): the midpoint of one of 2^52 cells, never 0 or 1."""
    return (np.float64(np.int64(word >> _SHIFT)) + 0.5) * 2.0**-52


@njit(cache=True)
def ndtr(x):  # type: ignore[no-untyped-def]
    """Return the normal distribution function Φ(x), with full relative accuracy in the left tail."""
    return 0.5 * math.erfc(-x * _SQRT_HALF)


@njit(cache=True)
def log_ndtr(x):  # type: ignore[no-untyped-def]
    """Return ln Φ(x), for the normal distribution function Φ; for x ≤ −30 by the asymptotic series of Mills' ratio."""
    if x > -30.0:
        return math.log(ndtr(x))
    w = 1.0 / (x * x)
    series = -w * (1.0 - w * (3.0 - w * (15.0 - w * (105.0 - w * 945.0))))
    return -0.5 * x * x - math.log(-x) - _LOG_SQRT_2PI + math.log1p(series)


@njit(inline="always")
def ndtri_central(q):  # type: ignore[no-untyped-def]
    """Return Φ⁻¹(1/2 + q) for |q| ≤ 0.425, by Wichura's algorithm AS 241 (1988), PPND16."""
    r = 0.180625 - q * q
    above = (
        ((((((r * 2.5090809287301226727e3 + 3.3430575583588128105e4) * r + 6.7265770927008700853e4) * r
        + 4.5921953931549871457e4) * r + 1.3731693765509461125e4) * r + 1.9715909503065514427e3) * r
        + 1.3314166789178437745e2) * r + 3.3871328727963666080
    )  # fmt: skip
    below = (
        ((((((r * 5.2264952788528545610e3 + 2.8729085735721942674e4) * r + 3.9307895800092710610e4) * r
        + 2.1213794301586595867e4) * r + 5.3941960214247511077e3) * r + 6.8718700749205790830e2) * r
        + 4.2313330701600911252e1) * r + 1.0
    )  # fmt: skip
    return q * above / below


@njit(cache=True)
def ndtri_tail(p):  # type: ignore[no-untyped-def]
    """Return Φ⁻¹(p) for p below 0.075, in the left tail, by the functions of √(−ln p) of Wichura's AS 241 (1988)."""
    r = math.sqrt(-math.log(p))
    if r <= 5.0:
        r -= 1.6
        above = (
            ((((((r * 7.74545014278341407640e-4 + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r
            + 1.27045825245236838258) * r + 3.64784832476320460504) * r + 5.76949722146069140550) * r
            + 4.63033784615654529590) * r + 1.42343711074968357734
        )  # fmt: skip
        below = (
            ((((((r * 1.05075007164441684324e-9 + 5.47593808499534494600e-4) * r + 1.51986665636164571966e-2) * r
            + 1.48103976427480074590e-1) * r + 6.89767334985100004550e-1) * r + 1.67638483018380384940) * r
            + 2.05319162663775882187) * r + 1.0
        )  # fmt: skip
        return -above / below
    r -= 5.0
    above = (
        ((((((r * 2.01033439929228813265e-7 + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r
        + 2.65321895265761230930e-2) * r + 2.96560571828504891230e-1) * r + 1.78482653991729133580) * r
        + 5.46378491116411436990) * r + 6.65790464350110377720
    )  # fmt: skip
    below = (
        ((((((r * 2.04426310338993978564e-15 + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r
        + 7.86869131145613259100e-4) * r + 1.48753612908506148525e-2) * r + 1.36929880922735805310e-1) * r
        + 5.99832206555887937690e-1) * r + 1.0
    )  # fmt: skip
    return -above / below


@njit(cache=True)
def ndtri(p):  # type: ignore[no-untyped-def]
    """Return Φ⁻¹(p) for p in (0, 1), accurate to about 1e-15."""
    q = p - 0.5
    if abs(q) <= _CENTRAL:
        return ndtri_central(q)
    return ndtri_tail(p) if q < 0 else -ndtri_tail(1.0 - p)


@njit(cache=True)
def ndtri_exp_deep(log_p):  # type: ignore[no-untyped-def]
    """Return Φ⁻¹(exp(log_p)) for a probability that may underflow, by Newton's method on ln Φ."""
    x = -math.sqrt(-2.0 * log_p)
    for _ in range(4):
        x -= (log_ndtr(x) - log_p) / -x  # d ln Φ(x)/dx is about −x in the far tail
    return x


@njit(cache=True)
def fill_normal(stream, user, words, out):  # type: ignore[no-untyped-def]
    """Fill `out` with standard normal draws from this user's stream.

    `words` is working memory of at least len(out) words, rounded up to an even number. The method is the ziggurat of
    Marsaglia and Tsang (2000): a random word selects one of 256 layers of equal area, a sign, and a horizontal position
    in the layer. In 99 of 100 draws this position lies under the density at every height of the layer, and the draw is
    accepted at once.
    """
    fill_words(stream, user, FIRST_BLOCK, words[: (len(out) + 1) // 2 * 2])
    _place_in_layers(words, out)
    for k in range(len(out)):
        word = words[k]
        layer = word & _LAYER
        if abs(out[k]) >= _EDGES[layer + _ONE]:
            x = _outside_core(stream, user, (k + 1) << _OWN_BLOCKS, layer, abs(out[k]))
            out[k] = -x if word & _SIGN else x


@njit(cache=True)
def _place_in_layers(words, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the draws that `fill_normal` tries first: one number, with sign, from each word in `words`.

    The word's lowest 8 bits select a layer, and the next bit selects the sign. The upper 52 bits give the horizontal
    position in the layer.
    """
    for k in range(len(out)):
        word = words[k]
        x = open_uniform(word) * _EDGES[word & _LAYER]
        out[k] = -x if word & _SIGN else x


@njit(cache=True)
def _outside_core(stream, user, block, layer, x):  # type: ignore[no-untyped-def]
    """Return the absolute value of a draw that `fill_normal` did not accept at once.

    `layer` and `x` are the layer and the position that were not accepted. Further random numbers come from the blocks
    of the user's stream from number `block` on.
    """
    while True:
        first, second = draw_block(stream, user, block)
        block += 1
        if layer == 0:  # the tail beyond the last edge, by the method of Marsaglia (1964)
            beyond = -math.log(open_uniform(first)) / _LAST_EDGE
            if -2.0 * math.log(open_uniform(second)) > beyond * beyond:
                return _LAST_EDGE + beyond
            continue
        low, high = _HEIGHTS[layer], _HEIGHTS[layer + _ONE]
        if low + open_uniform(first) * (high - low) < math.exp(-0.5 * x * x):
            return x
        layer = second & _LAYER
        x = open_uniform(second) * _EDGES[layer]
        if x < _EDGES[layer + _ONE]:
            return x


@njit(cache=True)
def half_width(center, epsilon_g):  # type: ignore[no-untyped-def]
    """Return the s with P(|center + Z| < s) = exp(−epsilon_g) for standard normal Z, rounded up by a factor 1 + 1e-11.

    Newton's method on the logarithm of P approaches s from below, as in `budget.calibrate.fake_error_bound`. It needs a
    start that is at most s, and takes the larger of two. One is `center` + Φ⁻¹(exp(−epsilon_g)). The other is
    exp(−epsilon_g) / (2 φ(c)), where φ is the standard normal density, and c is `center` if that is below 1, otherwise
    0. It is at most s because P(|center + Z| < x) ≤ 2 x φ(c) for every x > 0; for c = `center` this follows from
    cosh(c x) ≤ exp(x²/2). Convergence is quadratic, so that a relative step of 1e-7 is the last one needed.
    """
    density = math.exp(-0.5 * center**2) if center < 1.0 else 1.0
    quantile = ndtri(math.exp(-epsilon_g)) if epsilon_g < 600.0 else ndtri_exp_deep(-epsilon_g)
    s = max(math.exp(-epsilon_g) * math.sqrt(math.pi / 2) / density, center + quantile, 1e-300)
    step = s
    while step > 1e-7 * s:
        log_mass = _log_mass(center, s)
        log_density = -0.5 * (s - center) ** 2 - _LOG_SQRT_2PI + math.log1p(math.exp(-2.0 * center * s))
        step = -(log_mass + epsilon_g) * math.exp(log_mass - log_density)
        s += max(step, 0.0)
    return s * (1.0 + 1e-11)


@njit(cache=True)
def _log_mass(center, s):  # type: ignore[no-untyped-def]
    """Return ln P(|center + Z| < s) for standard normal Z; for a tiny s by the series of P in powers of s."""
    if s * max(center, 1.0) < 1e-4:
        return math.log(2.0 * s) - _LOG_SQRT_2PI - 0.5 * center**2 + math.log1p((center**2 - 1.0) * s**2 / 6.0)
    outside = ndtr(center - s) + ndtr(-s - center)
    if outside < 0.9:
        return math.log1p(-outside)
    if s - center > -30.0:
        return math.log(ndtr(s - center) - ndtr(-s - center))
    upper = log_ndtr(s - center)
    return upper + math.log(-math.expm1(log_ndtr(-s - center) - upper))


@njit(cache=True, fastmath=FUSED)
def fill_fakes(mean, deviation, epsilon_g, words, out):  # type: ignore[no-untyped-def]
    """Fill `out` with fake errors from N(mean, deviation²) truncated to ±α, each from one random word in `words`.

    `mean` and `deviation` describe the person's real errors. α follows from `epsilon_g` by Theorem 3 of [SDCF].
    If `epsilon_g` is 0, the distribution is not truncated; if it is ∞, fake errors are 0. If `deviation` is 0, as for a
    person with one rating, every fake error is the mean.
    """
    if epsilon_g == np.inf:
        out[:] = 0.0
        return
    if deviation == 0.0 or abs(mean) > 1e15 * deviation:
        out[:] = mean
        return
    if epsilon_g == 0.0:
        for k in range(len(out)):
            out[k] = mean + deviation * ndtri(open_uniform(words[k]))
        return
    center = abs(mean) / deviation
    s = half_width(center, epsilon_g)
    scale = deviation if mean >= 0 else -deviation
    _fill_truncated(center, s, words, out)
    for k in range(len(out)):
        x = out[k] if out[k] > -s else -s
        out[k] = scale * (x if x < s else s)


@njit(cache=True, fastmath=FUSED)
def _fill_truncated(center, s, words, out):  # type: ignore[no-untyped-def]
    """Fill `out` with draws of N(center, 1) truncated to [−s, s], by the inverse CDF.

    `center` is at least 0. Each draw uses one random word of `words`.
    """
    lower, upper = ndtr(-s - center), ndtr(s - center)
    if s < _NARROW:
        _fill_narrow(center, s, words, out)
    elif upper < _DEEP:
        log_lower, log_upper = log_ndtr(-s - center), log_ndtr(s - center)
        for k in range(len(out)):
            u = open_uniform(words[k])
            out[k] = center + ndtri_exp_deep(log_upper + math.log1p(u * math.expm1(log_lower - log_upper)))
    elif lower >= 0.5 - _CENTRAL and upper <= 0.5 + _CENTRAL:
        for k in range(len(out)):
            out[k] = center + ndtri_central(lower - 0.5 + open_uniform(words[k]) * (upper - lower))
    else:
        for k in range(len(out)):
            out[k] = center + ndtri(lower + open_uniform(words[k]) * (upper - lower))


@njit(cache=True)
def _fill_narrow(center, s, words, out):  # type: ignore[no-untyped-def]
    """Fill `out` with draws of N(center, 1) truncated to [−s, s], for s so small that the density is ∝ exp(center x).

    For a uniform number u and k = center s, the draw is x = s (1 + ln(1 − u (1 − exp(−2 k))) / k), or s (1 − 2 u) if k
    is tiny.
    """
    slope = center * s
    for k in range(len(out)):
        u = open_uniform(words[k])
        if slope < 1e-9:
            out[k] = s * (1.0 - 2.0 * u)
        else:
            out[k] = s * (1.0 + math.log1p(u * math.expm1(-2.0 * slope)) / slope)
