"""Lines of src before the redesign and now, by feature: all lines, and code without docstrings, comments and blanks.

python benchmarks/source_size.py [--before 6602d7c] [--now REVISION]
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from fnmatch import fnmatch

BEFORE = "6602d7c"  # the last commit before the redesign
FEATURES = {  # patterns below src/hushrec; a file belongs to the first feature that matches
    "secure aggregation": ["protocols/masked/secagg/*"],
    "model audience": ["protocols/masked/audience/*", "models/audience*", "engines/cpu/audience_kernels.py"],
    "model gp": [
        "protocols/masked/gp/*", "models/g*", "models/item_columns.py", "models/titles.py", "models/linear.py",
    ],
    "protocol masked: device, server, plan, noise, learning": ["protocols/masked/*", "budget/gaussian.py"],
    "engine cpu of masked": ["engines/cpu/masked*"],
    "audit of masked": ["audit/masked/*"],
    "audit: model fm, own reports": ["audit/machines.py", "audit/attacks/machines.py", "audit/own_reports.py"],
    "cluster, shards, out of core": [
        "engines/ray/*", "engines/sharded/*", "simulation/shard*", "simulation/out_of_core.py", "data/shards.py",
        "data/streamed.py", "cli/cluster.py",
    ],
    "several workers, PostgreSQL, certificates": [
        "service/workers.py", "service/partial_sums.py", "service/run_copy.py",
        "service/admission.py", "service/connections.py", "service/certificates.py",
    ],
    "capacity planning": ["capacity.py", "cli/capacity.py"],
    "Python API: Recommender, compare, frames, plug-ins": [
        "recommender.py", "comparison.py", "plugins.py", "options.py", "extras.py", "data/frames.py",
        "data/own.py", "cli/recommend.py",
        "simulation/summaries.py", "simulation/held_out.py",
    ],
    "leakage plot and exports": ["report/leakage.py", "report/exports.py"],
    "device: asyncio": ["device/aio.py"],
}  # fmt: skip
REST = "all else, which was there before"
AREAS = ["audit", "budget", "cli", "data", "device", "engines", "experiments", "mechanisms", "models", "report"]
AREAS += ["service"]


def sources(revision: str) -> dict[str, str]:
    """Every module of a revision, by its path below src/hushrec."""
    packed = subprocess.run(["git", "archive", revision, "src"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        return {
            entry.name.removeprefix("src/hushrec/"): files.extractfile(entry).read().decode()
            for entry in files
            if entry.name.endswith(".py")
        }


def code_lines(source: str) -> int:
    """Lines that hold a token which is neither a comment nor part of a docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for one in tokens if one.type not in silent for n in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if ast.get_docstring(node) is not None else None
            lines -= set(range(first.lineno, first.end_lineno + 1)) if first else set()
    return len(lines)


def feature_of(path: str) -> str:
    """The feature that a module belongs to."""
    return next((name for name, some in FEATURES.items() if any(fnmatch(path, one) for one in some)), REST)


def area_of(path: str) -> str:
    """The folder of a module; parties, protocols and simulation were modules at the top before they had folders."""
    return path.split("/")[0] if path.split("/")[0] in AREAS else "parties, protocols, simulation"


def print_table(heads: list[str], rows: dict[str, list[int]]) -> None:
    """Print rows of numbers as Markdown."""
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name, numbers in rows.items():
        print(f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE)
    parser.add_argument("--now", default="HEAD")
    chosen = parser.parse_args()
    before, now = sources(chosen.before), sources(chosen.now)
    counted = [{path: [1, text.count("\n"), code_lines(text)] for path, text in some.items()} for some in (before, now)]
    features, areas = {name: [0, 0, 0] for name in (*FEATURES, REST)}, {}
    for path, numbers in counted[1].items():
        features[feature_of(path)] = [a + b for a, b in zip(features[feature_of(path)], numbers, strict=True)]
    for place, files in enumerate(counted):
        for path, (_, _, code) in files.items():
            if place == 0 or feature_of(path) == REST:
                areas.setdefault(area_of(path), [0, 0])[place] += code
    totals = [[sum(column) for column in zip(*files.values(), strict=True)] for files in counted]
    ends = {"**all, before**": totals[0], "**all, now**": totals[1]}
    print_table(["modules", "lines", "of these, code"], {**features, **ends})
    print()
    print_table(["code before", "code now, without the features above"], dict(sorted(areas.items())))


if __name__ == "__main__":
    main()
