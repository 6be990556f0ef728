"""Every attack finds a planted leak without a single mistake, and finds nothing where there is none.

Planted: no noise, permanent bits that are the ratings, fakes and Laplace noise that vanish; a correct attack reaches
exactly 1. No leak: a truth that no message was made from; an AUC is 0.5 within five deviations (false alarm 6e-7).
"""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from audit_kit import RUNS, VICTIMS, chance_deviation, problem_of, rated_by, small_audit, unrelated, victims_of, watched
from scipy.special import gammaln
from scipy.stats import binom

from hushrec.audit import canaries, devices, difference, malicious, poisoning
from hushrec.audit.attacks.combined import EXISTENCE, LikeMinded, NeverReported, WithPopularity
from hushrec.audit.attacks.existence import Popularity, SelectionAverage
from hushrec.audit.attacks.linkage import LinkEnrolments, LinkRounds
from hushrec.audit.attacks.metadata import METADATA, FinishTiming
from hushrec.audit.attacks.person import PersonFromReports
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE, likeliest_ratings
from hushrec.audit.findings import ERROR_REMOVED, EXACT, TARGETS, Finding, Subject, worst
from hushrec.audit.judge import judge, judge_linkage, judge_people
from hushrec.audit.marking import MarkingServer
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import record
from hushrec.audit.own_steps import evidence_of_steps
from hushrec.audit.partners import evidence_of_partners, likeliest_norm
from hushrec.audit.rank_one import Trace, trace
from hushrec.audit.rating_grid import RecoveredRatings
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.audit.run import COIN_ATTACKS
from hushrec.audit.sample import SampleEstimates
from hushrec.audit.statistics import auc
from hushrec.audit.value_scores import ValueScore
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.synthetic import synthetic, synthetic_truth
from hushrec.messages import Address
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.messages import REPORT, GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import Plain

ROOT = Path(__file__).parents[1]

FEW = 5  # items of which nothing is sent, where an attack is to find just those
LIGHT = 40  # ratings of a person beside whose reports fakes are many


def applicable(attacks):
    """Every attack with every small run on which it has something to work on."""
    return [
        pytest.param(model, protocol, attack, id=f"{model}-{protocol}-{attack.name}")
        for model, protocol in RUNS
        for attack in attacks
        if attack.applies_to(watched(model, protocol)[1])
    ]


# Existence --------------------------------------------------------------------------------------------------------


def tells_by_popularity(attack):
    """Whether what an attack is asked for can be known from popularity alone: no message holds anything of it."""
    outside = isinstance(attack, NeverReported) and isinstance(attack.base, (Popularity, WithPopularity))
    return outside or isinstance(attack, Popularity)


@cache
def leaking(model, protocol, victim, hidden, popular):
    """One person's messages, the last few items left out of them if `hidden`; every item is as popular as any other.

    If `popular`, what is popular is what they rated.
    """
    _, observation, truth, _ = watched(model, protocol)
    reports = observation.reports[victim]
    if hidden:
        below = observation.terms.n_items - FEW
        kept = [report.items < below for report in reports]
        reports = tuple(
            replace(report, items=report.items[keep], gradients=report.gradients[keep])
            for report, keep in zip(reports, kept, strict=True)
        )
    one = slice(victim, victim + 1)
    chances = truth.rated[victim] * 0.9 + 0.05 if popular else np.full(observation.terms.n_items, 0.5)
    seen = replace(observation, reports=(reports,), popularity=chances)
    return seen, replace(truth, rated=truth.rated[one], ratings=truth.ratings[one])


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(EXISTENCE))
def test_existence_is_read_off_a_planted_leak(model, protocol, attack, rng):
    """Rated is told from unrated without a mistake, of items reported and of a few that never were."""
    for victim in (1, 5):
        hidden = isinstance(attack, NeverReported)
        observation, truth = leaking(model, protocol, victim, hidden, tells_by_popularity(attack))
        (found,) = judge(attack, observation, truth, rng=rng)
        assert found.target == "existence"
        assert found.auc == found.tpr_at_1pct_fpr == 1


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(EXISTENCE))
def test_existence_stays_at_chance_where_nothing_leaks(model, protocol, attack, rng):
    """Against a truth that no message was made from, the AUC is 0.5 within five deviations."""
    _, observation, truth, _ = watched(model, protocol, open_wide=not isinstance(attack, NeverReported))
    other = unrelated(truth)
    (found,) = judge(attack, observation, other, rng=rng)
    asked = ~np.isnan(observation.guessed_by(attack))
    labels = [row[which] for row, which in zip(other.rated, asked, strict=True)]
    assert abs(found.auc - 0.5) <= 5 * chance_deviation(labels)


def camps(rng):
    """A sample of two camps with 20 items each, and the profiles of one person of each camp, half of it seen."""
    side = rng.random(60) < 0.5
    rated = np.zeros((60, 40), dtype=np.float32)
    rated[:, :20], rated[:, 20:] = side[:, None], ~side[:, None]
    rated *= rng.random(rated.shape) < 0.7
    profiles = np.zeros((2, 40))
    profiles[0, :10] = profiles[1, 20:30] = 1
    return SampleEstimates(rated, rated), profiles


def test_like_minded_people_tell_of_items_that_were_never_reported(rng):
    """Whoever has half of a camp's items has the other half; in a sample without camps nobody has more."""
    sample, profiles = camps(rng)
    lift = sample.likely_for(profiles)
    assert lift[0, 10:20].min() > 1 > lift[0, 30:].max()
    assert lift[1, 30:].min() > 1 > lift[1, 10:20].max()
    mixed = SampleEstimates(rng.permuted(sample.rated, axis=0), sample.pulls)
    truth = np.arange(40) % 20 >= 10
    areas = [auc(mixed.likely_for(np.roll(profiles, turn, axis=1))[0], truth) for turn in range(40)]
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / math.sqrt(40)


