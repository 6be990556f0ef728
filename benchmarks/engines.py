"""Engine `cpu` against `reference`, round by round in one process; the same bits and the gain of a second thread.

python benchmarks/engines.py [--data ml-100k] [--turns 5]
"""

import argparse
import hashlib

import numba
from measure import best, load_data, timed, write_record

from hushrec.engines import Engine
from hushrec.simulation.run import Run
from hushrec.simulation.settings import Settings


def digest(engine: Engine) -> str:
    """A fingerprint of all vectors, to the last bit."""
    state = engine.state()
    return hashlib.sha256(b"".join(state[name].tobytes() for name in ("user_vectors", "item_vectors"))).hexdigest()


def main() -> None:
    """Alternates one round of `reference` with twenty of `cpu`, then with one and with two threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    ratings = load_data(options.data)
    engines = {
        name: Run(ratings, Settings(protocol="sdcf", engine=name, rounds=20 * options.turns + 1)).engine
        for name in ("reference", "cpu")
    }
    for engine in engines.values():
        engine.run_round()  # compiles, and draws permanent bits
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for _ in range(options.turns):
        seconds["reference"].append(timed(engines["reference"].run_round))
        seconds["cpu"] += [timed(engines["cpu"].run_round) for _ in range(20)]
    found = {name: best(turns) for name, turns in seconds.items()}
    threads: dict[int, list[dict[str, float]]] = {1: [], min(2, numba.config.NUMBA_NUM_THREADS): []}
    pair = {}
    for count in threads:
        numba.set_num_threads(count)  # an engine keeps the number that it finds
        pair[count] = Run(ratings, Settings(protocol="sdcf", rounds=10 * options.turns)).engine
    for _ in range(options.turns):
        for count, engine in pair.items():
            threads[count] += [timed(engine.run_round) for _ in range(10)]
    write_record(
        f"engines-{options.data}",
        {
            "seconds": found,
            "ratio": {clock: found["reference"][clock] / found["cpu"][clock] for clock in ("wall", "processor")},
            "threads": {str(count): best(turns) for count, turns in threads.items()},
            "same bits with each number of threads": len({digest(engine) for engine in pair.values()}) == 1,
        },
    )


if __name__ == "__main__":
    main()
