"""The PyTorch engine: the same round as real clients when given their draws, the same distribution with its own."""

import dataclasses
import itertools
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from parties import SDCF, recorded_draws, small_problem
from scipy import stats

torch = pytest.importorskip("torch", reason="engine gpu needs torch: pip install torch==2.13.0")

from gpu_kit import (  # noqa: E402
    ALARM,
    assert_continues_bit_for_bit,
    assert_runs_are_independent,
    assert_same_law,
    assert_same_state,
    assert_training_takes_the_engine,
    rounds,
)

from hushrec.budget.calibrate import calibrate_selection, fake_error_bound  # noqa: E402
from hushrec.engines import make_engine  # noqa: E402
from hushrec.engines.gpu import dense  # noqa: E402
from hushrec.engines.gpu.engine import GpuBatch, GpuEngine  # noqa: E402
from hushrec.engines.gpu.user_arrays import kept_under_caps, runs_at_once, training_values  # noqa: E402
from hushrec.engines.reference import ReferenceEngine  # noqa: E402
from hushrec.errors import ParameterError  # noqa: E402
from hushrec.models.mf import MatrixFactorization  # noqa: E402
from hushrec.protocols.gradient.prediction import initial_user_vectors  # noqa: E402
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf  # noqa: E402

PROTOCOLS = {"plain": Plain(), "isgld": Isgld(epsilon=4.0), "sdcf": SDCF, "unbounded": Sdcf(4.0, 0.0)}


@pytest.mark.parametrize("protocol", [Plain(), SDCF], ids=["plain", "sdcf"])
def test_with_the_draws_of_real_clients_a_round_is_the_same(protocol):
    """Selection, fakes and noise taken from `reference`: users, items and loss agree to 1e-9 in float64."""
    problem = small_problem(protocol)
    with recorded_draws() as draws:
        reference = rounds(ReferenceEngine(problem), 1)
    batch = GpuBatch([problem], device="cpu", dtype=torch.float64)
    batch.round_number = 1
    shape = (problem.n_users, problem.n_items)
    selected, fakes, user_noise = np.zeros(shape, bool), np.zeros(shape), np.zeros((problem.n_users, 3))
    item_noise = np.zeros((problem.n_items, 3))
    for user, drawn in draws.items():
        selected[user, drawn.selected] = True
        rated = problem.items[problem.starts[user] : problem.starts[user + 1]]
        fakes[user, np.setdiff1d(drawn.selected, rated)] = drawn.fake_errors
        user_noise[user] = drawn.user_noise
        item_noise[drawn.selected] += drawn.gradient_noise
    item_noise /= np.maximum(selected.sum(0), 1)[:, None]
    values, vectors = batch._values[0], (batch.user_vectors[0], batch.item_vectors[0])
    users = dense.user_sums(values, batch._counts[0], *vectors)
    items = dense.item_sums(values, torch.tensor(selected), torch.tensor(fakes), *vectors)
    sums = dense.ItemSums(*(entry[None] for entry in vars(items).values()))
    batch._apply(users.gradients[None], sums, torch.tensor(user_noise)[None], torch.tensor(item_noise)[None])
    assert_same_state(batch, reference)


@pytest.mark.parametrize("protocol", [Isgld(epsilon=4.0), SDCF, Sdcf(4.0, 0.0)], ids=["isgld", "sdcf", "unbounded"])
def test_items_and_users_move_as_under_real_clients(protocol):
    """60 seeds, 2 rounds: mean difference and spread of every coordinate agree; false alarms 1e-6."""
    problems = [small_problem(protocol, seed=seed, rounds=2) for seed in range(60)]
    batch = rounds(GpuBatch(problems, device="cpu"), 2)
    assert_same_law(batch, [rounds(ReferenceEngine(problem), 2) for problem in problems])


