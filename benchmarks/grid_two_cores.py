"""How long all of the paper's Task 1 takes on the cores of this machine: measured on a few splits, times their number.

    python benchmarks/grid_two_cores.py [--jobs 2] [--name NAME] [FILE.toml=SPLITS ...]

Each file is run as `hushrec experiment FILE --jobs 2 --splits SPLITS` runs it, from reading the ratings to writing the
records, with kernels compiled before. The records go to a folder that is thrown away. What a whole grid takes is
*extrapolated*: measured seconds × splits of the file / splits measured. `python docs/generate.py grid` then writes the
sentence of `docs/reproduction.md`.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import write_record

from hushrec.data.synthetic import synthetic
from hushrec.errors import HushrecError
from hushrec.experiments.config import read_experiment
from hushrec.experiments.running import prepare, run_experiment
from hushrec.simulation.training import train

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SPLITS = {"ml-100k": 5, "ml-1m": 1, "netflix-10k": 1}  # enough that starting two processes counts for little
FILES = [f"{EXPERIMENTS / f'task1-{name}.toml'}={splits}" for name, splits in SPLITS.items()]


def processor_seconds() -> float:
    """Of this process and of all that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measured(file: Path, splits: int, jobs: int) -> dict[str, Any]:
    """What some splits of an experiment cost, and all of them at that pace."""
    whole = read_experiment(file).splits.count
    wall, processor = time.perf_counter(), processor_seconds()
    prepared = prepare(file, n_splits=splits)
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(prepared, folder, jobs=jobs)
    cost = {"wall": time.perf_counter() - wall, "processor": processor_seconds() - processor}
    print(f"{file.stem}: {len(prepared.plans)} runs on {splits} of {whole} splits in {cost['wall']:.1f} s", flush=True)
    return {
        "splits measured": splits,
        "runs measured": len(prepared.plans),
        "measured seconds": cost,
        "splits": whole,
        "extrapolated hours": cost["wall"] * whole / splits / 3600,
    }


def main() -> None:
    """One file after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES, help="an experiment, and how many of its splits to measure")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--name", default="grid-two-cores", help="of the record")
    options = parser.parse_args()
    files = {Path(file): int(splits or 1) for file, _, splits in (given.partition("=") for given in options.files)}
    try:
        for file in files:
            prepare(file, n_splits=1)
    except HushrecError as error:  # now rather than after minutes
        raise SystemExit(str(error)) from None
    for protocol in ("plain", "isgld", "sdcf"):
        train(synthetic(), protocol=protocol, rounds=2, compare=False)  # compiles what the files need
    grids = {file.stem: measured(file, splits, options.jobs) for file, splits in files.items()}
    hours = sum(grid["extrapolated hours"] for grid in grids.values())
    write_record(options.name, {"jobs": options.jobs, "grids": grids, "extrapolated hours": hours})


if __name__ == "__main__":
    main()