@dataclass(frozen=True)
class Told:
    """Evidence as it is given, in place of an attack on messages."""

    evidence: tuple[tuple[float, ...], ...]
    name: str = "told"
    target: str = "existence"
    claim: str = ""

    def applies_to(self, observation):
        return True

    def guess(self, observation):
        return np.array(self.evidence)


def three_parts(rng):
    """Two people, 20 items that messages tell of, 20 that only their camps do, and 10 that only popularity does."""
    seen = np.r_[0:10, 20:30]
    rated = np.zeros((2, 50), dtype=bool)
    rated[0, :20] = rated[1, 20:40] = rated[:, 40:45] = True
    evidence = np.zeros((2, 50))
    evidence[:, seen] = np.where(rated[:, seen], 5.0, -5.0)
    popularity = np.full(50, 0.5)
    popularity[40:45], popularity[45:] = 0.9, 0.1
    ridge = np.ones(4)
    terms = Terms(
        model="mf", n_factors=4, n_items=50, reports_per_client=None, data_weight=1.0, step=0.4, decay=0.6,
        max_rounds=1, epoch_rounds=None, user_regularization=ridge, item_regularization=ridge,
    )  # fmt: skip
    report = GradientReport(1, seen, np.ones((20, 4)))
    announcements = (ItemVectors(terms, 1, np.ones((50, 4))),)
    reports = ((report,), (report,))
    observation = Observation(Plain(), MatrixFactorization(4), announcements, reports, reports, popularity)
    sample = np.pad(camps(rng)[0].rated, ((0, 0), (0, 10)))
    observation.__dict__["sample_estimates"] = SampleEstimates(sample, sample)
    return observation, rated, Told(tuple(map(tuple, evidence)))


JOINED = [
    attack
    for one in EXISTENCE
    for attack in [one.base if isinstance(one, NeverReported) else one]
    if isinstance(attack, WithPopularity)
]


@pytest.mark.parametrize("attack", JOINED, ids=lambda attack: attack.name)
def test_what_is_known_besides_adds_to_what_messages_tell(attack, rng):
    """A third of the leak in each: all together make no mistake, and whatever is left out is missed."""
    observation, rated, told = three_parts(rng)
    asked = np.ones(50, dtype=bool)
    if not isinstance(attack, LikeMinded):
        asked[np.r_[10:20, 30:40]] = False  # nothing but the camps tells of these

    def areas(seen, base):
        return [
            auc(row[asked], own[asked]) for row, own in zip(replace(attack, base=base).guess(seen), rated, strict=True)
        ]

    def without(sample, popularity):
        less = replace(observation, popularity=popularity)
        less.__dict__["sample_estimates"] = sample
        return less

    flat, sample, nothing = np.full(50, 0.5), observation.sample_estimates, Told(((0.0,) * 50,) * 2)
    alike = SampleEstimates(np.ones_like(sample.rated), sample.pulls)
    assert areas(observation, told) == [1, 1]
    assert max(areas(without(sample, flat), told)) < 1
    assert max(areas(observation, nothing)) < 1
    if isinstance(attack, LikeMinded):
        assert max(areas(without(alike, observation.popularity), told)) < 1


