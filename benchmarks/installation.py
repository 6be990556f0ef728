"""How large an installation is, and how quickly it starts: each set of extras in an environment of its own.

    python benchmarks/installation.py --out benchmarks/records/installation.json

Builds the wheel, installs it and what it needs from the package index that pip is set up for, and measures.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SETS = {"core": "", "report": "[report]", "service": "[service]", "all": "[report,service]"}
REPEATS = 7
LARGEST = 8


def megabytes(folder: Path) -> float:
    """Sizes of all files under a folder, in 10⁶ bytes."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """The median processor time of a command that has run before: it hardly depends on what else the machine does."""
    times = []
    for _ in range(REPEATS + 1):
        before = _used()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        times.append(_used() - before)
    return statistics.median(times[1:])


def _used() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def largest(packages: Path) -> dict[str, float]:
    """The largest packages with the libraries that lie beside them, in 10⁶ bytes."""
    sizes: Counter[str] = Counter()
    for folder in packages.iterdir():
        if folder.is_dir() and folder.suffix != ".dist-info":
            sizes[folder.name.removesuffix(".libs").removeprefix("_").removesuffix("_runtime_32")] += megabytes(folder)
    return {name: round(size, 1) for name, size in sizes.most_common(LARGEST)}


def measure(wheel: Path, extras: str, folder: Path) -> dict[str, Any]:
    """One installation: size with and without byte code, and its start-up."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{wheel}{extras}"], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    bare = seconds([python, "-c", "pass"], clean)
    packages = next((folder / "lib").glob("python*/site-packages"))
    compiled = sum(path.stat().st_size for path in packages.rglob("*.pyc")) / 1e6
    whole = megabytes(packages)
    return {
        "megabytes": round(whole, 1),
        "megabytes_without_byte_code": round(whole - compiled, 1),
        "largest": largest(packages),
        "import_seconds": round(seconds([python, "-c", "import hushrec"], clean) - bare, 3),
        "help_seconds": round(seconds([str(folder / "bin" / "hushrec"), "--help"], clean), 3),
    }


def main() -> None:
    """Measure every set of extras, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch], cwd=ROOT, check=True)
        (wheel,) = folder.glob("*.whl")
        record = {name: measure(wheel, extras, folder / name) for name, extras in SETS.items()}
    text = json.dumps({"python": sys.version.split()[0], "cores": os.cpu_count(), "sets": record}, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
