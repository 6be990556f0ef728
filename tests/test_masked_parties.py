"""The masked protocol through `Client` and `Server`: drop-outs, attempts, restarts, budgets, a hostile device."""

import contextlib
import copy
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parties import statement_of
from test_masked_run import device_sum, small_problem

from hushrec import wire
from hushrec.budget.gaussian import Cohort, epsilon_of_mu, run_mu
from hushrec.budget.ledger import Ledger
from hushrec.device.budgets import allow_run
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import NO_REPORT, Address, Envelope
from hushrec.protocols import find_protocol
from hushrec.protocols.masked import device_table
from hushrec.protocols.masked.device_round import MOST_ATTEMPTS, check_announcement
from hushrec.protocols.masked.device_state import spent_in
from hushrec.protocols.masked.encoding import BlockCode, add_share, encode_block
from hushrec.protocols.masked.gp.fleet_size import fleet_sentence
from hushrec.protocols.masked.gp.plan import choose_plan, knows_attributes
from hushrec.protocols.masked.messages import MaskedTable, announce
from hushrec.protocols.masked.plan import Block, Plan, Round
from hushrec.protocols.masked.price import PricedPlan, price_plan
from hushrec.protocols.masked.protocol import Masked
from hushrec.protocols.masked.secagg.roster import Rules
from hushrec.protocols.masked.server_side import MANY_ATTEMPTS, PHASES
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.simulated import SIMULATED_RUN, simulated_secret
from hushrec.randomness import Purpose, SystemRandomness
from hushrec.server import Server, Stage

