"""The audit of `masked`: attacks find everything where nothing is hidden, nothing where it is, and every defect."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import audit_suite as suite
import numpy as np
import pytest
from command import run as run_command
from scipy.sparse import csr_array

from hushrec.audit.findings import TARGETS, Finding
from hushrec.audit.masked import (
    attributes,
    bench,
    cohorts,
    collusion,
    pairs,
    people,
    poisoning,
    readings,
    sums,
    trials,
)
from hushrec.audit.masked.crafted import aim_at, lengthen
from hushrec.audit.masked.watched import Watched, without_profiles
from hushrec.audit.rating_levels import WHOLE_STARS
from hushrec.audit.statistics import auc, rate_at, with_labels
from hushrec.budget.gaussian import epsilon_of_mu
from hushrec.data.synthetic import synthetic
from hushrec.protocols.masked.encoding import BlockCode, Table
from hushrec.protocols.masked.plan import Round
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

DATA = synthetic(n_users=60, n_items=50, n_ratings=1_200, seed=3)
VICTIMS = 12
MODELS = ("gp", "audience")


@cache
def watched(model: str, epsilon: float) -> Watched:
    """A small run and the people who are attacked in it."""
    settings = Settings(protocol="masked", model=model, epsilon=epsilon)
    problem = task_problem(settings.make_task(DATA), settings)
    seen, _ = sums.watch(problem)
    return Watched(settings, problem, seen, np.arange(VICTIMS))


@cache
def found(model: str, epsilon: float) -> dict[tuple[str, str], float]:
    """What attacks on people find, by target and name."""
    return {(one.target, one.name): one.value for one in people.attack_people(watched(model, epsilon))}


# Attacks on people ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_exact_sums_give_everything_away(model: str) -> None:
    """ε = ∞, everybody else known: items, taste, counts and rare items without a mistake; ratings too under gp."""
    told = found(model, math.inf)
    assert told["existence", people.SUMS] == 1.0
    assert told["model", people.SUMS] == pytest.approx(1.0)
    assert told["metadata", f"known again in a second run, {people.SUMS}"] == 1.0
    assert told.get(("value", "one rating, all else known")) == (1.0 if model == "gp" else None)


@pytest.mark.parametrize("model", MODELS)
def test_at_a_small_budget_people_stay_hidden(model: str) -> None:
    """ε = 0.5: sums tell items no better than chance allows, and nobody is known again (4 deviations of 12 people)."""
    told = found(model, 0.5)
    assert abs(told["existence", people.SUMS] - 0.5) < 0.08
    assert told["metadata", f"known again in a second run, {people.SUMS}"] <= 5 / VICTIMS
    with_popularity, popularity = told["existence", f"{people.SUMS} + popularity"], told["existence", "popularity"]
    assert abs(with_popularity - popularity) < 0.03


def test_people_who_are_compared_do_not_share_their_noise() -> None:
    """What is left for two people differs in its noise: a shared one would cancel when they are compared."""
    run = watched("gp", 0.5)
    left = [readings.left_of(run.seen, run.victims_tables[0], rng=run.draws(number)) for number in (1, 2)]
    assert not np.array_equal(left[0][0], left[1][0])


def test_who_rated_a_rare_item_is_named_where_sums_are_exact() -> None:
    """The row of an item with one rater is that device's row: its length and audience tell whose."""
    run = watched("gp", math.inf)
    profiles = [run.problem.profile(user) for user in range(6)]
    item = next(item for item in range(run.problem.n_items) if all(item not in items for items, _ in profiles))
    items, values = profiles[2]
    at = int(np.searchsorted(items, item))
    own = run.tables((np.insert(items, at, item), np.insert(values, at, 5.0)))
    left = readings.left_of(run.seen, own, rng=run.draws(1))
    assert readings.name_rater(run.seen, left, item, profiles, rng=run.draws(2)) == 2


