"""The loop that turns real numbers into integers of bounded norm, compiled: devices and the CPU engine share it."""

import math

from numba import njit


@njit(cache=True)
def round_block(values, uniforms, scale, clip_units, limit, out):  # type: ignore[no-untyped-def]
    """Clip, scale, round stochastically; truncate toward zero if the squared integer norm exceeds `limit`.

    With x = values · scale · min(1, clip_units/‖values · scale‖), each integer is ⌊x⌋ plus one if its uniform is below
    x − ⌊x⌋, so that its expectation is x, and zeros and whole numbers stay what they are. Truncated integers are not
    longer than x. `out` (int64) is all zeros if the sum of squares is not finite, or if even they are longer than
    `limit`. Sums run in the order of the entries: the same draws give the same integers in every engine.
    """
    total = 0.0
    for value in values:
        total += (value * scale) * (value * scale)
    norm = total**0.5
    if not norm < float("inf"):
        out[:] = 0
        return
    factor = scale if norm <= clip_units else scale * (clip_units / norm)
    if _rounded(values, uniforms, factor, out) > limit and _truncated(values, factor, out) > limit:
        out[:] = 0


@njit(cache=True)
def _rounded(values, uniforms, factor, out):  # type: ignore[no-untyped-def]
    """Round stochastically and return the squared norm. |x| ≤ 2¹⁷ here, and Σ x² ≤ 2³⁴: nothing overflows."""
    squared = 0
    for place in range(len(values)):
        x = values[place] * factor
        whole = math.floor(x)
        if uniforms[place] < x - whole:
            whole += 1
        out[place] = whole
        squared += whole * whole
    return squared


@njit(cache=True)
def _truncated(values, factor, out):  # type: ignore[no-untyped-def]
    """Truncate toward zero and return the squared norm."""
    squared = 0
    for place in range(len(values)):
        whole = int(values[place] * factor)
        out[place] = whole
        squared += whole * whole
    return squared
