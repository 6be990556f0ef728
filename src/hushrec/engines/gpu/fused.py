"""Triton kernels for the sums of `engines.gpu.dense` (errors times vectors); they keep each cell in registers.

A cell is a pair (user, item). One program holds a tile of users (or items) and loops over all items (or users).
Predictions, random numbers, selections and fake errors of a tile stay in registers; for each cell, only the training
value and the permanent bit are read from GPU memory. Random numbers come from Philox, keyed by the run, the round and
the cell.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hushrec.engines.gpu.dense import FakeLaw, ItemSums, UserSums
from hushrec.engines.gpu.held_out import HeldOut

PAIRS = 128  # held-out ratings per program


@dataclass(frozen=True)
class Tile:
    """The shape of one Triton program: users and items of its tile, and its numbers of warps and pipeline stages."""

    users: int
    items: int
    warps: int = 4
    stages: int = 1


# Chosen so that no register spills; `benchmarks/gpu.py` times these tiles and others.
USER_TILE, ITEM_TILE = Tile(64, 32), Tile(32, 64)


@triton.jit
def normal_quantile(p):
    """Return Φ⁻¹(p), the standard normal quantile, in single precision.

    It is √2 erfinv(2p − 1), by the polynomials of [Giles2011] in w = −ln(4 p (1 − p)).
    """
    w = -tl.log(4.0 * p * (1.0 - p))
    a = w - 2.5
    near = 2.81022636e-08
    near = near * a + 3.43273939e-07
    near = near * a - 3.5233877e-06
    near = near * a - 4.39150654e-06
    near = near * a + 0.00021858087
    near = near * a - 0.00125372503
    near = near * a - 0.00417768164
    near = near * a + 0.246640727
    near = near * a + 1.50140941
    b = tl.sqrt(w) - 3.0
    far = -0.000200214257
    far = far * b + 0.000100950558
    far = far * b + 0.00134934322
    far = far * b - 0.00367342844
    far = far * b + 0.00573950773
    far = far * b - 0.0076224613
    far = far * b + 0.00943887047
    far = far * b + 1.00167406
    far = far * b + 2.83297682
    return tl.where(w < 5.0, near, far) * (2.0 * p - 1.0) * 1.4142135623730951


@triton.jit
def uniform_from(words):
    """Map the upper 24 bits n of each random 32-bit word to (n + ½)/2²⁴, a uniform number in single precision.

    It is in (0, 1]: the largest value rounds to 1.
    """
    return ((words >> 8).to(tl.int32).to(tl.float32) + 0.5) * 5.9604644775390625e-08


@triton.jit
def user_kernel(
    values_ptr, set_ptr, users_ptr, items_ptr, gradients_ptr, error_ptr, square_ptr,
    n_users: tl.constexpr, n_items: tl.constexpr, WIDTH: tl.constexpr, TILE_N: tl.constexpr, TILE_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute Σ e v, Σ e and Σ e² over rated items for a tile of users of one run; e is an error, v an item vector."""
    run = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, WIDTH)
    here = n < n_users
    values_ptr += tl.load(set_ptr + run) * n_users * n_items
    users_ptr += run * n_users * WIDTH
    items_ptr += run * n_items * WIDTH
    gradients_ptr += run * n_users * WIDTH
    row = n[:, None] * WIDTH + k[None, :]
    u = tl.load(users_ptr + row, mask=here[:, None], other=0.0)
    gradients = tl.zeros((TILE_N, WIDTH), tl.float32)
    error_sum = tl.zeros((TILE_N,), tl.float32)
    square_sum = tl.zeros((TILE_N,), tl.float32)
    for start in range(0, n_items, TILE_M):
        m = start + tl.arange(0, TILE_M)
        cells = here[:, None] & (m < n_items)[None, :]
        v = tl.load(items_ptr + m[:, None] * WIDTH + k[None, :], mask=(m < n_items)[:, None], other=0.0)
        r = tl.load(values_ptr + n[:, None] * n_items + m[None, :], mask=cells, other=float("nan"))
        e = tl.where(r == r, r - tl.dot(u, tl.trans(v), input_precision=PRECISION), 0.0)
        gradients += tl.dot(e, v, input_precision=PRECISION)
        error_sum += tl.sum(e, 1)
        square_sum += tl.sum(e * e, 1)
    tl.store(gradients_ptr + row, gradients, mask=here[:, None])
    tl.store(error_ptr + run * n_users + n, error_sum, mask=here)
    tl.store(square_ptr + run * n_users + n, square_sum, mask=here)