def test_a_rating_is_read_by_hand() -> None:
    """Two levels, one number: 10 is nearer to 12 than to 4; the prior decides where noise is large."""
    code = BlockCode(1, 1.0, 16, 300, 16)
    block = sums.SeenBlock(1, watched("gp", 8.0).seen.blocks[0].block, code, np.zeros(1, np.int64), 1)
    tables = [[csr_array(np.array([number]))] for number in (4, 12)]
    assert readings.read_rating([block], [np.array([10.0])], tables, np.array([0.5, 0.5])) == 1
    loud = block._replace(survivors=10_000)
    assert readings.read_rating([loud], [np.array([10.0])], tables, np.array([0.9, 0.1])) == 0


def test_levels_before_any_sum_are_those_of_other_people() -> None:
    """Ten people gave 5 stars: so will the next; without anybody, how people rate films."""
    assert readings.level_prior(np.full(10, 5.0), WHOLE_STARS).argmax() == 4
    assert readings.level_prior(np.zeros(0), WHOLE_STARS) == pytest.approx(WHOLE_STARS.shares)


# ε by coins -------------------------------------------------------------------------------------------------------


def longest_scores(run: Watched, count: int = 2000, **more: float) -> trials.Scores:
    """The statistic of the longest tables in many runs."""
    return trials.draw_scores(run.seen, run.victims_tables[run.most_visible], rng=run.draws(30), trials=count, **more)


@pytest.mark.parametrize("model", MODELS)
def test_the_distance_measured_is_the_distance_of_the_tables(model: str) -> None:
    """μ of 2,000 runs agrees with ‖z‖/σ within 5 deviations, and is at most what is claimed."""
    run = watched(model, 8.0)
    measured, (low, high) = trials.measured_mu(longest_scores(run))
    apart = trials.mu_between(run.seen, run.victims_tables[run.most_visible])
    assert abs(measured - apart) < 5 * (high - low) / 3.92
    assert apart <= run.budget["mu"] * (1 + 1e-9)


def test_crafted_tables_reach_the_claim_and_not_more() -> None:
    """Heavy weights make a profile as long as it may be; all weight on one item puts 1 and 5 stars two clips apart."""
    run = watched("gp", 8.0)
    items, values = run.problem.profile(run.victims[run.most_visible])
    heavy = run.seen.with_tables(lengthen)
    apart = trials.mu_between(heavy, run.tables((items, values), heavy))
    assert 0.9 * run.budget["mu"] < apart <= run.budget["mu"]
    aimed = run.seen.with_tables(lambda table: aim_at(table, int(items[0])))
    low, high = np.array([1.0, *values[1:]]), np.array([5.0, *values[1:]])
    apart = trials.mu_between(
        aimed, sums.difference_of(run.tables((items, high), aimed), run.tables((items, low), aimed))
    )
    assert 1.5 * run.budget["mu"] < apart <= 2 * run.budget["mu"]


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_epsilon_that_is_ruled_out_stays_below_the_claim(epsilon: float) -> None:
    """Both ways of counting. The tables of this person are shorter than the clip, so that this is no coin toss."""
    run = watched("gp", epsilon)
    scores = longest_scores(run)
    assert 0 < trials.epsilon_of_scores(scores, run.budget["delta"]) <= epsilon
    assert trials.epsilon_counted(scores, run.budget["delta"]) <= epsilon


def test_normal_scores_rule_out_the_epsilon_of_their_distance(rng: np.random.Generator) -> None:
    """Scores of μ = 2 rule out nearly ε(2), and not more; counting rules out less."""
    scores = trials.Scores(rng.standard_normal(20_000) + 2, rng.standard_normal(20_000))
    ruled_out, counted = trials.epsilon_of_scores(scores, 1e-5), trials.epsilon_counted(scores, 1e-5)
    assert 0.9 * epsilon_of_mu(2, 1e-5) < ruled_out < epsilon_of_mu(2, 1e-5)
    assert 3 < counted < ruled_out


def test_scores_that_say_nothing_rule_nothing_out(rng: np.random.Generator) -> None:
    """Two samples of one law: of 40, at most 5 rule out more than 0 (one alarm in 10⁵ at 0.7 % each)."""
    both = [trials.Scores(*rng.standard_normal((2, 400))) for _ in range(40)]
    assert sum(trials.epsilon_of_scores(one, 1e-6) > 0 for one in both) <= 5
    assert sum(trials.epsilon_counted(one, 1e-6) > 0 for one in both) <= 5


