"""Pairwise ranking on the PyTorch engine: real clients' draws give the same round, its own the same distribution."""

import numpy as np
import pytest
from parties import recorded_draws, small_problem
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

from hushrec.data.synthetic import synthetic  # noqa: E402
from hushrec.engines.cpu.engine import CpuEngine  # noqa: E402
from hushrec.engines.gpu import dense, pairs  # noqa: E402
from hushrec.engines.gpu.engine import GpuBatch, GpuEngine  # noqa: E402
from hushrec.engines.reference import ReferenceEngine  # noqa: E402
from hushrec.errors import ParameterError  # noqa: E402
from hushrec.evaluate import metrics_of_ranks  # noqa: E402
from hushrec.models.bpr import PairwiseRanking  # noqa: E402
from hushrec.models.predictor import VectorPredictor  # noqa: E402
from hushrec.protocols.gradient.prediction import initial_user_vectors  # noqa: E402
from hushrec.protocols.gradient.protocols import Plain, Sdcf  # noqa: E402
from hushrec.simulation.tasks import ranking_task  # noqa: E402
from hushrec.simulation.training_problem import make_problem  # noqa: E402

MODEL = PairwiseRanking(3)
SDCF = Sdcf(epsilon_i=4.0, epsilon_g=None)
CAPPED = Sdcf(epsilon_i=4.0, epsilon_g=None, profile_cap=4)
PROTOCOLS = {"plain": Plain(), "sdcf": SDCF, "capped": CAPPED}


def pair_problem(protocol, **changes):
    """A small problem of the model; user 0 met nothing."""
    return small_problem(protocol, model=MODEL, **changes)


def given_reports(batch, draws):
    """What the clients' own draws make each of them send, and Σ s (v_j − v_j') of each."""
    profiles, vectors = batch._profiles[0], batch._vectors(0)
    partners = torch.tensor(np.concatenate([draws[user].user_partners for user in sorted(draws)]))
    errors, pull = pairs.own_pairs(profiles, partners, *vectors)
    if not batch.problems[0].protocols[0].selection:
        return pull, pairs.both_ends(profiles, partners, errors)
    users = torch.tensor(np.concatenate([np.full(len(draws[user].selected), user) for user in sorted(draws)]))
    items = torch.tensor(np.concatenate([draws[user].selected for user in sorted(draws)]))
    others = torch.tensor(np.concatenate([draws[user].selected_partners for user in sorted(draws)]))
    is_rated = batch._is_rated(0)[users, items]
    return pull, pairs.selected_reports(users, items, others, is_rated, *vectors)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_with_the_draws_of_real_clients_a_round_is_the_same(protocol):
    """Selection, partners and noise taken from `reference`: users, items and loss agree to 1e-9 in float64."""
    problem = pair_problem(protocol)
    with recorded_draws() as draws:
        reference = rounds(ReferenceEngine(problem), 1)
    batch = GpuBatch([problem], device="cpu", dtype=torch.float64)
    batch.round_number = 1
    user_noise, item_noise = np.zeros((problem.n_users, 3)), np.zeros((problem.n_items, 3))
    reported = np.zeros(problem.n_items)
    for user, drawn in draws.items():
        user_noise[user] = drawn.user_noise
        item_noise[drawn.selected] += drawn.gradient_noise
        reported[drawn.selected] += 1
    item_noise /= np.maximum(reported, 1)[:, None]
    pull, reports = given_reports(batch, draws)
    items = pairs.item_sums(reports, batch.user_vectors[0], problem.n_items)
    np.testing.assert_array_equal(items.counts, reported)
    sums = dense.ItemSums(*(entry[None] for entry in vars(items).values()))
    batch._apply(pull[None], sums, torch.tensor(user_noise)[None], torch.tensor(item_noise)[None])
    assert_same_state(batch, reference)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_items_and_users_move_as_on_engine_cpu(protocol):
    """120 seeds, 3 rounds: mean difference and spread of every coordinate and reports sent agree; false alarms 1e-6."""
    problems = [pair_problem(protocol, seed=seed, rounds=3) for seed in range(120)]
    batch = rounds(GpuBatch(problems, device="cpu"), 3)
    engines = [rounds(CpuEngine(problem), 3) for problem in problems]
    assert_same_law(batch, engines)
    sent = [engine.bytes_per_client_round() for engine in engines]
    found = 4 * batch.mean_reports() * (1 + 3)
    assert np.allclose(found, sent) or stats.ttest_rel(found, sent).pvalue > ALARM


