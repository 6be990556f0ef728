"""One attempt of a masked round: one cohort, or several that go through its phases side by side.

Everybody is asked for keys at once. If more answer than one sum can hold, they are split into cohorts by chance, each
with a roster, masks, noise and a sum of its own; a device is in one of them. A cohort in which too few stay is given
up, and the others go on: the noise is sized for one cohort alone, so that a sum keeps its promise whatever becomes of
the others. The split hangs on the server's secret, on the announcement and on whom the server suspects: no device can
aim at a cohort, and a server that restarts makes the same one.
"""

import hmac
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hushrec.errors import AttemptFailed, RemoteProtocolError
from hushrec.protocols.masked.messages import Announcement
from hushrec.protocols.masked.secagg.primitives import COHORTS_LABEL, Table
from hushrec.protocols.masked.server_round import Phase, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms


def cohort_sizes(devices: int, smallest: int, largest: int) -> list[int]:
    """Return the size of each cohort: at most `largest`, and on average at least halfway between `smallest` and that.

    Devices that are too many for one cohort and too few for two are left out.
    """
    count = max(devices // largest, math.floor(devices / ((smallest + largest) / 2)), 1)
    used = min(devices, count * largest)
    return [used // count + (place < used % count) for place in range(count)]


def draw_cohorts(
    names: Collection[bytes], sizes: Sequence[int], secret: bytes, context: bytes, suspects: Collection[bytes] = ()
) -> list[list[bytes]]:
    """Return who is in which cohort: names in the order of HMAC-SHA256(secret, label ‖ a ‖ name), cut by size.

    Suspects are spread evenly over the cohorts, so that a spoiled one clears as many of them as it can; where not
    everybody has a place, they are left out first.
    """
    key = COHORTS_LABEL + context
    order = sorted(names, key=lambda name: hmac.digest(secret, key + name, "sha256"))
    others = [name for name in order if name not in suspects]
    spread = [name for name in order if name in suspects][: max(sum(sizes) - len(others), 0)]
    cohorts = [spread[place :: len(sizes)] for place in range(len(sizes))]
    rest = iter(others)
    return [own + list(itertools.islice(rest, size - len(own))) for own, size in zip(cohorts, sizes, strict=True)]


class Attempt:
    """One attempt. `cohorts` are those that go on, `given_up` those in which too few stayed."""

    def __init__(
        self,
        terms: MaskedTerms,
        announcement: Announcement,
        members: Collection[bytes],
        secret: bytes,
        suspects: Collection[bytes] = (),
    ) -> None:
        self.terms, self.announcement, self._secret, self._suspects = terms, announcement, secret, suspects
        self.cohorts = [ServerRound(terms, announcement, members)]
        self.given_up: list[ServerRound] = []

    @property
    def phase(self) -> Phase:
        """The phase that all cohorts are in."""
        return self.cohorts[0].phase

    @property
    def is_single(self) -> bool:
        """Whether all devices are, or were, in one cohort."""
        return len(self.cohorts) + len(self.given_up) == 1

    @property
    def asked(self) -> frozenset[bytes]:
        """Names of those who are asked in the current phase."""
        return frozenset().union(*(cohort.asked for cohort in self.cohorts))

    @property
    def survivors(self) -> frozenset[bytes]:
        """Names of those whose tables are in the sums."""
        return frozenset().union(*(cohort.survivors for cohort in self.cohorts))

    @property
    def sum(self) -> Table:
        """The sum over all cohorts, modulo 2³²."""
        found = np.zeros(self.terms.table_size(self.announcement.round_number), dtype=np.uint32)
        for cohort in self.cohorts:
            found += 0 if cohort.sum is None else cohort.sum
        return found

    def questions(self) -> Iterator[tuple[bytes, Any]]:
        """Return what each device that is asked is sent in the current phase."""
        return ((name, cohort.question(name)) for cohort in self.cohorts for name in cohort.asked)

    def check(self, device: bytes, message: Any) -> None:
        """Refuse a report that its cohort would refuse; change nothing."""
        self._cohort_of(device).check(device, message)

    def number_of(self, device: bytes) -> int:
        """Return the place of this device's cohort among those that go on."""
        return self.cohorts.index(self._cohort_of(device))

    def receive_sum(self, devices: Sequence[bytes], total: Table) -> None:
        """Take the sum of the tables of these devices, which are of one cohort."""
        self._cohort_of(devices[0]).receive_sum(devices, total)

    def close(self, reports: Iterable[tuple[bytes, Any]]) -> None:
        """End the current phase with these reports; `AttemptFailed` if too few of every cohort have reported."""
        for device, message in reports:
            self._cohort_of(device).receive(device, message)
        if self.phase is Phase.KEYS:
            self.cohorts = self._split(self.cohorts[0])
        alive, reasons = [], []
        for cohort in self.cohorts:
            try:
                cohort.close()
                alive.append(cohort)
            except AttemptFailed as failure:
                reasons.append(str(failure))
                self.given_up.append(cohort)
        if not alive:
            raise AttemptFailed(reasons[0])
        self.cohorts = alive

    def _split(self, everybody: ServerRound) -> list[ServerRound]:
        rules, present = self.terms.rules, everybody.reported
        sizes = cohort_sizes(len(present), rules.smallest, self.terms.priced.cohort.devices)
        if len(sizes) == 1 and sizes[0] == len(present):
            return [everybody]
        drawn = draw_cohorts(present, sizes, self._secret, self.announcement.digest, self._suspects)
        return [everybody.part(members) for members in drawn]

    def _cohort_of(self, device: bytes) -> ServerRound:
        for cohort in self.cohorts:
            if cohort.is_asked(device):
                return cohort
        raise RemoteProtocolError("a device must be asked, and reports once in each phase.", status_hint=409)
