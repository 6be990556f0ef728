"""Model `audience` under the masked protocol: devices, server, both engines, and what it finds."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_masked_run import device_sum

import hushrec
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.models.audience_predictor import Audience, AudiencePredictor
from hushrec.models.item_columns import item_columns
from hushrec.protocols.masked.audience import plan as plans
from hushrec.protocols.masked.audience.plan import choose_plan
from hushrec.protocols.masked.audience.server import AudienceLearner
from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS
from hushrec.protocols.masked.protocol import Masked
from hushrec.simulation.results import load as load_run
from hushrec.simulation.training import train
from hushrec.simulation.training_problem import AnyProblem, make_problem

N_USERS, N_ITEMS, EMPTY = 60, 24, 7
FEW = 12  # people of a run in which every message is real


def small_problem(
    *, n_users: int = N_USERS, epsilon: float = 8.0, flags: bool = True, empty: int | None = None
) -> AnyProblem:
    """Sixty people of whom half meet even and half meet odd items, mostly; a flag may say which is which."""
    rng = np.random.default_rng(1)
    alike = np.arange(n_users)[:, None] % 2 == np.arange(N_ITEMS) % 2
    users, items = np.nonzero(rng.random((n_users, N_ITEMS)) < np.where(alike, 0.5, 0.1))
    if empty is not None:
        users, items = users[users != empty], items[users != empty]
    attributes = pl.DataFrame({"kind=even": np.arange(N_ITEMS) % 2 == 0}) if flags else None
    model = Audience(item_columns(N_ITEMS, None, attributes))
    return problem_of(users, items, n_users, N_ITEMS, model, epsilon)


def problem_of(
    users: np.ndarray, items: np.ndarray, n_users: int, n_items: int, model: Audience, epsilon: float = 8.0
) -> AnyProblem:
    """Who met what as a problem of the masked protocol, with the plan of a large fleet at the same devices · μ²."""
    protocols = [Masked(epsilon)]
    ones = np.ones(len(users))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "FEWEST_FOR_COLUMNS", 0)
        return make_problem(
            users, items, ones, n_users=n_users, n_items=n_items, model=model, protocols=protocols, seed=3
        )


def trained(problem: AnyProblem) -> CpuMaskedEngine:
    """All rounds on the CPU engine."""
    engine = CpuMaskedEngine(problem)
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    return engine


@pytest.mark.parametrize("passes", [1, 2])
def test_the_cpu_engine_makes_the_integers_of_the_devices(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round, from the same table and the same draws: equal integer by integer, one person empty."""
    monkeypatch.setattr(plans, "WIDTHS", {0.0: (4,) if passes == 1 else (16, 12)})
    problem = small_problem(n_users=FEW, empty=EMPTY)
    reference, cpu = ReferenceEngine(problem), CpuMaskedEngine(problem)
    priced = problem.terms.priced
    assert len(priced.plan.rounds) == 2 * passes
    for number, (one, codes) in enumerate(zip(priced.plan.rounds, priced.codes, strict=True), start=1):
        table = reference.server.side.learner.table()
        reference.run_round()
        expected = device_sum(problem, cpu, number, one, codes, table, np.ones(FEW, dtype=bool))
        np.testing.assert_array_equal(reference.server.side.attempt.sum, expected)


@pytest.mark.parametrize("flags", [True, False])
def test_people_get_the_kind_of_items_that_they_meet(flags: bool) -> None:
    """Without noise, every unmet item of one's own kind scores above the others of equal popularity, on average.

    Without a public flag the audiences of random signs have to tell the kinds apart.
    """
    problem = small_problem(epsilon=np.inf, flags=flags)
    scores = trained(problem).predictor().scores(np.arange(N_USERS))
    scores -= scores.mean(axis=0)  # popularity, whatever it is
    own = np.arange(N_USERS)[:, None] % 2 == np.arange(N_ITEMS) % 2
    assert scores[own].mean() > scores[~own].mean() + (1.0 if flags else 0.5)


