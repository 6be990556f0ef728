"""The exceptions of hushrec, all subclasses of `HushrecError`.

The command line prints such an error as one sentence and exits with code 1; any other exception is a bug and shows its
traceback. No text of an error contains a rating, an item choice, a permanent bit or a secret: it contains names, ranges
and counts.
"""

# The codes of refusals, with their HTTP statuses; docs/wire.md explains each.
CODES: dict[str, int] = {
    "malformed": 422,
    "unknown-type": 422,
    "wrong-type": 422,
    "wrong-version": 426,
    "too-large": 413,
    "too-slow": 408,
    "not-signed": 401,
    "bad-signature": 401,
    "stale-nonce": 401,
    "not-enrolled": 401,
    "not-active": 403,
    "not-invited": 403,
    "wrong-run": 409,
    "phase-closed": 409,
    "not-asked": 409,
    "reported": 409,
    "run-over": 410,
    "next-run": 409,
    "server-behind": 409,
    "too-many-requests": 429,
    "not-admin": 401,
    "unknown-device": 404,
    "bad-items": 422,
    "round-open": 409,
    "no-round": 409,
    "run-on": 409,
    "http": 400,
    "internal": 500,
    "busy": 503,
    "storage": 503,
}


class HushrecError(Exception):
    """The base class of all exceptions that hushrec raises on purpose. `code` tells programs the reason."""

    code: str = "error"


class ParameterError(HushrecError, ValueError):
    """A parameter is invalid or out of range."""

    code = "parameter"


def require(holds: bool, name: str, must: str, given: object, advice: str = "") -> None:
    """Raise `ParameterError` with the text "{name} must be {must}, got {given}. {advice}" unless `holds` is true."""
    if not holds:
        raise ParameterError(f"{name} must be {must}, got {given}.{' ' if advice else ''}{advice}")


class ImpossibleBudget(ParameterError):
    """No selection probabilities of `sdcf` exist for this budget.

    `smallest_epsilon_p` is the smallest ε_P, the budget for the selections of all rounds, for which some exist.
    """

    def __init__(self, message: str, *, smallest_epsilon_p: float) -> None:
        super().__init__(message)
        self.smallest_epsilon_p = smallest_epsilon_p


class Diverged(HushrecError):
    """Training diverged: vectors or gradients left the range that every party accepts."""


class BudgetExceeded(HushrecError):
    """A report or a run would cost more than the person's `limit`.

    `needed` is the smallest limit that would be enough, or None if it is secret or not known. Both are in the same
    measure, ε, ρ or μ², which the text of the error names.
    """

    code = "budget"

    def __init__(self, message: str, *, limit: float = 0.0, needed: float | None = None) -> None:
        super().__init__(message)
        self.limit, self.needed = limit, needed


class UnknownEvent(HushrecError):
    """A privacy accountant cannot compute the cost of this kind of event, the record of a release."""


class LedgerError(HushrecError):
    """A device's ledger is lost, damaged, or belongs to another device."""

    code = "store"


class DataError(HushrecError):
    """A rating file, data set or items file is invalid."""


class NoUsualScale(DataError):
    """Ratings lie on none of the usual scales, and no scale was given.

    `low` and `high` are the smallest and the largest rating. The text of the error does not contain them.
    """

    def __init__(self, message: str, *, low: float, high: float) -> None:
        super().__init__(message)
        self.low, self.high = low, high


class RunError(HushrecError):
    """A run folder or checkpoint is missing, damaged, or of another version."""


class StorageError(HushrecError):
    """A database or a device's store is full, locked, damaged or of another version."""

    code = "store"


class CopiedStore(HushrecError):
    """The device's key was used by another copy of its store, or the store was restored from a backup."""

    code = "copied-store"


class ConsentNeeded(HushrecError):
    """The server offers further rounds or a next run, to which the person has not agreed yet."""

    code = "next"


class ConnectionFailed(HushrecError):
    """The server cannot be reached or trusted, or is busy; `retry_after` is the number of seconds to wait, if known."""

    def __init__(self, message: str, *, code: str = "unreachable", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after


class ProtocolError(HushrecError):
    """The protocol does not allow a message, or a call of a method, at this point."""


class AttemptFailed(ProtocolError):
    """An attempt of a masked round ended without a sum. The round then continues with another attempt.

    The server learns no table from a failed attempt. `culprits` are the positions in the roster of devices that sent
    false shares.
    """

    def __init__(self, message: str, culprits: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.culprits = culprits


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: code of hushrec or its caller called a method at the wrong time."""

    code = "not-now"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; `code` tells programs the reason, `status_hint` is a suitable HTTP status."""

    def __init__(self, message: str, *, code: str = "malformed", status_hint: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status_hint = CODES[code] if status_hint is None else status_hint
