"""The audit: attacks see messages alone, find every planted leak, and find nothing where there is none."""

import ast
import gc
import json
import math
import types
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from audit_kit import VICTIMS, problem_of, rated_by, unrelated, victims_of, watched
from command import run

import hushrec.audit
from hushrec.audit import canaries, devices, difference, malicious, poisoning, sweeps
from hushrec.audit.attacks import Attack
from hushrec.audit.attacks.existence import (
    EXISTENCE,
    ConsistentRatings,
    NeverReported,
    OppositeDirections,
    Popularity,
    SelectionAverage,
)
from hushrec.audit.attacks.marking import MarkingServer
from hushrec.audit.attacks.metadata import METADATA, CountFromSelections, FinishTiming, LinkRounds
from hushrec.audit.attacks.person import PersonFromUploads
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE, AllUploads, likeliest_ratings
from hushrec.audit.crowd import Crowd
from hushrec.audit.findings import TARGETS, Finding, worst
from hushrec.audit.judge import judge, judge_linkage, judge_people
from hushrec.audit.observation import Observation
from hushrec.audit.own_steps import evidence_of_steps
from hushrec.audit.rank_one import Trace, trace
from hushrec.audit.rating_grid import RecoveredRatings
from hushrec.audit.run import Audit, audit, settings_for
from hushrec.audit.selection_rounds import ROUNDS, selection_curve
from hushrec.audit.statistics import auc
from hushrec.cli.audit import side_by_side
from hushrec.data.people import load_people
from hushrec.data.synthetic import synthetic
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError, RunError
from hushrec.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols import Isgld, Plain, Sdcf
from hushrec.report import audits

AUDIT = Path(hushrec.audit.__file__).parent
RUNS = [("mf", "plain"), ("mf", "isgld"), ("mf", "sdcf"), ("bpr", "plain"), ("bpr", "sdcf")]


def applicable(attacks):
    """Every attack with every small run on which it has something to work on."""
    return [
        pytest.param(model, protocol, attack, id=f"{model}-{protocol}-{attack.name}")
        for model, protocol in RUNS
        for attack in attacks
        if attack.applies_to(watched(model, protocol)[1])
    ]


# What an attack can reach -----------------------------------------------------------------------------------------


def reachable(root: object) -> list[object]:
    """Every object that a chain of references leads to; classes, functions and modules are code, and end a chain."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, code):
            continue
        seen[id(found)] = found
        waiting += gc.get_referents(found)
        if isinstance(found, np.ndarray) and found.base is not None:
            waiting.append(found.base)
    return list(seen.values())


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_an_observation_leads_to_messages_and_public_state_alone(model, protocol):
    """No client, problem, ledger, draw, permanent bit or truth is reachable from what an attack is given."""
    observation = watched(model, protocol)[1]
    fresh = Observation(*(getattr(observation, entry.name) for entry in fields(observation)))
    ours = {type(found) for found in reachable(fresh) if type(found).__module__.startswith("hushrec")}
    assert ours <= {Observation, ItemVectors, Terms, GradientReport, Plain, Isgld, Sdcf}
    arrays = [found for found in reachable(fresh) if isinstance(found, np.ndarray) and found.dtype.kind == "f"]
    width = fresh.announcements[0].item_vectors.shape[1]
    shapes = {array.shape[1] for array in arrays if array.ndim == 2}
    assert shapes <= {width}  # gradients and item vectors


# What the modules of attacks may import, besides NumPy, SciPy and the standard library.
ATTACKERS_MAY = {
    "audit.attacks", "audit.crowd", "audit.error_laws", "audit.observation", "audit.own_steps", "audit.rank_one",
    "audit.rating_grid", "audit.selection", "audit.statistics", "budget.calibrate", "errors", "messages", "protocols",
    "randomness",
}  # fmt: skip
ATTACKERS = [
    *sorted((AUDIT / "attacks").glob("*.py")),
    *(
        AUDIT / f"{name}.py"
        for name in ("crowd", "error_laws", "observation", "own_steps", "rank_one", "rating_grid", "selection")
    ),
]


@pytest.mark.parametrize("path", ATTACKERS, ids=lambda path: path.stem)
def test_modules_of_attacks_import_nothing_that_knows_more(path):
    """Clients, problems, engines, data and the truth are out of reach of an attack's code."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name.removeprefix("hushrec.") for name in names if name.startswith("hushrec")}
    assert {
        name for name in ours if not any(name == may or name.startswith(f"{may}.") for may in ATTACKERS_MAY)
    } == set()


# Planted leaks, and none ------------------------------------------------------------------------------------------


def at_chance(found: Finding) -> bool:
    """Within five deviations of chance, as the finding's own interval of four deviations has it (false alarm 6e-7)."""
    low, high = found.interval
    return abs(found.value - found.chance) <= 1.25 * (high - low) + 1e-9


