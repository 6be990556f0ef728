"""What an attacker sees: the messages that crossed the trust boundary, and what is public anyway.

An `Observation` holds messages, the public parameters of the protocol, and outside knowledge of how popular items
are; nothing of a person but what that person's device sent. `Truth`, in `record`, stays with the judge.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logit

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.crowd import Crowd, watch_crowd
from hushrec.audit.error_laws import ErrorLaw, fit_laws
from hushrec.audit.rank_one import Trace, likely_direction, pooled_direction, trace
from hushrec.audit.rating_grid import RecoveredRatings, recover_ratings
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.scale import HIGHEST, LOWEST

Upload = GradientReport | None  # None: nothing but "finished" came in that round


@dataclass(frozen=True, eq=False)
class Observation:
    """All rounds of one run, seen from the server, of a few people called victims.

    The attacker knows the software, so the protocol and its budgets are known; what a device calibrates from its own
    number of ratings is not.
    """

    protocol: GradientProtocol
    announcements: tuple[ItemVectors, ...] = field(repr=False)  # one per round, the first first
    uploads: tuple[tuple[Upload, ...], ...] = field(repr=False)  # per victim, per round
    crowd: tuple[tuple[Upload, ...], ...] = field(repr=False)  # the last few rounds of many people
    popularity: FloatArray = field(repr=False)  # (n_items,) share of *other* people who rated each item
    finish_seconds: FloatArray | None = field(default=None, repr=False)  # (n_victims, n_rounds)
    levels: RatingLevels = WHOLE_STARS  # the ratings that people can give

    @property
    def terms(self) -> Terms:
        return self.announcements[-1].terms

    @property
    def n_victims(self) -> int:
        return len(self.uploads)

    @property
    def n_rounds(self) -> int:
        return len(self.announcements)

    @cached_property
    def selection_counts(self) -> IntArray:
        """How often each item was reported, `(n_victims, n_items)`."""
        counts = np.zeros((self.n_victims, self.terms.n_items), dtype=np.int64)
        for victim, uploads in enumerate(self.uploads):
            for upload in uploads:
                if upload is not None:
                    counts[victim, upload.items] += 1
        return counts

    @cached_property
    def popularity_odds(self) -> FloatArray:
        """Ln odds that somebody rated each item, from other people; never infinite."""
        return np.asarray(logit(np.clip(self.popularity, 1e-4, 1 - 1e-4)))

    @cached_property
    def public_direction(self) -> FloatArray:
        """What everybody likes: scores nearest to the middle of the scale; one-class, in the order of popularity."""
        table = self.announcements[-1].item_vectors.astype(np.float64)
        if self.terms.model == "bpr":  # scores count beside each other alone
            return likely_direction(table - table.mean(axis=0), self.popularity_odds - self.popularity_odds.mean())
        return likely_direction(table, np.full(len(table), (LOWEST + HIGHEST) / 2))

    @cached_property
    def pooled_directions(self) -> FloatArray:
        """Every victim's direction in the later half of the rounds, `(n_victims, width)`."""
        start = self.n_rounds // 2
        return np.array(
            [
                pooled_direction(self.announcements[start:], uploads[start:], self.public_direction)
                for uploads in self.uploads
            ]
        )

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """Every victim's uploads taken apart into direction and amplitudes."""
        return tuple(trace(self.announcements, uploads) for uploads in self.uploads)

    @cached_property
    def laws(self) -> tuple[list[ErrorLaw] | None, ...]:
        """The laws of real and fake amplitudes of every victim, upload by upload; None where there are no fakes."""
        fake_range = self.protocol.fake_range
        if fake_range is None:
            return (None,) * self.n_victims
        return tuple(fit_laws(one.parts, fake_range) for one in self.traces)

    @cached_property
    def recovered(self) -> tuple[RecoveredRatings, ...]:
        """Every victim's ratings as far as the traces show them; the most expensive step, done once."""
        found = zip(self.traces, self.laws, strict=True)
        return tuple(recover_ratings(one, self.protocol, self.terms, laws, self.levels) for one, laws in found)

    @cached_property
    def _guesses(self) -> dict[Any, FloatArray]:
        return {}

    def guessed_by(self, attack: Any) -> FloatArray:
        """Return the guess of an attack, computed once, since attacks build on each other."""
        if attack not in self._guesses:
            self._guesses[attack] = attack.guess(self)
        return self._guesses[attack]

    @cached_property
    def glance(self) -> Crowd:
        """Return what the uploads of the crowd show by their largest amplitudes."""
        return watch_crowd(self.announcements, self.crowd, self.protocol)

    def first_rounds(self, n_rounds: int) -> "Observation":
        """Return this observation up to an earlier round."""
        return self._rounds(slice(n_rounds))

    def last_rounds(self, n_rounds: int) -> "Observation":
        """Return this observation from a later round on."""
        return self._rounds(slice(-n_rounds, None))

    def _rounds(self, part: slice) -> "Observation":
        uploads = tuple(uploads[part] for uploads in self.uploads)
        announcements = self.announcements[part]
        return Observation(self.protocol, announcements, uploads, (), self.popularity, levels=self.levels)
