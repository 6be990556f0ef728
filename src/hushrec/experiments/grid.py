"""A grid of runs in one `.npz` file, and the loop that runs the grid on engine `gpu`, here or on another machine.

This module needs only numpy, scipy, msgspec and torch, so that a machine with a GPU and little else can run it::

    PYTHONPATH=src python3 -m hushrec.experiments.grid [--seconds 150] OUT GRID.npz [GRID.npz ...]

A grid file holds the ratings on the scale 1 to 5 (ones for a model that ranks), one bit per rating and split (1 means
held out), and the settings of every run. For each grid, one result file with the curve and the cost of every run is
written to the folder OUT. It is rewritten after every batch of runs. With `--seconds`, a grid stops before the batch
that would exceed that time, and keeps the complete batches. If a grid fails, the next grids still run.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.gradient import GradientProblem
from hushrec.evaluate import metrics_of_ranks
from hushrec.models import find_model, make_model
from hushrec.protocols import find_protocol
from hushrec.simulation.training_problem import make_problem

RunSettings = dict[str, Any]
CPU_MEMORY = 4 * 10**9  # bytes that a batch may use without a GPU
MODELS = ("mf", "bpr")  # models that engine gpu supports
METRICS = {  # by what a model predicts; curves show the first metric
    "rating": ["rmse", "mae"],
    "ranking": ["auc", "hr_at_10", "ndcg_at_10", "recall_at_10"],
}


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of runs: ratings sorted by user and item, splits, and runs with the same model, factors and rounds."""

    n_users: int
    n_items: int
    users: IntArray = field(repr=False)
    items: IntArray = field(repr=False)
    values: FloatArray = field(repr=False)  # on the scale 1 to 5
    held_out: npt.NDArray[np.bool_] = field(repr=False)  # which ratings each split holds out, (n_splits, n_ratings)
    runs: list[RunSettings] = field(repr=False)  # the entry "split" of a run is its row of `held_out`

    def save(self, path: str | Path) -> None:
        """Write a compact grid file: indices of 16 or 32 bits, and one bit per rating and split."""
        width = np.uint16 if max(self.n_users, self.n_items) < 2**16 else np.uint32
        np.savez_compressed(
            path,
            shape=np.array([self.n_users, self.n_items]),
            users=self.users.astype(width),
            items=self.items.astype(width),
            values=self.values.astype(np.float32),
            held_out=np.packbits(self.held_out, axis=1),
            runs=np.array(json.dumps(self.runs)),
        )

    @staticmethod
    def load(path: str | Path) -> "Grid":
        with np.load(path, allow_pickle=False) as file:
            n_users, n_items = (int(number) for number in file["shape"])
            users = file["users"].astype(np.int64)
            return Grid(
                n_users,
                n_items,
                users,
                file["items"].astype(np.int64),
                file["values"].astype(np.float64),
                np.unpackbits(file["held_out"], axis=1, count=len(users)).astype(np.bool_),
                json.loads(str(file["runs"])),
            )


@dataclass(frozen=True, eq=False)
class GridResult:
    """The results of a grid, with one row per run in the order of `Grid.runs`; errors are on the scale 1 to 5."""

    curve: FloatArray  # (n_runs, rounds): RMSE or AUC; NaN if it was not measured
    metrics: FloatArray  # (n_runs, n_metrics), of the last round; `about["metrics"]` has their names
    value_rho: FloatArray  # (n_runs, 2): median and maximum over active users of the measured privacy loss ρ
    bytes_per_client_round: FloatArray  # (n_runs,): mean number of bytes that one device sends in a round
    about: dict[str, Any]  # machine, versions, seconds, names of metrics; "run_settings" has the settings of every run

    def save(self, path: str | Path | IO[bytes]) -> None:
        arrays = {name: value for name, value in vars(self).items() if name != "about"}
        np.savez_compressed(path, about=np.array(json.dumps(self.about)), **arrays)

    @staticmethod
    def load(path: str | Path) -> "GridResult":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name != "about"}
            return GridResult(**arrays, about=json.loads(str(file["about"])))


def make_problems(grid: Grid, runs: Sequence[RunSettings]) -> list[GradientProblem]:
    """Return the training problem of every run; runs on the same split share the arrays of its ratings."""
    made: dict[tuple[Any, ...], GradientProblem] = {}
    of_split: dict[int, GradientProblem] = {}
    problems = []
    for run in runs:
        protocol: Any = find_protocol(run["protocol"]).configure(run, run["model"])
        names = ("split", "seed", "step", "rounds", "factors", "reports_per_client", "epoch_rounds")
        key = (*(run.get(name) for name in names), protocol.selection is not None)
        if key not in made:
            problem = _training_problem(grid, run, protocol)
            first = of_split.setdefault(run["split"], problem)
            made[key] = replace(problem, items=first.items, values=first.values, starts=first.starts)
        problems.append(replace(made[key], protocols=[protocol]))
    return problems