ON_REPORTS = [attack for attack in EXISTENCE if not isinstance(attack, NeverReported)]


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(ON_REPORTS))
def test_existence_is_read_off_a_planted_leak(model, protocol, attack, rng):
    """With bits that survive and fakes that shrink, every attack tells rated from unrated without fail."""
    _, observation, truth, _ = watched(model, protocol)
    observation = replace(observation, popularity=truth.rated[0] * 0.9 + 0.05)
    truth = replace(truth, rated=truth.rated[:1], ratings=truth.ratings[:1])
    (found,) = judge(attack, replace(observation, uploads=observation.uploads[:1]), truth, rng=rng)
    assert found.target == "existence"
    assert found.auc == pytest.approx(1, abs=0.02 if "one upload" in attack.name else 0.001)
    assert found.tpr_at_1pct_fpr == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(EXISTENCE))
def test_existence_stays_at_chance_where_nothing_leaks(model, protocol, attack, rng):
    """Against a truth that no message was made from, the AUC is 0.5 within five deviations of its interval."""
    _, observation, truth, _ = watched(model, protocol, open_wide=not isinstance(attack, NeverReported))
    (found,) = judge(attack, observation, unrelated(truth), rng=rng)
    assert at_chance(found)


def camps(rng):
    """A crowd of two camps with 20 items each, and the profiles of one person of each camp, half of it seen."""
    side = rng.random(60) < 0.5
    rated = np.zeros((60, 40), dtype=np.float32)
    rated[:, :20], rated[:, 20:] = side[:, None], ~side[:, None]
    rated *= rng.random(rated.shape) < 0.7
    profiles = np.zeros((2, 40))
    profiles[0, :10] = profiles[1, 20:30] = 1
    return Crowd(rated, rated), profiles


def test_like_minded_people_tell_of_items_that_were_never_reported(rng):
    """Whoever has half of a camp's items has the other half; in a crowd without camps nobody has more."""
    crowd, profiles = camps(rng)
    lift = crowd.likely_for(profiles)
    assert lift[0, 10:20].min() > 1 > lift[0, 30:].max()
    assert lift[1, 30:].min() > 1 > lift[1, 10:20].max()
    mixed = Crowd(rng.permuted(crowd.rated, axis=0), crowd.pulls)
    truth = np.arange(40) % 20 >= 10
    areas = [auc(mixed.likely_for(np.roll(profiles, turn, axis=1))[0], truth) for turn in range(40)]
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / math.sqrt(40)