def stepping(rated, rng, n_items=30, factors=24):
    """Five reports of one person, of the first half of the items alone, and the announcements; no noise to speak of."""
    ratings = rng.integers(1, 6, n_items).astype(float)
    ridge = np.full(factors, 0.01)
    terms = Terms(
        model="mf", n_factors=factors, n_items=n_items, reports_per_client=5.0, data_weight=1e7, step=0.4, decay=0.6,
        max_rounds=5, epoch_rounds=None, user_regularization=ridge, item_regularization=ridge,
    )  # fmt: skip
    vector, reported = 0.3 * rng.random(factors), np.arange(n_items // 2)
    announcements, reports = [], []
    for round_number in range(1, 6):
        table = 0.3 * rng.random((n_items, factors))
        announcements.append(ItemVectors(terms, round_number, table))
        step_size = terms.step_size(round_number)
        errors = np.where(rated, ratings - table @ vector, 0.0)
        gradients = step_size * (terms.data_weight * np.outer(errors, vector) - table * ridge)
        reports.append(GradientReport(round_number, reported, gradients[reported]))
        vector = vector + step_size * (terms.data_weight * errors @ table / rated.sum() - vector * ridge)
    known = np.where(np.arange(n_items) < n_items // 2, ratings, np.nan)
    log_odds = np.where(np.isnan(known), 0.0, np.where(rated, 50.0, -50.0))
    return trace(announcements, reports), RecoveredRatings(log_odds, known, np.empty(0)), tuple(announcements)


def test_steps_of_the_vector_tell_of_items_that_were_never_reported(rng):
    """With more equations than items every one is told; of other items than those that it learned from, none is."""
    others, labels = [], []
    for _ in range(20):
        half = rng.permutation(np.arange(15) < rng.integers(4, 9))
        rated = np.concatenate([half, rng.permutation(half)])
        evidence = evidence_of_steps(*stepping(rated, rng), np.full(30, 0.4))
        assert not evidence[:15].any()
        assert auc(evidence[15:], rated[15:]) == 1
        labels.append(rng.permutation(rated[15:]))
        others.append(auc(evidence[15:], labels[-1]))
    assert abs(np.mean(others) - 0.5) <= 5 * chance_deviation(labels)


def test_steps_say_nothing_without_a_known_rating_or_a_next_report(rng):
    """The norm of the vector is not known, or the step is not seen: no evidence, and no error."""
    seen, found, announcements = stepping(np.arange(30) % 2 == 0, rng)
    chances = np.full(30, 0.4)
    assert not evidence_of_steps(Trace(seen.parts[:1]), found, announcements, chances).any()
    assert not evidence_of_steps(Trace(seen.parts[::2]), found, announcements, chances).any()
    nothing = replace(found, log_odds=np.zeros(30))
    assert not evidence_of_steps(seen, nothing, announcements, chances).any()


def pairing(rated, partners, rng, factors=6):
    """Fifteen reports of the first half of the items, each paired with one of `partners` or, if rated, with another."""
    n_items, ridge = len(rated), np.full(factors, 0.01)
    terms = Terms(
        model="bpr", n_factors=factors, n_items=n_items, reports_per_client=20.0, data_weight=1e8, step=0.4, decay=0.6,
        max_rounds=15, epoch_rounds=None, user_regularization=ridge, item_regularization=ridge,
    )  # fmt: skip
    vector, reported = rng.random(factors), np.arange(n_items // 2)
    unrated = np.flatnonzero(~rated)
    announcements, reports = [], []
    for round_number in range(1, 16):
        table = rng.random((n_items, factors))
        announcements.append(ItemVectors(terms, round_number, table))
        sign = np.where(rated[reported], 1.0, -1.0)
        other = np.where(rated[reported], rng.choice(unrated, len(reported)), rng.choice(partners, len(reported)))
        sizes = 1 / (1 + np.exp(sign * ((table[reported] - table[other]) @ vector)))
        gradients = terms.data_weight * np.outer(sign * sizes, vector) - table[reported] * ridge
        reports.append(GradientReport(round_number, reported, terms.step_size(round_number) * gradients))
    log_odds = np.where(np.arange(n_items) < n_items // 2, np.where(rated, 50.0, -50.0), 0.0)
    return trace(announcements, reports), log_odds, np.arange(n_items) < n_items // 2, tuple(announcements), vector


def test_sizes_tell_of_partners_that_were_never_reported(rng):
    """Partners drawn from the rated items are all found; drawn from all items, they tell nothing."""
    others, labels = [], []
    for _ in range(10):
        half = rng.permutation(np.arange(20) < rng.integers(5, 10))
        rated = np.concatenate([half, rng.permutation(half)])
        *seen, _ = pairing(rated, np.flatnonzero(rated), rng)
        evidence = evidence_of_partners(*seen)
        assert not evidence[:20].any()
        assert auc(evidence[20:], rated[20:]) == 1
        *seen, _ = pairing(rated, np.arange(40), rng)
        labels.append(rated[20:])
        others.append(auc(evidence_of_partners(*seen)[20:], labels[-1]))
    assert abs(np.mean(others) - 0.5) <= 5 * chance_deviation(labels)


def test_the_length_of_the_vector_is_read_off_one_report_of_pairs(rng):
    """The norm under which partners' scores are those of rated items is the vector's, to a thousandth."""
    rated = np.arange(400) % 4 == 0
    seen, _, _, announcements, vector = pairing(rated, np.flatnonzero(rated), rng)
    for part, announcement in zip(seen.parts, announcements, strict=True):
        norm = likeliest_norm(part, announcement.item_vectors @ part.direction, np.flatnonzero(rated[:200]), 0.5)
        assert norm == pytest.approx(np.linalg.norm(vector), rel=1e-3)


def test_partners_say_nothing_without_a_known_rating_or_an_unrated_report(rng):
    """Nothing to compare scores with, nothing to ask for, or no negative amplitude: no evidence, and no error."""
    rated = np.arange(40) % 4 == 0
    seen, log_odds, reported, announcements, _ = pairing(rated, np.flatnonzero(rated), rng)
    assert not evidence_of_partners(seen, np.zeros(40), reported, announcements).any()
    assert not evidence_of_partners(seen, log_odds, np.ones(40, dtype=bool), announcements).any()
    positive = Trace(tuple(replace(part, amplitudes=np.abs(part.amplitudes)) for part in seen.parts))
    assert not evidence_of_partners(positive, log_odds, reported, announcements).any()


def test_items_that_were_reported_are_not_asked_for(rng):
    """`NeverReported` leaves them out, and with them a person all of whose ratings were reported."""
    _, observation, truth, _ = watched("mf", "sdcf")
    guess = NeverReported(Popularity()).guess(observation)
    assert (np.isnan(guess) == (observation.selection_counts > 0)).all()
    everything = replace(truth, rated=observation.selection_counts > 0)
    assert judge(NeverReported(Popularity()), observation, everything, rng=rng) == []


@pytest.mark.parametrize("model", ["mf", "bpr"])
def test_marked_rows_tell_which_items_were_rated_reported_or_not(model, rng):
    """At the paper's budgets every rated item is found, and no unrated one, with its rating; of others' items, none."""
    problem = problem_of(model, "sdcf", open_wide=False)
    observation = watched(model, "sdcf", open_wide=False)[1]
    found = malicious.attack_by_marks(problem, observation, victims_of(problem), rng=rng)
    assert found[0].target == "existence"
    assert found[0].auc == found[0].tpr_at_1pct_fpr == 1
    assert [one.value for one in found[1:]] == [1] * (model == "mf")
    areas, labels = [], []
    for user in victims_of(problem):
        scores = malicious._mark(problem, int(user), rng).scores
        others = rng.permutation(np.isin(np.arange(problem.n_items), rated_by(problem, int(user))))
        labels.append(others[~np.isnan(scores)])
        areas.append(auc(scores[~np.isnan(scores)], labels[-1]))
    assert abs(np.mean(areas) - 0.5) <= 5 * chance_deviation(labels)


def test_a_marking_server_knows_nothing_of_a_device_that_says_nothing(rng):
    """Nothing but "finished" in every round: no rating, and every score stays unknown."""
    terms = problem_of("mf", "sdcf", open_wide=False).terms
    server = MarkingServer(terms, np.arange(4), rng=rng)
    for round_number in range(1, server.n_rounds + 1):
        server.receive(server.announce(round_number), None)
    assert np.isnan(server.scores).all()
    assert np.isnan(server.ratings(WHOLE_STARS)).all()


# The person's vector ----------------------------------------------------------------------------------------------


def still(observation, vectors, rng):
    """The same items reported with errors of nobody's, by devices whose vectors do not move."""
    terms = observation.terms

    def report(announcement, items, vector):
        errors = rng.standard_normal(len(items))
        prior = announcement.item_vectors[items] * terms.item_regularization
        step_size = terms.step_size(announcement.round_number)
        gradients = step_size * (terms.data_weight * np.outer(errors, vector) - prior)
        return GradientReport(announcement.round_number, items, gradients)

    reports = tuple(
        tuple(report(told, sent.items, vector) for told, sent in zip(observation.announcements, row, strict=True))
        for row, vector in zip(observation.reports, vectors, strict=True)
    )
    return replace(observation, reports=reports)


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(MODEL))
def test_the_user_vector_is_read_off_reports(model, protocol, attack, rng):
    """Its direction and the ten recommendations are the device's own; of what is public, those of the average."""
    _, observation, truth, _ = watched(model, protocol)
    vectors = truth.user_vectors * np.sign(truth.user_vectors @ observation.public_direction)[:, None]
    if attack is MODEL[0]:
        vectors = np.tile(3 * observation.public_direction, (VICTIMS, 1))
    cosine, overlap = judge(attack, still(observation, vectors, rng), replace(truth, user_vectors=vectors), rng=rng)
    assert (cosine.metric, overlap.metric) == ("mean_abs_cosine", "overlap_at_10")
    assert cosine.value == pytest.approx(1, abs=1e-6)
    assert overlap.value == 1


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(MODEL))
def test_the_user_vector_stays_unknown_where_nothing_leaks(model, protocol, attack, rng):
    """Beside vectors of nobody's, |cos| has the mean of random directions: Γ(d/2) / (√π Γ((d+1)/2)), 5 deviations."""
    _, observation, truth, _ = watched(model, protocol)
    cosine, _ = judge(attack, observation, unrelated(truth), rng=rng)
    width = truth.user_vectors.shape[1]
    mean = math.exp(gammaln(width / 2) - gammaln((width + 1) / 2)) / math.sqrt(math.pi)
    assert abs(cosine.value - mean) <= 5 * math.sqrt((1 / width - mean**2) / VICTIMS)


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_what_is_public_tells_less_of_a_person_than_their_reports(model, protocol, rng):
    """One direction for everybody, from the item vectors alone; no message changes it."""
    _, observation, truth, _ = watched(model, protocol)
    public, report = (judge(attack, observation, truth, rng=rng)[0] for attack in MODEL[:2])
    assert 0.5 * public.chance < public.value < report.value
    assert (np.einsum("ij,ij->i", MODEL[0].guess(observation), truth.user_vectors) > 0).mean() > 0.8
    silent = replace(observation, reports=tuple((None,) * observation.n_rounds for _ in observation.reports))
    assert (MODEL[0].guess(silent) == MODEL[0].guess(observation)).all()


def test_where_noise_drowns_the_reports_pooling_falls_back_on_what_is_public(rng):
    """Reports of Langevin noise and nothing else: the guess stays near what it is without them."""
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
    drowned = replace(observation, reports=(tuple(silence),))
    assert MODEL[-1].guess(drowned)[0] @ MODEL[0].guess(drowned)[0] > 0.9


# Ratings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(VALUE))
def test_every_rating_is_read_off_a_planted_leak(model, protocol, attack, rng):
    """Where Laplace noise vanishes and everything rated is reported, each comes out exactly."""
    _, observation, truth, _ = watched(model, protocol)
    found = judge(attack, observation, truth, rng=rng)
    assert [one.value for one in found] == [1]
    assert found[0].claim


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(VALUE))
def test_ratings_are_guessed_no_better_than_blindly_where_nothing_leaks(model, protocol, attack, rng):
    """Beside ratings dealt anew the share is at most that of the commonest one (5 deviations of a share)."""
    _, observation, truth, _ = watched(model, protocol)
    dealt = truth.ratings.copy()
    for row, rated in zip(dealt, truth.rated, strict=True):
        row[rated] = rng.choice(truth.ratings[truth.rated], int(rated.sum()))
    found = judge(attack, observation, replace(truth, ratings=dealt), rng=rng)[0]
    deviation = math.sqrt(0.25 * np.sum(1 / truth.counts)) / VICTIMS
    assert found.value <= found.chance + 5 * deviation


def test_a_noisy_rating_is_read_as_its_likeliest_origin():
    """Far out it is the nearest end, near the middle the commoner neighbour; unknown stays unknown."""
    found = likeliest_ratings(np.array([9.0, -3.0, np.nan, 3.4]), epsilon=8.0, levels=WHOLE_STARS)
    assert found[:2].tolist() == [5.0, 1.0]
    assert np.isnan(found[2])
    assert found[3] == 3.0


@pytest.mark.parametrize("protocol", ["plain", "isgld", "sdcf"])
def test_crafted_tables_read_every_rating_from_a_device_that_accepts_them(protocol, rng, monkeypatch):
    """V = 0, a loud row, tiny and orthogonal rows: all of them work on a device without checks, to the last rating.

    The loud row reads the ratings of all other items.
    """
    monkeypatch.setattr("hushrec.protocols.gradient.device.check_item_vectors", lambda *_: None)
    problem, observation, _, _ = watched("mf", protocol)
    rounds = 8 if protocol == "sdcf" else 2
    users = np.array([user for user in victims_of(problem) if 0 not in rated_by(problem, int(user))])
    found = malicious.attack_devices(problem, observation, users[:4], rounds=rounds, rng=rng)
    assert [one.value for one in found] == [1, 1, 1, 1]


@pytest.mark.parametrize("protocol", ["plain", "isgld", "sdcf"])
def test_crafted_tables_that_a_device_refuses_read_nothing(protocol, rng):
    """V = 0 and zeros beside one loud row: chance, to the last digit. The others pass."""
    problem, observation, _, _ = watched("mf", protocol)
    found = malicious.attack_devices(problem, observation, victims_of(problem)[:4], rounds=2, rng=rng)
    assert [one.value == one.chance for one in found] == [True, False, True, False]


@pytest.mark.parametrize("protocol", ["plain", "isgld", "sdcf"])
def test_crafted_tables_read_no_ratings_that_were_not_there(protocol, rng):
    """Devices whose ratings are all drawn anew after they were attacked: at most chance (5 deviations of a share)."""
    problem, observation, _, _ = watched("mf", protocol)
    users = victims_of(problem)[:4]
    for craft in malicious.CRAFTED.values():
        right = trials = 0
        for user in users:
            guess = malicious._read(craft, problem, observation, int(user), 2, rng)
            known = np.flatnonzero(~np.isnan(guess))
            right += int((np.rint(guess[known]) == rng.choice(problem.values, len(known))).sum())
            trials += len(known)
        commonest = np.unique(problem.values, return_counts=True)[1].max() / len(problem.values)
        assert right <= trials * commonest + 5 * math.sqrt(0.25 * trials)


@pytest.mark.parametrize("protocol", ["plain", "isgld", "sdcf"])
def test_a_rating_added_halfway_stands_out(protocol, rng):
    """It is the one item that changed."""
    problem, observation, _, _ = watched("mf", protocol)
    (found,) = difference.attack_difference(problem, observation, victims_of(problem)[:4], rng=rng)
    assert (found.value, found.auc) == (1, 1)


@pytest.mark.parametrize("protocol", ["plain", "isgld", "sdcf"])
def test_without_an_added_rating_nothing_stands_out(protocol, rng):
    """The same person before and after: random items are ahead of the others half of the time (5 deviations)."""
    observation = watched("mf", protocol)[1]
    scores = difference.difference_scores(replace(observation, reports=observation.reports[:4]))
    labels = [rng.permutation(np.arange(len(row)) < 30) for row in scores]
    areas = [auc(row, chosen) for row, chosen in zip(scores, labels, strict=True)]
    assert abs(np.mean(areas) - 0.5) <= 5 * chance_deviation(labels)


# People and metadata ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(METADATA))
def test_how_much_somebody_rated_is_read_off(model, protocol, attack, rng):
    """The lightest quarter is told from the heaviest without a mistake."""
    _, observation, truth, _ = watched(model, protocol)
    area, correlation = judge(attack, observation, truth, rng=rng)
    assert area.auc == 1
    low, high = correlation.interval
    assert 0.6 < low <= correlation.value <= high <= 1


def chance_of_quarters(counts, repeats):
    """Deviation of the mean AUC, quarter against quarter, over that many deals of the counts."""
    low, high = np.quantile(counts, [0.25, 0.75])
    return chance_deviation([np.sort(counts[(counts <= low) | (counts >= high)]) >= high]) / math.sqrt(repeats)


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(METADATA))
def test_how_much_somebody_rated_stays_unknown_where_nothing_leaks(model, protocol, attack, rng):
    """With other people's counts, no better than by a coin (5 deviations)."""
    _, observation, truth, _ = watched(model, protocol)
    others = [replace(truth, rated=rng.permutation(truth.rated)) for _ in range(10)]
    areas = [judge(attack, observation, other, rng=rng)[0].auc for other in others]
    assert abs(np.mean(areas) - 0.5) <= 5 * chance_of_quarters(truth.counts, 10)


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