@triton.jit
def item_kernel(
    values_ptr, set_ptr, bits_ptr, users_ptr, items_ptr, key_ptr, zero_ptr, one_ptr, law_ptr, law_stride,
    gradients_ptr, counts_ptr, squares_ptr,
    n_users: tl.constexpr, n_items: tl.constexpr, WIDTH: tl.constexpr, TILE_N: tl.constexpr, TILE_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute, for one tile of items of one run, the number of users who report each item, and their sum of e u.

    Here e is the reported error and u the user vector. The squares e² are added to the totals of the users.
    """
    run = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    k = tl.arange(0, WIDTH)
    here = m < n_items
    values_ptr += tl.load(set_ptr + run) * n_users * n_items
    bits_ptr += run * n_users * n_items
    users_ptr += run * n_users * WIDTH
    items_ptr += run * n_items * WIDTH
    gradients_ptr += run * n_items * WIDTH
    zero_ptr += run * n_users
    one_ptr += run * n_users
    law_ptr += run * n_users
    squares_ptr += run * n_users
    row = m[:, None] * WIDTH + k[None, :]
    v = tl.load(items_ptr + row, mask=here[:, None], other=0.0)
    key = tl.load(key_ptr + run)
    gradients = tl.zeros((TILE_M, WIDTH), tl.float32)
    counts = tl.zeros((TILE_M,), tl.float32)
    for start in range(0, n_users, TILE_N):
        n = start + tl.arange(0, TILE_N)
        real = n < n_users
        cells = real[:, None] & here[None, :]
        cell = n[:, None] * n_items + m[None, :]
        u = tl.load(users_ptr + n[:, None] * WIDTH + k[None, :], mask=real[:, None], other=0.0)
        r = tl.load(values_ptr + cell, mask=cells, other=float("nan"))
        bit = tl.load(bits_ptr + cell, mask=cells, other=0)
        zero = tl.load(zero_ptr + n, mask=real, other=0.0)
        one = tl.load(one_ptr + n, mask=real, other=0.0)
        sign = tl.load(law_ptr + n, mask=real, other=0.0)
        center = tl.load(law_ptr + law_stride + n, mask=real, other=0.0)
        deviation = tl.load(law_ptr + 2 * law_stride + n, mask=real, other=0.0)
        low = tl.load(law_ptr + 3 * law_stride + n, mask=real, other=0.5)
        mass = tl.load(law_ptr + 4 * law_stride + n, mask=real, other=0.0)
        bound = tl.load(law_ptr + 5 * law_stride + n, mask=real, other=0.0)
        choice, luck, _, _ = tl.randint4x(key, cell)
        selected = cells & (uniform_from(choice) < tl.where(bit != 0, one[:, None], zero[:, None]))
        quantile = uniform_from(luck) * mass[:, None] + low[:, None]
        quantile = tl.minimum(tl.maximum(quantile, 1.1754943508222875e-38), 0.999999940395355)
        fake = normal_quantile(quantile) * deviation[:, None] + center[:, None]
        fake = tl.minimum(tl.maximum(fake, -bound[:, None]), bound[:, None]) * sign[:, None]
        e = tl.where(r == r, r - tl.dot(u, tl.trans(v), input_precision=PRECISION), fake)
        e = tl.where(selected, e, 0.0)
        gradients += tl.dot(tl.trans(e), u, input_precision=PRECISION)
        counts += tl.sum(selected.to(tl.float32), 0)
        tl.atomic_add(squares_ptr + n, tl.sum(e * e, 1), mask=real)
    tl.store(gradients_ptr + row, gradients, mask=here[:, None])
    tl.store(counts_ptr + run * n_items + m, counts, mask=here)


@triton.jit
def held_out_kernel(
    test_users_ptr, test_items_ptr, test_values_ptr, split_ptr, users_ptr, items_ptr, squares_ptr, absolutes_ptr,
    n_tests: tl.constexpr, n_users: tl.constexpr, n_items: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Add the squared and absolute errors of one tile of held-out ratings to the sums of their run."""
    run = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, WIDTH)
    here = place < n_tests
    place += tl.load(split_ptr + run) * n_tests
    user = run * n_users + tl.load(test_users_ptr + place, mask=here, other=0)
    item = run * n_items + tl.load(test_items_ptr + place, mask=here, other=0)
    u = tl.load(users_ptr + user[:, None] * WIDTH + k[None, :], mask=here[:, None], other=0.0)
    v = tl.load(items_ptr + item[:, None] * WIDTH + k[None, :], mask=here[:, None], other=0.0)
    r = tl.load(test_values_ptr + place, mask=here, other=0.0)
    e = tl.where(here, r - tl.sum(u * v, 1), 0.0)
    tl.atomic_add(squares_ptr + run, tl.sum(e * e, 0))
    tl.atomic_add(absolutes_ptr + run, tl.sum(tl.abs(e), 0))


