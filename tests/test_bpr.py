"""Pairwise ranking: its equations, what a device draws and sends, and the order it learns."""

import numpy as np
import pytest
from parties import N_FACTORS, N_ITEMS, make_terms, make_vectors, recorded_draws, report_on, small_problem, user_vector
from scipy.stats import binom, kstest

from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.models.bpr import PairwiseRanking
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.protocols.gradient.protocols import GradientProtocol, Plain, Sdcf
from hushrec.randomness import SeededRandomness
from hushrec.simulation.training_problem import make_problem

MODEL = PairwiseRanking(N_FACTORS)
SDCF = Sdcf(epsilon_i=4.0, epsilon_g=None)
PROTOCOLS = {"plain": Plain(), "sdcf": SDCF}
RATED = np.array([1, 3, 4, 8, 12, 19])


def make_ranker(protocol: GradientProtocol, items: np.ndarray = RATED, seed: int = 7) -> Client:
    """A client of the model with those items rated."""
    terms = make_terms(model="bpr", reports_per_client=5.0 if protocol.selection else None)
    randomness, ledger = SeededRandomness(seed), Ledger(selection=8.0)
    client = Client(terms, MODEL, protocol, randomness=randomness, ledger=ledger)
    client.add_ratings(items, np.ones(len(items)))
    return client


def one_round(client: Client) -> tuple[GradientReport, np.ndarray, np.ndarray]:
    """A client's report of round 1, the item vectors, and its user vector before."""
    before, vectors = user_vector(client).copy(), make_vectors()
    return report_on(client, ItemVectors(client.side._terms, 1, vectors)), vectors, before


def numerical_gradient(function, point: np.ndarray) -> np.ndarray:
    """Central differences."""
    steps = 1e-6 * np.eye(len(point))
    return np.array([(function(point + step) - function(point - step)) / 2e-6 for step in steps])


def test_all_three_gradients_are_negative_derivatives_of_the_loss(rng):
    """−ln σ(u v_jᵀ − u v_j'ᵀ), with respect to the rated item, the unrated item and the user."""
    u, rated, unrated = rng.normal(size=(3, N_FACTORS))
    nothing = np.zeros(N_FACTORS)

    def loss(u: np.ndarray, rated: np.ndarray, unrated: np.ndarray) -> float:
        return float(np.log1p(np.exp(-(u @ rated - u @ unrated))))

    ends, others = np.stack([rated, unrated]), np.stack([unrated, rated])
    errors = MODEL.selected_errors(np.array([True, False]), u, ends, others)
    rows = MODEL.item_gradients(errors, u, ends, nothing, data_weight=1.0)
    np.testing.assert_allclose(rows[0], -numerical_gradient(lambda v: loss(u, v, unrated), rated), atol=1e-8)
    np.testing.assert_allclose(rows[1], -numerical_gradient(lambda v: loss(u, rated, v), unrated), atol=1e-8)

    difference = (rated - unrated)[None]
    own = MODEL.user_gradient(MODEL.errors(np.ones(1), difference @ u), u, difference, nothing, data_weight=1.0)
    np.testing.assert_allclose(own, -numerical_gradient(lambda point: loss(point, rated, unrated), u), atol=1e-8)


def test_errors_by_hand():
    """With x = ln 3: s = 1/4, so +1/4 for the rated end and −1/4 for the unrated."""
    u, rated, unrated = np.array([1.0]), np.array([[np.log(3)]]), np.array([[0.0]])
    model = PairwiseRanking(1)
    np.testing.assert_allclose(model.selected_errors(np.array([True]), u, rated, unrated), 0.25)
    np.testing.assert_allclose(model.selected_errors(np.array([False]), u, unrated, rated), -0.25)


def test_start_vectors_are_uniform_below_three_tenths(rng):
    """For any number of factors; one false alarm in a million seeds."""
    assert kstest(PairwiseRanking(10).initial_vectors(2000, rng=rng).ravel(), "uniform", args=(0, 0.3)).pvalue > 1e-6


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_every_row_is_the_gradient_of_its_own_pair(protocol):
    """Rows sent = η (±N s u − v Λ) + noise, and u moves by the mean over its own pairs."""
    client = make_ranker(protocol)
    with recorded_draws() as drawn:
        report, vectors, u = one_round(client)
    (draws,), terms = drawn.values(), client.side._terms
    step_size, weight = terms.step_size(1), terms.data_weight

    for row, item, partner in zip(
        report.gradients - draws.gradient_noise, report.items, draws.selected_partners, strict=True
    ):
        sign = 1 if item in RATED else -1
        s = 1 / (1 + np.exp(sign * (vectors[item] - vectors[partner]) @ u))
        expected = step_size * (weight * sign * s * u - vectors[item] * terms.item_regularization)
        np.testing.assert_allclose(row, expected, rtol=1e-12)

    own = np.zeros(N_FACTORS)
    for item, partner in zip(RATED, draws.user_partners, strict=True):
        difference = vectors[item] - vectors[partner]
        own += weight * difference / (1 + np.exp(difference @ u)) / len(RATED)
    moved = u + step_size * (own - u * terms.user_regularization) + draws.user_noise
    np.testing.assert_allclose(user_vector(client), moved, rtol=1e-12)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_pair_has_one_rated_and_one_unrated_end(protocol):
    """For the device's own step and for what it sends; no fake error is drawn."""
    for seed in range(20):
        client = make_ranker(protocol, seed=seed)
        with recorded_draws() as drawn:
            one_round(client)
        (draws,) = drawn.values()
        assert not np.isin(draws.user_partners, RATED).any()
        assert (np.isin(draws.selected, RATED) != np.isin(draws.selected_partners, RATED)).all()
        assert len(draws.fake_errors) == 0


