"""The most memory that a whole `hushrec train` ever held, per protocol, in a process of its own.

python benchmarks/memory.py [--data ml-1m] [--rounds 3]
"""

import argparse
import os
import subprocess
import sys

from measure import write_record


def peak(data: str, protocol: str, rounds: int) -> float:
    """Resident megabytes of one run at their highest."""
    command = [sys.executable, "-m", "hushrec", "train", data, "--protocol", protocol, "--no-compare", "--json"]
    with subprocess.Popen([*command, "--rounds", str(rounds)], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"hushrec train {data} --protocol {protocol} failed with {process.returncode}")
    return usage.ru_maxrss / 1024


def main() -> None:
    """All three protocols of `mf`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    megabytes = {name: peak(options.data, name, options.rounds) for name in ("plain", "isgld", "sdcf")}
    write_record(f"memory-{options.data}", {"resident megabytes": megabytes})


if __name__ == "__main__":
    main()
