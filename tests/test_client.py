"""The private side: phases, refusals that change nothing, permanent epochs, and what never shows."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from parties import (
    MODEL,
    N_ITEMS,
    SDCF,
    make_announcement,
    make_client,
    make_terms,
    make_vectors,
    permanent,
    recorded_draws,
    report_on,
    statement_of,
    user_vector,
)

from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.errors import BudgetExceeded, ImpossibleBudget, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.protocols.gradient.plausible import LARGEST_ITEM_NORM
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf
from hushrec.protocols.parties import DeviceSide, Report
from hushrec.randomness import SystemRandomness


def private_view(client: Client) -> tuple[object, ...]:
    """Everything of a client that a refusal must leave alone."""
    return (
        client.in_round,
        client.last_round,
        client._items.tobytes(),
        user_vector(client).tobytes(),
        str(client.ledger.to_record()),
    )


PHASES = ("ask", "tell", "agree")


class Echo(DeviceSide):
    """A protocol of three phases that sends back what it hears, and remembers how often."""

    def new_state(self, randomness):
        return {"heard": np.array(0)}

    def n_items(self, state):
        return N_ITEMS

    def report(self, private, address, message):
        return Report(message, {"heard": private.state["heard"] + 1})

    def predict(self, private, public):
        return np.zeros(N_ITEMS)


def make_echo(reported: Address | None = None) -> Client:
    """A device that has reported every phase up to this one."""
    protocol = SimpleNamespace(name="echo", phases=PHASES, make_device=lambda terms, model: Echo())
    client = Client(None, None, protocol, randomness=SystemRandomness(), ledger=Ledger(selection=1))
    if reported is not None:
        for phase in PHASES[: PHASES.index(reported.phase) + 1]:
            client.report(replace(reported, phase=phase), phase)
    return client


FIRST, SECOND, LAST, AGAIN = (Address(2, *rest) for rest in ((1, "ask"), (1, "tell"), (1, "agree"), (2, "ask")))


@pytest.mark.parametrize(
    ("reported", "taken"),
    [
        (None, set()),
        (FIRST, {SECOND, AGAIN}),
        (SECOND, {LAST, AGAIN}),
        (LAST, {AGAIN}),
    ],
    ids=["before the first round", "first phase", "second phase", "last phase"],
)
def test_a_device_answers_each_phase_once_and_in_order(reported, taken):
    """What is `taken`, and the first phase of a later round; anything else is refused and changes nothing."""
    for round_number, attempt, phase in itertools.product((1, 2, 3), (1, 2), PHASES):
        address, client = Address(round_number, attempt, phase), make_echo(reported)
        before = client.private_state()
        later = phase == "ask" and round_number > (0 if reported is None else reported.round_number)
        if address in taken or later:
            assert client.report(address, "hello") == "hello"
            assert client.last_round == round_number
            assert client.in_round == (phase != "agree")
        else:
            with pytest.raises(RemoteProtocolError, match="must come in order"):
                client.report(address, "hello")
            assert client.private_state() == before


def test_a_device_goes_on_in_the_middle_of_a_round():
    """Its state, taken between two phases, is all that the next phase needs."""
    client, twin = make_echo(SECOND), make_echo()
    twin.restore_private_state(client.private_state())
    assert twin.in_round
    assert [each.report(LAST, "bye") for each in (client, twin)] == ["bye", "bye"]
    assert twin.private_state() == client.private_state()


def test_a_round_sends_one_report():
    """And moves the user vector."""
    client = make_client()
    start = user_vector(client).copy()
    report = report_on(client, make_announcement())
    assert isinstance(report, GradientReport)
    assert client.last_round == 1
    assert not np.array_equal(user_vector(client), start)


def test_an_empty_selection_sends_an_empty_report():
    """Nothing selected: the round counts and is paid for."""
    client = make_client()
    nothing = Draws(np.empty(0, dtype=np.int64), np.empty(0), np.empty((0, 3)), np.zeros(3))
    assert len(report_on(client, make_announcement(), nothing).items) == 0
    assert statement_of(client)["rounds"] == 1


def test_given_draws_are_used_as_they_are():
    """A report is a function of the draws: real errors for rated items, the given fakes for others."""
    client = make_client()
    announcement = make_announcement()
    vectors, terms, u = announcement.item_vectors, announcement.terms, user_vector(client).copy()
    draws = Draws(np.array([0, 3, 8]), np.array([0.7]), np.zeros((3, 3)), np.zeros(3))
    report = report_on(client, announcement, draws)
    errors = np.array([0.7, 4.0 - vectors[3] @ u, 3.0 - vectors[8] @ u])
    expected = 0.008 * (50 * errors[:, None] * u - 0.02 * vectors[[0, 3, 8]])
    np.testing.assert_allclose(report.gradients, expected, rtol=1e-12)
    np.testing.assert_array_equal(report.items, [0, 3, 8])

    rated = np.array([1, 3, 4, 8, 12, 19])
    rated_errors = np.array([5.0, 4.0, 1.0, 3.0, 3.5, 2.0]) - vectors[rated] @ u
    moved = u + 0.008 * (50 * rated_errors @ vectors[rated] / 6 - 0.01 * u)
    np.testing.assert_allclose(user_vector(client), moved, rtol=1e-12)
    assert terms.step_size(1) == pytest.approx(0.008)


def test_the_ledger_is_charged_with_what_was_sent():
    """Selection in its unit, and the zCDP price of the gradient values: Σ η N² ‖e u‖² / 2."""
    client = make_client(Plain(), limit=0.0)
    u = user_vector(client).copy()
    announcement = make_announcement(reports_per_client=None)
    rated = client._items
    errors = np.array([5.0, 4.0, 1.0, 3.0, 3.5, 2.0]) - announcement.item_vectors[rated] @ u
    report_on(client, announcement)
    assert client.ledger["value"].rho == pytest.approx(0.008 * 50**2 * np.sum(errors**2) * (u @ u) / 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reports_per_client": 6.0}, "terms"),
        ({"data_weight": 60.0}, "terms"),
        ({"step": 0.9}, "terms"),
        ({"decay": 0.1}, "terms"),
        ({"max_rounds": 1000}, "terms"),
        ({"n_items": 19}, "terms"),
        ({"epoch_rounds": 1}, "terms"),
    ],
)
def test_an_announcement_that_breaks_the_terms_is_refused(changes, sentence):
    """What was accepted at the start holds for the whole run."""
    client = make_client()
    before = private_view(client)
    with pytest.raises(RemoteProtocolError, match=sentence):
        report_on(client, make_announcement(**changes))
    assert private_view(client) == before


def test_a_step_whose_gradients_have_no_finite_price_is_refused():
    """Nothing is charged, drawn or sent."""
    client = make_client(step=1e300)
    before = private_view(client)
    with pytest.raises(RemoteProtocolError, match="step"):
        report_on(client, make_announcement(step=1e300))
    assert private_view(client) == before
    assert client.ledger["value"].rho == 0


def test_a_round_is_never_answered_twice():
    """Rounds only rise."""
    client = make_client()
    report_on(client, make_announcement(3))
    for round_number in (1, 3):
        with pytest.raises(RemoteProtocolError, match="must come in order"):
            report_on(client, make_announcement(round_number))


@pytest.mark.parametrize(
    ("vectors", "sentence"),
    [
        (make_vectors() * 2 * LARGEST_ITEM_NORM, "norms of at most 100"),
        (np.zeros((N_ITEMS, 3)), "norms of 0.01 or more"),
        (make_vectors() * 1e-4, "norms of 0.01 or more"),
        (np.concatenate([np.full((1, 3), 50.0), np.zeros((N_ITEMS - 1, 3))]), "norms of 0.01 or more"),
        (make_vectors(width=4), "3 numbers each"),
    ],
)
def test_item_vectors_of_absurd_size_are_refused(vectors, sentence):
    """V = 0 would turn every error into a rating, one large row beside zeros too; huge vectors blow up u."""
    client = make_client()
    with pytest.raises(RemoteProtocolError, match=sentence):
        report_on(client, ItemVectors(make_terms(), 1, vectors))
    assert client.last_round == 0


def test_a_client_without_ratings_stays_out():
    """Its fakes would all be alike and announce it."""
    client = make_client(rated=False)
    with pytest.raises(LocalProtocolError, match="rated items"):
        report_on(client, make_announcement())


def test_terms_that_do_not_fit_protocol_or_model_are_refused():
    """Selection needs reports_per_client; the model's name and size must be the terms'."""
    with pytest.raises(RemoteProtocolError, match="reports_per_client"):
        make_client(SDCF, reports_per_client=None)
    with pytest.raises(RemoteProtocolError, match="reports_per_client"):
        make_client(Plain(), reports_per_client=5.0)
    for model, terms in ((MatrixFactorization(9), make_terms()), (MODEL, make_terms(model="other"))):
        with pytest.raises(RemoteProtocolError, match="terms must be for model mf"):
            Client(terms, model, SDCF, randomness=SystemRandomness(), ledger=Ledger(selection=8))


# Budgets -------------------------------------------------------------------------------------------------------


def test_a_ledger_that_refuses_stops_the_report_and_nothing_changes():
    """No permanent bits are kept, no round counted, nothing returned."""
    client = make_client(limit=7.9)
    before = private_view(client)
    with pytest.raises(BudgetExceeded, match=r"7\.9"):
        report_on(client, make_announcement())
    assert private_view(client) == before
    assert permanent(client) is None


def test_an_impossible_budget_is_refused_with_the_smallest_that_works():
    """ε_P below what ε_I needs has no p, q: the refusal names the number."""
    client = make_client(Sdcf(epsilon_i=4.0, epsilon_g=1.0, epsilon_p=4.1))
    with pytest.raises(ImpossibleBudget) as refusal:
        report_on(client, make_announcement())
    assert 4.1 < refusal.value.smallest_epsilon_p < 8


def test_permanent_bits_stay_for_all_rounds():
    """Rounds of one epoch draw from the same B', and pay for it once."""
    client = make_client()
    report_on(client, make_announcement(1))
    bits = permanent(client).bits
    for round_number in (2, 3, 4):
        report_on(client, make_announcement(round_number))
        np.testing.assert_array_equal(permanent(client).bits, bits)
    assert statement_of(client)["committed"] == 8


