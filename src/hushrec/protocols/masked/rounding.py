"""Compiled clipping and stochastic rounding of real numbers to integers, for devices and the CPU engine."""

import math

from numba import njit


@njit(cache=True)
def round_block(values, uniforms, scale, clip_units, limit, out):  # type: ignore[no-untyped-def]
    """Fill `out` (int64) with the clipped and stochastically rounded values, whose squared norm is at most `limit`.

    With x = values · scale · min(1, clip_units/‖values · scale‖), each integer is ⌊x⌋, plus one if its uniform number
    is below x − ⌊x⌋, so that its expectation is x. If the squared norm of the integers exceeds `limit`, x is truncated
    toward zero instead, which cannot increase the norm. `out` is all zeros if the norm of the values is not finite, or
    if even the truncated integers exceed `limit`. Sums are computed in the order of the entries, so that the same draws
    give the same integers in every engine.
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
    """Round values · factor stochastically into `out`, and return the squared norm of `out`.

    The products are at most 2¹⁷ in absolute value, and the sum of their squares is at most 2³⁴, so nothing overflows.
    """
    squared = 0
    for index in range(len(values)):
        x = values[index] * factor
        whole = math.floor(x)
        if uniforms[index] < x - whole:
            whole += 1
        out[index] = whole
        squared += whole * whole
    return squared


@njit(cache=True)
def _truncated(values, factor, out):  # type: ignore[no-untyped-def]
    """Truncate values · factor toward zero into `out`, and return the squared norm of `out`."""
    squared = 0
    for index in range(len(values)):
        whole = int(values[index] * factor)
        out[index] = whole
        squared += whole * whole
    return squared
