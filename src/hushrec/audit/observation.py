"""What an attacker sees: the messages between devices and server, and public knowledge.

An `Observation` holds messages, the public parameters of the protocol, and the popularity of items. Everything that it
holds about a person was sent by that person's device. Only the code that scores attacks sees the private data
(`observed_run.Truth`).
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.error_laws import ErrorLaw, fit_laws
from hushrec.audit.machines import MachineReading, read_reports
from hushrec.audit.rank_one import Trace, likely_direction, pooled_direction, trace
from hushrec.audit.rating_grid import RecoveredRatings, recover_ratings
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.audit.sample import SampleEstimates, estimate_sample
from hushrec.audit.statistics import log_odds
from hushrec.models.fm import FactorizationMachine
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.scale import HIGHEST, LOWEST

MaybeReport = GradientReport | None  # None: the device reported no item in that round


@dataclass(frozen=True, eq=False)
class Observation:
    """What a server sees of one run: its announcements, all reports of the victims, and the last reports of a sample.

    The victims are the people to attack, and the sample is a random sample of people. `reports` and `sample` have one
    tuple per person, with one entry per round.

    `finish_seconds`, `(n_victims, n_rounds)`, is the time that each victim's device needed for each report, or None if
    it was not measured.

    The attacker knows the protocol and its budgets, but not the selection probabilities that a device calibrates from
    its own number of ratings.
    """

    protocol: GradientProtocol
    model: MatrixFactorization  # public; under `fm` with the attributes of the items
    announcements: tuple[ItemVectors, ...] = field(repr=False)  # one per round, in order
    reports: tuple[tuple[MaybeReport, ...], ...] = field(repr=False)  # of each victim, in every round
    sample: tuple[tuple[MaybeReport, ...], ...] = field(repr=False)  # of each person of the sample, in the last rounds
    popularity: FloatArray = field(repr=False)  # (n_items,) fraction of non-victims who rated each item
    finish_seconds: FloatArray | None = field(default=None, repr=False)
    levels: RatingLevels = WHOLE_STARS  # the ratings that people can give

    @property
    def terms(self) -> Terms:
        return self.announcements[-1].terms

    @property
    def n_victims(self) -> int:
        return len(self.reports)

    @property
    def n_rounds(self) -> int:
        return len(self.announcements)

    @cached_property
    def selection_counts(self) -> IntArray:
        """The number of rounds in which each victim reported each item, `(n_victims, n_items)`."""
        counts = np.zeros((self.n_victims, self.terms.n_items), dtype=np.int64)
        for victim, reports in enumerate(self.reports):
            for report in reports:
                if report is not None:
                    counts[victim, report.items] += 1
        return counts

    @cached_property
    def popularity_odds(self) -> FloatArray:
        """The log odds that a person has rated each item, from its popularity among other people; always finite."""
        return log_odds(self.popularity)

    @cached_property
    def public_direction(self) -> FloatArray:
        """The direction of a user vector for an average person, from public knowledge alone.

        The vector predicts the middle of the scale for every item or, under model `bpr`, scores items by popularity.
        """
        table = self.announcements[-1].item_vectors.astype(np.float64)
        if self.terms.model == "bpr":  # only differences of scores have a meaning
            return likely_direction(table - table.mean(axis=0), self.popularity_odds - self.popularity_odds.mean())
        return likely_direction(table, np.full(len(table), (LOWEST + HIGHEST) / 2))

    @cached_property
    def pooled_directions(self) -> FloatArray:
        """The direction of each victim's user vector, `(n_victims, width)`, fitted to the later half of the reports."""
        start = self.n_rounds // 2
        late, public = self.announcements[start:], self.public_direction
        return np.array([pooled_direction(late, reports[start:], public) for reports in self.reports])

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """Every victim's reports, each decomposed into the direction of the user vector and one amplitude per item.

        An amplitude is the error of an item times the norm of the user vector, plus noise.
        """
        return tuple(trace(self.announcements, reports) for reports in self.reports)

    @cached_property
    def laws(self) -> tuple[list[ErrorLaw] | None, ...]:
        """For each victim, the fitted error distributions of each report; None if the protocol has no fake errors."""
        epsilon_g = self.protocol.epsilon_g
        if epsilon_g is None:
            return (None,) * self.n_victims
        return tuple(fit_laws(one.parts, epsilon_g) for one in self.traces)

    @cached_property
    def recovered(self) -> tuple[RecoveredRatings, ...]:
        """Every victim's ratings, as `recover_ratings` recovers them. This is the most expensive step of an audit."""
        found = zip(self.traces, self.laws, strict=True)
        return tuple(recover_ratings(one, self.protocol, self.terms, laws, self.levels) for one, laws in found)

    @cached_property
    def machine_readings(self) -> tuple[MachineReading, ...]:
        """Under model `fm`: the ratings, errors and taste of every victim, as `machines.read_reports` recovers them."""
        model, all_are_rated = self.model, self.protocol.selection is None
        assert isinstance(model, FactorizationMachine)
        return tuple(
            read_reports(model, self.announcements, reports, self.levels, follows_bias=all_are_rated)
            for reports in self.reports
        )

    @cached_property
    def _guesses(self) -> dict[Any, FloatArray]:
        return {}

    def guessed_by(self, attack: Any) -> FloatArray:
        """Return `attack.guess(self)`, an array with one row per victim. The array is cached for further calls."""
        if attack not in self._guesses:
            self._guesses[attack] = attack.guess(self)
        return self._guesses[attack]

    @cached_property
    def sample_estimates(self) -> SampleEstimates:
        """Estimates of which items each person of the sample has rated, made by `estimate_sample`."""
        return estimate_sample(self.announcements, self.sample, self.protocol)

    def first_rounds(self, n_rounds: int) -> "Observation":
        """Return the observation of the first `n_rounds` rounds only, without `sample` and `finish_seconds`."""
        return self._rounds(slice(n_rounds))

    def last_rounds(self, n_rounds: int) -> "Observation":
        """Return the observation of the last `n_rounds` rounds only, without `sample` and `finish_seconds`."""
        return self._rounds(slice(-n_rounds, None))

    def _rounds(self, part: slice) -> "Observation":
        reports = tuple(reports[part] for reports in self.reports)
        return replace(self, announcements=self.announcements[part], reports=reports, sample=(), finish_seconds=None)
