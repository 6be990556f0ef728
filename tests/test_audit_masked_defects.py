"""Broken versions of `masked`, each planted where a mistake would be made; the audit must find every one of them."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from test_audit_masked import DATA, VICTIMS, watched

from hushrec.audit.masked import cohorts, collusion, pairs, sums, trials
from hushrec.audit.masked.crafted import lengthen
from hushrec.audit.masked.watched import Watched
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort
from hushrec.protocols.masked import device_round, noise
from hushrec.protocols.masked.device_table import make_table
from hushrec.protocols.masked.encoding import BlockCode, Entries, encode_block
from hushrec.protocols.masked.price import PricedPlan, price_plan
from hushrec.protocols.masked.secagg.device import draw_secrets
from hushrec.randomness import Purpose, Randomness, SeededRandomness, SystemRandomness
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

EPSILON = 8.0
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def few_devices(monkeypatch: Patch) -> None:
    """Small cohorts."""
    monkeypatch.setattr(cohorts, "COHORT", 8)


def audited() -> list[str]:
    """What contradicts the claim in a run that is made and attacked now."""
    settings = Settings(protocol="masked", model="gp", epsilon=EPSILON)
    problem = task_problem(settings.make_task(DATA), settings)
    run = Watched(settings, problem, sums.watch(problem)[0], np.arange(VICTIMS))
    attacks = (pairs.measure_noise, pairs.attack_profiles, pairs.attack_ratings, collusion.attack_tables)
    return pairs.contradictions([finding for attack in attacks for finding in attack(run)], run.budget)


def no_noise(monkeypatch: Patch) -> None:
    """Every share is zero."""
    silent = noise.discrete_gaussian(0)
    monkeypatch.setattr(noise, "discrete_gaussian", lambda variance: silent)


def noise_for_the_wrong_n(monkeypatch: Patch) -> None:
    """Shares are sized for ten times as many devices as there are."""
    right = noise.discrete_gaussian
    monkeypatch.setattr(noise, "discrete_gaussian", lambda variance: right(max(variance // 10, 16)))


def no_clip_in_one_block(monkeypatch: Patch) -> None:
    """The bias block is rounded as it is, and not measured."""

    def encode(code: BlockCode, values: np.ndarray, positions: np.ndarray | None, **more: object) -> np.ndarray:
        if positions is None or len(positions) != len(values) or np.all(values == 1):
            return encode_block(code, values, positions, **more)
        table = np.zeros(code.size, np.int64)
        table[positions] = np.rint(values / code.grid)
        return table

    monkeypatch.setattr(sums, "encode_block", encode)


def reused_keys(monkeypatch: Patch) -> None:
    """Every device has the same secrets in all attempts."""
    kept = functools.cache(lambda number: draw_secrets(rng=np.random.default_rng(number)))
    places = iter(list(range(8)) * 2)
    monkeypatch.setattr(device_round.secagg, "draw_secrets", lambda rng: kept(next(places)))


def tables_sent_twice(monkeypatch: Patch) -> None:
    """A device's table is added twice."""
    tables = sums.SeenRun.tables

    def doubled(*given: object, **more: object) -> sums.PersonTables:
        return [2 * own for own in tables(*given, **more)]  # type: ignore[arg-type]

    monkeypatch.setattr(sums.SeenRun, "tables", doubled)


def test_nothing_contradicts_an_honest_run() -> None:
    """The same attacks, nothing planted."""
    assert audited() == []


@pytest.mark.parametrize(
    ("defect", "found_by"),
    [
        (no_noise, "noise of the sums"),
        (noise_for_the_wrong_n, "profile or nothing"),
        (no_clip_in_one_block, "profile or nothing"),
        (reused_keys, "keys of two attempts"),
        (tables_sent_twice, "profile or nothing"),
    ],
)
def test_every_planted_defect_is_found(defect: Callable[[Patch], None], found_by: str, monkeypatch: Patch) -> None:
    """At least the attack that is made for it contradicts the claim."""
    defect(monkeypatch)
    assert any(found.startswith(found_by) for found in audited())


# Noise from a seeded generator ------------------------------------------------------------------------------------


def crack_noise(priced: PricedPlan, table: np.ndarray, seeds: range) -> int | None:
    """The attack on a device whose noise can be drawn again: the seed that leaves integers within the norm bound."""
    for seed in seeds:
        stream = SeededRandomness(seed).stream(Purpose.NOISE_SHARES, 1)
        code = priced.codes[0][0]
        share = noise.discrete_gaussian(code.share_variance).draw(code.size, rng=stream)
        left = (table[: code.size] - share.astype(np.uint32)).view(np.int32).astype(float)
        if left @ left <= code.norm_squared:
            return seed
    return None


@pytest.mark.parametrize(("randomness", "cracked"), [(SeededRandomness(37), 37), (SystemRandomness(), None)])
def test_noise_from_a_seeded_generator_is_drawn_again(randomness: Randomness, cracked: int | None) -> None:
    """Trying seeds strips a device with a seeded generator of its noise, and not one with the system's entropy."""
    run = watched("gp", EPSILON)
    plan = run.problem.terms.priced.plan
    priced = price_plan(plan, epsilon=EPSILON, delta=1e-6, cohort=Cohort(3))
    one = plan.rounds[0]
    entries = run.seen.learning.entries(one.blocks, run.seen.rounds[0].table, *run.problem.profile(0))
    table, _ = make_table(priced, 1, entries, TableAccountant(), randomness=randomness)
    assert crack_noise(priced, table, range(100)) == cracked


# A round that is answered again -----------------------------------------------------------------------------------


def test_a_table_is_sent_again_only_if_it_can_be_paid_again() -> None:
    """People who come back for a second attempt: without a reserve they send zeros, and later rounds can be paid."""
    run = watched("gp", EPSILON)
    priced = run.problem.terms.priced
    blocks = [Entries(np.ones(code.size)) for code in priced.codes[0]]
    spent, sent = TableAccountant(), 0
    for attempt in range(60):
        before = spent.spent()
        _, spent = make_table(priced, 1, blocks, spent, randomness=SeededRandomness(attempt))
        sent += spent.spent() > before
    assert sent == 1
    for number in range(2, len(priced.codes) + 1):
        spent.compose(priced.table_sent(number - 1))
    assert spent.epsilon(priced.delta) <= EPSILON


def test_an_attempt_more_than_is_paid_for_shows() -> None:
    """Were every round answered a second time without paying, the sums would rule the claim out."""
    run = watched("gp", EPSILON)
    seen = run.seen.with_tables(lengthen)
    tables = run.tables(run.problem.profile(run.victims[run.most_visible]), seen)
    again = sums.SeenRun((*seen.rounds, *seen.rounds), seen.learning)
    scores = trials.draw_scores(again, tables * 2, rng=run.draws(1))
    assert trials.epsilon_of_scores(scores, run.budget["delta"]) > EPSILON