def test_both_engines_learn_alike_without_noise() -> None:
    """With ε = ∞ the engines differ by stochastic rounding alone."""
    problem = small_problem(n_users=FEW, epsilon=np.inf)
    reference = ReferenceEngine(problem)
    for _ in range(problem.terms.max_rounds):
        reference.run_round()
    first, second = (engine.predictor().scores(np.arange(FEW)) for engine in (reference, trained(problem)))
    np.testing.assert_allclose(first, second, atol=0.1)


def test_scores_after_every_round_are_finite_and_start_with_popularity() -> None:
    """Before the first round all items score alike; the curve of a run can be drawn from the start."""
    engine = CpuMaskedEngine(small_problem(epsilon=40.0, empty=EMPTY))
    everybody = np.arange(N_USERS)
    assert np.ptp(engine.predictor().scores(everybody)) == pytest.approx(0)
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
        scores = engine.predictor().scores(everybody)
        assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores[EMPTY], engine.learner.table().log_counts)


def test_a_restored_run_goes_on_bit_for_bit() -> None:
    """State holds all that the rounds to come depend on; a predictor comes back from its arrays."""
    problem = small_problem(epsilon=40.0)
    whole, first, second = (CpuMaskedEngine(problem) for _ in range(3))
    for _ in range(4):
        whole.run_round()
    for _ in range(2):
        first.run_round()
    second.restore(first.state())
    for _ in range(2):
        second.run_round()
    expected = whole.predictor().scores(np.arange(3))
    np.testing.assert_array_equal(second.predictor().scores(np.arange(3)), expected)
    loaded = second.predictor_from(whole.predictor().arrays())
    np.testing.assert_array_equal(loaded.scores(np.arange(3)), expected)
    with pytest.raises(ValueError, match="log_counts"):
        second.predictor_from({"log_counts": np.zeros(N_ITEMS + 1)})


@pytest.mark.parametrize("names", [("columns",), ("asked_rows", "asked_base", "asked_slope")])
def test_a_table_with_more_columns_than_its_round_uses_is_refused(names: tuple[str, ...]) -> None:
    """In every round that computes with these arrays, the blocks show their width."""
    engine = CpuMaskedEngine(small_problem(epsilon=40.0))
    rounds = engine.problem.terms.priced.plan.rounds
    for number in range(1, len(rounds) + 1):
        table = engine.learner.table()
        engine.learning.check_fits(rounds[:number], table)
        wide = {name: np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 9)]) for name, array in vars(table).items()}
        padded = engine.learning.table_from(vars(table) | {name: wide[name] for name in names})
        is_used = plans.MOMENTS if names == ("columns",) else plans.AUDIENCE
        if is_used in {block.name for block in rounds[number - 1].blocks}:
            with pytest.raises(RemoteProtocolError, match="fit"):
                engine.learning.check_fits(rounds[:number], padded)
        engine.run_round()


def test_an_empty_profile_sends_exact_zeros_and_a_profile_is_a_set_of_items() -> None:
    """In every block; an item twice would be priced once."""
    problem = small_problem(epsilon=40.0)
    learner = AudienceLearner(problem.model.columns, problem.terms.priced.plan, N_USERS)
    engine = CpuMaskedEngine(problem)
    for one in problem.terms.priced.plan.rounds:
        table, whole = engine.learner.table(), (np.arange(N_ITEMS), np.ones(N_ITEMS))
        entries = engine.learning.entries(one.blocks, table, np.empty(0, np.int64), np.empty(0))
        assert [own.values.shape for own in entries] == [
            own.values.shape for own in engine.learning.entries(one.blocks, table, *whole)
        ]
        assert not any(own.values.any() for own in entries)
        engine.run_round()
    for items in ([3, 3], [5, 3], [N_ITEMS], [-1]):
        with pytest.raises(ParameterError, match="profile"):
            learning_of(problem.model).entries(one.blocks, learner.table(), np.array(items), np.ones(len(items)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", np.nan),
        ("places", np.inf),
        ("crowd", 0.0),
        ("weights", -1.0),
        ("count_weights", -1.0),
        ("asked_rows", 1e9),
    ],
)
def test_a_device_refuses_a_table_that_formulas_could_fail_on(name: str, value: float) -> None:
    """Entries must be finite and bounded, densities positive, weights not negative."""
    arrays = {key: np.array(entry) for key, entry in vars(trained(small_problem()).learner.table()).items()}
    arrays[name].flat[0] = value
    with pytest.raises(RemoteProtocolError, match=name):
        AudienceTable(**arrays)