def test_items_are_reported_as_often_as_calibrated():
    """400 seeds: reports of each item against Σ p* over who did not rate it + Σ q* over who did; false alarms 1e-6."""
    problems = [small_problem(SDCF, seed=seed) for seed in range(400)]
    batch = GpuBatch(problems, device="cpu")
    batch.round_number = 1
    batch._redraw_bits()
    _, sums = batch._dense_sums()
    problem = problems[0]
    h = problem.rated_counts[problem.active_users]
    found = calibrate_selection(h, problem.n_items, problem.terms.reports_per_client, 4.0, 8.0)
    sent = np.tile(found.prob_send_unrated[:, None], problem.n_items)
    for row, user in enumerate(problem.active_users):
        sent[row, problem.items[problem.starts[user] : problem.starts[user + 1]]] = found.prob_send_rated[row]
    expected, variance = 400 * sent.sum(0), 400 * (sent * (1 - sent)).sum(0)
    scores = (sums.counts.sum(0).numpy() - expected) / np.sqrt(variance)
    assert np.abs(scores).max() < stats.norm.isf(ALARM / 2 / len(scores))


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 1.0), (-2.0, 0.9), (4.0, 0.4)])
@pytest.mark.parametrize("epsilon_g", [0.0, 0.25, 4.0, 9.0])
def test_fakes_follow_the_truncated_normal(mean, deviation, epsilon_g):
    """20,000 fakes against the truncated normal law (Kolmogorov-Smirnov, false alarms 1e-6)."""
    law = dense.fake_law(*(torch.tensor([value]) for value in (mean, deviation, epsilon_g)))
    uniform = torch.rand((1, 20_000), generator=torch.Generator().manual_seed(3))
    bound = fake_error_bound(mean, deviation, epsilon_g)
    fakes = law.errors(uniform)[0].double().numpy()
    assert np.abs(fakes).max() <= bound * (1 + 1e-6)
    truth = stats.truncnorm((-bound - mean) / deviation, (bound - mean) / deviation, mean, deviation)
    assert stats.kstest(fakes, truth.cdf).pvalue > ALARM


def test_bounds_of_fakes_equal_the_scalar_search():
    """From ε_g 0.001 to 80 and |mean| up to 100 deviations; 0 is ∞, ∞ is 0, no deviation is the mean."""
    cases = [
        (mean, deviation, epsilon_g)
        for mean in (0.0, 1e-6, 0.5, -2.0, 10.0, -100.0)
        for deviation in (0.0, 1.0, 0.3)
        for epsilon_g in (0.0, 1e-3, 0.0625, 1.0, 4.0, 12.0, 40.0, 80.0, np.inf)
    ]
    found = dense.fake_error_bounds(*(torch.tensor(column, dtype=torch.float64) for column in zip(*cases, strict=True)))
    np.testing.assert_allclose(found, [fake_error_bound(*case) for case in cases], rtol=1e-8)


def test_a_single_rating_is_faked_by_itself():
    """With one rating the deviation is 0 and the fake is the mean, for every ε_g above 0."""
    law = dense.fake_law(torch.tensor([-1.5]), torch.tensor([0.0]), torch.tensor([4.0]))
    np.testing.assert_array_equal(law.errors(torch.rand((1, 50))), -1.5)


def test_other_runs_of_a_batch_change_nothing():
    """A run alone and the same run among others agree to rounding."""
    assert_runs_are_independent(
        [small_problem(protocol, seed=seed) for seed in (1, 2) for protocol in PROTOCOLS.values()]
    )


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_restored_run_continues_bit_for_bit(protocol):
    """Three rounds, a restart, two more: as five without a break."""
    assert_continues_bit_for_bit(small_problem(protocol))


def test_a_user_without_ratings_stays_where_they_started():
    """And sends nothing."""
    problem = small_problem(SDCF)
    engine = rounds(GpuEngine(problem, device="cpu"), 2)
    np.testing.assert_allclose(engine.predictor().user_vectors[0], initial_user_vectors(problem)[0], rtol=1e-6)
    assert engine.losses()["value_rho"][0] == 0


def test_permanent_bits_stand_until_the_next_epoch():
    """With epochs of 3 rounds, bits change in round 4 and only there."""
    batch = GpuBatch([small_problem(SDCF, epoch_rounds=3)], device="cpu")
    bits = [rounds(batch, 1)._bits.clone() for _ in range(5)]
    assert [bool((a != b).any()) for a, b in itertools.pairwise(bits)] == [False, False, True, False]


def test_noisy_ratings_follow_laplace(rng):
    """ISGLD on the engine's own draws: noise of scale 4 / ε (Kolmogorov-Smirnov, false alarms 1e-6); once per run."""
    problem = small_problem(Isgld(epsilon=2.0), n_users=200, n_items=100)
    noise = training_values(problem) - problem.values
    assert stats.kstest(noise, stats.laplace(scale=2.0).cdf).pvalue > ALARM
    np.testing.assert_array_equal(training_values(problem), training_values(problem))


