"""From how many devices on a network run pays: test RMSE of 25 to 943 devices beside what needs no server.

    python benchmarks/fleet_size.py [--data ml-100k] [--sizes 25,50,100,200,400,943]

So many people are drawn at random (three times for up to 100 of them), and take part in a run with the default terms of
`hushrec serve` and the default budgets of `hushrec device init`, through the real client and server objects, which
apply the announced bounds (`network_run.py`). Beside them: each person's own mean, which needs no server, and the bias
model of the same people, which needs everybody's ratings in one place.
"""

import argparse
from typing import Any

import numpy as np
from measure import load_data, write_record
from network_run import draw_people, play

SIZES = "25,50,100,200,400,943"


def measured(ratings: Any, devices: int) -> dict[str, float]:
    """Means over the draws of so many people."""
    draws = range(3 if devices <= 100 else 1)
    found = []
    for seed in draws:
        people = draw_people(ratings, devices, seed)
        baselines = people.baselines()
        done = play(people, seed=seed)
        assert done.rmse is not None
        found.append((done.rmse, baselines["user_mean"], baselines["bias"]))
    rmse, own_mean, bias = np.mean(found, axis=0).tolist()
    print(f"{devices} devices: {rmse:.4f}, own mean {own_mean:.4f}, bias model {bias:.4f}", flush=True)
    return {"devices": devices, "draws": len(draws), "rmse": rmse, "own_mean": own_mean, "bias": bias}


def main() -> None:
    """Measure every size, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--sizes", default=SIZES)
    options = parser.parse_args()
    ratings = load_data(options.data)
    sizes = [measured(ratings, int(size)) for size in options.sizes.split(",")]
    write_record(
        f"fleet-size-{options.data}",
        {"command": "python benchmarks/fleet_size.py", "data": options.data, "sizes": sizes},
    )


if __name__ == "__main__":
    main()
