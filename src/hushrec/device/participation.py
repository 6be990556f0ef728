"""A background thread that takes part in rounds while a person uses the device page."""

import contextlib
import threading

from hushrec.device.device import Device
from hushrec.device.session import RUN_OVER, STEPPED
from hushrec.device.transport import LONGEST_ASKED, Stopped
from hushrec.errors import ConnectionFailed, HushrecError

POLL_SECONDS = 2.0
RETRY_SECONDS = 1.0

# The state of the participation: one of these, or the code of the error that ended it.
OFF, LOOKING, WAITING, REPORTING, AWAY, BUSY = "off", "looking", "waiting", "reporting", "away", "busy"


class Participation:
    """A background thread that reports in every round until it is stopped, the run is over, or an error ends it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.code = OFF
        self.words = ""  # the message of the error that ended the participation
        self.reported = 0  # number of reports since this page was opened

    @property
    def is_on(self) -> bool:
        """Whether the thread is running and has not been stopped."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        if not self.is_on:
            self._stop = threading.Event()
            self.code, self.words = LOOKING, ""
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="hushrec-rounds", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop taking part at once, and drop out of the open round.

        A request in progress is not waited for, and its reply is ignored.
        """
        with self._lock:
            self._stop.set()
            self.code, self.words = OFF, ""
        self._device.drop_out()

    def _note(self, stop: threading.Event, code: str, words: str = "") -> None:
        with self._lock:
            if not stop.is_set():
                self.code, self.words = code, words

    def _run(self, stop: threading.Event) -> None:
        with contextlib.suppress(Stopped):
            self._take_part(stop)
        if not stop.is_set():
            with contextlib.suppress(HushrecError):  # the error that ended the participation, such as a damaged store
                self._device.drop_out()

    def _take_part(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                outcome = self._device.step(POLL_SECONDS, patience=0, stopped=stop.is_set)
            except ConnectionFailed as error:
                if error.code not in ("unreachable", "silent", "busy"):  # retries do not help with a bad certificate
                    self._note(stop, error.code, str(error))
                    return
                self._note(stop, BUSY if error.code == "busy" else AWAY)
                stop.wait(max(RETRY_SECONDS, min(error.retry_after or 0, LONGEST_ASKED)))
                continue
            except HushrecError as error:
                self._note(stop, error.code, str(error))
                return
            self.reported += outcome == STEPPED
            if outcome == RUN_OVER:
                self._note(stop, OFF)
                return
            self._note(stop, REPORTING if outcome == STEPPED else WAITING)