def stepping(rated, rng, n_items=30, factors=24):
    """Five uploads of one person, of the first half of the items alone, and the announcements; no noise to speak of."""
    ratings = rng.integers(1, 6, n_items).astype(float)
    ridge = np.full(factors, 0.01)
    terms = Terms(
        model="mf", n_factors=factors, n_items=n_items, reports_per_client=5.0, data_weight=1e7, step=0.4, decay=0.6,
        max_rounds=5, epoch_rounds=None, user_regularization=ridge, item_regularization=ridge,
    )  # fmt: skip
    vector, reported = 0.3 * rng.random(factors), np.arange(n_items // 2)
    announcements, uploads = [], []
    for round_number in range(1, 6):
        table = 0.3 * rng.random((n_items, factors))
        announcements.append(ItemVectors(terms, round_number, table))
        step_size = terms.step_size(round_number)
        errors = np.where(rated, ratings - table @ vector, 0.0)
        gradients = step_size * (terms.data_weight * np.outer(errors, vector) - table * ridge)
        uploads.append(GradientReport(round_number, reported, gradients[reported]))
        vector = vector + step_size * (terms.data_weight * errors @ table / rated.sum() - vector * ridge)
    known = np.where(np.arange(n_items) < n_items // 2, ratings, np.nan)
    log_odds = np.where(np.isnan(known), 0.0, np.where(rated, 50.0, -50.0))
    return trace(announcements, uploads), RecoveredRatings(log_odds, known, np.empty(0)), tuple(announcements)


def test_steps_of_the_vector_tell_of_items_that_were_never_reported(rng):
    """With more equations than items every one is told; of other items than those that it learned from, none is."""
    areas, others = [], []
    for _ in range(20):
        half = rng.random(15) < 0.4
        rated = np.concatenate([half, rng.permutation(half)])
        if not half.any() or half.all():
            continue
        evidence = evidence_of_steps(*stepping(rated, rng), np.full(30, 0.4))
        assert not evidence[:15].any()
        areas.append(auc(evidence[15:], rated[15:]))
        others.append(auc(evidence[15:], rng.permutation(rated[15:])))
    assert np.mean(areas) > 0.99
    assert abs(np.mean(others) - 0.5) < 5 * np.std(others) / math.sqrt(len(others))


def test_steps_say_nothing_without_a_known_rating_or_a_next_upload(rng):
    """The norm of the vector is not known, or the step is not seen: no evidence, and no error."""
    seen, found, announcements = stepping(np.arange(30) % 2 == 0, rng)
    chances = np.full(30, 0.4)
    assert not evidence_of_steps(Trace(seen.parts[:1]), found, announcements, chances).any()
    assert not evidence_of_steps(Trace(seen.parts[::2]), found, announcements, chances).any()
    nothing = replace(found, log_odds=np.zeros(30))
    assert not evidence_of_steps(seen, nothing, announcements, chances).any()


def test_items_that_were_reported_are_not_asked_for(rng):
    """`NeverReported` leaves them out, and with them a person all of whose ratings were reported."""
    _, observation, truth, _ = watched("mf", "sdcf")
    guess = NeverReported(Popularity()).guess(observation)
    assert (np.isnan(guess) == (observation.selection_counts > 0)).all()
    everything = replace(truth, rated=observation.selection_counts > 0)
    assert judge(NeverReported(Popularity()), observation, everything, rng=rng) == []


@pytest.mark.parametrize("model", ["mf", "bpr"])
def test_marked_rows_tell_which_items_were_rated_reported_or_not(model, rng):
    """At the paper's budgets every rated item is found, and no unrated one; of other people's items, none."""
    problem = problem_of(model, "sdcf", open_wide=False)
    observation = watched(model, "sdcf", open_wide=False)[1]
    found = malicious.attack_by_marks(problem, observation, victims_of(problem), rng=rng)
    assert found[0].target == "existence"
    assert found[0].auc > 0.999
    assert found[0].tpr_at_1pct_fpr > 0.99
    if model == "mf":
        assert found[1].value > 0.9 > found[1].chance
    strangers = replace(problem, items=rng.permutation(problem.n_items)[problem.items])
    areas = [
        auc(server.scores[asked], np.isin(np.flatnonzero(asked), rated_by(strangers, int(user))))
        for user in victims_of(problem)
        for server in [malicious._mark(problem, int(user), rng)]
        for asked in [~np.isnan(server.scores)]
    ]
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / math.sqrt(len(areas))


def test_a_marking_server_knows_nothing_of_a_device_that_says_nothing(rng):
    """Nothing but "finished" in every round: no rating, and every score stays unknown."""
    terms = problem_of("mf", "sdcf", open_wide=False).terms
    server = MarkingServer(terms, np.arange(4), rng=rng)
    for round_number in range(1, server.n_rounds + 1):
        server.receive(server.announce(round_number), None)
    assert np.isnan(server.scores).all()
    assert np.isnan(server.ratings()).all()


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(MODEL[1:]))
def test_the_user_vector_is_read_off_an_upload(model, protocol, attack, rng):
    """Its direction is that of the device's own vector, and so are the ten recommendations; a stranger's are not."""
    _, observation, truth, _ = watched(model, protocol)
    cosine, overlap = judge(attack, observation, truth, rng=rng)
    assert cosine.metric == "mean_abs_cosine"
    assert cosine.value > (0.95 if "pooled" in attack.name else 0.99)  # in a run this short the vector still moves
    assert overlap.value > 0.75
    stranger, _ = judge(attack, observation, unrelated(truth), rng=rng)
    assert stranger.value < 0.8  # random directions in 8 dimensions


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_what_is_public_tells_less_of_a_person_than_their_uploads(model, protocol, rng):
    """One direction for everybody, from the item vectors alone; no message changes it."""
    _, observation, truth, _ = watched(model, protocol)
    public, upload = (judge(attack, observation, truth, rng=rng)[0] for attack in MODEL[:2])
    assert 0.5 * public.chance < public.value < upload.value
    assert (np.einsum("ij,ij->i", MODEL[0].guess(observation), truth.user_vectors) > 0).mean() > 0.8
    silent = replace(observation, uploads=tuple((None,) * observation.n_rounds for _ in observation.uploads))
    assert (MODEL[0].guess(silent) == MODEL[0].guess(observation)).all()


def test_where_noise_drowns_the_uploads_pooling_falls_back_on_what_is_public(rng):
    """Uploads of Langevin noise and nothing else: the guess stays near what it is without them."""
    _, observation, _, _ = watched("mf", "sdcf")
    terms = observation.terms
    silence = [
        GradientReport(
            one.round_number,
            np.arange(100),
            math.sqrt(terms.step_size(one.round_number)) * rng.standard_normal((100, 8))
            - terms.step_size(one.round_number) * one.item_vectors[:100] * terms.item_regularization,
        )
        for one in observation.announcements
    ]
    drowned = replace(observation, uploads=(tuple(silence),))
    assert MODEL[-1].guess(drowned)[0] @ MODEL[0].guess(drowned)[0] > 0.9


def test_ratings_are_read_off_two_consecutive_uploads(rng):
    """`plain`: every rating comes out exactly; against another truth, no more than chance (5 deviations)."""
    _, observation, truth, _ = watched("mf", "plain")
    (found,) = judge(AllUploads(), observation, truth, rng=rng)
    assert found.value == 1
    other = judge(AllUploads(), observation, unrelated(truth), rng=rng)[0]
    assert abs(other.value - other.chance) < 5 * math.sqrt(0.25 / truth.counts.sum()) + 0.1


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(VALUE))
def test_every_value_attack_beats_chance_on_a_planted_leak(model, protocol, attack, rng):
    """Whole ratings, or Laplace-noisy ones: better than always guessing the commonest."""
    _, observation, truth, _ = watched(model, protocol)
    found = judge(attack, observation, truth, rng=rng)[0]
    if (attack.name, protocol) == ("one upload", "plain"):
        assert found.value > 0.95
    elif attack.name != "one upload":
        assert found.value > found.chance + 0.05
    assert at_chance(judge(attack, observation, unrelated(truth), rng=rng)[0]) or attack.name != "one upload"
    assert found.claim


