"""From how many devices on `masked` pays: test RMSE of fleets of 25 to 6,040 people beside what needs no server.

    python benchmarks/masked_fleet_size.py [--data ml-100k] [--sizes 25,50,100,200,400,943] [--epsilon 8,1] [--bare]
        [--network]

So many people are drawn at random (three times for up to 943 of them) and train by themselves, with the plan that the
default rule chooses for their number. Beside them: each person's own mean, which needs no server, and the bias model of
the same people, which needs everybody's ratings in one place. `--bare` takes the attributes of the items away: what is
left is a catalogue of ids and titles. `--network` runs the terms that `hushrec serve` offers, which size the noise for
devices that drop out or are hostile and keep a reserve for attempts that are repeated. A call replaces the sizes that
it measured in the record of its kind and leaves the rest.
"""

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from measure import RECORDS, load_data, train_all_rounds, write_record
from people import choose_people

from hushrec.evaluate import rmse
from hushrec.models.baselines import rating_baselines
from hushrec.protocols.masked.protocol import Masked
from hushrec.simulation.settings import Settings

SIZES = "25,50,100,200,400,943"
REPEATED_UP_TO = 943


def measured(ratings: Any, devices: int, epsilons: list[float], seed: int, network: bool) -> dict[str, float]:
    """Test RMSE of one draw of so many people, by what predicts."""
    drawn = np.random.default_rng(seed).permutation(ratings.n_users)[:devices]
    people = choose_people(ratings, np.isin(np.arange(ratings.n_users), drawn))
    found = {}
    for epsilon in epsilons:
        margins = Masked.network_options({}, ratings.n_items, devices) if network else {}
        settings = Settings(protocol="masked", epsilon=epsilon, split_seed=seed, seed=seed, **margins)
        task = settings.make_task(people)
        engine = train_all_rounds(task, settings)
        found[f"epsilon {epsilon:g}"] = task.metrics(engine.predictor())["rmse"]
    train, test, values = task.split.train, task.split.test, people.values
    fitted = rating_baselines(people.users[train], people.items[train], values[train], people.n_users, people.n_items)
    for name in ("user_mean", "bias"):
        found[name] = rmse(fitted[name](people.users[test], people.items[test]), values[test])
    return found


def main() -> None:
    """Measure every size, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--epsilon", default="8,1")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--network", action="store_true")
    chosen = parser.parse_args()
    ratings, epsilons = load_data(chosen.data), [float(epsilon) for epsilon in chosen.epsilon.split(",")]
    if chosen.bare:
        ratings = replace(ratings, attributes=None, catalogue=replace(ratings.catalogue, attributes=None))
    name = f"masked-fleet-size-{chosen.data}" + "-bare" * chosen.bare + "-network" * chosen.network
    path = RECORDS / f"{name}.json"
    known = json.loads(path.read_text())["sizes"] if path.exists() else []
    sizes = {size["devices"]: size for size in known}
    for devices in map(int, chosen.sizes.split(",")):
        draws = 3 if devices <= REPEATED_UP_TO else 1
        runs = [measured(ratings, devices, epsilons, seed, chosen.network) for seed in range(draws)]
        means = {name: round(float(np.mean([run[name] for run in runs])), 4) for name in runs[0]}
        sizes[devices] = {"devices": devices, "draws": draws, **means}
        print(sizes[devices], flush=True)
    options = ["--bare"] * chosen.bare + ["--network"] * chosen.network
    command = ["python", *sys.argv[:1], "--data", chosen.data, "--sizes", ",".join(map(str, sorted(sizes))), *options]
    write_record(
        name, {"command": " ".join(command), "data": chosen.data, "sizes": [sizes[key] for key in sorted(sizes)]}
    )


if __name__ == "__main__":
    main()
