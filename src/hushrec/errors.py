"""Every exception that hushrec raises on purpose.

::

    HushrecError
    ├── ParameterError              a setting is outside the range its formula allows
    │   └── ImpossibleBudget        no f, p, q exist for this budget; carries the smallest one that works
    ├── Diverged                    training went astray: its numbers are none that every party accepts
    ├── BudgetExceeded              the ledger refuses what would be sent
    ├── UnknownEvent                an accountant was handed an event it cannot price
    ├── LedgerError                 a ledger is lost, damaged, or not this device's
    ├── DataError                   a rating file, data set or item table is not what it should be
    ├── RunError                    a run folder or checkpoint is missing, damaged or of another version
    ├── StorageError                a database or a device's store is full, locked, damaged or of another version
    ├── CopiedStore                 a device's key was used by another copy of its store
    ├── ConsentNeeded               a server offers further rounds or a next run; the person has to agree
    ├── ConnectionFailed            the server could not be reached, or not be trusted
    └── ProtocolError
        ├── AttemptFailed           a masked sum cannot be unmasked: too few answered; the next attempt may do
        ├── LocalProtocolError      *we* broke the protocol: a call out of turn
        └── RemoteProtocolError     the *peer* broke it; carries an HTTP status hint and a code

The command line turns these into one sentence and exit code 1; any other exception is a bug and
shows its traceback. No message carries a rating, an item choice, a permanent bit or a secret:
messages speak of names, ranges and counts.
"""

# What a refusal's code means to the other side, and the HTTP status that goes with it. docs/wire.md explains each.
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
    """Base of everything that hushrec raises on purpose. `code` names the reason for programs."""

    code: str = "error"


class ParameterError(HushrecError, ValueError):
    """A setting is outside the range that its formula allows."""

    code = "parameter"


class ImpossibleBudget(ParameterError):
    """No selection probabilities exist for this budget."""

    def __init__(self, message: str, *, smallest_epsilon_p: float) -> None:
        super().__init__(message)
        self.smallest_epsilon_p = smallest_epsilon_p


class Diverged(HushrecError):
    """Training went astray: vectors or gradients grew, or shrank, beyond what every party accepts."""


class BudgetExceeded(HushrecError):
    """What would be sent costs more than the person allowed; `needed` is the limit that would allow it, if any."""

    code = "budget"

    def __init__(self, message: str, *, needed: float | None = None) -> None:
        super().__init__(message)
        self.needed = needed


class UnknownEvent(HushrecError):
    """An accountant cannot price this kind of event."""


class LedgerError(HushrecError):
    """The ledger is lost, damaged, or belongs to another device."""

    code = "store"


class DataError(HushrecError):
    """A rating file, data set or item table is not what it should be."""


class RunError(HushrecError):
    """A run folder or checkpoint is missing, damaged, or of another version."""


class StorageError(HushrecError):
    """A database or a device's store is full, locked, damaged or of another version."""

    code = "store"


class CopiedStore(HushrecError):
    """The device's key was used by another copy of its store, or the store is an old one."""

    code = "copied-store"


class ConsentNeeded(HushrecError):
    """The server offers further rounds or a next run, which the person has not agreed to."""

    code = "next"


class ConnectionFailed(HushrecError):
    """The server could not be reached, not be trusted, or is busy; then `retry_after` may say for how many seconds."""

    def __init__(self, message: str, *, code: str = "unreachable", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class ProtocolError(HushrecError):
    """A message or call that the protocol does not allow here."""


class AttemptFailed(ProtocolError):
    """An attempt of a masked round ends without a sum, and reveals nothing; the next attempt starts anew.

    `culprits` are the positions of devices whose own shares are to blame.
    """

    def __init__(self, message: str, culprits: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.culprits = culprits


class LocalProtocolError(ProtocolError):
    """We broke the protocol: a call out of turn."""

    code = "not-now"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; `code` names the reason for programs, `status_hint` is the HTTP status that fits."""

    def __init__(self, message: str, *, code: str = "malformed", status_hint: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status_hint = CODES[code] if status_hint is None else status_hint