def test_a_noisy_rating_is_read_as_its_likeliest_origin():
    """Far out it is the nearest end, near the middle the commoner neighbour; unknown stays unknown."""
    found = likeliest_ratings(np.array([9.0, -3.0, np.nan, 3.4]), epsilon=8.0)
    assert found[:2].tolist() == [5.0, 1.0]
    assert np.isnan(found[2])
    assert found[3] == 3.0


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(METADATA))
def test_how_much_somebody_rated_is_read_off(model, protocol, attack, rng):
    """The lightest quarter is told from the heaviest; with other people's counts, no better than by a coin."""
    _, observation, truth, _ = watched(model, protocol)
    area, correlation = judge(attack, observation, truth, rng=rng)
    if (model, attack.name) != ("bpr", "count from selections"):
        assert area.auc == 1
        assert correlation.value > 0.8
    others = [replace(truth, rated=rng.permutation(truth.rated)) for _ in range(40)]
    areas = [judge(attack, observation, other, rng=rng)[0].auc for other in others]
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / math.sqrt(len(areas))


def test_timing_tells_what_it_is_made_from(rng):
    """Seconds that grow with the profile give it away; equal ones are a coin."""
    _, observation, truth, _ = watched("mf", "plain")
    observation = observation.first_rounds(5)
    slow = replace(observation, finish_seconds=np.tile(truth.counts[:, None] * 1e-3, (1, 5)))
    assert judge(FinishTiming(), slow, truth, rng=rng)[0].auc == 1
    alike = replace(observation, finish_seconds=np.ones((VICTIMS, 5)))
    area, correlation = judge(FinishTiming(), alike, truth, rng=rng)
    assert area.auc == 0.5
    assert correlation.value == 0


def test_the_length_of_an_upload_by_chance_is_no_part_of_the_time(rng):
    """`sdcf`: a second for every item reported and one for every item rated: the latter are told all the same."""
    _, observation, truth, _ = watched("mf", "sdcf", open_wide=False)
    lengths = np.array([[0 if one is None else len(one.items) for one in uploads] for uploads in observation.uploads])
    timed = replace(observation, finish_seconds=lengths + 1.0 * truth.counts[:, None])
    area, correlation = judge(FinishTiming(), timed, truth, rng=rng)
    assert area.auc == 1
    assert correlation.value > 0.99


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_nameless_uploads_of_one_person_are_linked(model, protocol):
    """Consecutive directions are nearer than other people's; with uploads swapped at random they are not linked."""
    observation = watched(model, protocol)[1]
    (found,) = judge_linkage(LinkRounds(), observation)
    assert found.value == 1
    assert found.auc > 0.99
    swapped = tuple(
        (*mine[:-1], theirs[-1]) for mine, theirs in zip(observation.uploads, observation.uploads[::-1], strict=True)
    )
    (other,) = judge_linkage(LinkRounds(), replace(observation, uploads=swapped))
    assert other.value < 0.3


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_a_person_is_known_by_their_uploads_or_not_at_all(model, protocol, rng):
    """Where a label is two kinds of uploads it is found without fail; a coin is not (5 deviations)."""
    observation = watched(model, protocol)[1]
    attack = PersonFromUploads()
    labels = np.arange(len(observation.crowd)) % 2
    two_kinds = replace(observation, crowd=tuple(observation.crowd[label] for label in labels))
    area, accuracy = judge_people(attack, protocol, attack.kernel(two_kinds), {"kind": labels}, rng=rng)
    assert area.auc == accuracy.value == 1
    assert accuracy.chance == 0.5
    kernel = attack.kernel(observation)
    coin = rng.integers(0, 2, len(labels))
    thirds = np.arange(len(coin)) % 3
    area, _, three, _ = judge_people(attack, protocol, kernel, {"coin": coin, "thirds": thirds}, rng=rng)
    assert abs(area.auc - 0.5) < 5 * math.sqrt(len(coin) / 12 / coin.sum() / (len(coin) - coin.sum()))
    assert at_chance(three)


# Servers and devices that lie -------------------------------------------------------------------------------------


