"""Memory and seconds of a whole `masked` training from shards, against the number of ratings.

    python benchmarks/out_of_core.py [--people 960000] [--epsilon 1] [--scratch FOLDER]

ε is the budget of each person's profile for the whole training; it decides the plan, and so rounds and table sizes. The
record is `out-of-core` at ε = 0.1, and `out-of-core-epsilon-1` at ε = 1.

The largest run has 960,000 people, 17,770 items and 2 · 10⁸ ratings (those of benchmarks/masked_scaling.py, made
10,000 people at a time and never in one memory). Each training runs in a process of its own, for its peak memory. The
smaller size is trained in memory and on engine `ray` as well, and the bits are compared.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from masked_scaling import MEAN_RATED, N_ITEMS
from measure import train_all_rounds, write_record

AT_A_TIME, SMALLEST = 10_000, 60_000


def profiles(n_people: int) -> Iterator[tuple[list[str], Any]]:
    """Chunks of people, a shard each: a part of the catalogue that begins with its most popular items."""
    from hushrec.data.shards import Profiles

    quality, begin = np.random.default_rng(0).normal(0, 0.5, N_ITEMS), 0
    for first in range(0, n_people, AT_A_TIME):
        rng, count = np.random.default_rng([1, first]), min(AT_A_TIME, n_people - first)
        reach = np.array([0.1, 0.2, 0.5, 1.0])[rng.integers(0, 4, count)] * N_ITEMS
        counts = np.clip(rng.geometric(1 / MEAN_RATED, count), 1, 1700)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        who = np.repeat(np.arange(count), counts)
        lot = np.arange(starts[-1]) - starts[who] + rng.random(len(who))
        items = (lot * (reach / counts)[who]).astype(np.int64)
        values = np.clip(np.rint(3.6 + quality[items] + rng.normal(0, 1, len(who))), 1, 5)
        rows = np.arange(begin, begin + len(items))
        begin += len(items)
        yield [str(first + place) for place in range(count)], Profiles(starts, items, values, rows)


def catalogue() -> tuple[Any, Any]:
    """The items with their years, as a table and as a data set without ratings."""
    import polars as pl

    from hushrec.data.ratings import Ratings
    from hushrec.scale import Scale

    years = np.linspace(1950, 2005, N_ITEMS)
    ids, nobody = [str(item) for item in range(N_ITEMS)], np.empty(0, np.int64)
    frame = pl.DataFrame({"id": ids, "rated": np.arange(N_ITEMS), "year": years})
    about = Ratings("generated", [], ids, nobody, nobody, np.empty(0), Scale(1, 5), None, frame.select("year"))
    return frame, about


def train(folder: Path, epsilon: float, engine: str) -> dict[str, Any]:
    """Train from shards on every rating; return seconds and the peak of this process (of the driver, with ray)."""
    from hushrec.simulation.sharded import train_shards

    started = time.perf_counter()
    record, public = train_shards(folder, final=True, epsilon=epsilon, engine=engine)
    return {
        "people": record["data"]["users"],
        "ratings": record["data"]["train"],
        "parts": record["data"]["parts"],
        "rounds": record["rounds"],
        "seconds": time.perf_counter() - started,
        "seconds_in_rounds": record["seconds"],
        "gigabytes_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "table": digest(public),
    }


def train_in_memory(folder: Path, epsilon: float) -> str:
    """Train on the same ratings, all in one memory; return the digest of the table."""
    from hushrec.data.ratings import Ratings
    from hushrec.data.shards import Shards
    from hushrec.simulation.settings import Settings

    shards = Shards(folder)
    own, about = shards.read(0, shards.n_people), shards.without_ratings()
    users = np.repeat(np.arange(shards.n_people), np.diff(own.starts))
    ids = [str(person) for person in range(shards.n_people)]
    ratings = Ratings(
        about.name, ids, about.item_ids, users, own.items, own.values, about.scale, attributes=about.attributes
    )
    settings = Settings(final=True, epsilon=epsilon)
    engine: Any = train_all_rounds(settings.make_task(ratings), settings)
    return digest({**vars(engine.learner.table()), "round_number": np.array(engine.round_number)})


def digest(public: dict[str, Any]) -> str:
    """SHA-256 of what the server published last."""
    import hashlib

    found = hashlib.sha256()
    for name, array in sorted(public.items()):
        found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def run_one(shards: Path, epsilon: float, engine: str) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--one", str(shards), "--epsilon", str(epsilon), "--engine", engine]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    """A small size, compared with training in memory and on a cluster, and the largest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=960_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--one", type=Path, help="train on these shards alone, in this process")
    parser.add_argument("--engine", default="cpu", help="with --one")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(options.one, options.epsilon, options.engine)))
        return
    from hushrec.data.shards import write_profiles

    sizes, on_ray = [], {}
    for count in (SMALLEST, options.people):
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            started, shards = time.perf_counter(), Path(folder) / "shards"
            written = write_profiles(shards, profiles(count), *catalogue())
            seconds = time.perf_counter() - started
            megabytes = sum(file.stat().st_size for file in shards.iterdir()) / 2**20
            found = run_one(shards, options.epsilon, "cpu")
            if count == SMALLEST:
                on_ray = run_one(shards, options.epsilon, "ray")
                on_ray["identical_bits"] = on_ray["table"] == found["table"]
                print(on_ray, flush=True)
                same = found["table"] == train_in_memory(shards, options.epsilon)
            sizes.append(found | {"shards": len(written.manifest["shards"]), "megabytes_on_disk": megabytes})
            print({**sizes[-1], "seconds_to_write": seconds}, flush=True)
    about = {
        "epsilon": options.epsilon,
        "items": N_ITEMS,
        "identical_bits_in_memory": same,
        "sizes": sizes,
        "ray": on_ray,
    }
    suffix = "" if options.epsilon == 0.1 else f"-epsilon-{options.epsilon:g}"
    write_record(f"out-of-core{suffix}", about)


if __name__ == "__main__":
    main()
