"""Takes part in rounds in the background, while a person uses the page."""

import threading

from hushrec.device.device import Device
from hushrec.device.session import NO_ROUND, RUN_OVER, STEPPED
from hushrec.device.transport import LONGEST_ASKED, Stopped
from hushrec.errors import ConnectionFailed, HushrecError

POLL_SECONDS = 2.0
RETRY_SECONDS = 1.0

# Where taking part stands: one of these, or the code of the error that ended it.
OFF, LOOKING, WAITING, REPORTING, AWAY, BUSY = "off", "looking", "waiting", "reporting", "away", "busy"


class Participation:
    """Reports in round after round in a thread of its own, until it is told to stop, or has to."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.code = OFF
        self.words = ""  # of the error that ended it
        self.reported = 0  # rounds, since this page was opened

    @property
    def is_on(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Begin, or go on."""
        if not self.is_on:
            self._stop = threading.Event()
            self.code, self.words = LOOKING, ""
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="hushrec-rounds", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End at once; a request that is under way is not waited for, and its reply not looked at."""
        with self._lock:
            self._stop.set()
            self.code, self.words = OFF, ""

    def _note(self, stop: threading.Event, code: str, words: str = "") -> None:
        with self._lock:
            if not stop.is_set():
                self.code, self.words = code, words

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                outcome = self._device.step(POLL_SECONDS, patience=0, stopped=stop.is_set)
            except Stopped:
                return
            except ConnectionFailed as error:
                if error.code not in ("unreachable", "silent", "busy"):  # a certificate does not mend itself
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
            self._note(stop, WAITING if outcome == NO_ROUND else REPORTING)