PEOPLE, MORE_PEOPLE = 10, 20
DROP_OUTS = {"one": 1, "10 %": MORE_PEOPLE // 10, "30 %": 3 * MORE_PEOPLE // 10}


def run_of(**options: float) -> ReferenceEngine:
    """Ten devices, or as many as are given, of which six in ten must survive."""
    return ReferenceEngine(small_problem(**{"n_users": PEOPLE, "survivors": 0.6, **options}))


def survivors_of(engine: ReferenceEngine) -> list[int]:
    """Whose tables are in the last sum."""
    return sorted(int.from_bytes(name, "big") for name in engine.server.side.attempt.survivors)


def expected_sum(engine: ReferenceEngine, table: Any, number: int = 1, attempt: int = 1) -> np.ndarray:
    """What the CPU engine makes of the draws of the survivors."""
    problem = engine.problem
    priced, present = problem.terms.priced, np.isin(np.arange(problem.n_users), survivors_of(engine))
    place = number + (attempt - 1) * 2**20
    one, codes = priced.plan.rounds[number - 1], priced.codes[number - 1]
    return device_sum(problem, CpuMaskedEngine(problem), place, one, codes, table, present)


@pytest.mark.parametrize(
    ("phase", "lost"),
    [
        pytest.param(PHASES[0], 0, id="none"),
        *(pytest.param(phase, lost, id=f"{share}, {phase}") for share, lost in DROP_OUTS.items() for phase in PHASES),
    ],
)
def test_sums_are_the_engines_whoever_drops_out_in_each_phase(phase: str, lost: int) -> None:
    """None, one, 10 % or 30 % of twenty leave in one phase, and stay away: the sum is of whose tables arrived."""
    engine = run_of(n_users=MORE_PEOPLE)
    later = PHASES[PHASES.index(phase) :]
    engine.absent = lambda address: set(range(lost)) if address.phase in later else set()
    table = engine.server.side.learner.table()
    engine.run_round()
    assert survivors_of(engine) == list(range(lost if phase in PHASES[:3] else 0, MORE_PEOPLE))
    np.testing.assert_array_equal(engine.server.side.attempt.sum, expected_sum(engine, table))


@pytest.mark.parametrize("lost", [1, 4, 12])
@pytest.mark.parametrize("phase", PHASES)
def test_sums_are_the_engines_where_a_device_shares_masks_with_some_others_only(phase: str, lost: int) -> None:
    """One, 10 % or 30 % of forty devices leave; each has drawn 25 neighbours, as in cohorts of more than 300."""
    problem = small_problem(n_users=40, survivors=0.6, corrupt=0.0)
    priced, rules = problem.terms.priced, Rules(problem.terms.rules.smallest, 0, neighbours=25, threshold=13)
    cohort = replace(priced.cohort, omitted=rules.most_omitted(40))
    priced = price_plan(priced.plan, epsilon=priced.epsilon, delta=priced.delta, cohort=cohort)
    engine = ReferenceEngine(replace(problem, terms=MaskedTerms(priced, rules)))
    later = PHASES[PHASES.index(phase) :]
    engine.absent = lambda address: set(range(lost)) if address.phase in later else set()
    table = engine.server.side.learner.table()
    engine.run_round()
    assert engine.server.side.attempt.announcement.attempt == 1
    assert survivors_of(engine) == list(range(lost if phase in PHASES[:3] else 0, 40))
    np.testing.assert_array_equal(engine.server.side.attempt.sum, expected_sum(engine, table))


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_nothing_is_revealed_and_the_next_attempt_succeeds(phase: str) -> None:
    """Six of ten are away in one phase of the first attempt; the second one has all, with draws of its own."""
    engine = run_of(reserve=0.5)
    engine.absent = lambda address: set(range(6)) if (address.attempt, address.phase) == (1, phase) else set()
    table = engine.server.side.learner.table()
    engine.run_round()
    assert engine.server.side.attempt.announcement.place == (1, 2)
    np.testing.assert_array_equal(engine.server.side.attempt.sum, expected_sum(engine, table, attempt=2))
    charged = [client.ledger["table"].tables for client in engine.clients.values()]
    sent_twice = PHASES.index(phase) > PHASES.index("table")
    assert set(charged) == ({2} if sent_twice else {1, 2} if phase == "table" else {1})


def test_a_device_that_cannot_pay_an_attempt_sends_zeros_and_keeps_the_budget_of_later_rounds() -> None:
    """Without a reserve one table of each round is paid; nobody else sees which tables are zeros."""
    engine = run_of()
    limit, rounds = engine.problem.terms.priced.mu_squared, engine.problem.terms.max_rounds
    engine.absent = lambda address: set(range(6)) if address.phase == "unmask" and address.attempt < 4 else set()
    engine.run_round()
    assert engine.server.side.attempt.announcement.attempt == 4
    assert {client.ledger["table"].tables for client in engine.clients.values()} == {1}
    engine.absent = lambda _: set()
    for _ in range(rounds - 1):
        engine.run_round()
    assert {client.ledger["table"].tables for client in engine.clients.values()} == {rounds}
    assert all(client.ledger["table"].mu_squared <= limit * (1 + 1e-9) for client in engine.clients.values())


def test_a_reserve_pays_for_repeated_attempts() -> None:
    """With a quarter of μ² kept back, every round of the plan can be paid after a repeated first one."""
    engine = run_of(reserve=0.25)
    engine.absent = lambda address: set(range(6)) if address == Address(1, 1, "unmask") else set()
    rounds = engine.problem.terms.max_rounds
    for _ in range(rounds):
        engine.run_round()
    assert {client.ledger["table"].tables for client in engine.clients.values()} == {rounds + 1}


def test_with_repeats_a_spoiled_attempt_costs_a_fraction_of_a_round() -> None:
    """Sums are the engine's in every round, and the public table changes after each group of four rounds only."""
    engine, once = run_of(reserve=0.25, repeats=4), run_of(reserve=0.25)
    engine.absent = lambda address: set(range(6)) if address == Address(1, 1, "unmask") else set()
    learner = engine.server.side.learner
    before = learner.table()
    for number in range(1, 4):
        engine.run_round()
        attempt = 2 if number == 1 else 1
        np.testing.assert_array_equal(engine.server.side.attempt.sum, expected_sum(engine, before, number, attempt))
        np.testing.assert_array_equal(learner.table().log_counts, before.log_counts)
    engine.run_round()
    assert not np.array_equal(learner.table().log_counts, before.log_counts)
    once.run_round()
    single, five = (own.clients[0].ledger["table"].charged() for own in (once, engine))
    assert five == pytest.approx(5 / 4 * single, rel=1e-3)


def test_a_server_knows_what_devices_have_paid_and_risks_no_attempt_that_they_cannot_pay() -> None:
    """From its own count of attempts, also after a restart; an attempt that ends before the tables costs nothing.

    Once the reserve is used up, devices send smaller tables, and have paid less than the server counts.
    """
    engine = run_of(reserve=0.25, repeats=4)
    side, other = engine.server.side, run_of(reserve=0.25, repeats=4).server.side
    lost = {1: "shares", 2: "unmask", 3: "consent", 4: "table"}
    engine.absent = lambda address: set(range(6)) if lost.get(address.attempt) == address.phase else set()
    rows = []
    for _ in range(3):
        engine.run_round()
        charged = engine.clients[PEOPLE - 1].ledger["table"].charged()  # of a device that never leaves
        assert side._charged == pytest.approx(charged) if not rows else side._charged >= charged
        budget = side.terms.priced.mu_squared
        costs = [side.terms.priced.cost(index) for index in range(side.learner.round_number, side.terms.max_rounds)]
        rows.append(side._can_pay_twice)
        assert side._can_pay_twice == (side._charged + costs[0] + sum(costs) <= budget)
    assert rows[0]
    assert not rows[-1]
    other.restore(side.state)
    assert other._charged == side._charged
    other.restore({name: array for name, array in side.state.items() if name != "charged"})
    assert not other._can_pay_twice  # the state of an earlier version does not say what devices have paid


def test_half_a_budget_costs_half_and_says_so() -> None:
    """Whoever allows ε = 4 of a run at ε = 8 spends at most that over all its rounds."""
    engine = run_of(own_epsilon=4.0)
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
    statement = statement_of(engine.clients[0])
    assert statement["spent"] == pytest.approx(4.0, rel=0.02)
    assert statement["spent"] <= statement["limit"] * (1 + 1e-9)
    assert "whole profile" in statement["unit"]


def test_secrets_are_not_kept_after_an_attempt() -> None:
    """A device that dropped out forgets what it drew as soon as it hears that the round is over."""
    engine = run_of()
    engine.absent = lambda address: {0} if address.phase == "unmask" else set()
    engine.run_round()
    assert all(len(client.private_state()["attempt"]) == 0 for client in engine.clients.values())


def test_reports_of_every_phase_are_within_the_largest_size_that_a_server_reads() -> None:
    """And that is not many times the longest one, so that a device cannot keep the server busy with decoding."""
    engine, sizes = run_of(), []
    for client in engine.clients.values():
        honest = client.report

        def report(address: Address, message: Any, own: Any = honest) -> Any:
            made = own(address, message)
            sizes.append(len(wire.encode(Envelope(SIMULATED_RUN, *vars(address).values(), made))))
            return made

        client.report = report  # type: ignore[method-assign]
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
    largest = engine.server.side.largest_report
    assert len(sizes) == len(PHASES) * len(engine.clients) * engine.problem.terms.max_rounds
    assert max(sizes) <= largest <= 1_000 + 2 * max(sizes)


@pytest.mark.parametrize("repeats", [1, 2])
def test_runs_are_kept_and_restored_between_rounds(repeats: int) -> None:
    """Devices and server go on bit for bit from what a checkpoint holds, also within a group of rounds."""
    whole, first, second = (run_of(repeats=repeats) for _ in range(3))
    for engine in (whole, whole, first):
        engine.run_round()
    second.restore(first.state())
    second.run_round()
    np.testing.assert_array_equal(whole.server.side.attempt.sum, second.server.side.attempt.sum)
    for name, array in whole.server.side.public.items():
        np.testing.assert_array_equal(array, second.server.side.public[name])


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_server_goes_on_in_every_phase(phase: str) -> None:
    """A new server, made from the state before the round and the reports of closed phases, asks the same."""
    engine = run_of()
    server = engine.server
    state, closed = server.state(), []
    server.start_round()
    while server.address.phase != phase:
        for user in engine.clients:
            engine._ask(user)
        closed.append(sorted(server.reported.items()))
        server.close_phase()
    side = engine._protocol.make_network_server(engine.problem.terms, engine.problem.model, state)
    side.sign_as(SIMULATED_RUN, simulated_secret(engine.problem.seed))
    again = Server(side, engine.clients)
    again.resume_round()
    for reports in closed:
        again.close_phase(reports)
    assert again.address == server.address
    for user in engine.clients:
        assert wire.encode(again.inbox(user)) == wire.encode(server.inbox(user))


def test_a_device_sorts_its_list_as_a_simulated_run_does() -> None:
    """From the public table and its own predictions, all items in the same order; no other rule is on the network."""
    engine = run_of()
    engine.run_round()
    public, own = engine.server.side.public, engine.predictor()
    predicted = own.predict_items(np.arange(PEOPLE))
    ranked = np.stack([engine.clients[user].side.rank(public, predicted[user]) for user in range(PEOPLE)])
    np.testing.assert_allclose(ranked, own.scores(np.arange(PEOPLE)), rtol=1e-6)


def test_a_run_says_what_its_fleet_can_expect() -> None:
    """In the sentence that was measured for the budget of the run and for its kind of catalogue."""
    terms, protocol = run_of().server.side.terms, find_protocol("masked").configure({}, "gp")
    assert protocol.expected_devices(terms) == PEOPLE
    told = [protocol.expectation(terms, model, 1500) for model in ("gp", "audience")]
    assert told == [fleet_sentence(terms.priced.epsilon, 1500), None]


@pytest.mark.parametrize("devices", [30, 5000])
def test_a_plan_tells_whether_its_catalogue_has_attributes(devices: int) -> None:
    """Small and large plans alike: a device that has not joined yet sees the terms only."""
    assert [knows_attributes(choose_plan(devices, 24, columns, 1.5)) for columns in (0, 1, 19)] == [False, True, True]


@pytest.mark.parametrize("rules", [Rules(6, 0, 1, 1), Rules(6, 0, 5, 3)])
def test_a_device_refuses_rules_whose_masks_could_fall_apart(rules: Rules) -> None:
    """With one neighbour each, two devices may share masks with each other only."""
    problem = run_of().problem
    terms = replace(problem.terms, rules=rules)
    with pytest.raises(RemoteProtocolError, match="neighbours"):
        Masked(8.0).make_device(terms, problem.model)


@pytest.mark.parametrize(("epsilon", "delta"), [(8.0, 0.9), (8.0, 1e-9), (4.0, None)])
def test_options_that_contradict_the_terms_are_refused(epsilon: float, delta: float | None) -> None:
    """The person's ledger would state another ε than that of the noise."""
    problem = run_of().problem
    with pytest.raises(RemoteProtocolError, match="delta"):
        Masked(epsilon, delta).check_terms(problem.terms)
    Masked(8.0, problem.terms.priced.delta).check_terms(problem.terms)


def test_a_ledger_states_epsilon_at_a_small_delta_whatever_a_run_offers() -> None:
    """δ of a run of three devices may be 0.03."""
    ledger = Ledger(table=2.0)
    assert {Masked(8.0, delta).ledger_statement(ledger).delta for delta in (None, 0.03, 1e-6)} == {1e-6}
    assert Masked(8.0, 1e-9).ledger_statement(ledger).delta == 1e-9
    assert Masked(8.0, 0.03).limits_at(8.0) == Masked(8.0).limits_at(8.0)


@pytest.mark.parametrize("epsilon", [8.0, np.inf])
def test_a_computation_that_fails_sends_zeros_and_costs_as_usual(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """A server could make it fail for some profiles, and must not see for whom."""
    engine = run_of(epsilon=epsilon)
    side, client = engine.server.side, engine.clients[0]
    client.take_public(side.public)
    key = Ed25519PrivateKey.from_private_bytes(simulated_secret(engine.problem.seed))
    announcement = announce(key, SIMULATED_RUN, 1, 1, side.terms.digest, published_digest(side.public))
    usual, paid, events = client.side._table(client._private, announcement)
    monkeypatch.setattr(type(client.side._learning), "_entries", lambda *_: 1 / 0)
    table, after, charged = client.side._table(client._private, announcement)
    assert (after, charged) == (paid, events)
    assert usual.any()
    assert epsilon != np.inf or not table.any()


@pytest.mark.parametrize(("limit", "cost"), [(np.inf, np.inf), (0.0, 0.0)])
def test_a_copy_in_a_run_without_noise_may_have_sent_exact_tables(limit: float, cost: float) -> None:
    """Also if this person sends zeros now: what counts is what they allowed."""
    engine = run_of(epsilon=np.inf)
    problem = engine.problem
    device = Masked(np.inf, own_epsilon=0.0).make_device(problem.terms, problem.model)
    private = replace(
        engine.clients[0]._private, ledger=Ledger(table=limit), state=device.new_state(SystemRandomness())
    )
    _, events = device.begin_again(private, 1)
    ledger = Ledger(table=limit)
    ledger.charge(events)
    assert ledger["table"].charged() == cost


@pytest.mark.parametrize("probe", [False, True])
def test_a_probe_asks_for_zeros_and_is_free(probe: bool) -> None:
    """Without noise the zeros are seen: one person's table under the same announcement, but for its flag."""
    engine = run_of(epsilon=np.inf)
    side, client = engine.server.side, engine.clients[0]
    client.take_public(side.public)
    digests = side.terms.digest, published_digest(side.public)
    key = Ed25519PrivateKey.from_private_bytes(simulated_secret(engine.problem.seed))
    announcement = announce(key, SIMULATED_RUN, 1, 1, *digests, probe=probe)
    table, after, events = client.side._table(client._private, announcement)
    assert bool(table.any()) is not probe
    assert (after.tables, len(events)) == (int(not probe), int(not probe))


def test_the_reports_of_a_copy_in_a_run_without_noise_cost_everything_once() -> None:
    """A device that joins again charges an infinite cost if its copy has reported, and nothing after that."""
    client = run_of(epsilon=np.inf).clients[0]
    assert client.side.begin_again(client._private, 0)[1] == []
    events = client.side.begin_again(client._private, 1)[1]
    client._private.ledger.charge(events)
    assert client._private.ledger["table"].charged() == np.inf
    assert client.side.begin_again(client._private, 1)[1] == []


def test_a_device_that_joins_again_reports_after_everything_that_its_copy_sent() -> None:
    """The copy's last report was in the third phase of an attempt; the device waits for another attempt or round."""
    client = run_of().clients[0]
    client.begin_again((2, 3, 2))
    for address in (Address(1, 1, "keys"), Address(2, 3, "keys"), Address(2, 3, "consent"), Address(2, 4, "shares")):
        with pytest.raises(RemoteProtocolError, match="in order"):
            client.check_order(address)
    client.check_order(Address(2, 4, "keys"))
    assert client.last_report >= (2, 3, 2)
    client.begin_again(NO_REPORT)
    assert client.last_round == 2


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "why", ["no ratings", "a probe", "an empty ledger", "nothing left of the run", "own epsilon 0"]
)
def test_a_device_that_sends_zeros_computes_as_much_as_others(
    monkeypatch: pytest.MonkeyPatch, why: str, large: bool
) -> None:
    """It rounds a made-up profile, of which nothing reaches table, ledger and state, even without noise."""
    engine = run_of(epsilon=np.inf if why in ("no ratings", "a probe", "own epsilon 0") else 8.0, large=large)
    problem, public, rounded = engine.problem, engine.server.side.public, []
    side, private = engine.server.side, engine.clients[0]._private

    def counted(code: Any, values: Any, *given: Any, **more: Any) -> Any:
        rounded.append((given[0] is None, bool(len(values))))
        return encode_block(code, values, *given, **more)

    own = Masked(problem.terms.priced.epsilon, own_epsilon=0.0 if why == "own epsilon 0" else None)
    device = own.make_device(problem.terms, problem.model)
    state = device.new_state(SystemRandomness())
    usual = replace(private, public=public, state=state, ledger=Ledger(table=np.inf))
    changes: dict[str, Any] = {
        "no ratings": {"items": private.items[:0], "values": private.values[:0]},
        "an empty ledger": {"ledger": Ledger(table=0.0)},
        "nothing left of the run": {"state": device.begin_again(usual, 1)[0]},
    }
    silent = replace(usual, **changes.get(why, {}))
    key = Ed25519PrivateKey.from_private_bytes(simulated_secret(problem.seed))
    digests = side.terms.digest, published_digest(public)
    messages = [announce(key, SIMULATED_RUN, 1, 1, *digests, probe=probe) for probe in (False, why == "a probe")]
    monkeypatch.setattr(device_table, "encode_block", counted)
    engine.clients[0].side._table(usual, messages[0])
    expected, rounded[:] = list(rounded), []
    before = silent.ledger.to_record()
    table, after, events = device._table(silent, messages[1])
    assert rounded == expected
    assert (after, events, silent.ledger.to_record()) == (spent_in(silent.state), (), before)
    priced = problem.terms.priced
    noise = private.randomness.stream(Purpose.NOISE_SHARES, 1)
    shares = [add_share(code, np.zeros(code.size, np.int64), noise=noise) for code in priced.codes[0]]
    np.testing.assert_array_equal(table, np.concatenate(shares))


def test_ones_own_epsilon_counts_at_a_small_delta_whatever_the_run_offers() -> None:
    """At δ = 0.03, which a run of three devices may have, ε = 0.5 would allow ε = 1.85 at δ = 10⁻⁶."""
    small = small_problem(n_users=3, delta=0.03)
    for own, before in ((0.5, 1.85), (0.1, 0.69)):
        protocol, ledger = Masked(8.0, 0.03, own_epsilon=own), Ledger()
        allow_run(protocol, small.terms, ledger, {})
        statement = protocol.ledger_statement(ledger)
        assert statement.delta == 1e-6
        assert statement.limit == pytest.approx(own, rel=1e-3)
        assert epsilon_of_mu(run_mu(own, 0.03), 1e-6) == pytest.approx(before, abs=0.005)
        assert protocol.own_budget(small.terms) == (own, 1e-6)
        assert statement_of(engine_of(small, own).clients[0])["spent"] <= own
    most = small.terms.priced.largest_own_epsilon
    assert most > 8.0
    assert Masked(8.0, 0.03, own_epsilon=8.0).fraction(small.terms) < 1
    assert Masked(8.0, 0.03, own_epsilon=math.nextafter(most, 0)).fraction(small.terms) == pytest.approx(1)
    assert Masked(8.0, 0.03, own_epsilon=200.0).fraction(small.terms) == 1
    assert Masked(8.0, 0.03, own_epsilon=200.0).own_budget(small.terms) == (most, 1e-6)
    levels = Masked(8.0, 0.03, own_epsilon=0.5).privacy_levels(small.terms, 9)
    assert [level.level for level in levels] == [0.5, 1.0, 4.0, most]
    assert all("\u03b4 1e-06" in level.confirm for level in levels)


def engine_of(problem: Any, own: float) -> ReferenceEngine:
    """All rounds of a run at δ = 0.03 whose people have a budget of their own."""
    engine = ReferenceEngine(small_problem(n_users=problem.n_users, delta=0.03, own_epsilon=own))
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    return engine


def test_a_probe_costs_no_budget() -> None:
    """With noise: the table is charged, the probe is not."""
    engine = run_of()
    side, client = engine.server.side, engine.clients[0]
    client.take_public(side.public)
    key = Ed25519PrivateKey.from_private_bytes(simulated_secret(engine.problem.seed))
    for probe in (False, True):
        announcement = announce(key, SIMULATED_RUN, 1, 1, bytes(32), bytes(32), probe=probe)
        _, after, events = client.side._table(client._private, announcement)
        assert (after.charged() > 0, len(events)) == (not probe, int(not probe))


def test_an_operator_hears_of_many_attempts_and_what_they_cost() -> None:
    """Attempts that ended before their tables cost nobody anything."""
    engine = run_of()
    engine.server.start_round()
    for _ in range(MANY_ATTEMPTS - 1):
        assert engine.server.side.concern is None
        engine.server.begin_again(list(engine.clients))
    assert f"Round 1 is in its {MANY_ATTEMPTS}th attempt:" in str(engine.server.side.concern)
    assert "nothing if it ended before" in str(engine.server.side.concern)
    assert "suspect" not in str(engine.server.side.concern)
    ended = run_of()
    ended.absent = lambda address: (
        set(range(6)) if address.attempt < MANY_ATTEMPTS and address.phase == "shares" else set()
    )
    ended.run_round()
    assert f"Round 1 needed {MANY_ATTEMPTS} attempts:" in str(ended.server.side.concern)
    assert {client.ledger["table"].tables for client in engine.clients.values()} == {0}


# A hostile device ------------------------------------------------------------------------------------------------


def make_hostile(engine: ReferenceEngine, user: int) -> None:
    """Let a device send huge integers in place of its table."""
    honest = engine.clients[user].report

    def report(address: Address, message: Any) -> Any:
        made = honest(address, message)
        return replace(made, numbers=made.numbers + np.uint32(2**30)) if isinstance(made, MaskedTable) else made

    engine.clients[user].report = report  # type: ignore[method-assign]


def test_a_table_of_huge_integers_is_discarded_and_its_sender_left_out() -> None:
    """No sum has it. Whoever was left out when a round ended well stays out, so that later rounds have one attempt."""
    engine = run_of(reserve=0.5)
    make_hostile(engine, 4)
    attempts = []
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
        attempts.append(engine.server.side.attempt.announcement.attempt)
        assert 4 not in survivors_of(engine)
    assert "4" in engine.server.side.suspects
    assert attempts[0] > 1
    assert set(attempts[1:]) == {1}


@pytest.mark.parametrize("lies", [{1}, {1, 2}])
def test_a_run_goes_on_after_a_false_table_although_some_devices_are_offline(lies: set[int]) -> None:
    """Devices that are offline do not count as those who stay, so that enough others are asked."""
    engine = run_of(n_users=10, survivors=0.6, reserve=0.5)
    assert engine.problem.terms.rules.smallest == 6
    honest = engine.clients[4].report
    make_hostile(engine, 4)
    lying = engine.clients[4].report

    def report(address: Address, message: Any) -> Any:
        return (lying if address.attempt in lies else honest)(address, message)

    engine.clients[4].report = report  # type: ignore[method-assign]
    engine.absent = lambda _: {7, 8, 9}
    engine.run_round()
    assert engine.server.side.learner.round_number == 1
    assert set(survivors_of(engine)) <= set(range(7))


def test_a_device_that_is_not_asked_or_speaks_out_of_turn_is_refused() -> None:
    """A report of another phase, and a message in the envelope of another attempt."""
    engine = run_of()
    engine.server.start_round()
    message = engine.server.inbox(0)
    client = engine.clients[0]
    client.take_public(engine.server.side.public)
    with pytest.raises(RemoteProtocolError, match="envelope"):
        client.report(Address(1, 2, "keys"), message)
    report = client.report(engine.server.address, message)
    with pytest.raises(RemoteProtocolError, match="sends"):
        engine.server.receive(1, engine.server.address, report)


# What devices accept ---------------------------------------------------------------------------------------------


def test_terms_cross_the_wire() -> None:
    """They come back equal, with the same digest, and hold a device to every number."""
    terms = small_problem(n_users=PEOPLE).terms
    back = wire.as_sent(terms)
    assert back == terms
    assert back.digest == terms.digest
    assert back.agrees_with(terms)
    assert not small_problem(n_users=PEOPLE, epsilon=7.0).terms.agrees_with(terms)


def test_the_digest_of_terms_covers_every_number() -> None:
    """A device compares digests only, so that each field of plan, noise, cohort and rules must change it."""
    terms = small_problem(n_users=PEOPLE, repeats=2, reserve=0.25).terms
    priced, plan = terms.priced, terms.priced.plan
    first, *blocks = plan.rounds[0].blocks
    code, *codes = priced.codes[0]

    def changed(one: Any, **values: Any) -> Any:
        """A copy with other values, which are not checked: the digest itself must tell them."""
        made = copy.copy(one)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made

    def with_block(block: Any) -> Any:
        rounds = (changed(plan.rounds[0], blocks=(block, *blocks)), *plan.rounds[1:])
        return changed(priced, plan=changed(plan, rounds=rounds))

    others = [changed(priced, **{name: getattr(priced, name) * 0.75}) for name in ("epsilon", "delta", "reserve")]
    cohort = priced.cohort
    others += [changed(priced, cohort=changed(cohort, **{name: value + 1})) for name, value in vars(cohort).items()]
    others += [with_block(changed(first, name="other")), with_block(changed(first, shape=(*first.shape, 1)))]
    others += [with_block(changed(first, **{name: getattr(first, name) * 0.75})) for name in ("clip", "share")]
    others.append(changed(priced, plan=changed(plan, repeats=1)))
    for name in ("clip", "clip_units", "norm_squared", "share_variance"):
        one = changed(code, **{name: getattr(code, name) + 1})
        others.append(changed(priced, codes=((one, *codes), *priced.codes[1:])))
    changes = [changed(terms, priced=one) for one in others]
    changes += [changed(terms, rules=changed(terms.rules, **{name: n + 1})) for name, n in vars(terms.rules).items()]
    digests = {one.digest for one in changes} | {terms.digest}
    assert len(digests) == 1 + len(changes) == 1 + 3 + 4 + 4 + 1 + 4 + 4


def test_a_device_refuses_terms_of_sizes_that_would_exhaust_it() -> None:
    """Ten million devices, more neighbours than devices, and a reserve that is no share; at once."""
    problem = small_problem(n_users=PEOPLE)
    terms, priced = problem.terms, problem.terms.priced
    started = time.perf_counter()
    for devices in (10**7, 2 * 10**9):
        rules = Rules(math.ceil(0.8 * devices), 0, devices - 1, devices // 2 + 1)
        sized = replace(priced, cohort=Cohort(devices, 0.8), delta=1e-12)
        with pytest.raises(RemoteProtocolError, match="devices"):
            Masked(8.0, delta=1e-12).make_device(MaskedTerms(sized, rules), problem.model)
    few = replace(priced, cohort=Cohort(1000, 0.8, 0.05, 12), delta=1e-6)
    with pytest.raises(RemoteProtocolError, match="rebuild"):  # two of three shares are soon in corrupt hands
        Masked(8.0, delta=1e-6).make_device(MaskedTerms(few, Rules(800, 40, 3, 2)), problem.model)
    for neighbours in (PEOPLE, 10**6, 2**33):
        rules = replace(terms.rules, neighbours=neighbours, threshold=neighbours)
        with pytest.raises(RemoteProtocolError, match="neighbours"):
            Masked(8.0, delta=priced.delta).make_device(MaskedTerms(priced, rules), problem.model)
    assert time.perf_counter() - started < 5
    for reserve in (math.nan, -5.0, 1.0, 1e300):
        with pytest.raises(RemoteProtocolError, match="reserve"):
            MaskedTerms(replace(priced, reserve=reserve), terms.rules)


def test_a_device_refuses_terms_for_more_items_than_its_catalogue_has() -> None:
    """Else it would fail, or read beyond the columns of its items."""
    problem = small_problem(n_users=PEOPLE)
    model = replace(problem.model, columns=problem.model.columns.first(problem.n_items - 1))
    with pytest.raises(RemoteProtocolError, match="catalogue"):
        Masked(8.0).make_device(problem.terms, model)


def test_a_device_prices_terms_of_many_blocks_at_once() -> None:
    """Each block has another variance. Tables of the noise would take seconds to build, and are not needed."""
    count = 800
    blocks = tuple(Block("counts" if n == 0 else f"{n:x}", (1,), 1.0, 1 / count) for n in range(count))
    codes = tuple(BlockCode(1, 1.0, 1, 1, 2**62 - 1 - 32_440_321 * n) for n in range(count))
    priced = PricedPlan(Plan((Round(blocks),)), (codes,), 8.0, 1e-6, Cohort(5, 0.8), 0.2)
    started = time.process_time()
    with contextlib.suppress(RemoteProtocolError):
        MaskedTerms(priced, Rules(4, 0, 4, 3))
    assert time.process_time() - started < 1


def test_a_device_refuses_the_attempt_after_the_thousandth_of_a_round() -> None:
    """A server that sees how devices draw neighbours could otherwise repeat the draw until it suits it."""
    problem = small_problem(n_users=PEOPLE)
    key = Ed25519PrivateKey.generate()
    public_key, digest = key.public_key().public_bytes_raw(), problem.terms.digest
    first, last, late = (
        announce(key, SIMULATED_RUN, 1, attempt, digest, bytes(32)) for attempt in (1, MOST_ATTEMPTS, MOST_ATTEMPTS + 1)
    )
    for message in (first, last):
        check_announcement(message, problem.terms, SIMULATED_RUN, public_key, (0, 0))
    with pytest.raises(RemoteProtocolError, match="attempt must be at most"):
        check_announcement(late, problem.terms, SIMULATED_RUN, public_key, (0, 0))


def test_with_repeats_a_device_has_learned_after_the_first_group_only() -> None:
    """Before that the public table is the one of the start, which says nothing."""
    engine = run_of(repeats=3)
    client, public = engine.clients[0], engine.server.side
    for has_learned in (False, False, True, True):
        engine.run_round()
        assert client.side.has_learned(public.public) == has_learned


def test_a_device_refuses_a_cohort_below_its_own_minimum_and_one_with_two_quorums() -> None:
    """Its person asks for eight, and the run promises six; or fewer than half may survive."""
    problem = small_problem(n_users=PEOPLE, survivors=0.6)
    with pytest.raises(ParameterError, match="at least 8"):
        Masked(8.0, least_cohort=8).make_device(problem.terms, problem.model)
    few = small_problem(n_users=PEOPLE, survivors=0.4)
    with pytest.raises(ParameterError, match="smallest"):
        Masked(8.0).make_device(few.terms, few.model)


def test_a_device_needs_the_table_that_is_announced() -> None:
    """It lacks another one, and refuses to answer with it."""
    engine = run_of()
    engine.server.start_round()
    client, message = engine.clients[0], engine.server.inbox(0)
    assert client.lacks(message)
    with pytest.raises(LocalProtocolError, match="public table"):
        client.report(engine.server.address, message)
    other = copy.deepcopy(engine.server.side.public)
    other["offsets"] = other["offsets"] + 0.25
    client.take_public(other)
    assert client.lacks(message)
    with pytest.raises(RemoteProtocolError, match="table"):
        client.report(engine.server.address, message)
    client.take_public(engine.server.side.public)
    assert not client.lacks(message)
    assert engine.server.stage is Stage.OPEN


@pytest.mark.parametrize(("name", "value"), [("offsets", np.nan), ("rows", np.inf), ("variances", 0.0)])
def test_a_device_refuses_a_public_table_that_formulas_could_fail_on(name: str, value: float) -> None:
    """A row that is no number, a variance of zero, and a state without one of its arrays."""
    engine = run_of()
    public = copy.deepcopy(engine.server.side.public)
    public[name] = np.array(public[name])
    public[name].flat[0] = value
    with pytest.raises(RemoteProtocolError):
        engine.clients[0].take_public(public)
    with pytest.raises(RemoteProtocolError, match="rows"):
        engine.clients[0].take_public({k: v for k, v in engine.server.side.public.items() if k != "rows"})


def test_the_digest_of_a_public_table_covers_names_shapes_and_numbers() -> None:
    """A renamed array, another shape and another number change it; the precision of a number does not."""
    state = {"rows": np.arange(6.0).reshape(2, 3), "offsets": np.zeros(2)}
    same = {name: array.astype(np.float32) for name, array in reversed(state.items())}
    assert published_digest(same) == published_digest(state)
    others: list[dict[str, Any]] = [
        {**state, "rows": np.arange(6.0).reshape(3, 2)},
        {**state, "offsets": np.array([0.0, 1.0])},
        {"rowz": state["rows"], "offsets": state["offsets"]},
    ]
    assert len({published_digest(state), *map(published_digest, others)}) == 4
