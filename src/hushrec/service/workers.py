"""Worker processes that serve one address: started, watched, started again when they die, and ended together."""

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
SHORT_LIFE_SECONDS = 5.0  # a worker that lived no longer is started again after a pause
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Work:
    """What every worker needs to serve."""

    settings: Settings
    database: str = field(repr=False)  # may hold a password
    listening: socket.socket
    tls: tuple[Path, Path] | None

    def run(self, storage: Storage, rounds: Rounds, monitor: Monitor) -> None:
        """Serve until SIGINT or SIGTERM."""
        made = make_app(storage, rounds, monitor, self.settings.limits)
        server = serving.make_server(made, self.tls, head_seconds=self.settings.limits.body_seconds)
        server.run(sockets=[self.listening])


def log_as_json() -> None:
    """Write every line of the log as JSON to the standard error stream."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def run_worker(work: Work) -> None:
    """The life of one worker process: it ends by a signal, or with its parent."""
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
    """Keep so many workers running until SIGINT or SIGTERM; then end them, and return when all have ended."""
    context = multiprocessing.get_context("spawn")  # a copy of this process would have its threads' locks
    is_stopping = threading.Event()

    def start() -> tuple[SpawnProcess, float]:
        process = context.Process(target=run_worker, args=(work,))
        process.start()
        return process, time.monotonic()

    work.listening.listen(serving.BACKLOG)  # nobody is refused until the workers have started, or another has
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
