"""Runs the benchmarks of the cpu engine one after the other; each writes its record to benchmarks/records.

    python benchmarks/run.py [--peer PYTHON]

The named data sets must be where `hushrec data list` finds them. `--peer` is a Python that has the peers of the extra
`bench`, if not this one.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Stops at the first that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default=sys.executable)
    peer = ["--peer", parser.parse_args().peer]
    for script, *options in (
        ["engines.py"],
        ["surprise_svd.py", *peer],
        ["bpr.py", *peer],
        ["memory.py"],
        ["accuracy.py"],
        ["audit.py"],
        ["scaling.py", "--largest", "1e8"],
    ):
        print(f"== {script}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *options], check=True)


if __name__ == "__main__":
    main()
