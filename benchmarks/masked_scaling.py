"""Seconds and memory of a whole `masked` training against the number of ratings, up to the size of the Netflix Prize.

    python benchmarks/masked_scaling.py [--people 480000] [--epsilon 1]

The largest run has 480,000 people, 17,770 items and 10⁸ ratings; the others have 1/32, 1/10 and 1/3 of the people, the
same items and the same plan. Profiles are made in place: everybody rated a part of the catalogue that begins with its
most popular items, 208 items on average, and each item has a year. Each size runs in a process of its own, for its peak
memory; its times are those of the fastest of `TURNS` trainings, after one on small data that compiles everything.

Part of the work is proportional to the ratings, and part, the server's work on the items, does not depend on them. So
the record has two fits: the exponent p of seconds ∝ ratingsᵖ, and the line seconds = a + b · ratings, fitted by least
squares of relative errors.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any
from unittest.mock import patch

import numpy as np
from measure import write_record

N_ITEMS, MEAN_RATED = 17_770, 208.4
PARTS = (32, 10, 3, 1)  # the people of each size are those of the largest one divided by this number
TURNS = 3


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


def train_once(ratings: tuple[np.ndarray, np.ndarray, np.ndarray], epsilon: float) -> tuple[float, float, int]:
    """Wall and processor seconds of one whole training, and its rounds."""
    from hushrec.engines.cpu.masked import CpuMaskedEngine
    from hushrec.protocols.masked import plan

    started = time.perf_counter(), time.process_time()
    with patch.multiple(plan, LARGE_FLEET=0.0, MEDIUM_FLEET=0.0):  # or fewer people would have a shorter plan
        problem = make_problem(ratings, epsilon)
    engine, rounds = CpuMaskedEngine(problem), problem.terms.max_rounds
    for _ in range(rounds):
        engine.run_round()
    return time.perf_counter() - started[0], time.process_time() - started[1], rounds


def measure(n_people: int, epsilon: float) -> dict[str, float]:
    """Seconds of the fastest training on the ratings of so many people, and the peak memory."""
    train_once(make_ratings(min(n_people, 10_000)), epsilon)
    ratings = make_ratings(n_people)
    wall, processor, rounds = (
        min(turns) for turns in zip(*(train_once(ratings, epsilon) for _ in range(TURNS)), strict=True)
    )
    return {
        "people": n_people,
        "ratings": len(ratings[1]),
        "rounds": rounds,
        "seconds": wall,
        "processor_seconds": processor,
        "microseconds_per_rating": 1e6 * wall / len(ratings[1]),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def fits(sizes: list[dict[str, float]], name: str) -> dict[str, float]:
    """The exponent in the number of ratings, and the line with its largest relative error."""
    ratings, seconds = np.array([[one["ratings"], one[name]] for one in sizes]).T
    exponent = np.polyfit(np.log(ratings), np.log(seconds), 1)[0]
    slope, fixed = np.polyfit(ratings, seconds, 1, w=1 / seconds)
    return {
        "exponent": float(exponent),
        "fixed_seconds": float(fixed),
        "seconds_per_million": float(1e6 * slope),
        "largest_error": float(np.max(np.abs((fixed + slope * ratings) / seconds - 1))),
    }


def main() -> None:
    """Sizes one after the other, the smallest first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=480_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--one", action="store_true", help="this size alone, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.people, options.epsilon)))
        return
    sizes = []
    for count in (options.people // part for part in PARTS):
        command = [sys.executable, __file__, "--one", "--people", str(count), "--epsilon", str(options.epsilon)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes.append(json.loads(ended.stdout.splitlines()[-1]))
        print(sizes[-1], flush=True)
    found = {name: fits(sizes, name) for name in ("seconds", "processor_seconds")}
    write_record("masked-scaling", {"epsilon": options.epsilon, "items": N_ITEMS, "sizes": sizes, "fits": found})


if __name__ == "__main__":
    main()