def _training_problem(grid: Grid, run: RunSettings, protocol: Any) -> GradientProblem:
    rows = ~grid.held_out[run["split"]]
    return make_problem(
        grid.users[rows],
        grid.items[rows],
        grid.values[rows],
        n_users=grid.n_users,
        n_items=grid.n_items,
        model=make_model(run["model"], run["factors"]),
        protocols=[protocol],
        rounds=run["rounds"],
        step=run["step"],
        reports_per_client=run.get("reports_per_client"),
        epoch_rounds=run.get("epoch_rounds"),
        seed=run["seed"],
    )


def run_grid(
    grid: Grid,
    *,
    kernels: str | None = None,
    seconds: float = np.inf,
    splits_at_once: int | None = None,
    after_batch: Callable[[GridResult], None] | None = None,
    done: GridResult | None = None,
) -> GridResult:
    """Run the grid in batches of runs that fit into memory, and return the result.

    A batch has runs on at most `splits_at_once` splits, by default on any number. `after_batch` is called after each
    batch with the result so far. No batch is started that would exceed `seconds` if it took as long as the longest
    batch so far; its rows stay NaN. `done` is the result of an earlier call, whose complete rows are not run again.
    `kernels` is `fused` (Triton) or `dense` (PyTorch); by default it is `fused` on a GPU, except for model `bpr`.
    """
    import torch

    from hushrec.engines.gpu.engine import default_device
    from hushrec.engines.gpu.user_arrays import runs_at_once

    device = default_device()
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else CPU_MEMORY
    sets = len({(run["split"], run.get("epsilon"), run.get("clamp")) for run in grid.runs})
    n_pairs = len(grid.users) if find_model(grid.runs[0]["model"]).predicts == "ranking" else 0
    shape = (grid.n_users, grid.n_items, grid.runs[0]["factors"])
    fitting = runs_at_once(*shape, free, len(grid.runs) / sets, n_pairs)
    about = {"device": _device_name(device), "versions": versions("python", "torch", "triton", "numpy", "scipy")}
    counts = {"seconds": 0.0, "seconds_in_rounds": 0.0, "runs": 0, "batches": 0}
    result = done or _empty_result(grid, {**about, **counts})
    waiting = list(_batches(grid, np.flatnonzero(np.isnan(result.curve[:, -1])).tolist(), fitting, splits_at_once))
    longest = 0.0
    while waiting and result.about["seconds"] + longest <= seconds:
        numbers = waiting.pop(0)
        started = time.perf_counter()
        try:
            result.about["seconds_in_rounds"] += _run_batch(grid, numbers, result, device, kernels)
        except torch.OutOfMemoryError:
            if len(numbers) == 1:
                raise
            waiting[:0] = _pieces(numbers, (len(numbers) + 1) // 2)
            torch.cuda.empty_cache()
            continue
        longest = max(longest, time.perf_counter() - started)
        result.about["seconds"] += time.perf_counter() - started
        result.about["runs"] += len(numbers)
        result.about["batches"] += 1
        result.about["peak_bytes"] = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        # Per user and item, a round of model mf reads the training value (4 bytes) twice, and 1 byte of permanent bits.
        cells = grid.n_users * grid.n_items * grid.runs[0]["rounds"] * result.about["runs"]
        result.about["bytes_needed"] = float(9 * cells)
        if after_batch is not None:
            after_batch(result)
    return result


def _empty_result(grid: Grid, about: dict[str, Any]) -> GridResult:
    n_runs, first = len(grid.runs), grid.runs[0]
    names = METRICS[find_model(first["model"]).predicts]
    return GridResult(
        np.full((n_runs, first["rounds"]), np.nan),
        np.full((n_runs, len(names)), np.nan),
        np.full((n_runs, 2), np.nan),
        np.full(n_runs, np.nan),
        {**about, "metrics": names, "run_settings": grid.runs},
    )


def _batches(grid: Grid, missing: Sequence[int], fitting: int, splits_at_once: int | None) -> Iterator[Sequence[int]]:
    """Yield the run numbers in `missing` in batches of at most `fitting` runs on at most `splits_at_once` splits.

    `fitting` is the number of runs that fit into memory.
    """
    splits = sorted({grid.runs[number]["split"] for number in missing})
    for some in _pieces(splits, splits_at_once or len(splits)):
        numbers = [number for number in missing if grid.runs[number]["split"] in set(some)]
        yield from _pieces(sorted(numbers, key=lambda number: grid.runs[number]["split"]), fitting)


def _run_batch(grid: Grid, numbers: Sequence[int], result: GridResult, device: str, kernels: str | None) -> float:
    """Run the runs with these `numbers` in one batch, and fill their rows of `result`.

    Return the number of seconds that the rounds took, including the measurements between them.
    """
    from hushrec.engines.gpu.engine import GpuBatch

    runs = [grid.runs[number] for number in numbers]
    problems = make_problems(grid, runs)
    batch = GpuBatch(problems, device=device, kernels=kernels)
    splits = sorted({run["split"] for run in runs})
    tests = np.stack([np.flatnonzero(grid.held_out[split]) for split in splits])
    split_rows = [splits.index(run["split"]) for run in runs]
    placed = batch.place_held_out(grid.users[tests], grid.items[tests], grid.values[tests], split_rows)
    rows = np.array(numbers)
    started = time.perf_counter()
    for round_number in range(1, runs[0]["rounds"] + 1):
        batch.run_round()
        if is_measured(round_number, runs[0]["rounds"], runs[0].get("measure_every", 1)):
            metrics = _measure(batch, placed)
            result.curve[rows, round_number - 1] = metrics[:, 0]
    seconds = time.perf_counter() - started
    result.metrics[rows] = metrics
    result.curve[rows[~batch.is_finite()], -1] = np.nan  # ranks are finite even if the scores are not
    rho = batch.value_rho()[:, problems[0].active_users]
    result.value_rho[rows] = np.stack([np.median(rho, axis=1), rho.max(axis=1)], axis=1)
    result.bytes_per_client_round[rows] = 4 * batch.mean_reports() * (1 + runs[0]["factors"])
    return seconds


def is_measured(round_number: int, rounds: int, every: int) -> bool:
    """Return whether a curve has a point at this round: the first, the last, and every multiple of `every`."""
    return round_number % every == 0 or round_number in (1, rounds)


def _measure(batch: Any, placed: Any) -> FloatArray:
    """Return the test metrics of every run of `batch`, a `GpuBatch`, as an array `(n_runs, n_metrics)`.

    `placed` has the held-out ratings on the GPU, as returned by `GpuBatch.place_held_out`.
    """
    if not batch.from_pairs:
        return np.asarray(batch.held_out_errors(placed))
    with np.errstate(divide="ignore", invalid="ignore"):  # from runs that diverged
        found = [metrics_of_ranks(*ranks) for ranks in batch.held_out_ranks(placed)]
    return np.array([[metrics[name] for name in METRICS["ranking"]] for metrics in found])


def _pieces(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def versions(*names: str) -> dict[str, str]:
    """Return the versions of the installed packages among `names`, by name; "python" means Python itself."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = platform.python_version() if name == "python" else version(name)
    return found


def _device_name(device: str) -> str:
    import torch

    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def main(arguments: Sequence[str]) -> int:
    """Run every grid file; return the exit status: 1 if a grid failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="hushrec.experiments.grid")
    parser.add_argument(
        "--seconds", type=float, default=np.inf, help="time limit for each grid, in seconds; by default there is none"
    )
    parser.add_argument("--splits-at-once", type=int, default=5)
    parser.add_argument("--kernels", choices=["fused", "dense"])
    parser.add_argument("out", type=Path)
    parser.add_argument("grids", type=Path, nargs="+")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for path in chosen.grids:

        def keep(result: GridResult, path: Path = path) -> None:
            result.save(chosen.out / f"{path.stem}.npz")
            print(f"{path.stem}: {summary(result)}", flush=True)  # noqa: T201

        try:
            run_grid(
                Grid.load(path),
                kernels=chosen.kernels,
                seconds=chosen.seconds,
                splits_at_once=chosen.splits_at_once,
                after_batch=keep,
            )
        except Exception:  # the other grids still run
            failed = 1
            print(f"{path.stem}: failed", flush=True)  # noqa: T201
            traceback.print_exc()
    return failed


def summary(result: GridResult) -> str:
    """Return one line about the finished runs: number, time, memory, and the range of final metrics."""
    about, last = result.about, result.curve[:, -1]
    ended = last[np.isfinite(last)]
    low, high = (ended.min(), ended.max()) if len(ended) else (np.nan, np.nan)
    return (
        f"{about['runs']} of {len(last)} runs in {about['seconds']:.1f} s, {about['seconds_in_rounds']:.1f} s of it in"
        f" rounds, {about['bytes_needed'] / about['seconds_in_rounds'] / 1e12:.2f} TB/s needed, at most"
        f" {about['peak_bytes'] / 1e9:.1f} GB taken; last {about['metrics'][0].upper()} {low:.4f} to {high:.4f}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
