"""Takes part in rounds in the background, while a person uses the page. The store is never held during a wait."""

import threading
from typing import Any

from hushrec.device.calls import Job
from hushrec.device.device import Device
from hushrec.device.session import NO_ROUND, RUN_OVER, STEPPED, Session
from hushrec.device.transport import LONGEST_ASKED, BlockingDriver
from hushrec.errors import ConnectionFailed, HushrecError

POLL_SECONDS = 2.0
RETRY_SECONDS = 1.0


class _Stopped(Exception):
    """The person said stop while the network was asked."""


class _Busy(Exception):
    """The server may answer later: it has too much to do, or has seen a later nonce of this device."""

    def __init__(self, asked: int | None) -> None:
        super().__init__()
        self.seconds = max(RETRY_SECONDS, min(asked or 0, LONGEST_ASKED))


class _SharingDriver(BlockingDriver):
    """Holds the lock while the session works on the store, and lets go of it while the network is asked."""

    def __init__(self, lock: threading.RLock, stop: threading.Event, session: Session, http: Any) -> None:
        super().__init__(session, http, patience=0)
        self._lock = lock
        self._stop = stop

    def run(self, job: Job) -> Any:
        reply = None
        while True:
            with self._lock:
                if self._stop.is_set():
                    job.close()  # as after a crash: what the store holds counts
                    raise _Stopped
                try:
                    call = next(job) if reply is None else job.send(reply)
                except StopIteration as end:
                    return end.value
            reply = self._make(call)
            if reply.is_passing:
                raise _Busy(reply.retry_after)  # the job is dropped, as after a crash: an answer that was made is kept


class Participation:
    """Answers round after round in a thread of its own, until it is told to stop, or has to."""

    def __init__(self, device: Device, lock: threading.RLock) -> None:
        self._device = device
        self._lock = lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.words = ""
        self.trouble = False
        self.answered = 0  # rounds, since this page was opened

    @property
    def is_on(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Begins, or goes on."""
        if not self.is_on:
            self._stop = threading.Event()
            self._say("Looking for a round.")
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="hushrec-rounds", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends at once; a request that is under way is not waited for, and its reply not looked at."""
        with self._lock:
            self._stop.set()
            self._say("")

    def _say(self, words: str, *, trouble: bool = False) -> None:
        self.words, self.trouble = words, trouble

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                outcome = self._step(stop)
            except _Stopped:
                return
            except ConnectionFailed:
                self._say_unless(stop, "The server does not answer. Trying again; nothing is lost.", trouble=True)
                stop.wait(RETRY_SECONDS)
                continue
            except _Busy as busy:
                self._say_unless(stop, "The server cannot answer now. Trying again; nothing is lost.", trouble=True)
                stop.wait(busy.seconds)
                continue
            except HushrecError as error:
                self._say_unless(stop, f"Stopped: {error}", trouble=True)
                return
            self.answered += outcome == STEPPED
            if outcome == RUN_OVER:
                self._say_unless(stop, "")
                return
            self._say_unless(stop, "Waiting for the next round." if outcome == NO_ROUND else "Answering rounds.")

    def _say_unless(self, stop: threading.Event, words: str, *, trouble: bool = False) -> None:
        with self._lock:
            if not stop.is_set():
                self._say(words, trouble=trouble)

    def _step(self, stop: threading.Event) -> str:
        with self._lock:
            if stop.is_set():
                raise _Stopped
            driver = self._device._driver()
        sharing = _SharingDriver(self._lock, stop, driver.session, driver._http)
        return str(sharing.run(self._device._session.step(POLL_SECONDS)))
