"""A background thread that takes part in rounds while a person uses the device page."""

import contextlib
import threading
import traceback

from hushrec.device.device import Device
from hushrec.device.session import RUN_OVER, STEPPED
from hushrec.device.transport import LONGEST_ASKED, Stopped
from hushrec.errors import BudgetExceeded, ConnectionFailed, HushrecError

POLL_SECONDS = 2.0
RETRY_SECONDS = 1.0

# The code of a participation is one of these constants, or the code of the error that ended the participation.
OFF, LOOKING, WAITING, REPORTING, AWAY, BUSY = "off", "looking", "waiting", "reporting", "away", "busy"
FAILED = "failed"  # an exception that is not a `HushrecError` ended the participation

# The codes of failed requests that are repeated. "not-http" is a reply that ends early, as when the server is killed.
# The other codes are of refused certificates, with which a retry does not help.
RETRIED = ("unreachable", "silent", "busy", "not-http")


class Participation:
    """A background thread that reports in every round until it is stopped, the run is over, or an error ends it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.code = OFF
        self.words = ""  # the message of the error that ended the participation
        self.needed: float | None = None  # if the limit for all runs together was too low: the limit that is needed
        self.reported = 0  # number of reports since this page was opened

    @property
    def is_on(self) -> bool:
        """Whether the thread is running and has not been stopped."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        with self._lock:
            if self.is_on:
                return
            self._stop = threading.Event()
            self.code, self.words, self.needed = LOOKING, "", None
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="hushrec-rounds", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop taking part at once, and drop out of the open attempt, without waiting for a request in progress."""
        with self._lock:
            self._stop.set()
            self.code, self.words = OFF, ""
        self._device.drop_out()

    def _note(self, stop: threading.Event, code: str, words: str = "") -> None:
        with self._lock:
            if not stop.is_set():
                self.code, self.words = code, words

    def _run(self, stop: threading.Event) -> None:
        try:
            self._take_part(stop)
        except Exception as error:  # a bug; its message is not shown, because it may contain a rating
            traceback.print_exc()
            self._note(
                stop,
                FAILED,
                f"an error in hushrec ({type(error).__name__}) ended the participation; the terminal of `hushrec device"
                " ui` shows it.",
            )
        if not stop.is_set():
            with contextlib.suppress(HushrecError):  # the error that ended the participation, such as a damaged store
                self._device.drop_out()

    def _take_part(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                outcome = self._device.step(POLL_SECONDS, patience=0, stopped=stop.is_set)
            except Stopped:  # by `stop`, or by another thread that closed the device or gave it a new address
                continue
            except ConnectionFailed as error:
                if error.code not in RETRIED:
                    self._note(stop, error.code, str(error))
                    return
                self._note(stop, BUSY if error.code == "busy" else AWAY)
                stop.wait(max(RETRY_SECONDS, min(error.retry_after or 0, LONGEST_ASKED)))
                continue
            except HushrecError as error:
                self.needed = error.needed if isinstance(error, BudgetExceeded) else None
                self._note(stop, error.code, str(error))
                return
            self.reported += outcome == STEPPED
            if outcome == RUN_OVER:
                self._note(stop, OFF)
                return
            self._note(stop, REPORTING if outcome == STEPPED else WAITING)
