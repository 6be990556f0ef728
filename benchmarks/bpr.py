"""One private round of `bpr` against one epoch of implicit's BPR, which is not private, in alternation.

    python benchmarks/bpr.py [--peer PYTHON] [--turns 7] [--data ml-1m]

`--peer` is a Python that has `implicit` (the extra `bench`), if not this one. Both learn 10 factors from every rating
as an action, with two threads. An epoch is the difference between fits of three epochs and of one, halved, so that the
peer's preparations do not count; a round is the mean of two. Prints medians and the machine, and keeps both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import write_record

CLOCKS = ("wall", "processor")
THREADS = 2
FACTORS = 10


def worker(file: str) -> None:
    """The peer's side: answers every line on stdin with the wall and processor seconds of one epoch."""
    import numpy as np
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    with np.load(file) as arrays:
        users, items = arrays["users"], arrays["items"]
    matrix = csr_matrix((np.ones(len(users), np.float32), (users, items)))

    def fit(epochs: int) -> tuple[float, float]:
        model = BayesianPersonalizedRanking(factors=FACTORS, iterations=epochs, num_threads=THREADS, random_state=0)
        wall, processor = time.perf_counter(), time.process_time()
        model.fit(matrix, show_progress=False)
        return time.perf_counter() - wall, time.process_time() - processor

    fit(1)
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        one, three = fit(1), fit(3)
        print(json.dumps([(long - short) / 2 for long, short in zip(three, one, strict=True)]), flush=True)


def main() -> None:
    """Alternates two rounds of ours with fits of the peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return

    import numba
    import numpy as np

    from hushrec.data import load
    from hushrec.settings import Settings
    from hushrec.training import Run

    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    run = Run(load(options.data), Settings(model="bpr", protocol="sdcf", engine="cpu", rounds=2 * options.turns + 2))
    users, items, _ = run.task.training()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "actions.npz"
        np.savez(file, users=users, items=items)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(THREADS)}
        environment.pop("PYTHONPATH", None)
        command = [options.peer, __file__, "--worker", str(file)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdout.readline()
            for _ in range(2):  # compiles
                run.engine.run_round()
            ours, theirs = [], []
            for _ in range(options.turns):
                wall, processor = time.perf_counter(), time.process_time()
                run.engine.run_round()
                run.engine.run_round()
                ours.append(((time.perf_counter() - wall) / 2, (time.process_time() - processor) / 2))
                peer.stdin.write("go\n")
                peer.stdin.flush()
                theirs.append(json.loads(peer.stdout.readline()))
            peer.stdin.close()
    found = {
        name: {clock: statistics.median(turn[place] for turn in turns) for place, clock in enumerate(CLOCKS)}
        for name, turns in (("sdcf", ours), ("implicit", theirs))
    }
    write_record(
        f"bpr-{options.data}",
        {
            "actions": len(users),
            "factors": FACTORS,
            "threads": THREADS,
            "turns": options.turns,
            "median seconds": found,
            "ratio": {clock: found["implicit"][clock] / found["sdcf"][clock] for clock in CLOCKS},
        },
    )


if __name__ == "__main__":
    main()