def test_the_length_of_a_report_by_chance_is_no_part_of_the_time(rng):
    """`sdcf`: a second for every item reported and one for every item rated: the latter are told all the same."""
    _, observation, truth, _ = watched("mf", "sdcf", open_wide=False)
    lengths = np.array([[0 if one is None else len(one.items) for one in reports] for reports in observation.reports])
    timed = replace(observation, finish_seconds=lengths + 1.0 * truth.counts[:, None])
    area, correlation = judge(FinishTiming(), timed, truth, rng=rng)
    assert area.auc == 1
    assert correlation.value > 0.99


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_nameless_reports_of_one_person_are_linked(model, protocol):
    """Consecutive reports are joined without a mistake, and every pair of one person's is above all others."""
    attack, observation = LinkRounds(), watched(model, protocol)[1]
    found = judge_linkage(Subject.of(attack, protocol), attack.scores(observation))
    assert found.value == found.auc == 1


def strangers(observation):
    """The sample without the victims, as many: nobody is in both."""
    return replace(
        observation, reports=observation.sample[VICTIMS : 2 * VICTIMS], announcements=observation.announcements[-20:]
    )


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_nameless_reports_of_different_people_are_not_linked(model, protocol):
    """A stranger's last report after each: AUC one half (5 deviations), at most 9 of 12 joined (1 / 10!)."""
    attack, observation = LinkRounds(), watched(model, protocol)[1]
    others = strangers(observation).reports
    swapped = replace(
        observation,
        reports=tuple((*mine[:-1], theirs[-1]) for mine, theirs in zip(observation.reports, others, strict=True)),
    )
    found = judge_linkage(Subject.of(attack, protocol), attack.scores(swapped))
    assert abs(found.auc - 0.5) <= 5 * chance_deviation([np.eye(VICTIMS, dtype=bool).ravel()])
    assert found.value <= 9 / 12


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_who_comes_back_as_somebody_new_is_known_again(model, protocol):
    """New bits, a new start, later rounds: the same ratings give every light profile away; a stranger's do not."""
    attack = LinkEnrolments()
    problem, observation, truth, _ = watched(model, protocol)
    light = np.flatnonzero(truth.counts <= LIGHT)
    before = replace(observation, reports=tuple(observation.reports[row] for row in light))
    again = replace(problem, seed=problem.seed + 5)
    after = devices.replay(again, observation.last_rounds(10), victims_of(problem)[light])
    found = judge_linkage(Subject.of(attack, protocol), attack.scores(before, after))
    assert found.value == found.auc == 1
    stranger = judge_linkage(Subject.of(attack, protocol), attack.scores(observation, strangers(observation)))
    assert abs(stranger.auc - 0.5) <= 5 * chance_deviation([np.eye(VICTIMS, dtype=bool).ravel()])
    assert stranger.value <= 9 / 12


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_a_person_is_known_by_their_reports_or_not_at_all(model, protocol, rng):
    """Where a label is two kinds of reports it is found without fail; a coin is not (5 deviations)."""
    observation = watched(model, protocol)[1]
    attack = PersonFromReports()
    labels = np.arange(len(observation.sample)) % 2
    two_kinds = replace(observation, sample=tuple(observation.sample[label] for label in labels))
    area, accuracy = judge_people(Subject.of(attack, protocol), attack.kernel(two_kinds), {"kind": labels}, rng=rng)
    assert area.auc == accuracy.value == 1
    assert accuracy.chance == 0.5
    kernel = attack.kernel(observation)
    coin = rng.integers(0, 2, len(labels))
    thirds = np.arange(len(coin)) % 3
    area, _, three, _ = judge_people(Subject.of(attack, protocol), kernel, {"coin": coin, "thirds": thirds}, rng=rng)
    assert abs(area.auc - 0.5) < 5 * math.sqrt(len(coin) / 12 / coin.sum() / (len(coin) - coin.sum()))
    thirds_deviation = chance_deviation([thirds == 0])
    assert abs(three.auc - 0.5) < 5 * thirds_deviation