def test_new_ratings_train_the_user_vector_but_leave_the_permanent_bits():
    """A bit that changes would prove a rating."""
    client = make_client()
    report_on(client, make_announcement(1))
    bits = permanent(client).bits.copy()
    client.add_ratings(np.array([0, 3]), np.array([5.0, 1.0]))
    report_on(client, make_announcement(2))
    np.testing.assert_array_equal(permanent(client).bits, bits)
    assert client._items.tolist() == [0, 1, 3, 4, 8, 12, 19]


def test_a_permanent_epoch_redraws_and_pays_again_or_is_refused():
    """Every three rounds all bits are drawn anew; beyond the limit the device stops."""
    client = make_client(limit=16.0, epoch_rounds=3)
    for round_number in (1, 2, 3):
        report_on(client, make_announcement(round_number, epoch_rounds=3))
    first = permanent(client).bits
    report_on(client, make_announcement(4, epoch_rounds=3))
    assert not np.array_equal(permanent(client).bits, first)
    assert statement_of(client)["permanent_draws"] == 2
    with pytest.raises(BudgetExceeded):
        report_on(client, make_announcement(7, epoch_rounds=3))
    client.ledger.raise_limit("selection", 24.0)
    report_on(client, make_announcement(7, epoch_rounds=3))
    assert statement_of(client)["committed"] == 24


