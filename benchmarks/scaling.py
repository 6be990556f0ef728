"""Seconds of one `sdcf` round against ratings, users, items and factors, with slopes and the roofline, and a plot.

    python benchmarks/scaling.py [--largest 1e7] [--plot docs/pictures/scaling.svg]

Ratings grow with the number of users, at 100 each; users, items and factors grow at a million ratings in all. Profiles
are spread evenly over the items and made in place, because the project's own generator is slower than training.
Seconds are processor seconds of all threads, the least of several rounds; on a machine that is left alone, divide by
its cores.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from measure import best, timed, write_record

from hushrec.engines.cpu.engine import CpuEngine
from hushrec.models import make_model
from hushrec.protocols.gradient.protocols import Sdcf
from hushrec.simulation.training_problem import TrainingProblem, make_problem

BASE = {"n_users": 10_000, "n_rated": 100, "n_items": 4_000, "n_factors": 50}


def make(n_users: int, n_rated: int, n_items: int, n_factors: int) -> TrainingProblem:
    """Everybody rated one item of each of `n_rated` equal parts of the catalogue."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(n_users), n_rated)
    lot = np.tile(np.arange(n_rated), n_users) + rng.random(n_users * n_rated)
    items = (lot * (n_items / n_rated)).astype(np.int64)
    values = rng.integers(1, 6, n_users * n_rated).astype(np.float64)
    return make_problem(
        users,
        items,
        values,
        n_users=n_users,
        n_items=n_items,
        model=make_model("mf", n_factors),
        protocols=[Sdcf(epsilon_i=4.0, epsilon_g=4.0)],
        rounds=10,
        step=0.1,
    )


def seconds(**changed: int) -> dict[str, Any]:
    """The cost of one round of this size, and the bytes of vectors that it must move."""
    shape = {**BASE, **changed}
    n_users, n_ratings = shape["n_users"], shape["n_users"] * shape["n_rated"]
    engine = CpuEngine(make(**shape))
    engine.run_round()
    cost = best([timed(engine.run_round) for _ in range(2 if n_users > 10**5 else 6)])
    width = engine.state()["item_vectors"].shape[1]
    moved = n_ratings * width * 4 * 3  # a row read per rating; a sum read and written per report
    print(f"{shape}: {cost}", flush=True)
    return {
        "ratings": n_ratings,
        "users": n_users,
        "items": shape["n_items"],
        "factors": shape["n_factors"],
        **cost,
        "gigabytes per second": moved / cost["processor"] / 1e9,
        "bytes per rating": width * 4 * 3,
    }


def copy_speed(megabytes: float) -> float:
    """Gigabytes that one thread reads and writes per second in copying an array of this size."""
    source = np.ones(int(megabytes * 2**17))
    target = np.empty_like(source)
    repeats = max(1, int(400 / megabytes))

    def copy() -> None:
        for _ in range(repeats):
            np.copyto(target, source)

    copy()
    turns = [timed(copy) for _ in range(7)]
    return 2 * source.nbytes * repeats / best(turns)["processor"] / 1e9


def slope(points: list[dict[str, Any]], what: str) -> float:
    """Of log seconds against log size: 1 is linear."""
    sizes, costs = [point[what] for point in points], [point["processor"] for point in points]
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def draw(series: dict[str, list[dict[str, Any]]], slopes: dict[str, float], path: Path) -> None:
    """One panel per size, logarithmic on both sides."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "hushrec"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(series), figsize=(11, 3), layout="constrained")
    for panel, (what, points) in zip(panels, series.items(), strict=True):
        panel.loglog([point[what] for point in points], [point["processor"] for point in points], "o-")
        panel.set_title(f"slope {slopes[what]:.2f}", fontsize=10)
        panel.set_xlabel(what)
        panel.set_xticks([point[what] for point in points], [f"{point[what]:g}" for point in points], fontsize=8)
        panel.tick_params(axis="both", which="minor", labelleft=False, labelbottom=False)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("processor seconds per round")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """One size at a time; the others stay at their base."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=float, default=1e7, help="ratings")
    parser.add_argument("--plot", type=Path, default=Path("docs/pictures/scaling.svg"))
    options = parser.parse_args()
    users = [10**k for k in range(3, 8) if BASE["n_rated"] * 10**k <= options.largest]
    series = {
        "ratings": [seconds(n_users=count) for count in users],
        "users": [seconds(n_users=count, n_rated=10**6 // count) for count in (1_000, 4_000, 16_000, 64_000)],
        "items": [seconds(n_items=count) for count in (1_000, 4_000, 16_000, 64_000)],
        "factors": [seconds(n_factors=count) for count in (16, 32, 64, 128, 256)],
    }
    slopes = {what: slope(points, what) for what, points in series.items()}
    roofline = {"copy within cache": copy_speed(0.5), "copy in memory": copy_speed(200)}
    draw(series, slopes, options.plot)
    write_record("scaling", {"slopes": slopes, "gigabytes per second and core": roofline, "series": series})


if __name__ == "__main__":
    main()
