"""One attempt of a masked round, in one cohort or in several cohorts that go through the phases in parallel.

The server asks all devices for keys at once. If more devices reply than one sum can hold, they are split into cohorts
at random. Each cohort has its own roster, masks, noise and sum, and each device is in at most one cohort. A cohort in
which too few devices remain is given up, and the others continue; the noise is sized for a single cohort, so the
guarantee of a sum does not depend on other cohorts. The split is computed from the server's secret, the announcement
and the suspects: no device can choose its cohort, and a restarted server makes the same split.
"""

import hmac
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hushrec.errors import AttemptFailed, RemoteProtocolError
from hushrec.protocols.masked.messages import Announcement
from hushrec.protocols.masked.secagg.primitives import COHORTS_LABEL, Table, derive
from hushrec.protocols.masked.server_round import Phase, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms


def cohort_sizes(devices: int, smallest: int, largest: int) -> list[int]:
    """Return the size of each cohort for this number of devices: at most `largest`, and as equal as possible.

    With several cohorts, the mean size is at least midway between `smallest` and `largest`. If there are too many
    devices for one cohort but too few for two, some devices are left out.
    """
    count = max(2 * devices // (smallest + largest), 1)
    used = min(devices, count * largest)
    return [used // count + (place < used % count) for place in range(count)]


def fewest_devices(cohorts: int, smallest: int, largest: int) -> int:
    """Return the smallest number of devices that `cohort_sizes` can split into this many cohorts.

    For one cohort this is `smallest`, the least number of devices in a cohort.
    """
    return smallest if cohorts == 1 else math.ceil(cohorts * (smallest + largest) / 2)


def draw_cohorts(
    names: Collection[bytes], sizes: Sequence[int], secret: bytes, context: bytes, levels: Mapping[bytes, float]
) -> list[list[bytes]]:
    """Return the names of the devices in each cohort, drawn at random with the given sizes.

    The random order is that of HMAC-SHA256(key, name) for the key HKDF-SHA256(secret, label ‖ context), where `context`
    is the hash of the announcement. `levels` has a number for each suspicious device: how many discarded sums its table
    was in, or infinity for a culprit, which broke the protocol. Devices with the same number are spread evenly over the
    cohorts. If there are more devices than the cohorts can hold, devices in `levels` are left out first, in descending
    order of their numbers.
    """
    key = derive(secret, COHORTS_LABEL, context)
    order = sorted(names, key=lambda name: hmac.digest(key, name, "sha256"))
    others = [name for name in order if name not in levels]
    rising = sorted((name for name in order if name in levels), key=lambda name: levels[name])
    spread = rising[: max(sum(sizes) - len(others), 0)]
    cohorts = [spread[place :: len(sizes)] for place in range(len(sizes))]
    rest = iter(others)
    return [own + list(itertools.islice(rest, size - len(own))) for own, size in zip(cohorts, sizes, strict=True)]


class Attempt:
    """One attempt of a round on the server.

    `cohorts` has the cohorts that continue, and `given_up` those in which too few devices remained. `n_unneeded` is the
    number of devices that sent keys, but are in no cohort, because a sum holds at most n_max tables.
    """

    def __init__(
        self,
        terms: MaskedTerms,
        announcement: Announcement,
        members: Collection[bytes],
        secret: bytes,
        levels: Mapping[bytes, float] | None = None,
    ) -> None:
        self.terms, self.announcement, self._secret, self._levels = terms, announcement, secret, levels or {}
        self.cohorts = [ServerRound(terms, announcement, members)]
        self.given_up: list[ServerRound] = []
        self.n_unneeded = 0

    @property
    def phase(self) -> Phase:
        """The current phase, which is the same in all cohorts that continue."""
        return self.cohorts[0].phase

    @property
    def is_single(self) -> bool:
        """Whether the attempt has only one cohort, counting those that were given up."""
        return len(self.cohorts) + len(self.given_up) == 1

    @property
    def survivors(self) -> frozenset[bytes]:
        """The names of the devices whose tables are in the sums of the cohorts."""
        return frozenset().union(*(cohort.survivors for cohort in self.cohorts))

    @property
    def sum(self) -> Table:
        """The sum of the tables of all cohorts that have a sum, modulo 2³²."""
        found = np.zeros(self.terms.table_size(self.announcement.round_number), dtype=np.uint32)
        for cohort in self.cohorts:
            found += 0 if cohort.sum is None else cohort.sum
        return found

    def questions(self) -> Iterator[tuple[bytes, Any]]:
        """Return an iterator over (name, message) for each device that is asked for a report in the current phase."""
        return ((name, cohort.question(name)) for cohort in self.cohorts for name in cohort.asked)

    def check(self, device: bytes, message: Any) -> None:
        """Raise `RemoteProtocolError` if the device's cohort would refuse this report. The report is not stored."""
        self._cohort_of(device).check(device, message)

    def number_of(self, device: bytes) -> int:
        return self.cohorts.index(self._cohort_of(device))

    def receive_sum(self, signatures: Mapping[bytes, bytes], total: Table) -> None:
        """Add the sum of some devices' tables to the sum of their cohort; all must be in the same cohort.

        `signatures` has the signature of each table by the name of its device.
        """
        self._cohort_of(next(iter(signatures))).receive_sum(signatures, total)

    def close(self, reports: Iterable[tuple[bytes, Any]]) -> None:
        """Close the current phase with these reports; raise `AttemptFailed` if every cohort fails.

        A report that is refused counts as missing. This can happen after an update of the server: the older version
        accepted and stored the report.
        """
        for device, message in reports:
            with suppress(RemoteProtocolError):
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
        self.n_unneeded = len(present) - sum(sizes)
        drawn = draw_cohorts(present, sizes, self._secret, self.announcement.digest, self._levels)
        return [everybody.part(members) for members in drawn]

    def _cohort_of(self, device: bytes) -> ServerRound:
        for cohort in self.cohorts:
            if device in cohort.asked:
                return cohort
        raise RemoteProtocolError("a device must report only if it is asked in this phase.", status_hint=409)