# Devices that lie -------------------------------------------------------------------------------------------------


def test_promoters_take_over_where_nothing_stops_them(rng):
    """With the default bound one device in ten puts an item before everybody; a tight one does not help them."""
    problem, _, _, engine = watched("mf", "plain")
    found = poisoning.attack_integrity(problem, engine, rng=rng)
    loose, tight = found[: len(poisoning.SHARES)], found[len(poisoning.SHARES) :]
    assert loose[-1].value == 1
    assert loose[-1].chance < 0.5
    assert all(one.value <= other.value for one, other in zip(tight, loose, strict=True))


def test_without_promoters_nothing_is_promoted(rng, monkeypatch):
    """A share of 0: the item is shown as often as it is anyway."""
    monkeypatch.setattr(poisoning, "SHARES", (0.0,))
    problem, _, _, engine = watched("mf", "plain")
    loose, _ = poisoning.attack_integrity(problem, engine, rng=rng)
    assert loose.value == loose.chance


def test_a_promoter_stays_within_the_bound_and_within_what_devices_accept():
    """One report of one item, no longer than allowed."""
    terms = problem_of("mf", "plain").terms
    vectors = np.ones((terms.n_items, 8))
    promoter = poisoning.Promoter(3, np.arange(1.0, 9.0), 0.5)
    report = promoter.report(Address(1, 1, REPORT), ItemVectors(terms, 1, vectors))
    assert report.items.tolist() == [3]
    assert np.linalg.norm(report.gradients) <= 0.5