def test_plain_sends_both_ends_of_its_own_pairs():
    """Every rated item with its partner, every distinct partner with a rated item that drew it."""
    client = make_ranker(Plain())
    with recorded_draws() as drawn:
        report, _, _ = one_round(client)
    (draws,) = drawn.values()
    pairs = set(zip(RATED.tolist(), draws.user_partners.tolist(), strict=True))
    sent = list(zip(report.items.tolist(), draws.selected_partners.tolist(), strict=True))
    assert {item for item, _ in sent} == set(RATED) | set(draws.user_partners)
    assert all(pair in pairs or pair[::-1] in pairs for pair in sent)


def test_partners_are_uniform_among_unrated_items():
    """Each of 14 unrated items with the same probability; one false alarm in a million seeds over all 14."""
    partners = []
    for seed in range(1000):
        with recorded_draws() as found:
            one_round(make_ranker(Plain(), seed=seed))
        partners += [draws.user_partners for draws in found.values()]
    drawn = np.concatenate(partners)
    counts = np.bincount(drawn, minlength=N_ITEMS)
    low, high = binom.interval(1 - 1e-6 / 14, len(drawn), 1 / 14)
    assert counts[RATED].sum() == 0
    unrated = np.delete(counts, RATED)
    assert low <= unrated.min()
    assert unrated.max() <= high


def test_a_client_that_rated_everything_has_no_pairs_and_stays_out():
    """In a round, and in the list of those who take part."""
    client = make_ranker(Plain(), np.arange(N_ITEMS))
    with pytest.raises(LocalProtocolError, match="unrated items"):
        one_round(client)
    users, items = np.repeat([0, 1], 3), np.array([0, 1, 2, 0, 1, 2])
    with pytest.raises(ParameterError, match="unrated items"):
        make_problem(
            users, items, np.ones(6), n_users=2, n_items=3, model=MODEL, protocols=[Plain()], rounds=1, step=0.1
        )


def test_fake_errors_need_their_parameter():
    """A protocol made for pairs refuses to draw fakes for a model that needs them."""
    with pytest.raises(ParameterError, match="epsilon_g"):
        ReferenceEngine(small_problem(SDCF)).run_round()


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_the_missing_squares_of_a_checkerboard_rank_first(protocol):
    """People meet half of the squares of their own colour: the other half must come before the other colour."""
    rng = np.random.default_rng(5)
    n_users, n_items = 60, 40
    own_colour = (np.arange(n_users)[:, None] + np.arange(n_items)) % 2 == 0
    met = own_colour & (rng.random((n_users, n_items)) < 0.5)
    users, items = np.nonzero(met)
    problem = make_problem(
        users,
        items,
        np.ones(len(users)),
        n_users=n_users,
        n_items=n_items,
        model=PairwiseRanking(4),
        protocols=[protocol],
        rounds=150,
        step=2.0,
    )
    engine = ReferenceEngine(problem)
    for _ in range(150):
        engine.run_round()
    scores = engine.predictor().user_vectors @ engine.predictor().item_vectors.T
    wins = [
        (row[own & ~seen][:, None] > row[~own]).mean() for row, own, seen in zip(scores, own_colour, met, strict=True)
    ]
    assert np.mean(wins) > {"plain": 0.99, "sdcf": 0.9}[protocol.name]


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_restored_run_continues_bit_for_bit(protocol):
    """Partners come from keyed streams, so that nothing of them needs keeping."""
    whole, before, after = (ReferenceEngine(small_problem(protocol, model=MODEL)) for _ in range(3))
    for _ in range(4):
        whole.run_round()
    for _ in range(2):
        before.run_round()
    after.restore(before.state())
    for _ in range(2):
        after.run_round()
    np.testing.assert_array_equal(after.predictor().item_vectors, whole.predictor().item_vectors)
    np.testing.assert_array_equal(after.predictor().user_vectors, whole.predictor().user_vectors)
