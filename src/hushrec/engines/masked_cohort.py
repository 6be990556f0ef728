"""Masked rounds among devices of one process, message by message: what the reference engine sums with.

Every device runs its own `DeviceRound`, the server a `ServerRound` for each attempt; a device that refuses a message,
or is absent in a phase, has dropped out of the attempt. The sum is that of the survivors' uploads, integer by integer.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.errors import AttemptFailed, RemoteProtocolError
from hushrec.protocols.masked.device_round import DeviceRound
from hushrec.protocols.masked.encoding import Table, is_plausible, split_table
from hushrec.protocols.masked.messages import announce
from hushrec.protocols.masked.server_round import EXPECTED, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import RandomStream

MOST_ATTEMPTS = 5
Absent = Callable[[int, str], Collection[bytes]]  # (attempt, phase) → devices that do not report


class RoundSum(NamedTuple):
    """What the server knows after a round."""

    total: Table
    survivors: frozenset[bytes]
    attempts: int


class MaskedCohort:
    """All devices of a run and their server."""

    def __init__(
        self,
        terms: MaskedTerms,
        run_id: str,
        server: Ed25519PrivateKey,
        devices: Mapping[bytes, DeviceRound],
        identities: Mapping[bytes, bytes],
    ) -> None:
        self._terms, self._run_id, self._server = terms, run_id, server
        self._devices, self._identities = dict(devices), dict(identities)

    def run_round(
        self, round_number: int, table_digest: bytes, *, rng: RandomStream, absent: Absent = lambda attempt, phase: ()
    ) -> RoundSum:
        """Return the sum of a round; attempts that fail are repeated with new secrets, five in all.

        A sum that honest devices cannot have made fails its attempt as well.
        """
        for attempt in range(1, MOST_ATTEMPTS + 1):
            announcement = announce(self._server, self._run_id, round_number, attempt, self._terms.digest, table_digest)
            server = ServerRound(self._terms, announcement, self._identities)
            try:
                total = self._run_attempt(server, table_digest, rng, functools.partial(absent, attempt))
            except AttemptFailed:
                continue
            return RoundSum(total, server.survivors, attempt)
        raise AttemptFailed(f"round {round_number} must be summed within {MOST_ATTEMPTS} attempts.")

    def _run_attempt(
        self, server: ServerRound, table_digest: bytes, rng: RandomStream, absent: Callable[[str], Collection[bytes]]
    ) -> Table:
        while server.phase in EXPECTED:
            for device in sorted(server.asked.difference(absent(server.phase.value))):
                self._ask(server, device, table_digest, rng)
            server.close()
        assert server.sum is not None  # SUMMED
        codes = self._terms.priced.codes[server.announcement.round_number - 1]
        blocks = zip(codes, split_table(codes, server.sum), strict=True)
        if not all(is_plausible(code, block, len(server.survivors)) for code, block in blocks):
            raise AttemptFailed("a sum must not be longer than honest tables can make it.")
        return server.sum

    def _ask(self, server: ServerRound, device: bytes, table_digest: bytes, rng: RandomStream) -> None:
        """Ask one device; whoever refuses, or is refused, drops out."""
        try:
            report = self._devices[device].report(server.question(device), table_digest=table_digest, rng=rng)
            server.receive(device, report)
        except RemoteProtocolError:
            return