# Canaries ---------------------------------------------------------------------------------------------------------


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
    reports = tuple((GradientReport(1, own, np.ones((len(own), 8))),) for own in items.values())
    observation = replace(watched("mf", "plain")[1].first_rounds(1), reports=reports)
    found, share = canaries.judge_canaries(SelectionAverage(), observation, coins, planted)
    assert found.auc == share.value == 1
    assert found.value == pytest.approx(math.log(0.05 ** (1 / len(coins.coins)) / (1 - 0.05 ** (1 / len(coins.coins)))))


def test_canaries_of_whom_nothing_is_said_rule_nothing_out(rng):
    """Reports of random items: the coins are guessed like coins (Clopper–Pearson at 1 − 1e-6)."""
    problem = problem_of("mf", "plain")
    planted, coins = canaries.plant(problem, problem.active_users, rng=rng)
    reports = tuple(
        (GradientReport(1, np.sort(rng.choice(problem.n_items, 60, replace=False)), np.ones((60, 8))),)
        for _ in coins.users
    )
    observation = replace(watched("mf", "plain")[1].first_rounds(1), reports=reports)
    found, share = canaries.judge_canaries(SelectionAverage(), observation, coins, planted)
    assert found.value < 0.5
    low, high = binom.interval(1 - 1e-6, round(len(coins.coins)), 0.5)
    assert low <= share.value * len(coins.coins) <= high


@cache
def canaried(model, protocol):
    """A run with coins planted in the profiles of a few people, watched: nothing hides how they fell."""
    problem = problem_of(model, protocol)
    planted, coins = canaries.plant(problem, problem.active_users[:8], rng=np.random.default_rng(3))
    popularity = np.full(problem.n_items, 0.5)
    return planted, record(planted, coins.users, coins.users[:1], popularity)[0], coins


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(COIN_ATTACKS))
def test_every_coin_is_told_by_every_attack_where_nothing_hides_it(model, protocol, attack):
    """All right, and the largest ε that so many can rule out."""
    planted, observation, coins = canaried(model, protocol)
    found, share = canaries.judge_canaries(attack, observation, coins, planted)
    assert found.auc == share.value == 1
    each = 0.05 ** (1 / len(coins.coins))
    assert found.value == pytest.approx(math.log(each / (1 - each)))