def user_sums(
    values: Tensor,
    sets: Tensor,
    counts: Tensor,
    user_vectors: Tensor,
    item_vectors: Tensor,
    *,
    precision: str = "tf32",
    tile: Tile = USER_TILE,
) -> UserSums:
    """Return, for every run, the `UserSums`: sums of errors times item vectors, and the errors' mean and deviation.

    Run number b trains on `values[sets[b]]`; `counts` `(n_runs, n_users)` holds the numbers of rated items.
    `precision` is Triton's mode of matrix products. `dense.user_sums` computes these sums for one run.
    """
    n_runs, n_users, n_factors = user_vectors.shape
    users, items = _padded(user_vectors), _padded(item_vectors)
    gradients = torch.empty_like(users)
    error, square = user_vectors.new_empty((2, n_runs, n_users))
    user_kernel[(triton.cdiv(n_users, tile.users), n_runs)](
        values, sets, users, items, gradients, error, square,
        n_users, item_vectors.shape[1], users.shape[2], tile.users, tile.items, precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    h = counts.clamp_min(1)
    mean = error / h
    deviation = (square / h - mean**2).clamp_min(0).sqrt()
    return UserSums(gradients[..., :n_factors], mean, torch.where(counts > 1, deviation, 0.0))


def item_sums(
    values: Tensor,
    sets: Tensor,
    bits: Tensor,
    keys: Tensor,
    prob_send_zero: Tensor,
    prob_send_one: Tensor,
    law: FakeLaw,
    user_vectors: Tensor,
    item_vectors: Tensor,
    *,
    precision: str = "tf32",
    tile: Tile = ITEM_TILE,
) -> ItemSums:
    """Draw selections and fake errors, and return the `ItemSums` of every run.

    `bits` are the permanent bits, `keys` `(n_runs,)` the keys of this round's random draws, and `law` is the
    distribution of fake errors. Run number b trains on `values[sets[b]]`. `dense.item_sums` computes these sums for one
    run from given draws.
    """
    n_runs, n_users, n_factors = user_vectors.shape
    n_items = item_vectors.shape[1]
    users, items = _padded(user_vectors), _padded(item_vectors)
    laws = torch.stack([law.sign, law.center, law.deviation, law.low, law.mass, law.bound])
    gradients = torch.empty_like(items)
    counts = item_vectors.new_empty((n_runs, n_items))
    squares = user_vectors.new_zeros((n_runs, n_users))
    item_kernel[(triton.cdiv(n_items, tile.items), n_runs)](
        values, sets, bits.view(torch.uint8), users, items, keys, prob_send_zero, prob_send_one, laws, n_runs * n_users,
        gradients, counts, squares, n_users, n_items, users.shape[2], tile.users, tile.items, precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return ItemSums(gradients[..., :n_factors], counts, squares)


def held_out_errors(tests: HeldOut, user_vectors: Tensor, item_vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean squared and the mean absolute error of every run on its held-out ratings, `(n_runs,)` each."""
    n_runs, n_users, _ = user_vectors.shape
    n_tests = tests.users.shape[1]
    users, items = _padded(user_vectors), _padded(item_vectors)
    squares, absolutes = user_vectors.new_zeros((2, n_runs))
    held_out_kernel[(triton.cdiv(n_tests, PAIRS), n_runs)](
        tests.users, tests.items, tests.values, tests.splits, users, items, squares, absolutes,
        n_tests, n_users, item_vectors.shape[1], users.shape[2], PAIRS,
    )  # fmt: skip
    return squares / n_tests, absolutes / n_tests


def _padded(vectors: Tensor) -> Tensor:
    """Return the vectors padded with zeros to a length that is a power of 2 and at least 16, for the matrix units."""
    width = max(16, triton.next_power_of_2(vectors.shape[2]))
    return torch.nn.functional.pad(vectors, (0, width - vectors.shape[2])).contiguous()
