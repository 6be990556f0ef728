"""How long all attacks on the three protocols take: ML-100K, 100 rounds, 100 people.

python benchmarks/audit.py [--data ml-100k]
"""

import argparse
import os
import subprocess
import sys
import time

from measure import write_record


def main() -> None:
    """One run of the command as a person would start it; processor seconds are those of all its processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-100k")
    words = ["audit", parser.parse_args().data]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hushrec", *words], stdout=subprocess.DEVNULL, check=True)
    wall, times = time.perf_counter() - started, os.times()
    write_record(
        "-".join(words),
        {
            "command": " ".join(["hushrec", *words]),
            "seconds": {"wall": wall, "processor": times.children_user + times.children_system},
        },
    )


if __name__ == "__main__":
    main()