def test_items_that_join_get_their_bit_once():
    """The bits that stand are kept, the new ones are drawn when first seen, nothing is charged."""
    client = make_client()
    report_on(client, make_announcement(1))
    bits = permanent(client).bits.copy()
    report_on(client, make_announcement(2, n_items=30))
    extended = permanent(client).bits.copy()
    np.testing.assert_array_equal(extended[:N_ITEMS], bits)
    report_on(client, make_announcement(3, n_items=30))
    np.testing.assert_array_equal(permanent(client).bits, extended)
    assert statement_of(client)["committed"] == 8
    with pytest.raises(RemoteProtocolError, match="terms"):
        report_on(client, make_announcement(4, n_items=29))


def test_a_profile_cap_counts_at_most_that_many_ratings():
    """With f = 0 (an endless budget) the permanent bits are the capped profile itself."""
    client = make_client(Sdcf(epsilon_i=400.0, epsilon_g=1.0, epsilon_p=800.0, profile_cap=4), limit=800.0)
    report_on(client, make_announcement())
    assert permanent(client).bits.sum() == 4
    assert set(np.flatnonzero(permanent(client).bits)) < set(client._items.tolist())
    assert statement_of(client)["capped"]


# Ratings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "values", "sentence"),
    [
        ([1, 1], [3.0, 3.0], "items must be unique"),
        ([1, 2], [3.0], "items must be unique"),
        ([-1], [3.0], "items must be positions"),
        ([20], [3.0], "items must be positions"),
        ([2], [5.5], "values must be ratings from 1 to 5"),
        ([2], [math.nan], "values must be ratings from 1 to 5"),
    ],
)
def test_bad_ratings_are_refused_without_an_echo(items, values, sentence):
    """The sentence names the range, never the rating or the item; nothing is stored."""
    client = make_client()
    before = private_view(client)
    with pytest.raises(ParameterError, match=sentence) as refusal:
        client.add_ratings(np.array(items), np.array(values))
    assert "5.5" not in str(refusal.value)
    assert private_view(client) == before


