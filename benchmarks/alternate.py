"""A peer in a process, and if need be in a Python, of its own, asked for its times in alternation with ours.

Needs NumPy alone, so that a Python that has the peer and nothing of ours can run the worker's side.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

READY = "ready"


def read_options(turns: int) -> argparse.Namespace:
    """What both sides are started with: the worker is given the file of its training data."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default=sys.executable, help="a Python that has the peer")
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--worker")
    return parser.parse_args()


@contextmanager
def asking(
    python: str, script: str, arrays: dict[str, np.ndarray], **environment: str
) -> Iterator[Callable[[str], Any]]:
    """The worker of a script, at work on these arrays: a function that sends it a line and returns its answer."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "training.npz"
        np.savez(file, **arrays)
        command = [python, script, "--worker", str(file)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings
        ) as worker:
            to_worker, from_worker = worker.stdin, worker.stdout
            assert to_worker is not None
            assert from_worker is not None

            def ask(line: str) -> Any:
                to_worker.write(line + "\n")
                to_worker.flush()
                return json.loads(from_worker.readline())

            if READY not in from_worker.readline():
                raise SystemExit(1)  # the worker has said why
            yield ask
            to_worker.close()


def answer_lines(answer: Callable[[str], Any]) -> None:
    """The worker's side: answers every line."""
    print(json.dumps(READY), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)


def need(module: str, package: str) -> None:
    """Ends the worker with one sentence where its peer is not installed."""
    try:
        __import__(module)
    except ImportError as error:
        raise SystemExit(
            f"{sys.executable} must have {package} ({error}). Install the extra `bench`, or name a Python that has"
            " it with --peer."
        ) from None