def test_without_noise_counting_rules_out_all_that_two_thousand_runs_can() -> None:
    """ln of the exact bounds of 1,000 in 1,000 and of 0 in 1,000."""
    run = watched("gp", math.inf)
    scores = longest_scores(run)
    level = trials.ERROR / 2
    expected = math.log((level ** (1 / 1000) - 1e-6) / (1 - level ** (1 / 1000)))
    assert trials.epsilon_of_scores(scores, 1e-6) == pytest.approx(expected)
    cases = with_labels(*scores)
    assert (auc(*cases), rate_at(*cases)) == (1.0, 1.0)
    assert trials.measured_mu(scores)[0] == math.inf


def test_colluding_devices_and_differences_change_the_noise_as_they_should() -> None:
    """A quarter of the noise is twice the distance; two sums subtracted are √2 times as noisy (5 deviations)."""
    run = watched("gp", 8.0)
    apart = trials.mu_between(run.seen, run.victims_tables[run.most_visible])
    for more, factor in (({"honest": 0.25}, 2.0), ({"sums": 2}, math.sqrt(0.5))):
        measured, (low, high) = trials.measured_mu(longest_scores(run, **more))
        assert abs(measured - factor * apart) < 5 * (high - low) / 3.92


@pytest.mark.parametrize("epsilon", [math.inf, 8.0, 0.5])
def test_coins_of_one_run_are_told_where_nothing_hides_them(epsilon: float) -> None:
    """30 canaries, 10 guesses, of profiles and of ratings. ε = ∞: all right; else at most the claim."""
    run = watched("gp", epsilon)
    profiles, ratings = pairs.attack_one_run(run)
    assert profiles.value <= epsilon
    assert ratings.value <= run.budget["item_level"]
    if epsilon == math.inf:
        assert profiles.claim.endswith("(10 of 10 coins right)")
        assert ratings.claim.endswith("(10 of 10 coins right)")
        assert min(profiles.value, ratings.value) > 0.2


def test_coins_thrown_afterwards_are_told_by_nobody() -> None:
    """The sums of some canaries, judged by coins that have nothing to do with them: half right (5 deviations)."""
    run = watched("gp", 8.0)
    canaries = [run.tables(run.problem.profile(user)) for user in range(30)]
    right = 0
    for seed in range(20):
        sent, others = np.random.default_rng(seed).random((2, 30)) < 0.5
        right += int(((trials.coin_leads(run.seen, canaries, sent) > 0) == others).sum())
    assert abs(right - 300) < 5 * math.sqrt(600) / 2


def test_who_sends_zeros_is_still_there() -> None:
    """The same devices, of which some are empty."""
    problem = watched("gp", 8.0).problem
    emptied = without_profiles(problem, np.array([0, 5]))
    assert emptied.n_users == problem.n_users
    assert emptied.rated_counts[[0, 5]].tolist() == [0, 0]
    assert emptied.profile(6)[0].tolist() == problem.profile(6)[0].tolist()