def test_a_device_refuses_absurd_tables_and_answers_crafted_ones(rng):
    """V = 0 and zeros beside one loud row read nothing; tiny and orthogonal rows read every rating of `plain`."""
    problem, observation, _, _ = watched("mf", "plain")
    found = malicious.attack_devices(problem, observation, victims_of(problem)[:4], rounds=2, rng=rng)
    assert [one.value == one.chance for one in found] == [True, False, True, False]
    assert [found[1].value, found[3].value] == [1, 1]


def test_a_crafted_table_reads_ratings_through_fakes_and_laplace_noise(rng):
    """`sdcf` with a leak planted: most ratings; `isgld`: more than chance."""
    for protocol in ("sdcf", "isgld"):
        problem, observation, _, _ = watched("mf", protocol)
        found = malicious.attack_devices(problem, observation, victims_of(problem)[:6], rounds=8, rng=rng)
        assert all(one.value > one.chance + 0.03 for one in (found[1], found[3]))


def test_a_rating_added_halfway_stands_out(rng):
    """`plain` shows it as the one new item."""
    problem, observation, _, _ = watched("mf", "plain")
    found = difference.attack_difference(problem, observation, victims_of(problem)[:4], rng=rng)
    assert (found.value, found.auc) == (1, 1)


def test_without_an_added_rating_nothing_stands_out():
    """The same person before and after: no item changes."""
    observation = watched("mf", "plain")[1]
    scores = difference.difference_scores(observation)
    assert ((scores == scores.max(axis=1, keepdims=True)).sum(axis=1) > 5).all()


def test_promoters_take_over_unless_norms_are_bounded(rng):
    """With the default bound a few devices put an item before everybody; a tight one makes them work."""
    problem, _, _, engine = watched("mf", "plain")
    found = poisoning.attack_integrity(problem, engine, rng=rng)
    loose, tight = found[: len(poisoning.SHARES)], found[len(poisoning.SHARES) :]
    assert loose[-1].value > 0.9 > loose[-1].chance + 0.5
    assert all(one.value <= other.value + 0.1 for one, other in zip(tight, loose, strict=True))


def test_a_promoter_stays_within_the_bound_and_within_what_devices_accept():
    """One report of one item, no longer than allowed."""
    terms = problem_of("mf", "plain").terms
    vectors = np.ones((terms.n_items, 8))
    promoter = poisoning.Promoter(3, np.arange(1.0, 9.0), 0.5)
    report, _ = promoter.answer(ItemVectors(terms, 1, vectors))
    assert report.items.tolist() == [3]
    assert np.linalg.norm(report.gradients) <= 0.5


# What the numbers must obey ---------------------------------------------------------------------------------------


def test_selections_with_permanent_bits_stay_under_their_ceiling_and_without_them_give_all_away(rng):
    """At every number of rounds the mean AUC is at most the ceiling of ε_P (4 errors); without, it goes to 1."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    protocol = Sdcf(epsilon_i=8.0, epsilon_g=1.0)
    profiles = [rated_by(problem, int(user)) for user in problem.active_users]
    points = selection_curve(profiles, protocol, problem.terms, rng=rng)
    assert [point.rounds for point in points] == list(ROUNDS)
    for point in points:
        error = (point.interval[1] - point.interval[0]) / 4
        assert point.with_permanent_bits <= point.ceiling + 4 * error
    assert points[-1].without > 0.999
    assert points[-1].with_permanent_bits == pytest.approx(points[-1].ceiling, abs=0.02)


def test_counts_drawn_at_once_are_those_of_the_mechanism(rng):
    """The mean count over rounds of `select_items` lies within 5 deviations of the binomial's mean."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    user = int(problem.active_users[0])
    protocol, rounds = Sdcf(epsilon_i=4.0, epsilon_g=1.0), 400
    choice, _ = protocol.draw_permanent(rated_by(problem, user), problem.terms, rng=rng)
    counts = np.zeros(problem.n_items)
    for _ in range(rounds):
        counts[protocol.select_items(np.empty(0, dtype=int), choice, rng=rng)] += 1
    for bit, chance in ((True, choice.probabilities.prob_send_one), (False, choice.probabilities.prob_send_zero)):
        trials = rounds * int((choice.bits == bit).sum())
        assert abs(counts[choice.bits == bit].sum() - trials * chance) <= 5 * math.sqrt(trials * chance) + 1e-9


