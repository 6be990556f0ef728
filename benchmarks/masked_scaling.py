"""Seconds and memory of a whole `masked` training against the number of ratings, up to the size of the Netflix Prize.

    python benchmarks/masked_scaling.py [--people 480000] [--epsilon 1]

The largest run has 480,000 people, 17,770 items and 10⁸ ratings; the others have a third and two thirds of the people,
enough for the same plan. Profiles are made in place: everybody rated a part of the catalogue that begins with its most
popular items, 208 items on average, and each item has a year. Each size runs in a process of its own, for its peak
memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from measure import write_record

N_ITEMS, MEAN_RATED, LARGEST = 17_770, 208.4, 10**8


def make_ratings(n_people: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts, items (rising within a person) and values of everybody."""
    rng = np.random.default_rng(0)
    reach = np.array([0.1, 0.2, 0.5, 1.0])[rng.integers(0, 4, n_people)] * N_ITEMS  # of the catalogue
    counts = np.clip(rng.geometric(1 / MEAN_RATED, n_people), 1, 1700)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    quality = rng.normal(0, 0.5, N_ITEMS)
    items, values = np.empty(starts[-1], np.int64), np.empty(starts[-1])
    for first in range(0, n_people, 10_000):
        people = np.arange(first, min(first + 10_000, n_people))
        rows = slice(starts[people[0]], starts[people[-1] + 1])
        who = np.repeat(people, counts[people])
        lot = np.arange(rows.start, rows.stop) - starts[who] + rng.random(len(who))
        items[rows] = (lot * (reach / counts)[who]).astype(np.int64)
        values[rows] = np.clip(np.rint(3.6 + quality[items[rows]] + rng.normal(0, 1, len(who))), 1, 5)
    return starts, items, values


def make_problem(ratings: tuple[np.ndarray, np.ndarray, np.ndarray], epsilon: float) -> Any:
    """The problem of training model `gp` on the arrays of `make_ratings`."""
    import polars as pl

    from hushrec.models.gaussian_process import GaussianProcess
    from hushrec.models.item_columns import item_columns
    from hushrec.protocols.masked.protocol import Masked
    from hushrec.simulation.training_problem import TrainingProblem, settle_terms

    years = pl.DataFrame({"year": np.linspace(1950, 2005, N_ITEMS)})
    model, protocols = GaussianProcess(item_columns(N_ITEMS, None, years)), [Masked(epsilon=epsilon)]
    starts, items, values = ratings
    terms = settle_terms(np.diff(starts), N_ITEMS, model, protocols)
    return TrainingProblem(len(starts) - 1, N_ITEMS, starts, items, values, model, protocols, terms, 0)


def train(n_people: int, epsilon: float) -> dict[str, float]:
    """Train once on small data, so that everything is compiled, then on this much."""
    from hushrec.engines.cpu.masked import CpuMaskedEngine

    for count in (max(n_people // 50, 2000), n_people):
        ratings = make_ratings(count)
        started = time.perf_counter()
        problem = make_problem(ratings, epsilon)
        engine = CpuMaskedEngine(problem)
        for _ in range(problem.terms.max_rounds):
            engine.run_round()
        seconds = time.perf_counter() - started
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "people": n_people,
        "ratings": len(problem.items),
        "rounds": problem.terms.max_rounds,
        "seconds": seconds,
        "gigabytes": gigabytes,
    }


def main() -> None:
    """Sizes one after the other, the smallest first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=480_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--one", action="store_true", help="this size alone, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(options.people, options.epsilon)))
        return
    sizes = []
    for count in (options.people // 3, 2 * options.people // 3, options.people):
        command = [sys.executable, __file__, "--one", "--people", str(count), "--epsilon", str(options.epsilon)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes.append(json.loads(ended.stdout.splitlines()[-1]))
        print(sizes[-1], flush=True)
    logs = np.log([[one["ratings"], one["seconds"]] for one in sizes])
    slope = np.polyfit(logs[:, 0], logs[:, 1], 1)[0]  # 1 is linear
    write_record(
        "masked-scaling", {"epsilon": options.epsilon, "items": N_ITEMS, "sizes": sizes, "slope": float(slope)}
    )


if __name__ == "__main__":
    main()