def test_a_device_refuses_a_table_whose_arrays_do_not_fit_together() -> None:
    """Audiences have as many columns as the description that they are means of."""
    arrays = dict(vars(trained(small_problem()).learner.table()))
    with pytest.raises(RemoteProtocolError, match="audiences"):
        AudienceTable(**arrays | {"audiences": arrays["audiences"][:, 1:]})


def test_the_plan_follows_public_numbers_alone() -> None:
    """Weak fleets: one pass with few columns. Strong ones: two passes, the second of everything that was found."""
    weak, middle, strong = (choose_plan(devices, 1682, 21, mu) for devices, mu in ((943, 0.24), (943, 0.8), (943, 1.6)))
    widths = [[block.shape[1] for block in plan.blocks if block.name == AUDIENCE] for plan in (weak, middle, strong)]
    assert [len(own) for own in widths] == [1, 1, 2]
    assert widths[0][0] < widths[1][0]
    assert [block.name for block in strong.rounds[0].blocks] == [COUNTS, MOMENTS]
    assert [block.name for block in strong.rounds[2].blocks] == [MOMENTS]


def test_few_people_have_one_pass_at_any_budget() -> None:
    """A second pass learns 28 numbers per item, to which 30 people's items fit even where they say nothing."""
    plans = [choose_plan(devices, 3800, 0, np.inf) for devices in (30, 299, 300)]
    assert [len(plan.rounds) for plan in plans] == [2, 2, 4]


def test_the_second_count_asks_more_of_rare_items() -> None:
    """Every count gets more precise, that of the rarest item most; the table keeps what only the server needs."""
    engine = CpuMaskedEngine(small_problem())
    engine.run_round()
    first = engine.learner.learned
    engine.run_round()
    gain = first.count_variances / engine.learner.learned.count_variances
    assert np.all(gain > 1)
    assert gain[first.counts.argmin()] == gain.max()
    assert not hasattr(engine.learner.table(), "count_sums")


@pytest.mark.parametrize("epsilon", [0.5, 8.0, np.inf])
@pytest.mark.parametrize(("n_users", "n_items", "each"), [(1, 1, 1), (2, 3, 1), (3, 2, 2), (30, 5, 1), (2, 40, 39)])
def test_tiny_sets_have_an_answer(n_users: int, n_items: int, each: int, epsilon: float) -> None:
    """One person, one item, one item each, no attributes: scores are finite."""
    users = np.repeat(np.arange(n_users), each)
    items = np.concatenate([np.sort((np.arange(each) + user) % n_items) for user in range(n_users)])
    model = Audience(item_columns(n_items, None, None))
    predictor = trained(problem_of(users, items, n_users, n_items, model, epsilon)).predictor()
    assert np.isfinite(predictor.scores(np.arange(n_users))).all()


def test_reasons_are_the_nearest_own_items() -> None:
    """Likeness is the kernel of the density: 1 for the item itself, more for its own kind."""
    predictor = trained(small_problem(epsilon=np.inf)).predictor()
    near = predictor.likeness(4)
    assert near[4] == 1
    others = np.arange(N_ITEMS) != 4
    assert near[others][np.arange(N_ITEMS)[others] % 2 == 0].mean() > near[1::2].mean()