def test_isgld_perturbs_each_rating_once():
    """The training values differ from the ratings, and stay what they are from round to round."""
    client = make_client(Isgld(epsilon=2.0), limit=0.0)
    values = client._values.copy()
    assert not np.any(values == np.array([5.0, 4.0, 1.0, 3.0, 3.5, 2.0]))
    report_on(client, make_announcement(reports_per_client=None))
    np.testing.assert_array_equal(client._values, values)


def test_isgld_charges_for_each_noisy_value_of_the_same_rating():
    """ε per rating value, once for all ratings together; another rating of the same item pays again."""
    client = make_client(Isgld(epsilon=2.0), limit=0.0)
    new, known = np.array([0]), np.array([client._items[0]])
    client.add_ratings(new, np.array([4.0]))
    assert statement_of(client)["rating_epsilon"] == 2
    before = client._values.copy()
    client.add_ratings(new, np.array([4.0]))
    np.testing.assert_array_equal(client._values, before)
    assert statement_of(client)["rating_epsilon"] == 2
    client.add_ratings(known, np.array([1.5]))
    assert statement_of(client)["rating_epsilon"] == 4


def test_isgld_draws_no_noise_again_after_a_restart():
    """The private state has it; a server could average out noise that is drawn anew."""
    client = make_client(Isgld(epsilon=2.0), limit=0.0)
    given = np.array([5.0, 4.0, 1.0, 3.0, 3.5, 2.0])
    report_on(client, make_announcement(reports_per_client=None))
    twin = make_client(Isgld(epsilon=2.0), limit=0.0, rated=False)
    twin._randomness = SystemRandomness()
    twin.restore_private_state(client.private_state())
    twin.add_ratings(client._items, given)
    np.testing.assert_array_equal(twin._values, client._values)
    assert twin.ledger["rating"].charged() == 0


def test_recommendations_leave_out_what_is_rated():
    """Best first, and no more than there are."""
    client = make_client()
    scores = client.predict({"item_vectors": make_vectors()})
    best = client.recommend(scores, 5)
    assert not set(best) & set(client._items)
    assert np.all(np.diff(scores[best]) <= 0)
    assert len(client.recommend(scores, 100)) == N_ITEMS - 6


# State and secrecy ---------------------------------------------------------------------------------------------