def test_a_profile_cap_hides_how_many_are_rated(rng):
    """Without it the likeliest h follows h; with it, every h has the same f, p and q."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    _, observation, truth, _ = watched("mf", "sdcf", open_wide=False)
    capped = replace(observation, protocol=Sdcf(epsilon_i=4.0, epsilon_g=4.0, profile_cap=100))
    assert CountFromSelections().guess(capped).max() <= 100
    assert problem.terms.reports_per_client is not None
    assert judge(CountFromSelections(), observation, truth, rng=rng)[1].value > 0


def test_canaries_rule_out_what_is_not_kept_and_nothing_else(rng):
    """Coins are told from `plain` without fail; from the selections of `sdcf` no more than its ε allows."""
    problem = problem_of("mf", "plain")
    planted, coins = canaries.plant(problem, problem.active_users, rng=rng)
    assert (planted.rated_counts == problem.rated_counts).all()
    assert 0.2 < coins.coins.mean() < 0.8
    for user in coins.users:
        assert len(np.unique(rated_by(planted, int(user)))) == planted.rated_counts[user]
    items = {int(user): rated_by(planted, int(user)) for user in coins.users}
    for row, heads, tails, coin in zip(coins.rows, coins.heads, coins.tails, coins.coins, strict=True):
        own = items[int(coins.users[row])]
        assert (heads in own, tails in own) == (coin, not coin)
    uploads = tuple((GradientReport(1, own, np.ones((len(own), 8))),) for own in items.values())
    observation = replace(watched("mf", "plain")[1].first_rounds(1), uploads=uploads)
    found, share = canaries.judge_canaries(SelectionAverage(), observation, coins, planted)
    assert found.auc == share.value == 1
    assert found.value == pytest.approx(math.log(0.05 ** (1 / len(coins.coins)) / (1 - 0.05 ** (1 / len(coins.coins)))))


def test_canaries_of_whom_nothing_is_said_rule_nothing_out(rng):
    """Uploads of random items: the coins are guessed like coins (Clopper–Pearson at 1 − 1e-6)."""
    problem = problem_of("mf", "plain")
    planted, coins = canaries.plant(problem, problem.active_users, rng=rng)
    uploads = tuple(
        (GradientReport(1, np.sort(rng.choice(problem.n_items, 60, replace=False)), np.ones((60, 8))),)
        for _ in coins.users
    )
    observation = replace(watched("mf", "plain")[1].first_rounds(1), uploads=uploads)
    found, share = canaries.judge_canaries(SelectionAverage(), observation, coins, planted)
    assert found.value < 0.5
    assert at_chance(share)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        (Sdcf(4.0, 1.0), "selections: epsilon 0.4 for one rating replaced (8 profile level)"),
        (Sdcf(4.0, 1.0, profile_cap=80), "selections: epsilon 0.1 for one rating replaced (8 profile level)"),
        (Isgld(4.0), "existence is not covered"),
        (Plain(), "nothing is claimed"),
    ],
)
def test_every_protocol_says_what_it_claims(protocol, said):
    """The claim stands beside what the canaries rule out."""
    assert canaries.claimed(protocol, 20, 100) == said


def test_a_device_that_is_replayed_says_what_it_said():
    """The same seed, announcements and ratings: what the clients of the reference engine send, to 4-byte rounding."""
    problem, observation, _, _ = watched("mf", "sdcf")
    engine = ReferenceEngine(problem)
    users = [int(user) for user in victims_of(problem)[:3]]
    again = devices.replay(problem, observation.first_rounds(1), users, seed=problem.seed)
    for user, (mine,) in zip(users, again.uploads, strict=True):
        theirs = next(engine.clients[user].answer(observation.announcements[0]))
        assert mine.items.tolist() == theirs.items.tolist()
        assert mine.gradients == pytest.approx(theirs.gradients, rel=1e-5, abs=1e-6)


def test_nothing_sent_is_nothing_learned(rng):
    """Victims of whom nothing but "finished" came: every attack still answers, and knows nothing."""
    observation = watched("mf", "sdcf", open_wide=False)[1]
    silent = replace(observation, uploads=tuple((None,) * observation.n_rounds for _ in range(2)))
    assert not ConsistentRatings().guess(silent).any()
    assert not MODEL[1].guess(silent).any()
    assert trace(silent.announcements, silent.uploads[0]).direction is None
    assert not LinkRounds().applies_to(silent)
    assert not OppositeDirections().applies_to(silent)


# The command ------------------------------------------------------------------------------------------------------


def test_every_attack_of_the_lists_is_an_attack():
    """Name, target, claim: one small class each, with different names."""
    attacks = [*EXISTENCE, *MODEL, *VALUE, *METADATA]
    assert all(isinstance(attack, Attack) and attack.target in TARGETS and attack.claim for attack in attacks)
    assert len({(attack.target, attack.name) for attack in attacks}) == len(attacks)


def test_the_worst_attack_is_the_one_that_succeeds_most():
    """By the measure of its target."""
    common = {"protocol": "plain", "target": "existence", "metric": "auc", "claim": ""}
    weak, strong = Finding(name="a", value=0.6, **common), Finding(name="b", value=0.9, auc=math.nan, **common)
    assert worst([weak, strong], "plain", "existence") is strong
    assert worst([weak], "plain", "value") is None
    assert strong.record()["auc"] is None


def test_audit_finds_all_targets_of_every_protocol():
    """A small audit from Python: each protocol has findings, and the JSON holds no not-a-number."""
    data = synthetic(n_users=40, n_items=50, n_ratings=800, seed=2)
    labels = {"gender": np.arange(40) % 2}
    settings = settings_for(None, model="mf", rounds=4, factors=4)
    steps = []
    found = audit(
        data, settings, n_victims=5, people=labels, clock=lambda: 0.0, progress=lambda *step: steps.append(step)
    )
    assert found.protocols == ["plain", "isgld", "sdcf"]
    assert {one.target for one in found.findings if one.protocol == "sdcf"} == set(TARGETS)
    text = json.dumps(found.record(), allow_nan=False)
    assert '"selection"' in text
    assert steps


def test_protocols_side_by_side_find_what_one_after_the_other_does():
    """Two processes, the same findings in the same order; timings are not asked for."""
    data = synthetic(n_users=30, n_items=40, n_ratings=500, seed=2)
    settings = settings_for(["plain", "isgld"], model="mf", rounds=2, factors=3)
    steps = []
    together = partial(side_by_side, progress=lambda *step: steps.append(step))
    both = audit(data, settings, n_victims=4, run_all=together)
    assert both.record() == audit(data, settings, n_victims=4).record()
    assert sorted(step for step in steps if step[1] == "done") == [("isgld", "done", 6, 6), ("plain", "done", 6, 6)]


def test_the_command_prints_json_as_documented():
    """`--json` alone on stdout, with exactly the documented fields for every attack."""
    outcome = run(
        "audit", "synthetic:users=40,items=50,ratings=800", "--model", "bpr", "--protocol", "sdcf", "--users", 5,
        "--rounds", 3, "--factors", 4, "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    documented = [
        "protocol",
        "name",
        "target",
        "metric",
        "value",
        "auc",
        "tpr_at_1pct_fpr",
        "interval",
        "chance",
        "claim",
    ]
    assert all(list(attack) == documented for attack in record["attacks"])
    assert {attack["target"] for attack in record["attacks"]} <= set(TARGETS)
    assert "timing of finish" in {attack["name"] for attack in record["attacks"]}


def test_the_command_prints_the_table_and_writes_the_page(tmp_path):
    """Protocol by target, then every attack; with --plots, pictures and one page."""
    outcome = run(
        "audit", "synthetic:users=40,items=50,ratings=800", "--protocol", "plain", "--users", 4, "--rounds", 2,
        "--factors", 3, "--plots", tmp_path / "plots",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "most successful attack" in outcome.out
    assert "claim that it tests" in outcome.out
    assert json.loads((tmp_path / "plots" / "audit.json").read_text("utf-8"))["seconds"] > 0
    assert (tmp_path / "plots" / "audit.html").is_file()
    assert (tmp_path / "plots" / "audit.json").is_file()
    assert list((tmp_path / "plots").glob("*.svg"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"protocols": ["plain"], "model": "mf", "epsilon_g": 1.0},
            "none of the protocols plain uses epsilon_g. Leave it out.",
        ),
        ({"protocols": None, "model": "fm"}, "model must be one of mf, bpr, got fm."),
    ],
)
def test_what_cannot_be_audited_is_refused(options, said):
    """In one sentence."""
    with pytest.raises(ParameterError) as refused:
        settings_for(options.pop("protocols"), **options)
    assert str(refused.value) == said


def test_too_few_victims_are_refused():
    """Quarters need four people."""
    with pytest.raises(ParameterError, match=r"users must be at least 4, got 3\."):
        audit(synthetic(n_users=20, n_items=30, n_ratings=200), settings_for(["plain"], model="mf"), n_victims=3)


@pytest.mark.data
def test_people_of_the_movielens_sets_are_known(data_dir):
    """943 people with gender, age and occupation: 273 women, 21 occupations, age cut at the median."""
    people = load_people("ml-100k", [str(user) for user in range(1, 944)], data_dir)
    assert people["gender"].sum() == 273
    assert len(np.unique(people["occupation"])) == 21
    assert 0.4 < people["age"].mean() < 0.5
    assert load_people("synthetic", [], data_dir) is None


def test_people_are_unknown_where_their_file_is_missing(tmp_path):
    """Ratings without the file beside them: no attack on persons, and no error."""
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("1\t2\t3\t4\n")
    assert load_people("ml-100k", ["1"], tmp_path) is None


# Sweeps and the report --------------------------------------------------------------------------------------------


def test_louder_noise_hides_the_vector_and_costs_accuracy():
    """At a thousand times its variance the direction is worse known than at once, or the run diverged."""
    data = synthetic(n_users=60, n_items=80, n_ratings=2_000, seed=3)
    settings = settings_for(["plain"], model="mf", rounds=5, factors=4)[0]
    quiet, loud = sweeps.noise_curve(data, settings, (1.0, 300.0))
    assert loud["rmse"] is None or loud["cosine, rank one, one upload"] < quiet["cosine, rank one, one upload"]
    assert quiet["rmse"] < 1.5


def test_budgets_are_swept():
    """One point per ε_g, with every attack and the error."""
    data = synthetic(n_users=40, n_items=50, n_ratings=800, seed=3)
    settings = settings_for(["sdcf"], model="mf", rounds=3, factors=3)[0]
    (point,) = sweeps.budget_curve(data, settings, (1.0,))
    assert list(point) == [
        "epsilon_g",
        "selection average",
        "error likelihood",
        "averaged errors",
        "consistent ratings",
        "rmse",
    ]


@pytest.mark.parametrize(
    ("kind", "chosen", "said"),
    [
        ("colour", ("sdcf", "mf"), "sweep must be noise or budget, got colour."),
        ("budget", ("plain", "mf"), "epsilon_g is swept for protocol sdcf of model mf alone. Add --protocol sdcf."),
        ("noise", ("sdcf", "bpr"), "the noise is swept for model mf alone, got bpr."),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(kind, chosen, said):
    """In one sentence."""
    protocol, model = chosen
    settings = settings_for([protocol], model=model, rounds=2)
    with pytest.raises(ParameterError) as refused:
        sweeps.swept(Audit([], {protocol: {}}, {}), synthetic(n_users=20, n_items=30, n_ratings=200), settings, [kind])
    assert str(refused.value) == said


RECORD = {
    "dataset": "made <up>",
    "model": "mf",
    "rounds": 2,
    "users": 4,
    "baselines": {"the bias model": 0.94},
    "attacks": [
        Finding(protocol="sdcf", name="a", target="existence", metric="auc", value=0.9, claim="none").record(),
        Finding(
            protocol="sdcf",
            name="b",
            target="value",
            metric="x",
            value=1,
            interval=(0.1, 0.2),
            chance=0.5,
            claim="none",
        ).record(),
    ],
    "worst": {"sdcf": {"existence": {"name": "a", "metric": "auc", "value": 0.9}, "value": None}},
    "curves": {
        "sdcf": {
            "false_rates": [0.0, 0.1, 1.0],
            "roc": {"a": [0.0, 0.5, 1.0]},
            "rounds": [{"rounds": 1, "a": 0.5}, {"rounds": 2, "a": 0.6}],
            "selection": [{"rounds": 1, "with_permanent_bits": 0.5, "ceiling": 0.6, "without": 0.7}],
            "noise": [{"noise": 1.0, "cosine, a": 1.0, "AUC, b": 0.9, "rmse": 0.9}, {"noise": 1e4, "rmse": None}],
            "budget": [{"epsilon_g": 1.0, "a": 0.8, "rmse": 0.9}, {"epsilon_g": 0.0, "a": 0.7, "rmse": 9.0}],
        }
    },
}


def test_an_audit_becomes_a_page_and_is_read_again(tmp_path):
    """Record, plots and page; names from outside are escaped; `read_audits` finds the record."""
    page = audits.write_audit(RECORD, tmp_path / "one")
    text = page.read_text("utf-8")
    assert "made &lt;up&gt;" in text
    assert "made <up>" not in text
    assert "auc 0.900: a" in text
    assert "1.000\u00a0(0.100\u2060–\u20600.200)" in text
    assert {file.stem for file in page.parent.glob("*.svg")} == {
        f"sdcf-{kind}" for kind in ("roc", "rounds", "selection", "noise", "budget")
    }
    assert audits.read_audits([tmp_path]) == [json.loads(json.dumps(RECORD))]


def test_places_on_an_axis_are_written_as_plain_numbers(tmp_path):
    """10⁴ and 0, and no code for a formula; an error off the plot is written at its end."""
    page = audits.write_audit(RECORD, tmp_path)
    noise, budget = ((page.parent / f"sdcf-{kind}.svg").read_text("utf-8") for kind in ("noise", "budget"))
    assert "10⁴" in noise
    assert "9.00 ↑" in budget
    assert "mathdefault" not in noise + budget


def test_a_damaged_audit_is_refused(tmp_path):
    """By its name."""
    (tmp_path / "audit.json").write_text("{}")
    with pytest.raises(RunError, match=r"audit.json is damaged: KeyError while reading it\."):
        audits.read_audits([tmp_path])


def test_an_audit_that_cannot_be_written_is_one_sentence(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="the audit could not be written to"):
        audits.write_audit(RECORD, tmp_path / "taken")


def test_the_report_takes_audits_in(tmp_path):
    """`report --audit` adds the section and its plots to the page of runs."""
    audits.write_audit(RECORD, tmp_path / "audit")
    data = ("synthetic:users=30,items=40,ratings=400", "--rounds", 2, "--factors", 3)
    assert run("train", *data, "--no-compare", "--out", tmp_path / "run").code == 0
    outcome = run("report", tmp_path / "run", "--out", tmp_path / "page.html", "--audit", tmp_path / "audit")
    assert outcome.code == 0, outcome.err
    assert "telling rated from unrated items" in (tmp_path / "page.html").read_text("utf-8")