def test_a_device_explains_items_by_the_nearest_own_ones() -> None:
    """As the run's predictor ranks them, from the device's own items and the public table."""
    engine = ReferenceEngine(small_problem(n_users=FEW, epsilon=np.inf))
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
    own = engine.problem.items[: engine.problem.starts[1]]
    unmet = np.setdiff1d(np.arange(N_ITEMS), own)
    predictor = engine.predictor()
    for item, found in zip(unmet, engine.clients[0].reasons(engine.server.side.public, unmet, 2), strict=True):
        nearest = sorted(own.tolist(), key=lambda place, item=item: -predictor.likeness(int(item))[place])
        assert found.tolist() == nearest[:2]


def test_a_run_folder_recommends_with_reasons(tmp_path: Path) -> None:
    """Trained, kept and loaded: the same list, of items that the person has not met, each with own items as reasons.

    The file has no values: without a choice the protocol is `masked` and the model `audience`.
    """
    rng = np.random.default_rng(2)
    users, items = np.nonzero(rng.random((30, 12)) < 0.5)
    path = tmp_path / "met.csv"
    path.write_text("user,item\n" + "".join(f"u{user},i{item}\n" for user, item in zip(users, items, strict=True)))
    made = train(path, compare=False, out=tmp_path / "run")
    assert (made.record["protocol"], made.record["model"]) == ("masked", "audience")
    assert made.record["baselines"].keys() == {"popularity", "private_popularity", "random"}
    loaded = load_run(tmp_path / "run")
    met = {f"i{item}" for item in items[users == 3]}
    listed = loaded.recommend("u3", 3)
    assert listed == made.recommend("u3", 3)
    assert not met & {entry.item for entry in listed}
    reasons = loaded.explain("u3", listed[0].item)
    assert reasons
    assert {reason.item for reason in reasons} <= met


def test_large_catalogues_are_scored_without_a_table_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the kernel are computed when they are needed: the same scores."""
    predictor = trained(small_problem()).predictor()
    assert isinstance(predictor, AudiencePredictor)
    kept = predictor.scores(np.arange(5))
    monkeypatch.setattr("hushrec.models.audience_predictor.MOST_KEPT_ITEMS", 3)
    again = AudiencePredictor(predictor.table, predictor.ratings)
    assert again._kernel.size == 0
    np.testing.assert_allclose(again.scores(np.arange(5)), kept, rtol=1e-12)
    np.testing.assert_array_equal(
        predictor.predict(np.array([2, 0, 2]), np.array([1, 3, 5])), kept[[2, 0, 2], [1, 3, 5]]
    )


def test_a_long_catalogue_with_few_devices_is_only_counted() -> None:
    """Below 0.06 devices · μ per item, and all of the budget; MovieLens-100K and Netflix at ε = 1 have 0.13."""
    for devices, n_items, mu in ((300, 5000, 0.237), (1000, 5000, 0.29)):
        assert {block.name for block in choose_plan(devices, n_items, 0, mu).blocks} == {COUNTS}
    plan = choose_plan(300, 5000, 20, 0.237)
    assert [len(one.blocks) for one in plan.rounds] == [1, 1]
    assert sum(block.share for block in plan.blocks) == pytest.approx(1)
    for devices, n_items, mu in ((943, 1682, 0.237), (10_000, 17_770, 0.237), (300, 5000, 1.01)):
        assert AUDIENCE in {block.name for block in choose_plan(devices, n_items, 20, mu).blocks}


def test_lists_of_a_run_that_only_counts_are_those_of_its_counts() -> None:
    """Nobody's items change the order, and the lists are better than chance."""
    rng = np.random.default_rng(3)
    chance = 1 / np.arange(1, 3001) ** 0.8
    items = np.concatenate([rng.choice(3000, 20, replace=False, p=chance / chance.sum()) for _ in range(300)])
    table = pl.DataFrame({"user": np.repeat(np.arange(300), 20), "item": items})
    result = train(hushrec.data.load(table), epsilon=1.0)
    scores = result.predictor.scores(np.arange(300))
    np.testing.assert_allclose(scores, np.broadcast_to(scores[0], scores.shape), atol=1e-12)
    assert result.metrics["auc"] > 0.55
