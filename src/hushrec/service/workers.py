"""Worker processes that serve one address: a supervisor starts, restarts and ends them."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from hushrec.errors import HushrecError
from hushrec.open_files import allow_open_files
from hushrec.service import serving
from hushrec.service.monitor import JsonLines, log_event
from hushrec.service.rounds import Rounds
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage

WATCH_SECONDS = 0.5
SHORT_LIFE_SECONDS = 5.0  # a worker that ends sooner is restarted after a pause
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Work:
    """The arguments of a worker process: settings, database URL, listening socket and TLS files."""

    settings: Settings
    database: str = field(repr=False)  # may hold a password
    listening: socket.socket
    tls: tuple[Path, Path] | None  # files of the certificate and of its private key; None: plain HTTP

    def run(self, rounds: Rounds) -> None:
        serving.make_server(rounds, self.tls).run(sockets=[self.listening])


def log_as_json() -> None:
    """Configure logging to write one JSON object per line to the standard error stream."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def run_worker(work: Work) -> None:
    """Run one worker process until it receives a signal, its parent process ends, or a next run replaces its run.

    Exit with status 1 after a `HushrecError`, such as an unavailable database.
    """
    log_as_json()
    allow_open_files()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with closing(Storage(work.database)) as storage:
            work.run(Rounds(storage, work.settings))
    except HushrecError as error:
        log_event("worker-error", reason=str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(count: int, work: Work) -> None:
    """Keep `count` worker processes running until SIGINT or SIGTERM; then terminate them and wait for their end.

    A worker that ends earlier is started again, and its exit status is logged.
    """
    context = multiprocessing.get_context("spawn")  # a forked process would inherit locks held by threads
    is_stopping = threading.Event()

    def start() -> tuple[SpawnProcess, float]:
        process = context.Process(target=run_worker, args=(work,))
        process.start()
        return process, time.monotonic()

    work.listening.listen(serving.BACKLOG)  # connections wait, rather than fail, until a worker has started
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopping.set())
    workers = [start() for _ in range(count)]
    while not is_stopping.is_set():
        wait([process.sentinel for process, _ in workers], timeout=WATCH_SECONDS)
        for place, (process, since) in enumerate(workers):
            if process.is_alive() or is_stopping.is_set():
                continue
            log_event("worker-died", status=process.exitcode)
            if time.monotonic() - since < SHORT_LIFE_SECONDS:
                is_stopping.wait(PAUSE_SECONDS)
            workers[place] = start()
    for process, _ in workers:
        process.terminate()
    for process, _ in workers:
        process.join()