def test_a_restored_client_continues_bit_for_bit():
    """State, ledger and ratings are all that the next rounds depend on."""
    client, twin = make_client(), make_client()
    report_on(client, make_announcement(1))
    twin.restore_private_state(client.private_state())
    twin.ledger = Ledger.from_record(client.ledger.to_record())
    one, two = report_on(client, make_announcement(2)), report_on(twin, make_announcement(2))
    np.testing.assert_array_equal(one.gradients, two.gradients)
    assert private_view(client) == private_view(twin)


def test_a_fresh_client_has_a_state_too():
    """Before the first round there are no bits to restore."""
    client, twin = make_client(), make_client()
    twin.restore_private_state(client.private_state())
    assert private_view(client) == private_view(twin)


def test_nothing_private_shows_in_a_repr():
    """Clients, draws, bits, states: names and counts alone."""
    client = make_client()
    with recorded_draws() as drawn:
        report_on(client, make_announcement())
    assert repr(client) == "Client(sdcf, idle, round 1)"
    assert [repr(draws) for draws in drawn.values()] == ["Draws()"]
    assert repr(permanent(client)) == "PermanentChoice()"


def test_a_device_on_system_randomness_takes_part():
    """The same client code, without a seed anywhere."""
    client = Client(make_terms(), MODEL, SDCF, randomness=SystemRandomness(), ledger=Ledger(selection=8.0))
    client.add_ratings(np.arange(6), np.full(6, 4.0))
    assert report_on(client, make_announcement()).round_number == 1


# Holes that an attacker or an accident could use ---------------------------------------------------------------


def test_an_epsilon_p_that_is_no_number_is_refused():
    """NaN is not "not given"."""
    with pytest.raises(ParameterError, match="epsilon_p"):
        Sdcf(epsilon_i=4.0, epsilon_g=1.0, epsilon_p=math.nan)


def test_a_person_who_rated_everything_stays_out_unless_a_cap_hides_it():
    """Without a cap there is no unrated item to hide among."""
    without, capped = (make_client(one) for one in (SDCF, Sdcf(epsilon_i=4.0, epsilon_g=1.0, profile_cap=6)))
    for client in (without, capped):
        client.add_ratings(np.arange(N_ITEMS), np.full(N_ITEMS, 3.0))
    capped.check_takes_part()
    with pytest.raises(LocalProtocolError, match="unrated items"):
        without.check_takes_part()


def test_a_restored_client_remembers_how_long_the_catalogue_was():
    """A server cannot shrink it behind a restart."""
    client, twin = make_client(), make_client()
    report_on(client, make_announcement(1, n_items=30))
    twin.restore_private_state(client.private_state())
    with pytest.raises(RemoteProtocolError, match="terms"):
        report_on(twin, make_announcement(2, n_items=N_ITEMS))


def test_noise_is_never_used_twice():
    """Two ratings stored one after the other get different noise: their difference is not the true one."""
    client = make_client(Isgld(epsilon=1.0), limit=0.0, rated=False)
    client.add_ratings(np.array([0]), np.array([4.0]))
    client.add_ratings(np.array([1]), np.array([4.0]))
    assert client._values[0] != client._values[1]


def test_a_report_shares_no_memory_with_the_client():
    """Whoever gets a report cannot edit the device's ratings through it."""
    client = make_client(Plain(), limit=0.0)
    report = report_on(client, make_announcement(reports_per_client=None))
    assert not np.shares_memory(report.items, client._items)
    with pytest.raises(ValueError, match="read-only"):
        report.gradients[0] = np.nan


@pytest.mark.parametrize("length", [1, 7])
def test_regularization_of_another_length_is_refused(length):
    """Neither broadcast nor a crash in the middle of a round."""
    with pytest.raises(RemoteProtocolError, match="regularization"):
        make_client(user_regularization=np.full(length, 0.01))


def test_impossible_calls_for_recommendations_and_ratings_are_refused():
    """A count below 1, a table that is too short, items that are no whole numbers."""
    client = make_client()
    for scores, count in ((np.zeros(N_ITEMS), -1), (np.zeros(5), 3)):
        with pytest.raises(ParameterError, match="count"):
            client.recommend(scores, count)
    with pytest.raises(ParameterError, match="whole numbers"):
        client.add_ratings(np.array([0.9]), np.array([3.0]))