@pytest.mark.parametrize(("model", "protocol", "attack"), applicable(COIN_ATTACKS))
def test_coins_thrown_afterwards_are_told_by_no_attack(model, protocol, attack, rng):
    """The same messages, other coins: guessed like coins (Clopper–Pearson at 1 − 1e-6)."""
    planted, observation, coins = canaried(model, protocol)
    others = replace(coins, coins=rng.random(len(coins.coins)) < 0.5)
    _, share = canaries.judge_canaries(attack, observation, others, planted)
    low, high = binom.interval(1 - 1e-6, len(coins.coins), 0.5)
    assert low <= share.value * len(coins.coins) <= high


# None is left out -------------------------------------------------------------------------------------------------


def both_tests():
    """The planted leak and the test without one of every attack, by target and name."""
    listed = {
        "existence": (
            EXISTENCE,
            test_existence_is_read_off_a_planted_leak,
            test_existence_stays_at_chance_where_nothing_leaks,
        ),
        "model": (
            MODEL,
            test_the_user_vector_is_read_off_reports,
            test_the_user_vector_stays_unknown_where_nothing_leaks,
        ),
        "value": (
            VALUE,
            test_every_rating_is_read_off_a_planted_leak,
            test_ratings_are_guessed_no_better_than_blindly_where_nothing_leaks,
        ),
        "metadata": (
            METADATA,
            test_how_much_somebody_rated_is_read_off,
            test_how_much_somebody_rated_stays_unknown_where_nothing_leaks,
        ),
    }
    found = {
        (target, attack.name): (planted, none)
        for target, (attacks, planted, none) in listed.items()
        for attack in attacks
    }
    crafted = (
        test_crafted_tables_read_every_rating_from_a_device_that_accepts_them,
        test_crafted_tables_read_no_ratings_that_were_not_there,
    )
    marked = (test_marked_rows_tell_which_items_were_rated_reported_or_not,) * 2
    person = (test_a_person_is_known_by_their_reports_or_not_at_all,) * 2
    coins = (
        test_every_coin_is_told_by_every_attack_where_nothing_hides_it,
        test_coins_thrown_afterwards_are_told_by_no_attack,
    )
    lies = (test_promoters_take_over_where_nothing_stops_them, test_without_promoters_nothing_is_promoted)
    again = (test_who_comes_back_as_somebody_new_is_known_again,) * 2
    return (
        found
        | {("value", name): crafted for name in malicious.CRAFTED}
        | {
            ("value", "malicious V, marked rows"): marked,
            ("existence", "malicious V, marked rows"): marked,
            ("value", "difference: the one item rated halfway"): (
                test_a_rating_added_halfway_stands_out,
                test_without_an_added_rating_nothing_stands_out,
            ),
            ("metadata", FinishTiming().name): (test_timing_tells_what_it_is_made_from,) * 2,
            ("metadata", LinkRounds().name): (
                test_nameless_reports_of_one_person_are_linked,
                test_nameless_reports_of_different_people_are_not_linked,
            ),
            ("metadata", LinkEnrolments().name): again,
            ("person", f"gender from {PersonFromReports().name}"): person,
            **{("epsilon", f"canaries, {attack.name}"): coins for attack in COIN_ATTACKS},
            ("integrity", "promotion"): lies,
        }
    )


def covers(test, **given):
    """Whether pytest runs a test of this module for that model, protocol and attack, as far as it asks for them."""
    if globals().get(test.__name__) is not test or not test.__name__.startswith("test_"):
        return False
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, cases = mark.args
            rows = [getattr(case, "values", case if isinstance(case, tuple) else (case,)) for case in cases]
            names = (names,) if isinstance(names, str) else names
            words = [[getattr(value, "name", value) for value in row] for row in rows]
            if [given[name] for name in names] not in words:
                return False
    return True


@pytest.mark.parametrize("model", ["mf", "bpr"])
def test_every_attack_that_an_audit_runs_is_tested_on_a_leak_and_without_one(model):
    """Whatever stands in a record is run by both of its tests, on its model and protocol; what is not fails here."""
    both = both_tests()
    for one in small_audit(model).findings:
        name = "promotion" if one.target == "integrity" else one.name
        assert (one.target, name) in both, f"{one.name} has neither a planted leak nor a test without one"
        attack = name.removeprefix("canaries, ")
        for test in both[one.target, name]:
            assert covers(test, model=model, protocol=one.protocol, attack=attack), f"{test.__name__} leaves {name} out"


def test_a_test_that_leaves_an_attack_out_does_not_cover_it():
    """Neither another attack, nor another protocol, nor a function that pytest does not run."""
    test = test_every_coin_is_told_by_every_attack_where_nothing_hides_it
    assert covers(test, model="mf", protocol="sdcf", attack="selection average")
    assert not covers(test, model="mf", protocol="sdcf", attack="popularity")
    assert not covers(test, model="mf", protocol="plain", attack="consistent ratings")
    assert not covers(both_tests, model="mf", protocol="plain", attack="popularity")


def test_audit_finds_all_targets_of_every_protocol():
    """A small audit from Python: each protocol has findings, and the JSON holds no not-a-number."""
    found = small_audit("mf")
    assert found.protocols == ["plain", "isgld", "sdcf"]
    assert {one.target for one in found.findings if one.protocol == "sdcf"} == set(TARGETS)
    text = json.dumps(found.record(), allow_nan=False)
    assert '"selection"' in text


def names_today(model):
    """Every attack on each protocol as `target: name`; those on persons depend on what is known of them."""
    found = {protocol: set() for protocol in small_audit(model).protocols}
    for one in small_audit(model).findings:
        if one.target != "person":
            found[one.protocol].add(f"{one.target}: {one.name}")
    return found