def test_partners_are_counted_as_a_client_counts_them():
    """The k-th unrated item and the k-th rated one of everybody, for numbers at both ends of every cell."""
    problem = pair_problem(Plain())
    profiles = pairs.place_profiles(problem, torch.device("cpu"))
    for user in problem.active_users.tolist():
        rated = problem.items[problem.starts[user] : problem.starts[user + 1]]
        unrated = np.setdiff1d(np.arange(problem.n_items), rated)
        for items, choose in ((unrated, profiles.unrated_items), (rated, profiles.rated_items)):
            for edge in (0.0, 0.999999):
                uniform = torch.tensor((np.arange(len(items)) + edge) / len(items) + 1e-12 * (edge == 0))
                found = choose(torch.full((len(items),), user), uniform)
                np.testing.assert_array_equal(found, items)


def test_partners_are_uniform():
    """Own partners over 400 seeds: every unrated item of everybody equally often; false alarms 1e-6."""
    problem = pair_problem(Plain())
    profiles = pairs.place_profiles(problem, torch.device("cpu"))
    drawn = np.zeros((problem.n_users, problem.n_items))
    generator = torch.Generator().manual_seed(5)
    for _ in range(400):
        uniform = torch.rand(len(profiles.users), generator=generator, dtype=torch.float64)
        np.add.at(drawn, (profiles.users.numpy(), profiles.unrated_items(profiles.users, uniform).numpy()), 1)
    h = problem.rated_counts[1:, None]
    expected = 400 * h / (problem.n_items - h)
    is_rated = np.zeros_like(drawn, dtype=bool)
    is_rated[np.repeat(np.arange(problem.n_users), problem.rated_counts), problem.items] = True
    assert drawn[is_rated].sum() == 0
    terms = np.where(is_rated[1:], 0.0, (drawn[1:] - expected) ** 2 / expected)
    freedom = int((~is_rated[1:]).sum()) - (problem.n_users - 1)
    assert stats.chi2.sf(terms.sum(), freedom) > ALARM


def test_somebody_who_met_everything_takes_no_part():
    """Neither user vector moves nor anything is sent; the others go on."""
    users, items = np.repeat([0, 1, 2], [4, 2, 1]), np.array([0, 1, 2, 3, 0, 1, 3])
    for protocol in (Plain(), SDCF):
        problem = make_problem(
            users, items, np.ones(7), n_users=3, n_items=4, model=MODEL, protocols=[protocol], rounds=2, step=0.5
        )
        engine = rounds(GpuEngine(problem, device="cpu"), 2)
        start = initial_user_vectors(problem)
        np.testing.assert_allclose(engine.predictor().user_vectors[0], start[0], rtol=1e-6)
        assert (np.abs(engine.predictor().user_vectors[1:] - start[1:]) > 1e-6).all()
        assert engine.losses()["value_rho"][0] == 0


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_restored_run_continues_bit_for_bit(protocol):
    """Three rounds, a restart, two more: as five without a break."""
    assert_continues_bit_for_bit(pair_problem(protocol))


def test_other_runs_of_a_batch_change_nothing():
    """A run alone and the same run among others agree to rounding."""
    assert_runs_are_independent(
        [pair_problem(protocol, seed=seed) for seed in (1, 2) for protocol in PROTOCOLS.values()]
    )


def test_ranks_are_those_of_the_task():
    """AUC, HR and NDCG from the engine's ranks equal those that the task computes from its vectors."""
    task = ranking_task(synthetic(), 0)
    users, items, values = task.training()
    problem = make_problem(
        users, items, values, n_users=task.ratings.n_users, n_items=task.ratings.n_items,
        model=MODEL, protocols=[Plain()], rounds=3, step=4.0,
    )  # fmt: skip
    batch = rounds(GpuBatch([problem], device="cpu", dtype=torch.float64), 3)
    rows = task.split.test
    tests = task.ratings.users[rows][None], task.ratings.items[rows][None], np.ones((1, len(rows)))
    ranks = batch.held_out_ranks(batch.place_held_out(*tests, [0]))
    expected = task.metrics(VectorPredictor(MODEL, batch.user_vectors[0].numpy(), batch.item_vectors[0].numpy()))
    assert metrics_of_ranks(*ranks[0]) == pytest.approx(expected, rel=1e-9)


def test_training_takes_the_engine_by_name():
    """`train(..., model="bpr", engine="gpu")` plays the rounds of `GpuEngine` on the same split."""
    assert_training_takes_the_engine(model="bpr", rounds=10)


def test_fused_kernels_are_for_matrix_factorization():
    """And two models do not share a batch."""
    with pytest.raises(ParameterError, match="kernels"):
        GpuBatch([pair_problem(SDCF)], device="cpu", kernels="fused")
    with pytest.raises(ParameterError, match="must have the same model"):
        GpuBatch([pair_problem(Plain()), small_problem(Plain())], device="cpu")
