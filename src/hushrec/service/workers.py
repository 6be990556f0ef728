"""Worker processes that serve one address: a supervisor starts, restarts and ends them."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from hushrec.errors import HushrecError
from hushrec.open_files import allow_open_files
from hushrec.service import serving
from hushrec.service.app import make_app
from hushrec.service.monitor import JsonLines, Monitor
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
    tls: tuple[Path, Path] | None  # files of the certificate and of its private key; None is plain HTTP

    def run(self, storage: Storage, rounds: Rounds, monitor: Monitor) -> None:
        made = make_app(storage, rounds, monitor, self.settings.limits)
        server = serving.make_server(made, rounds, self.tls, head_seconds=self.settings.limits.body_seconds)
        server.run(sockets=[self.listening])


def log_as_json() -> None:
    """Configure logging to write one JSON object per line to the standard error stream."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def run_worker(work: Work) -> None:
    """Run one worker process until it receives a signal or its parent process ends."""
    log_as_json()
    allow_open_files()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    monitor = Monitor()
    try:
        with closing(Storage(work.database)) as storage:
            work.run(storage, Rounds(storage, work.settings, monitor), monitor)
    except HushrecError as error:
        monitor.log("worker-error", reason=str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(count: int, work: Work, log: Callable[..., None]) -> None:
    """Keep `count` workers running until SIGINT or SIGTERM; then terminate them and return when all have ended.

    A worker that ends before is logged with `log` and started again.
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
            log("worker-died", status=process.exitcode)
            if time.monotonic() - since < SHORT_LIFE_SECONDS:
                is_stopping.wait(PAUSE_SECONDS)
            workers[place] = start()
    for process, _ in workers:
        process.terminate()
    for process, _ in workers:
        process.join()