@pytest.mark.parametrize(("name", "model"), [("ml-100k", "mf"), ("ml-1m", "mf"), ("ml-100k-bpr", "bpr")])
def test_records_of_the_page_hold_the_attacks_of_today(name, model):
    """An attack that came, went or has another name since: the record is older, and must be taken again."""
    record = json.loads((ROOT / "experiments" / "records" / "audit" / f"{name}.json").read_text("utf-8"))
    found = {protocol: set() for protocol in record["worst"]}
    for one in record["attacks"]:
        if one["target"] != "person":
            found[one["protocol"]].add(f"{one['target']}: {one['name']}")
    assert found == names_today(model)


def test_the_record_of_how_long_it_takes_is_of_the_attacks_of_today():
    """What `benchmarks/audit.py` timed is what an audit runs now."""
    record = json.loads((ROOT / "benchmarks" / "records" / "audit-ml-100k.json").read_text("utf-8"))
    found = {
        protocol: {name for name in names if not name.startswith("person: ")}
        for protocol, names in record["attacks"].items()
    }
    assert found == names_today("mf")


# Scales other than whole stars ---------------------------------------------------------------------------------------


SCALES = {
    "half stars": (lambda stars: np.clip(np.rint(2 * stars) / 2, 0.5, 5), Scale(0.5, 5)),
    "ten points": (lambda stars: np.clip(np.rint(2 * stars), 1, 10), Scale(1, 10)),
    "likes": (lambda stars: (stars > 3.4).astype(float), Scale(0, 1)),
    "percent": (lambda stars: np.clip(np.rint(25 * stars - 25), 0, 100), Scale(0, 100)),
}


@cache
def on_scale(name: str, protocol: str) -> tuple[RatingLevels, dict[str, Finding]]:
    """The same taste asked on another form, watched without noise: its levels, and what attacks on values find."""
    shape = {"n_users": 60, "n_items": 120, "n_ratings": 2_400, "seed": 1}
    base = synthetic(**shape)
    stars = synthetic_truth(**shape).expected(base.users, base.items)
    give, scale = SCALES[name]
    values = give(stars + np.random.default_rng(0).normal(0, 0.6, len(stars)))
    data = Ratings(name, base.user_ids, base.item_ids, base.users, base.items, values, scale)
    problem = problem_of("mf", protocol, rounds=12, data=data)
    popularity = np.full(problem.n_items, 0.3)
    observation, truth, _ = record(problem, victims_of(problem)[:4], problem.active_users[:1], popularity)
    findings = [one for attack in VALUE for one in judge(attack, observation, truth, rng=np.random.default_rng(0))]
    return observation.levels, {f"{one.name}, {one.metric}": one for one in findings}


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("half stars", "plain"),
        ("half stars", "isgld"),
        ("half stars", "sdcf"),
        ("ten points", "plain"),
        ("likes", "plain"),
    ],
)
def test_every_rating_is_read_on_every_scale_of_levels(name, protocol):
    """One report showed 0.185 of half stars and all of whole ones: the grid was that of whole stars."""
    levels, found = on_scale(name, protocol)
    assert not levels.continuous
    best = max(one.value for one in found.values() if one.metric == EXACT)
    assert best > 0.97
    if protocol == "plain":
        assert found[f"one report, {EXACT}"].value > 0.97
        assert found[f"two consecutive reports, {EXACT}"].value > 0.97


@pytest.mark.parametrize(("protocol", "least"), [("plain", 0.9), ("isgld", 0.9), ("sdcf", 0.5)])
def test_on_a_continuous_scale_the_error_removed_is_measured(protocol, least):
    """Exact hits of a hundred values would look like chance; the headline shows how much of the error is gone."""
    levels, found = on_scale("percent", protocol)
    assert levels.continuous
    assert "continuous" in levels.in_words()
    assert not [one for one in found.values() if one.metric == EXACT]
    headline = worst(list(found.values()), protocol, "value")
    assert headline.metric == ERROR_REMOVED
    assert headline.value > least
    assert headline.chance == 0


def test_levels_by_hand():
    """Nearest levels, of an even and of an uneven scale; a single value shows no scale; a continuous one keeps all."""
    half = RatingLevels.of(np.arange(1, 5.5, 0.5))
    assert half.nearest(np.array([1.2, 3.3, 9.0, np.nan])).tolist()[:3] == [1.0, 3.5, 5.0]
    uneven = RatingLevels.of(np.array([1.0, 2.0, 5.0]))
    assert uneven.nearest(np.array([0.0, 1.4, 3.4, 3.6])).tolist() == [1.0, 1.0, 2.0, 5.0]
    assert RatingLevels.of(np.ones(5)) is WHOLE_STARS
    stars = RatingLevels.of(np.array([1.0, 2, 3, 4, 5]))
    assert (stars.mean, stars.deviation) == (WHOLE_STARS.mean, WHOLE_STARS.deviation)
    fine = RatingLevels.of(np.linspace(1, 5, 101))
    assert fine.continuous
    assert fine.nearest(np.array([1.234, 7.0])).tolist() == [1.234, 5.0]


def test_error_removed_by_hand():
    """Ratings 1, 3, 5, median 3: blind guesses are 4 off in all; 1, 3, 4 are 1 off, and remove three quarters."""
    score = ValueScore.on(np.array([1.0, 3.0, 5.0]), RatingLevels.of(np.linspace(1, 5, 101)))
    ratings = np.array([1.0, 3.0, 5.0])
    assert score.chance(ratings) == 0
    assert score.share(np.array([1.0, np.nan, 4.0]), ratings) == 0.75
    assert score.share(ratings, ratings) == 1