# Masked tables ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twelve() -> Iterator[None]:
    """Cohorts of twelve real devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohorts, "COHORT", 12)
        yield


@cache
def scene(epsilon: float) -> tuple[list[cohorts.SeenCohort], collusion.Scene]:
    """Two attempts of a round among twelve devices."""
    return collusion.set_scene(watched("gp", epsilon))


@pytest.mark.usefixtures("twelve")
def test_a_masked_table_says_nothing_and_the_sum_everything() -> None:
    """12 real devices without noise: single tables are at chance and uniform; without masks they would tell all."""
    attempts, seen = scene(math.inf)
    one, keys, *_ = collusion.attack_round(watched("gp", math.inf), attempts, seen)
    assert keys.value == 0
    assert 0.05 < one.value < 0.95
    assert p_value(one) > 1e-3
    bare = replace(seen, cohort=seen.cohort._replace(tables=seen.own_tables))
    told, *_ = collusion.attack_round(watched("gp", math.inf), attempts, bare)
    assert told.value == 1.0
    assert p_value(told) < 1e-6


def p_value(finding: Finding) -> float:
    """The p-value that a claim states."""
    return float(finding.claim.split("p = ")[1].rstrip(")"))


@pytest.mark.usefixtures("twelve")
def test_all_devices_but_one_strip_its_table_and_fewer_do_not() -> None:
    """Eleven helpers with their real secrets leave the table itself, bit by bit; ten leave one honest pair's mask."""
    _, seen = scene(8.0)
    for victim in range(12):
        others = set(range(12)) - {victim}
        assert np.array_equal(collusion.strip_table(seen.cohort, victim, others), seen.own_tables[victim])
        left = collusion.strip_table(seen.cohort, victim, others - {min(others)})
        assert cohorts.uniformity([left - seen.own_tables[victim]]) > 1e-6


@pytest.mark.usefixtures("twelve")
def test_helpers_within_the_bound_leave_the_noise_that_is_claimed() -> None:
    """c_max = 2 of 12: single tables stay uniform, and the sum keeps the noise of ten devices (one alarm in 10⁵)."""
    _, _, table, noise, alone = collusion.attack_round(watched("gp", 8.0), *scene(8.0))
    assert "c_max = 2 of 12" in table.name
    assert p_value(table) > 1e-5
    assert 0.4 < noise.value < 2
    assert alone.claim.startswith("not covered: 12 of 12")


@pytest.mark.usefixtures("twelve")
def test_honest_devices_without_noise_show_in_what_helpers_leave() -> None:
    """Three of ten honest devices without noise: less is left than the budget counts on."""
    attempts, seen = scene(8.0)
    silent = [integers.astype(np.uint32) for integers in seen.integers[2:5]]
    noise = sum((own - bare for own, bare in zip(seen.own_tables[2:5], silent, strict=True)), np.uint32(0))
    quiet = replace(seen, cohort=seen.cohort._replace(total=seen.cohort.total - noise))
    ratio = collusion.attack_round(watched("gp", 8.0), attempts, quiet)[3]
    assert ratio.value < 0.85


# People, time and lies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "least", "most"), [(math.inf, 0.85, 1.0), (0.5, 0.25, 0.75)])
def test_attributes_are_read_off_exact_sums_and_not_off_noisy_ones(epsilon: float, least: float, most: float) -> None:
    """An attribute that follows from one popular item: 60 people, so that 4 deviations of the AUC are 0.25."""
    run = watched("gp", epsilon)
    item = int(np.argsort(run.popularity)[-8])
    labels = np.array([item in run.problem.profile(user)[0] for user in range(run.problem.n_users)]).astype(np.int64)
    area, _ = attributes.attack_attributes(replace(run, people={"gender": labels}))
    assert area.name == f"gender from {people.SUMS}"
    assert least <= area.value <= most


def test_a_clock_that_counts_ratings_tells_how_many_they_are() -> None:
    """A device that takes a second per rating, and one that always takes a second."""
    run = watched("gp", 8.0)
    for per_rating, expected in ((1.0, 1.0), (0.0, 0.5)):
        ticks = Ticks(run, per_rating)
        area, _ = attributes.attack_timing(replace(run, clock=ticks.now, seen=ticks.seen))
        assert area.value == expected


class Ticks:
    """A clock that moves when entries are computed, and a run whose devices move it."""

    def __init__(self, run: Watched, per_rating: float) -> None:
        self.time, self.per_rating, self.learning = 0.0, per_rating, run.seen.learning
        self.seen = sums.SeenRun(run.seen.rounds, self)

    def now(self) -> float:
        """The time."""
        return self.time

    def entries(self, blocks: object, table: object, items: np.ndarray, values: np.ndarray) -> object:
        """What the device computes, and how long it takes."""
        self.time += 1.0 + self.per_rating * len(items)
        return self.learning.entries(blocks, table, items, values)


