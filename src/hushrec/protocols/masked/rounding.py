"""Compiled clipping and stochastic rounding of real numbers to integers, for devices and the CPU engine."""

import math

from numba import njit


@njit(cache=True)
def round_block(values, uniforms, scale, clip_units, limit, out):  # type: ignore[no-untyped-def]
    """Multiply `values` by `scale`, clip them to the norm `clip_units`, and round them to integers in `out` (int64).

    The clipped values are x = values · scale · min(1, clip_units/‖values · scale‖). Each is rounded down to ⌊x⌋, or up
    if its random number in `uniforms`, from 0 to 1, is below x − ⌊x⌋. So the expectation of the integer is x.

    The squared norm of `out` is at most `limit`. If the rounded integers exceed it, x is truncated toward zero instead.
    If these integers exceed it too, or if the norm of the values is not finite, `out` is all zeros. Sums are computed
    in the order of the entries, so that the same `uniforms` give the same integers in every engine.
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
