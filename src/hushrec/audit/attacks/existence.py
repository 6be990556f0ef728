"""Attacks that recover which items a person has rated (target "existence")."""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import OnRuns
from hushrec.audit.observation import Observation
from hushrec.audit.own_steps import evidence_of_steps
from hushrec.audit.partners import evidence_of_partners
from hushrec.audit.rank_one import without_prior
from hushrec.audit.sample import SHARPNESS, TYPICAL_SIZES
from hushrec.audit.selection import likeliest_count, log_ratio, probabilities_for

UNEXPLAINED = 1.0  # evidence, in nats, that is subtracted for the noise of an average
SURE = 5.0  # largest evidence, in nats, of one report of an item, because directions are sometimes wrong


class Existence(OnRuns):
    """The base class of attacks on existence, that is, on which items a person has rated."""

    target = "existence"


class OfErrors(Existence):
    """The base class of attacks that tell the real errors of rated items from the fake errors of unrated items."""

    models = ("mf",)
    selects = True


class Popularity(Existence):
    """The baseline of all other attacks: it scores items by their popularity, without using any message."""

    name = "popularity"
    claim = "none: known without any message"

    def guess(self, observation: Observation) -> FloatArray:
        return np.tile(observation.popularity_odds, (observation.n_victims, 1))


class SelectionAverage(Existence):
    """An attack that scores an item by the number of rounds in which it is reported.

    If devices select items at random, the score is the log-likelihood ratio of "rated" to "unrated" for this number.
    """

    name = "selection average"
    claim = "selections of all rounds cost at most epsilon_p, profile level"

    def guess(self, observation: Observation) -> FloatArray:
        counts, selection = observation.selection_counts, observation.protocol.selection
        if selection is None:
            return counts.astype(np.float64)
        rows = []
        for row in counts:
            h = likeliest_count(row, observation.n_rounds, selection, observation.terms)
            found = probabilities_for(h, selection, observation.terms)
            assert found is not None
            rows.append(log_ratio(row, observation.n_rounds, found))
        return np.array(rows)


class ErrorSize(OfErrors):
    """An attack that scores an item by its largest |error|: fake errors have an upper bound α, real errors have none.

    Errors are known up to a factor, so each is divided by a typical |error| of its report.
    """

    name = "error size"
    claim = "Theorem 3: fakes pass for real errors"

    def guess(self, observation: Observation) -> FloatArray:
        sizes = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace in zip(sizes, observation.traces, strict=True):
            for part in trace.parts:
                typical = TYPICAL_SIZES * (float(np.median(np.abs(part.amplitudes))) + part.noise)
                row[part.items] = np.maximum(row[part.items], np.abs(part.amplitudes) / typical)
        return np.where(observation.selection_counts > 0, SHARPNESS * np.log(sizes + 1e-3), 0.0)


class ErrorLikelihood(OfErrors):
    """An attack that scores an item by how much better real errors explain its errors than fake ones do.

    The score is the sum over reports of ln(density of real errors / density of fake errors) at the error of the item
    (see `audit.error_laws`).
    """

    name = "error likelihood"
    claim = "Theorem 3: fakes pass for real errors"

    def guess(self, observation: Observation) -> FloatArray:
        scores = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace, laws in zip(scores, observation.traces, observation.laws, strict=True):
            for part, law in zip(trace.parts, laws or [], strict=True):
                row[part.items] += law.log_ratio(part.amplitudes, part.noise)
        return scores


class AveragedErrors(OfErrors):
    """An attack for strong noise: it averages an item's amplitudes over all rounds.

    An amplitude is the component of an item's gradient along the direction of the user vector. This direction is
    estimated once from many reports. The errors of a rated item have a mean that remains in the average, while noise
    and fake errors average out. For an average a of variance s², the score is a²/(2s²) − 1. The 1 is subtracted because
    noise alone makes a²/(2s²) positive.
    """

    name = "averaged errors"
    claim = "Theorem 3: fakes pass for real errors, over all rounds"

    def guess(self, observation: Observation) -> FloatArray:
        total = np.zeros((observation.n_victims, observation.terms.n_items))
        weight = np.zeros_like(total)
        for victim, (reports, direction) in enumerate(
            zip(observation.reports, observation.pooled_directions, strict=True)
        ):
            for announcement, report in zip(observation.announcements, reports, strict=True):
                if report is not None:
                    amplitudes = without_prior(announcement, report)[0] @ direction
                    variance = (np.median(np.abs(amplitudes)) / 0.6745) ** 2  # of noise and fake errors, the majority
                    total[victim, report.items] += amplitudes / variance
                    weight[victim, report.items] += 1 / variance
        return np.asarray(np.where(weight > 0, total**2 / np.maximum(weight, 1e-300) / 2 - UNEXPLAINED, 0.0))


class ConsistentRatings(OfErrors):
    """An attack that scores an item by the evidence that its errors imply the same rating in every round.

    Real errors do, fake errors do not.
    """

    name = "consistent ratings"
    claim = "Theorem 3: fakes pass for real errors, over all rounds"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([one.log_odds for one in observation.recovered])


class StepsOfTheVector(OfErrors):
    """An attack that scores reported items as `ConsistentRatings` does, and also scores items never reported.

    A device learns from all its ratings, so the changes of its user vector between rounds also reveal ratings that it
    never reports (see `audit.own_steps`).
    """

    name = "consistent ratings and steps"
    claim = "a rating that is not reported leaves no trace"

    def guess(self, observation: Observation) -> FloatArray:
        chances = np.clip(observation.popularity, 1e-3, 0.9)
        found = zip(observation.traces, observation.recovered, strict=True)
        sent, levels = observation.announcements, observation.levels
        return np.array([one.log_odds + evidence_of_steps(trace, one, sent, chances, levels) for trace, one in found])


@dataclass(frozen=True)
class OppositeDirections(Existence):
    """An attack on model `bpr`, whose gradients point along the user vector for rated items, otherwise against it.

    An item's score is the evidence that its gradient points along the user vector. The direction of this vector is
    estimated from the reports (`audit.rank_one`), and `Trace` chooses its sign.
    """

    models = ("bpr",)
    name: str = "opposite directions"
    claim: str = "sdcf with model bpr hides which items are rated"
    last_only: bool = False  # use the last report alone; otherwise add up the evidence of all reports

    def guess(self, observation: Observation) -> FloatArray:
        scores = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace in zip(scores, observation.traces, strict=True):
            for part in trace.parts[-1:] if self.last_only else trace.parts:
                deviations = part.amplitudes / part.noise
                row[part.items] += np.clip(log_ndtr(deviations) - log_ndtr(-deviations), -SURE, SURE)
        return scores


class PartnersOfPairs(Existence):
    """An attack that scores reported items as `OppositeDirections` does, and also scores items never reported.

    Model `bpr` learns from pairs of a rated and an unrated item. The gradient of the unrated item reveals the score
    that the model gives to the rated item, and thus which item it may be, even if it is never reported (see
    `audit.partners`).
    """

    models = ("bpr",)
    selects = True
    name = "partners of pairs"
    claim = "a rating that is not reported leaves no trace"

    def guess(self, observation: Observation) -> FloatArray:
        signs, reported = observation.guessed_by(OppositeDirections()), observation.selection_counts > 0
        found = zip(observation.traces, signs, reported, strict=True)
        return np.array(
            [row + evidence_of_partners(trace, row, sent, observation.announcements) for trace, row, sent in found]
        )