def test_promoters_push_an_item_no_further_than_their_clips() -> None:
    """Everything for one item: the sum of its residuals grows by exactly a clip per promoter; others stay."""
    run = watched("gp", math.inf)
    group = poisoning.Promotion(run, np.arange(3), np.arange(20, 40), 7)
    engine = poisoning.PoisonedEngine(run.problem, group.clip)
    for one in run.problem.terms.priced.plan.rounds:
        for block, code, own in zip(one.blocks, engine.codes, group.clip(engine, one), strict=True):
            assert np.abs(own).sum() in (0, 3 * code.clip_units)
            assert code.clip_units**2 <= code.norm_squared
            assert (own.reshape(block.shape[0], -1)[np.arange(block.shape[0]) != 7] == 0).all()
        engine.run_round()


def test_one_device_beyond_its_clip_goes_as_far_as_the_checks_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added in each round passes both checks of a server, a hundredth more does not; it is more than a clip."""
    run = watched("gp", 8.0)
    alone = poisoning.Promotion(run, np.arange(1), np.arange(20, 40), 7)
    monkeypatch.setattr(poisoning, "BISECTIONS", 20)
    longer = []

    def write(engine: poisoning.PoisonedEngine, one: Round, table: object, totals: list[Table]) -> list[np.ndarray]:
        more = alone.exceed(engine, one, table, totals)
        if any(own.any() for own in more):
            assert engine.passes(one, poisoning.added(totals, more))
            assert not engine.passes(one, poisoning.added(totals, [own + own // 100 for own in more]))
        longer.append(
            max(float(np.abs(own).max() / code.clip_units) for own, code in zip(more, engine.codes, strict=True))
        )
        return more

    alone.train(write)
    assert max(longer) > 1


def test_every_attack_of_the_suite_applies_or_says_why_not() -> None:
    """Each is named once."""
    named = [name for one in suite.SUITE for name in one.attacks]
    assert sorted(named) == sorted(suite.names_of_suite())
    assert all(one.why for one in suite.SUITE)


# The command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_what_was_attacked_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit DATA --protocol masked --json`: every attack with its claim, accuracy, and who has a rare item."""
    monkeypatch.setattr(cohorts, "COHORT", 8)
    monkeypatch.setattr(trials, "TRIALS", 200)
    small = "synthetic:users=24,items=30,ratings=300"
    outcome = run_command("audit", small, "--protocol", "masked", "--epsilon", 8, "--users", 4, "--json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert list(record["worst"]) == ["masked ε=8"]
    assert record["model"] == "gp"
    (run,) = record["runs"].values()
    assert run["contradictions"] == []
    assert {"budget", "metrics", "baselines", "people_with_a_rare_item"} <= run.keys()
    assert all(attack["claim"] for attack in record["attacks"])
    names = {attack["name"] for attack in record["attacks"]}
    stands = {begin for one in suite.SUITE for begin in one.findings if one.attacks != ("a few reports",)}
    assert [begin for begin in stands if not any(name.startswith(begin) for name in names)] == []
    assert {attack["target"] for attack in record["attacks"]} == {*TARGETS} - {"person"}


def test_without_a_budget_three_are_audited() -> None:
    """ε = 8, 1 and ∞, under the model that is asked for."""
    chosen = bench.masked_settings("audience", None, 0)
    assert [one.options["epsilon"] for one in chosen] == [8.0, 1.0, math.inf]
    assert {one.model for one in chosen} == {"audience"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--protocol", "masked", "--protocol", "plain"), "protocol"),
        (("--protocol", "masked", "--epsilon-i", 4), "epsilon_i"),
        (("--protocol", "masked", "--rounds", 4), "rounds"),
        (("--model", "gp", "--sweep", "noise"), "sweep"),
        (("--model", "mf", "--protocol", "masked"), "protocol"),
        (("--model", "gp", "--protocol", "sdcf"), "protocol"),
    ],
)
def test_what_masked_does_not_use_is_refused(words: tuple[str, ...], name: str) -> None:
    """One sentence that names the option."""
    outcome = run_command("audit", "synthetic:users=24,items=30,ratings=300", *words)
    assert outcome.code == 1
    assert name in outcome.err
