"""How long all attacks on the three protocols take: ML-100K, 100 rounds, 100 people.

python benchmarks/audit.py [--data ml-100k]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from measure import write_record


def main() -> None:
    """One run of the command as a person would start it; processor seconds are those of all its processes.

    The record names the attacks that were run, so that it can be seen when there are others since.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-100k")
    data = parser.parse_args().data
    words = ["hushrec", "audit", data, "--json"]
    started = time.perf_counter()
    output = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE, check=True).stdout
    wall, times = time.perf_counter() - started, os.times()
    write_record(
        f"audit-{data}",
        {
            "command": " ".join(words),
            "seconds": {"wall": wall, "processor": times.children_user + times.children_system},
            "attacks": attack_names(json.loads(output)),
        },
    )


def attack_names(audit: dict[str, Any]) -> dict[str, list[str]]:
    """The names of all attacks on each protocol, by target."""
    found: dict[str, list[str]] = {protocol: [] for protocol in audit["worst"]}
    for one in audit["attacks"]:
        name = f"{one['target']}: {one['name']}"
        if name not in found[one["protocol"]]:
            found[one["protocol"]].append(name)
    return found


if __name__ == "__main__":
    main()
