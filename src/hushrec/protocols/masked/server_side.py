"""The server side of a masked run: runs attempts in cohorts, learns from their sums, and finds hostile devices.

A sum is *implausible* if honest devices cannot have made it. It is discarded, and the devices in it become suspects
(`suspicion.py`). With several cohorts, the round ends with the plausible sums, and nobody has to report again. With one
cohort, the round needs another attempt, which may be a probe.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.arrays import WordArray
from hushrec.errors import AttemptFailed, LocalProtocolError
from hushrec.messages import Address
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.agreement import FEWEST_COHORTS, disagreements
from hushrec.protocols.masked.cohorts import Attempt
from hushrec.protocols.masked.encoding import (
    BlockCode,
    DecodedSum,
    Table,
    add_sums,
    decode_sum,
    is_plausible,
    split_table,
)
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.messages import COMMITMENTS_BYTES, SEALED_BYTES, Announcement, MaskedTable, announce
from hushrec.protocols.masked.secagg.roster import PublicKeys, device_name
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES
from hushrec.protocols.masked.server_round import EXPECTED, Phase, ServerRound
from hushrec.protocols.masked.suspicion import Search, Suspicion
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.masked.wording import ordinal
from hushrec.protocols.parties import NOT_NEEDED, Addend, Inbox, Name, NextAttempt, RoundOver, ServerSide, State
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
        self._asked_together: list[frozenset[Name]] = []  # the devices that the open phase asks, by cohort
        self._pool: list[Name] = []  # the devices that attempts of the open round may ask
        self.suspicion = Suspicion()
        self._counted = (0, 0)  # latest round and attempt that `_n_probes` has counted
        self._n_probes = self._n_discarded = 0  # of all attempts of this round: probes, discarded sums
        self._charged = 0.0  # μ² of a device whose tables were in all attempts so far

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
            **self.suspicion.state,
            "pool": np.array(sorted(map(str, self._pool)), dtype=np.str_),
            "round_counts": np.array([*self._counted, self._n_probes, self._n_discarded]),
            "charged": np.array(self._charged),
        }

    def restore(self, state: State) -> None:
        self.learner.item_columns = replace(self.learner.item_columns, details=state["details"])
        self.learner.restore({**state, "round_number": state["learned_rounds"]})
        self.suspicion.restore(state)
        self._pool = list(map(str, state["pool"]))
        *counted, self._n_probes, self._n_discarded = map(int, state.get("round_counts", (0, 0, 0, 0)))
        self._counted = counted[0], counted[1]
        self._charged = float(state.get("charged", math.inf))  # earlier versions did not save it

    @property
    def fewest_devices(self) -> int:
        return self._terms.rules.smallest

    def may_close(self, reported: AbstractSet[Name], gone: AbstractSet[Name], early_fraction: float) -> bool:
        """Return whether each cohort has enough reports to close the phase before its deadline.

        `gone` are devices that no longer take part. A cohort needs at least n_min reports, and reports of the fraction
        `early_fraction` of its devices that are not gone. Cohorts in which n_min devices can no longer report are
        ignored. The first phase has no cohorts yet. It needs the keys of (n_min + n_max)/2 devices that are not gone,
        so that some may drop out later.
        """
        smallest = self.fewest_devices
        if self._open_attempt.phase is Phase.KEYS:
            return 2 * (len(reported) - len(gone & reported)) >= smallest + self._terms.priced.cohort.devices
        for asked in self._asked_together:
            given, left = len(asked & reported), asked & gone
            is_possible = len(asked) - len(left - reported) >= smallest
            needed = max(smallest, len(left & reported) + math.ceil(early_fraction * (len(asked) - len(left))))
            if is_possible and given < needed:
                return False
        return True

    @property
    def largest_report(self) -> int:
        rules, devices = self._terms.rules, self._terms.priced.cohort.devices
        shares = rules.neighbours * (SEALED_BYTES + COMMITMENTS_BYTES)
        table = 4 * max(self._terms.table_size(number + 1) for number in range(self._terms.max_rounds))
        return 1_000 + max(shares + 10 * rules.neighbours, table, devices * (SHARE_BYTES + 10))

    @property
    def can_skip_rounds(self) -> bool:
        return False

    @property
    def concern(self) -> str | None:
        if self.attempt is None or self.attempt.announcement.attempt < MANY_ATTEMPTS:
            return None
        place, suspects = self.attempt.announcement.place, self.suspicion.suspects
        if self.attempt.announcement.probe:
            return (
                f"A sum of round {place[0]} was discarded, because honest devices cannot have made it. Attempt"
                f" {place[1]} is a probe, which searches for the device that sent a false table among"
                f" {len(suspects)} suspects. Probes cost no budget."
            )
        spoils = f", or one of {len(suspects)} suspects spoils its sums" if suspects else ""
        asked = self.suspicion.culprits.intersection(map(str, self._names.values()))
        needed = (
            f" It had to ask {len(asked)} devices that broke the protocol in earlier attempts, because fewer than"
            f" {self.fewest_devices} others are present. Revoke these devices, and let others join."
        )
        has_ended = self.attempt.phase is Phase.SUMMED
        count = f"needed {place[1]} attempts" if has_ended else f"is in its {ordinal(place[1])} attempt"
        return (
            f"Round {place[0]} {count}: too few devices stay to its end{spoils}."
            f"{needed if asked else ''}"
            " An attempt costs a device budget if its table was sent in it, and nothing if it ended before."
        )

    @property
    def progress(self) -> str | None:
        attempt = self.attempt
        if attempt is None or attempt.phase is Phase.KEYS:
            return None
        n_max, spare = self._terms.priced.cohort.devices, attempt.n_unneeded
        are = "device is" if spare == 1 else "devices are"
        unneeded = f"{spare:,} {are} not needed: a sum holds at most {n_max:,}." if spare else None
        return unneeded if attempt.is_single else self._describe_cohorts(attempt)

    @staticmethod
    def _describe_cohorts(attempt: Attempt) -> str:
        sizes, lost = [len(cohort.asked) for cohort in attempt.cohorts], len(attempt.given_up)
        largest = f" to {max(sizes):,}" if max(sizes) > min(sizes) else ""
        return f"{len(sizes)} cohorts of {min(sizes):,}{largest} devices continue; {lost} had too few devices."

    @property
    def round_counts(self) -> dict[str, int]:
        """The probes and discarded sums of all attempts of the round, and two counts of its latest attempt.

        The two are the cohorts, with those that had too few devices, and the devices that no cohort needed.
        """
        attempt = self.attempt
        cohorts, unneeded = (
            (0, 0) if attempt is None else (len(attempt.cohorts) + len(attempt.given_up), attempt.n_unneeded)
        )
        counts = {"probes": self._n_probes, "cohorts": cohorts, "discarded sums": self._n_discarded}
        return counts | {NOT_NEEDED: unneeded}

    @property
    def accuracy(self) -> list[dict[str, float | None]]:
        return [
            {name: None if math.isnan(value) else value for name, value in row._asdict().items()}
            for row in self.learner.measured
        ]

    @property
    def suspects(self) -> frozenset[str]:
        """The names of the suspects, of whom at least one has probably sent a false table, and of the culprits."""
        return self.suspicion.suspects | self.suspicion.culprits

    # Cohorts ---------------------------------------------------------------------------------------------------

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return the members to ask in the next attempt: all but the culprits and suspects that can be left out."""
        self._pool = sorted(members, key=str)
        if self.attempt is not None and self.attempt.phase is Phase.KEYS:
            self.suspicion.record_presence(self._pool, 0, ())  # too few devices have sent keys
        return self._next_members()

    def _next_members(self) -> list[Name]:
        place = (0, 0) if self.attempt is None else self.attempt.announcement.place
        rng = self._randomness.stream(Purpose.COHORTS, place[0] * 2**20 + place[1])  # another one for each attempt
        return self.suspicion.without_suspects(self._pool, self._terms, rng=rng, may_spoil=self._can_pay_twice)

    @property
    def _can_pay_twice(self) -> bool:
        """Whether the budget of a device can pay for this round twice, and for each later round once."""
        priced, index = self._terms.priced, self.learner.round_number
        rounds = [priced.cost(later) for later in range(index, len(priced.codes))]
        return bool(rounds) and self._charged + rounds[0] + math.fsum(rounds) <= priced.mu_squared * (1 + 1e-9)

    def _charge(self, announcement: Announcement) -> None:
        """Count the cost of a table in this attempt; a probe costs nothing."""
        if not announcement.probe:
            self._charged += self._terms.priced.cost(announcement.round_number - 1)

    # A round ---------------------------------------------------------------------------------------------------

    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        if not self.secret:
            raise LocalProtocolError("the server must have a key before the first round. Call sign_as first.")
        key = Ed25519PrivateKey.from_private_bytes(self.secret)
        digests = self._terms.digest, published_digest(self.public)
        probe = self._is_probing
        self._count_probe((round_number, attempt), probe)
        announcement = announce(key, self.run_id, round_number, attempt, *digests, probe=probe)
        self._names = {device_name(name): name for name in members}
        self._pool = self._pool or list(members)  # empty if `choose_members` was not called
        levels = {name: level for name, own in self._names.items() if (level := self.suspicion.level(own))}
        self.attempt = Attempt(self._terms, announcement, self._names, self.secret, levels)
        return self._inbox()

    @property
    def _is_probing(self) -> bool:
        """Whether the next attempt is a probe."""
        return self.suspicion.search is Search.PROBING

    def _count_probe(self, place: tuple[int, int], probe: bool) -> None:
        """Add 1 to the number of probes if this attempt is a probe; set the counts to 0 if it begins a new round.

        An attempt is counted only once, although a restarted server opens the attempts of its round again.
        """
        if place[0] != self._counted[0]:
            self._n_probes = self._n_discarded = 0
        if place > self._counted:
            self._counted, self._n_probes = place, self._n_probes + probe

    def check(self, address: Address, sender: Name, message: Any) -> None:
        self._open_attempt.check(device_name(sender), message)

    def signer_of(self, message: Any) -> bytes | None:
        return message.identity if isinstance(message, PublicKeys) else None

    def addend(self, address: Address, sender: Name, message: Any) -> Addend | None:
        if not isinstance(message, MaskedTable):
            return None
        return Addend(self._open_attempt.number_of(device_name(sender)), message.numbers, message.signature)

    def take_sum(self, address: Address, kept: Mapping[Name, bytes], total: WordArray) -> None:
        signatures = {device_name(sender): signature for sender, signature in kept.items()}
        self._open_attempt.receive_sum(signatures, total)

    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        attempt, phase = self._open_attempt, self._open_attempt.phase
        try:
            attempt.close((device_name(sender), message) for sender, message in reports)
        except AttemptFailed as failure:
            if phase not in (Phase.KEYS, Phase.SHARES):
                self._charge(attempt.announcement)
            self._record(attempt)
            return NextAttempt(str(failure), self._next_members())
        return self._end_round(attempt) if attempt.phase is Phase.SUMMED else self._inbox()

    def _record(self, attempt: Attempt) -> None:
        """Record the culprits of an attempt that has ended, and the devices that stayed in it (`record_presence`)."""
        cohorts = [*attempt.cohorts, *attempt.given_up]
        stayed = [self._names[name] for cohort in cohorts for name in cohort.stayed]
        self.suspicion.record_presence(self._names.values(), sum(cohort.n_keys for cohort in cohorts), stayed)
        self.suspicion.culprits |= {str(self._names[name]) for cohort in cohorts for name in cohort.culprits}

    def _inbox(self) -> Inbox:
        cohorts = self._open_attempt.cohorts
        self._asked_together = [frozenset(self._names[name] for name in cohort.asked) for cohort in cohorts]
        return {self._names[name]: message for name, message in self._open_attempt.questions()}

    @property
    def _open_attempt(self) -> Attempt:
        if self.attempt is None:
            raise LocalProtocolError("an attempt must be open. Call open first.")
        return self.attempt

    def _end_round(self, attempt: Attempt) -> RoundOver | NextAttempt:
        """Learn from the plausible sums and end the round, or ask for another attempt.

        There is another attempt after a probe, and if no sum is plausible.
        """
        good = self.believed(attempt.cohorts)
        discarded = [cohort for cohort in attempt.cohorts if cohort not in good]
        self._n_discarded += len(discarded)
        was_probe = attempt.announcement.probe
        self._charge(attempt.announcement)
        self._record(attempt)
        self.suspicion.record_sums(
            self._members(discarded), self._members(good), was_probe=was_probe, has_one_cohort=attempt.is_single
        )
        if not good:
            return self._after_discarded(self._members(discarded), attempt)
        if was_probe:
            return NextAttempt("the attempt was a probe, and its sum is plausible.", self._next_members())
        survivors = sum(len(cohort.survivors) for cohort in good)
        self.learner.learn(add_sums([self._decoded(cohort) for cohort in good]), survivors)
        self._pool = []
        return RoundOver()

    def _after_discarded(self, devices: list[Name], attempt: Attempt) -> NextAttempt:
        """Return the next attempt after all sums of `attempt`, with tables of `devices`, were discarded."""
        reason, members = "the sum was discarded: honest devices cannot have made it.", self._next_members()
        if not attempt.is_single or not set(devices).issubset(members):
            return NextAttempt(reason, members)
        costs = "is a probe, which costs no budget" if self._is_probing else "costs every device some of its reserve"
        return NextAttempt(
            f"{reason} No suspect can be left out: of {len(devices)} devices, {self.fewest_devices} must stay. So the"
            f" next attempt would probably fail too; it {costs}. Let more devices join first.",
            members,
            needs_operator=True,
        )

    def _members(self, cohorts: Sequence[ServerRound]) -> list[Name]:
        return [self._names[name] for cohort in cohorts for name in cohort.survivors]

    def _is_plausible(self, cohort: ServerRound) -> bool:
        """Return whether honest devices can have made this cohort's sum.

        The norm of each block must be possible, and the sum must fit what was learned in earlier rounds (`surprise`).
        """
        survivors = len(cohort.survivors)
        if not all(is_plausible(code, total, survivors) for _, code, total in self._blocks(cohort)):
            return False
        return self.learner.surprise(self._decoded(cohort), survivors) <= 1

    def believed(self, cohorts: Sequence[ServerRound]) -> list[ServerRound]:
        """Return the cohorts with plausible sums.

        Each sum is judged alone and then, if three or more cohorts remain, in comparison with the other cohorts.
        """
        kept = [cohort for cohort in cohorts if self._is_plausible(cohort)]
        while len(kept) >= FEWEST_COHORTS:
            survivors = [len(cohort.survivors) for cohort in kept]
            found = disagreements(self.learner, [self._decoded(cohort) for cohort in kept], survivors)
            if max(found) <= 1:
                break
            kept.pop(int(np.argmax(found)))
        return kept

    def _decoded(self, cohort: ServerRound) -> dict[str, DecodedSum]:
        """Return the cohort's sum of each block, by block name.

        Sums of cohorts are decoded before they are added up, because their integers could overflow.
        """
        return {name: decode_sum(code, total, len(cohort.survivors)) for name, code, total in self._blocks(cohort)}

    def _blocks(self, cohort: ServerRound) -> Iterator[tuple[str, BlockCode, Table]]:
        """Return an iterator over (name, code, sum modulo 2³²) of each block of the cohort's round."""
        assert cohort.sum is not None  # SUMMED
        priced, index = self._terms.priced, self._open_attempt.announcement.round_number - 1
        names, codes = (block.name for block in priced.plan.rounds[index].blocks), priced.codes[index]
        return zip(names, codes, split_table(codes, cohort.sum), strict=True)