def test_a_cap_keeps_that_many_ratings_of_each_user(rng):
    """Users above the cap lose random ratings, the others none; without a cap nothing is drawn."""
    problem = small_problem(Sdcf(4.0, 1.0, profile_cap=4))
    kept = kept_under_caps(problem, rng=rng)
    owners = np.repeat(np.arange(problem.n_users), problem.rated_counts)
    counts = np.bincount(owners[kept], minlength=problem.n_users)
    np.testing.assert_array_equal(counts, np.minimum(problem.rated_counts, 4))
    assert kept_under_caps(small_problem(SDCF), rng=rng) is None
    assert np.isfinite(rounds(GpuEngine(problem, device="cpu"), 2).item_vectors).all()


def test_clients_with_different_budgets_share_a_batch():
    """Each user is calibrated by their own budget."""
    levels = [Sdcf(epsilon_i=4.0 if user % 2 else 0.5, epsilon_g=1.0) for user in range(30)]
    batch = GpuBatch([small_problem(*levels)], device="cpu")
    assert batch._flip[0, 1] < batch._flip[0, 2] < 0.5


def test_held_out_errors_are_those_of_the_predictions():
    """Each run is measured on its own split."""
    problems = [small_problem(Plain(), seed=seed) for seed in (1, 2)]
    batch = rounds(GpuBatch(problems, device="cpu"), 1)
    users, items, values = np.array([[[3, 4], [5, 6]], [[1, 2], [0, 9]], [[4, 2], [1, 5]]])
    found = batch.held_out_errors(batch.place_held_out(users, items, values, [1, 0]))
    for run, split in enumerate((1, 0)):
        u = batch.user_vectors[run].numpy()[users[split]]
        error = values[split] - (u * batch.item_vectors[run].numpy()[items[split]]).sum(1)
        np.testing.assert_allclose(found[run], [np.sqrt(np.mean(error**2)), np.abs(error).mean()], rtol=1e-6)


def test_batches_that_do_not_fit_are_cut():
    """More memory, more runs; a shared training set makes room; where not even one fits, a refusal with both sizes."""
    shape = (6040, 3706, 50)
    assert runs_at_once(*shape, 10 * 10**9) < runs_at_once(*shape, 100 * 10**9)
    assert runs_at_once(*shape, 10 * 10**9) < runs_at_once(*shape, 10 * 10**9, runs_per_set=20)
    assert runs_at_once(*shape, 10 * 10**9, n_pairs=10**6) < runs_at_once(*shape, 10 * 10**9)
    with pytest.raises(ParameterError, match=r"memory .* got 0\.1 GB"):
        runs_at_once(*shape, 10**8)


def test_what_cannot_run_in_a_batch_is_refused():
    """Another model, and runs of different shapes."""
    problem = small_problem(SDCF)

    @dataclasses.dataclass(frozen=True)
    class Other(MatrixFactorization):
        name = "other"

    with pytest.raises(ParameterError, match="engine gpu"):
        GpuEngine(dataclasses.replace(problem, model=Other(3)))
    with pytest.raises(ParameterError, match="runs of one batch"):
        GpuBatch([problem, small_problem(SDCF, n_items=21)])


def test_training_takes_the_engine_by_name():
    """`train(..., engine="gpu")` plays the rounds of `GpuEngine` on the same split."""
    assert isinstance(make_engine("gpu", small_problem()), GpuEngine)
    assert_training_takes_the_engine(model="mf", rounds=3, factors=4)


def test_engine_and_run_loop_need_numpy_scipy_msgspec_and_torch_alone():
    """With every other requirement of the project blocked, a grid still runs."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    names = {name.split(">")[0].split("[")[0].lower() for name in needed} - {"numpy", "scipy", "msgspec"}
    blocked = {module for module, owners in packages_distributions().items() if names & {o.lower() for o in owners}}
    code = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(blocked)!r}))
sys.path.insert(0, {str(root / "src")!r})
import numpy as np
from hushrec.experiments.grid import Grid, run_grid
users, items = np.nonzero(np.ones((6, 5)))
keep = (users + items) % 3 > 0
users, items = users[keep], items[keep]
shared = dict(protocol="sdcf", epsilon_i=4.0, factors=2, rounds=2, step=0.3, split=0, seed=0)
for model in (dict(model="mf", epsilon_g=1.0), dict(model="bpr")):
    grid = Grid(6, 5, users, items, 1.0 + users % 5, (np.arange(len(users)) % 5 == 0)[None], [shared | model])
    print(run_grid(grid).curve.shape)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.split("\n")[:2] == ["(1, 2)"] * 2, result.stderr
    assert {"polars", "pydantic", "typer", "matplotlib", "cryptography"} <= blocked
