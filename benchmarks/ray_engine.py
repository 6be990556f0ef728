"""Engine `ray` with two workers against engine `cpu`: the same bits, and what a round costs beside it.

    python benchmarks/ray_engine.py [--data ml-1m] [--workers 2] [--rounds 10]
    python benchmarks/ray_engine.py --people 480000 [--workers 2] [--epsilon 1]

The second form trains `masked` on the 10⁸ ratings of benchmarks/masked_scaling.py. Seconds are of whole rounds, the
first one apart: it loads the parts and reads compiled kernels. The addresses that any process of the cluster talks to
or listens on are looked at all the while (tests/sockets.py).
"""

import argparse
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from masked_scaling import make_problem, make_ratings
from measure import load_data, write_record

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from sockets import Watch


def problem_of(ratings: Any, **settings: Any) -> Any:
    """The training part under these settings."""
    from hushrec.simulation.run import task_problem
    from hushrec.simulation.settings import Settings

    chosen = Settings(**settings)
    return task_problem(chosen.make_task(ratings), chosen)


def play(engine: Any) -> list[float]:
    """Seconds of every round."""
    seconds = []
    while engine.round_number < engine.problem.terms.max_rounds:
        started = time.perf_counter()
        engine.run_round()
        seconds.append(time.perf_counter() - started)
    return seconds


def compare(problem: Any) -> dict[str, Any]:
    """Play both engines in turn, twice; the quicker turn of each counts."""
    from hushrec.engines import make_engine

    seconds, states = {"cpu": [], "ray": []}, []
    for name in ("cpu", "ray", "cpu", "ray"):
        engine = make_engine(name, problem)
        seconds[name].append(play(engine))
        states.append(engine.state())
    same = all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    cpu, ray = (min(float(np.mean(turn[1:])) for turn in seconds[name]) for name in ("cpu", "ray"))
    return {
        "people": problem.n_users,
        "ratings": len(problem.items),
        "rounds": problem.terms.max_rounds,
        "identical_bits": same,
        "arrays_compared": sorted(states[0]),
        "cpu_seconds_per_round": cpu,
        "ray_seconds_per_round": ray,
        "ray_first_round_seconds": seconds["ray"][0][0],
        "seconds_of_every_round": seconds,
    }


def main() -> None:
    """Both protocols on one cluster, or `masked` on many ratings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--people", type=int, help="generated ratings of so many people, instead of --data")
    parser.add_argument("--epsilon", type=float, default=1.0, help="with --people")
    options = parser.parse_args()
    if options.people:
        name = "ray-scaling"
        problems = {"masked gp": lambda: make_problem(make_ratings(options.people), options.epsilon)}
        about = {"data": "benchmarks/masked_scaling.py", "epsilon": options.epsilon}
    else:
        ratings, name, about = load_data(options.data), f"ray-{options.data}", {"data": options.data}
        problems = {
            "masked gp": lambda: problem_of(ratings, protocol="masked"),
            "sdcf mf": lambda: problem_of(ratings, protocol="sdcf", rounds=options.rounds),
        }
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as urgent as engine `cpu` on shared cores
    from hushrec.engines.ray.cluster import cluster

    started = time.perf_counter()
    with Watch() as watch, cluster(workers=options.workers):
        seconds = time.perf_counter() - started
        runs = {run: compare(make()) for run, make in problems.items()}
    addresses = {"seen": sorted({address for _, address in watch.seen}), "outside loopback": len(watch.outside())}
    about |= {"workers": options.workers, "ray": version("ray"), "start_seconds": seconds}
    write_record(name, about | {"runs": runs, "addresses": addresses})


if __name__ == "__main__":
    main()
