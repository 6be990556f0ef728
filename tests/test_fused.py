"""The Triton kernels against plain PyTorch. Without a GPU, Triton's interpreter runs them."""

import os

import numpy as np
import pytest
from parties import SDCF, small_problem
from scipy import stats

torch = pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="the fused kernels need triton: pip install triton")

from hushrec.engines.gpu import dense, fused  # noqa: E402
from hushrec.engines.gpu.engine import GpuBatch, default_device  # noqa: E402
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf  # noqa: E402

DEVICE = default_device()
N_USERS, N_ITEMS, N_FACTORS = 70, 90, 20  # more than one tile of each, none full


@pytest.fixture
def cells(rng):
    """Two training sets of random ratings, three runs on them, and their vectors."""
    values = np.where(rng.random((2, N_USERS, N_ITEMS)) < 0.2, rng.integers(1, 6, (2, N_USERS, N_ITEMS)), np.nan)
    values[:, :, 0] = 3.0  # everybody rated something
    users, items = rng.random((3, N_USERS, N_FACTORS)) / 2, rng.random((3, N_ITEMS, N_FACTORS)) / 2
    placed = [torch.tensor(array, dtype=torch.float32, device=DEVICE) for array in (values, users, items)]
    return placed[0], torch.tensor([1, 0, 1], device=DEVICE), placed[1], placed[2]


def rated_counts(values, sets):
    """The h of every run."""
    return (~values.isnan()).sum(-1).float()[sets]


def test_sums_of_users_equal_the_plain_ones(cells):
    """Every run on its own training set, to float32's rounding."""
    values, sets, users, items = cells
    counts = rated_counts(values, sets)
    found = fused.user_sums(values, sets, counts, users, items, precision="ieee")
    for run, number in enumerate(sets.tolist()):
        truth = dense.user_sums(values[number], counts[run], users[run], items[run])
        for name in vars(truth):
            np.testing.assert_allclose(vars(found)[name][run].cpu(), vars(truth)[name].cpu(), atol=1e-4)


def test_sums_of_items_equal_the_plain_ones_when_nothing_is_left_to_chance(cells):
    """Bits decide the selection (p = 0, q = 1), and fakes have one value (mass 0)."""
    values, sets, users, items = cells
    bits = torch.rand((3, N_USERS, N_ITEMS), device=DEVICE) < 0.3
    ones = torch.ones((3, N_USERS), device=DEVICE)
    law = dense.FakeLaw(-ones, 0.5 * ones, 0.2 * ones, 0.1 * ones, 0 * ones, 2 * ones)
    keys = torch.tensor([1, 2, 3], device=DEVICE)
    found = fused.item_sums(values, sets, bits, keys, 0 * ones, ones, law, users, items, precision="ieee")
    for run, number in enumerate(sets.tolist()):
        fakes = torch.full((N_USERS, N_ITEMS), -(0.5 + 0.2 * stats.norm.ppf(0.1)), device=DEVICE)
        truth = dense.item_sums(values[number], bits[run], fakes, users[run], items[run])
        for name in vars(truth):
            np.testing.assert_allclose(vars(found)[name][run].cpu(), vars(truth)[name].cpu(), atol=1e-3, rtol=1e-5)


def test_kernels_select_cells_with_the_given_probabilities(cells):
    """Reports of all items against p over zeros + q over ones (binomial, false alarms 1e-6); keys make them differ."""
    values, sets, users, items = cells
    bits = torch.zeros((3, N_USERS, N_ITEMS), dtype=torch.bool, device=DEVICE)
    bits[:, ::2] = True
    ones = torch.ones((3, N_USERS), device=DEVICE)
    law = dense.FakeLaw(ones, 0 * ones, 0 * ones, 0.5 * ones, 0 * ones, ones)
    keys = torch.tensor([7, 8, 8], device=DEVICE)
    counts = fused.item_sums(values, sets, bits, keys, 0.1 * ones, 0.4 * ones, law, users, items).counts.cpu().numpy()
    half = N_USERS // 2 * N_ITEMS
    for row in counts[:2]:
        variance = half * (0.1 * 0.9 + 0.4 * 0.6)
        assert abs(row.sum() - half * 0.5) < stats.norm.isf(0.5e-6 / 2) * np.sqrt(variance)
    np.testing.assert_array_equal(counts[1], counts[2])
    assert not np.array_equal(counts[0], counts[1])


@pytest.mark.parametrize("epsilon_g", [0.0, 1.0, 4.0])
def test_fakes_of_the_kernels_have_the_moments_of_the_law(cells, epsilon_g):
    """Σ e² of cells that are all fakes, all sent, against the truncated normal's (6 deviations: false alarms 1e-8)."""
    values, sets, users, items = cells
    nothing = torch.full_like(values, torch.nan)
    ones = torch.ones((3, N_USERS), device=DEVICE)
    law = dense.fake_law(-0.8 * ones, 1.1 * ones, epsilon_g * ones)
    keys = torch.tensor([1, 2, 3], device=DEVICE)
    bits = torch.ones((3, N_USERS, N_ITEMS), dtype=torch.bool, device=DEVICE)
    squares = fused.item_sums(nothing, sets, bits, keys, ones, ones, law, users, items).squares
    bound = float(law.bound[0, 0])
    truth = stats.truncnorm((-bound + 0.8) / 1.1, (bound + 0.8) / 1.1, -0.8, 1.1)
    mean, n_fakes = truth.moment(2), 3 * N_USERS * N_ITEMS
    deviation = np.sqrt((truth.moment(4) - mean**2) / n_fakes)
    assert abs(float(squares.sum()) / n_fakes - mean) < 6 * deviation


@pytest.mark.parametrize("protocol", [Plain(), Isgld(epsilon=4.0), SDCF, Sdcf(4.0, 0.0)])
def test_a_fused_round_is_a_plain_round_up_to_its_draws(protocol):
    """40 seeds of a small problem: items move alike, and where draws differ, alike on average.

    Averages are compared by paired t-tests with false alarms of 1e-6.
    """
    problems = [small_problem(protocol, seed=seed) for seed in range(40)]
    batches = [GpuBatch(problems, kernels=kernels) for kernels in ("dense", "fused")]
    for batch in batches:
        batch.run_round()
    plain, quick = (batch.item_vectors.cpu().double().numpy().reshape(40, -1) for batch in batches)
    if isinstance(protocol, Plain | Isgld):  # rated items, with the same noise: only rounding differs
        np.testing.assert_allclose(plain, quick, atol=1e-2)
    else:
        assert stats.ttest_rel(plain, quick).pvalue.min() > 1e-6 / plain.shape[1]
    np.testing.assert_allclose(batches[0].user_vectors.cpu(), batches[1].user_vectors.cpu(), atol=1e-2)


def test_held_out_errors_equal_the_plain_ones():
    """Both versions measure the same error."""
    problems = [small_problem(Plain(), seed=seed) for seed in (1, 2)]
    users, values = np.array([[3, 4], [5, 6]]), np.array([[4.0, 2.0], [1.0, 5.0]])
    found = []
    for kernels in ("dense", "fused"):
        batch = GpuBatch(problems, kernels=kernels)
        found.append(batch.held_out_errors(batch.place_held_out(users, users, values, [1, 0])))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
