"""The server side of a masked run: runs attempts in cohorts, learns from their sums, and finds hostile devices.

A sum is *implausible* if honest devices cannot have made it. It is discarded, and the devices in it become suspects.
The suspects are the devices that were in every implausible sum so far and in no plausible sum since.

With several cohorts, the round ends with the plausible sums, and nobody has to report again. The next round spreads the
suspects over its cohorts, so that a hostile device that sends a false table again divides the number of suspects by the
number of cohorts. If the suspects are too few to fill a cohort, the next round leaves them out.

With one cohort, the round needs another attempt. It leaves out up to half of the suspects, at random, as long as enough
devices remain for the noise, until the hostile device is the only suspect.

A *culprit* is a device that used another device's keys, or because of whose shares an attempt failed (see
`recover_sum`). Culprits are left out for the rest of the run, as long as enough other devices remain. So at most c_max
attempts of a run fail because of c_max such devices, if n_min honest devices stay.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.arrays import WordArray
from hushrec.errors import AttemptFailed, LocalProtocolError
from hushrec.messages import Address
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.agreement import FEWEST_COHORTS, disagreements
from hushrec.protocols.masked.cohorts import Attempt, cohort_sizes
from hushrec.protocols.masked.encoding import (
    BlockCode,
    DecodedSum,
    Table,
    add_decoded,
    decode_sum,
    is_plausible,
    split_table,
)
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.messages import MaskedTable, announce
from hushrec.protocols.masked.secagg.roster import PublicKeys, device_name
from hushrec.protocols.masked.server_round import EXPECTED, Phase, ServerRound
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.parties import Inbox, Name, NextAttempt, RoundOver, ServerSide, State
from hushrec.randomness import Purpose, Randomness

MANY_ATTEMPTS = 4  # attempts of one round from which the operator is warned
PHASES = tuple(phase.value for phase in EXPECTED)


class MaskedServer(ServerSide):
    """The computations of the server in the masked protocol: adds up masked tables, removes masks, learns from sums."""

    phases = PHASES

    def __init__(self, terms: MaskedTerms, model: Any, randomness: Randomness) -> None:
        self._terms, self._randomness = terms, randomness
        self._learning = learning_of(model)
        self.learner = self._learning.make_learner(terms.priced.plan, terms.priced.cohort.devices)
        self.attempt: Attempt | None = None  # the open one, or the last
        self._names: dict[bytes, Name] = {}  # names of the devices that the attempt asks, by their 16 bytes
        self._pool: list[Name] = []  # the devices that attempts of the open round may ask
        self._suspects: frozenset[str] = frozenset()
        self._culprits: frozenset[str] = frozenset()

    @property
    def terms(self) -> MaskedTerms:
        return self._terms

    @property
    def public(self) -> Arrays:
        """The arrays of the public table, and `round_number`, the number of rounds that it was learned from."""
        return {**vars(self.learner.table()), "round_number": np.array(float(self.learner.round_number))}

    @property
    def state(self) -> State:
        learned = self.learner.state()
        return {
            **learned,
            "learned_rounds": learned.pop("round_number"),
            "details": self.learner.item_columns.details,
            "suspects": np.array(sorted(self._suspects), dtype=np.str_),
            "culprits": np.array(sorted(self._culprits), dtype=np.str_),
            "pool": np.array(sorted(map(str, self._pool)), dtype=np.str_),
        }

    def restore(self, state: State) -> None:
        self.learner.item_columns = replace(self.learner.item_columns, details=state["details"])
        self.learner.restore({**state, "round_number": state["learned_rounds"]})
        self._suspects, self._culprits = (frozenset(map(str, state[name])) for name in ("suspects", "culprits"))
        self._pool = list(map(str, state["pool"]))

    @property
    def fewest_devices(self) -> int:
        return self._terms.rules.smallest

    @property
    def can_skip_rounds(self) -> bool:
        return False

    @property
    def concern(self) -> str | None:
        place = (0, 0) if self.attempt is None else self.attempt.announcement.place
        if place[1] < MANY_ATTEMPTS:
            return None
        spoils = f", or one of {len(self._suspects)} suspects spoils its sums" if self._suspects else ""
        asked = self._culprits.intersection(map(str, self._asked()))
        needed = (
            f" It had to ask {len(asked)} devices that broke the protocol in earlier attempts, because fewer than"
            f" {self.fewest_devices} others are present. Revoke these devices, and let others join."
        )
        return (
            f"Round {place[0]} needed {place[1]} attempts: too few devices stay to its end{spoils}."
            f"{needed if asked else ''}"
            " An attempt costs a device budget if its table was sent in it, and nothing if it ended before."
        )

    @property
    def progress(self) -> str | None:
        """A sentence about the cohorts of the open attempt; None if it has one cohort, or in its first phase."""
        if self.attempt is None or self.attempt.phase is Phase.KEYS or self.attempt.is_single:
            return None
        sizes, lost = [len(cohort.asked) for cohort in self.attempt.cohorts], len(self.attempt.given_up)
        largest = f" to {max(sizes):,}" if max(sizes) > min(sizes) else ""
        return f"{len(sizes)} cohorts of {min(sizes):,}{largest} devices continue; {lost} had too few devices."

    @property
    def accuracy(self) -> list[dict[str, float]]:
        """The fields of `Measured` for each round with a measurement: RMSE of the model and of the bias model."""
        return [row._asdict() for row in self.learner.measured if not math.isnan(row.rmse)]

    @property
    def suspects(self) -> frozenset[str]:
        """The names of the suspects, of whom at least one has probably sent a false table, and of the culprits."""
        return self._suspects | self._culprits

    # Cohorts ---------------------------------------------------------------------------------------------------

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return the members to ask in the next attempt.

        Culprits are left out. With one cohort, half of the suspects are left out as well; with several cohorts, all
        suspects are left out if they are too few to fill one. Devices are left out only if enough others are present.
        """
        self._pool = sorted(members, key=str)
        return self._next_members()

    def _next_members(self) -> list[Name]:
        culprits = [name for name in self._pool if str(name) in self._culprits]
        sound = [name for name in self._pool if str(name) not in self._culprits]
        sound += self._drawn(culprits, self.fewest_devices - len(sound))
        suspects = [name for name in sound if str(name) in self._suspects]
        others = [name for name in sound if str(name) not in self._suspects]
        sizes = cohort_sizes(len(sound), self.fewest_devices, self._terms.priced.cohort.devices)
        if len(sizes) == 1:
            needed = max(len(suspects) // 2, self.fewest_devices - len(others))
            return [*others, *self._drawn(suspects, needed)]
        return sound if len(suspects) >= min(sizes) else others

    def _drawn(self, names: Collection[Name], count: int) -> list[Name]:
        """Return `count` of these names, drawn at random; all names if there are fewer, none if `count` is negative."""
        rising, count = sorted(names, key=str), max(count, 0)
        if count >= len(rising):
            return rising
        draws = self._randomness.stream(Purpose.COHORTS, self._draw_number()).random(len(rising))
        return [rising[place] for place in np.sort(np.argsort(draws, kind="stable")[:count])]

    def _draw_number(self) -> int:
        """Return the number of the random stream for draws after this attempt; it is different for each attempt."""
        place = (0, 0) if self.attempt is None else self.attempt.announcement.place
        return place[0] * 2**20 + place[1]

    # A round ---------------------------------------------------------------------------------------------------

    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        if not self.secret:
            raise LocalProtocolError("the server must have a key before the first round. Call sign_as first.")
        key = Ed25519PrivateKey.from_private_bytes(self.secret)
        digests = self._terms.digest, published_digest(self.public)
        announcement = announce(key, self.run_id, round_number, attempt, *digests)
        self._names = {device_name(name): name for name in members}
        self._pool = self._pool or list(members)  # after a restart, the members that are asked
        suspects = frozenset(name for name, own in self._names.items() if str(own) in self.suspects)
        self.attempt = Attempt(self._terms, announcement, self._names, self.secret, suspects)
        return self._inbox()

    def check(self, address: Address, sender: Name, message: Any) -> None:
        self._open_attempt.check(device_name(sender), message)

    def signer_of(self, message: Any) -> bytes | None:
        return message.identity if isinstance(message, PublicKeys) else None

    def addend(self, address: Address, sender: Name, message: Any) -> tuple[int, WordArray] | None:
        """Return (cohort number, integers) for a masked table; None in other phases, whose reports are not added up."""
        if not isinstance(message, MaskedTable):
            return None
        return self._open_attempt.number_of(device_name(sender)), message.numbers

    def take_sum(self, address: Address, senders: Collection[Name], total: WordArray) -> None:
        self._open_attempt.receive_sum([device_name(sender) for sender in senders], total)

    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        attempt = self._open_attempt
        try:
            attempt.close((device_name(sender), message) for sender, message in reports)
        except AttemptFailed as failure:
            return NextAttempt(str(failure), self._next_members() if self._blame(attempt) else self._asked())
        return self._end_round(attempt) if attempt.phase is Phase.SUMMED else self._inbox()

    def _asked(self) -> list[Name]:
        return list(self._names.values())

    def _blame(self, attempt: Attempt) -> bool:
        """Record the culprits of an attempt; return whether there are any."""
        cohorts = [*attempt.cohorts, *attempt.given_up]
        found = {str(self._names[name]) for cohort in cohorts for name in cohort.culprits}
        self._culprits |= found
        return bool(found)

    def _inbox(self) -> Inbox:
        return {self._names[name]: message for name, message in self._open_attempt.questions()}

    @property
    def _open_attempt(self) -> Attempt:
        if self.attempt is None:
            raise LocalProtocolError("an attempt must be open. Call open first.")
        return self.attempt

    def _end_round(self, attempt: Attempt) -> RoundOver | NextAttempt:
        """Learn from the plausible sums and end the round; if there are none, ask for another attempt."""
        good = self.believed(attempt.cohorts)
        self._suspect([cohort for cohort in attempt.cohorts if cohort not in good], good)
        self._blame(attempt)
        if not good:
            reason = "the sum was discarded, because honest devices cannot have made it."
            return NextAttempt(reason, self._next_members())
        survivors = sum(len(cohort.survivors) for cohort in good)
        self.learner.learn(self._added_up(good), survivors)
        self._pool = []
        return RoundOver()

    def _suspect(self, spoiled: Sequence[ServerRound], good: Sequence[ServerRound]) -> None:
        """Update the suspects after a round with these implausible (`spoiled`) and plausible (`good`) cohorts.

        If there are spoiled sums, suspects that are in none of them are cleared. If no suspect is left then, all
        devices in the spoiled sums become suspects. Last, suspects in a good sum are cleared, unless that would clear
        all of them, because a hostile device may sometimes send an honest table.
        """
        members = self._members(spoiled)
        if members:
            self._suspects = (self._suspects & members) or members
        self._suspects = (self._suspects - self._members(good)) or self._suspects

    def _members(self, cohorts: Sequence[ServerRound]) -> frozenset[str]:
        return frozenset(str(self._names[name]) for cohort in cohorts for name in cohort.survivors)

    def _is_plausible(self, cohort: ServerRound) -> bool:
        """Return whether honest devices can have made this cohort's sum, judged by its norm and by earlier rounds."""
        codes, totals, survivors = self._codes, self._totals(cohort), len(cohort.survivors)
        if not all(is_plausible(*own, survivors) for own in zip(codes, totals, strict=True)):
            return False
        return self.learner.surprise(self._added_up([cohort]), survivors) <= 1

    def believed(self, cohorts: Sequence[ServerRound]) -> list[ServerRound]:
        """Return the cohorts with plausible sums.

        Each sum is judged alone and then, if three or more cohorts remain, in comparison with the other cohorts.
        """
        kept = [cohort for cohort in cohorts if self._is_plausible(cohort)]
        while len(kept) >= FEWEST_COHORTS:
            survivors = [len(cohort.survivors) for cohort in kept]
            found = disagreements(self.learner, [self._added_up([cohort]) for cohort in kept], survivors)
            if max(found) <= 1:
                break
            kept.pop(int(np.argmax(found)))
        return kept

    def _added_up(self, cohorts: Sequence[ServerRound]) -> dict[str, DecodedSum]:
        """Return the decoded sum over these cohorts by block name.

        Cohorts are decoded before they are added, because their integer sum could overflow.
        """
        blocks = self._terms.priced.plan.rounds[self._open_attempt.announcement.round_number - 1].blocks
        decoded = [
            [decode_sum(*own, len(cohort.survivors)) for own in zip(self._codes, self._totals(cohort), strict=True)]
            for cohort in cohorts
        ]
        return {block.name: add_decoded(parts) for block, parts in zip(blocks, zip(*decoded, strict=True), strict=True)}

    @property
    def _codes(self) -> tuple[BlockCode, ...]:
        return self._terms.priced.codes[self._open_attempt.announcement.round_number - 1]

    def _totals(self, cohort: ServerRound) -> list[Table]:
        assert cohort.sum is not None  # SUMMED
        return split_table(self._codes, cohort.sum)
