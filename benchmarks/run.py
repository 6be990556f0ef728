"""Runs the benchmarks of the cpu engine one after the other; each writes its record to benchmarks/records.

    python benchmarks/run.py [--peer PYTHON]

The named data sets must be where `hushrec data list` finds them. `--peer` is a Python that has the peers of the extra
`bench`, if not this one.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from measure import load_data

HERE = Path(__file__).parent
NEEDED = ("ml-100k", "ml-1m", "netflix-10k")
PEERS = "import implicit, surprise"


def main() -> None:
    """Looks for data sets and peers first; stops at the first script that fails, which has said why."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default=sys.executable)
    python = parser.parse_args().peer
    for name in NEEDED:
        load_data(name)
    found = subprocess.run([python, "-c", PEERS], capture_output=True, text=True, check=False)
    if found.returncode:
        reason = found.stderr.strip().splitlines()[-1]
        raise SystemExit(
            f"{python} must have implicit and scikit-surprise ({reason}). Install the extra `bench`, or name a Python"
            " that has them with --peer."
        )
    peer = ["--peer", python]
    for script, *options in (
        ["engines.py"],
        ["surprise_svd.py", *peer],
        ["bpr.py", *peer],
        ["memory.py"],
        ["accuracy.py"],
        ["audit.py"],
        ["scaling.py", "--largest", "1e8"],
        ["grid_two_cores.py"],
        ["secagg.py"],
        ["masked_training.py", *peer],
        ["audience_training.py", *peer],
        ["masked_scaling.py"],
        ["masked_fleet_size.py"],
        ["masked_fleet_size.py", "--network"],
        ["masked_fleet_size.py", "--bare", "--network"],
        ["masked_fleet_size.py", "--data", "ml-1m", "--sizes", "1000,2000,4000,6040", "--network"],
        ["masked_fleet_size.py", "--data", "ml-1m", "--sizes", "500,1000,2000,4000,6040"],
        ["masked_newcomers.py"],
        ["masked_robustness.py"],
        ["audience_without_items.py"],
        ["masked_robustness.py", "--data", "ml-1m", "--splits", "1", "--epsilon", "8"],
        ["volunteers.py"],
    ):
        print(f"== {script}", flush=True)
        started = time.perf_counter()
        ended = subprocess.run([sys.executable, str(HERE / script), *options], check=False)
        if ended.returncode:
            raise SystemExit(f"benchmarks/{script} failed with {ended.returncode}; the others were not run.")
        print(f"== {script} took {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
