"""Checks the fused kernels on this GPU against plain PyTorch, then times both, and tile shapes.

    PYTHONPATH=src python3 benchmarks/gpu.py SMALL_GRID.npz LARGE_GRID.npz

The grids come from `hushrec experiment FILE.toml --export GRID.npz`. Exits with 1 if the two versions disagree.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
import triton

from hushrec.engines import dense, fused
from hushrec.engines.gpu import GpuBatch
from hushrec.experiments.grid import Grid, make_problems, run_grid
from hushrec.randomness import Purpose

TILES = [
    fused.Tile(64, 32),
    fused.Tile(32, 64),
    fused.Tile(32, 32),
    fused.Tile(64, 64, warps=8),
    fused.Tile(64, 64, warps=8, stages=2),
    fused.Tile(32, 64, stages=2),
    fused.Tile(64, 32, stages=2),
    fused.Tile(32, 64, warps=8),
]


def first_runs(grid: Grid, count: int, rounds: int) -> Grid:
    """The first runs of a grid, for a few rounds."""
    return replace(grid, runs=[{**run, "rounds": rounds} for run in grid.runs[:count]])


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GB on the device."""
    source = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    milliseconds = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * 4 * 2**30 / milliseconds * 1e3


def agree(grid: Grid) -> bool:
    """Curves of the two versions over ten rounds: the same but for their draws."""
    few = first_runs(grid, 20, 10)
    plain, quick = (run_grid(few, kernels=kernels).curve for kernels in ("dense", "fused"))
    worst = np.abs(plain - quick).max()
    print(f"plain and fused RMSE differ by at most {worst:.5f} over {plain.shape[0]} runs of 10 rounds", flush=True)
    return bool(worst < 0.01)


def time_kernels(grid: Grid) -> None:
    """Milliseconds per run and round of each kernel and tile, and of the plain version."""
    runs = first_runs(grid, 20, 100)
    batch = GpuBatch(make_problems(runs, runs.runs), kernels="fused")
    batch.run_round()
    vectors = (batch.user_vectors, batch.item_vectors)
    values, sets = batch._values, batch._sets
    n_runs = len(runs.runs)
    cells = grid.n_users * grid.n_items * n_runs
    users = fused.user_sums(values, sets, batch._counts, *vectors)
    law = dense.fake_law(users.error_mean, users.error_deviation, batch._epsilon_g)
    keys = torch.tensor([batch._key(run, Purpose.SELECTION) for run in range(n_runs)], device="cuda")
    for tile in TILES:
        jobs = {
            "users": lambda tile=tile: fused.user_sums(values, sets, batch._counts, *vectors, tile=tile),
            "items": lambda tile=tile: fused.item_sums(
                values, sets, batch._bits, keys, batch._zero, batch._one, law, *vectors, tile=tile
            ),
        }
        for name, job in jobs.items():
            try:
                took = triton.testing.do_bench(job, warmup=20, rep=200, return_mode="median")
            except Exception as error:  # a shape that does not fit this GPU
                print(f"{name} {tile}: {type(error).__name__}", flush=True)
                continue
            read = cells * (4 if name == "users" else 5) / took / 1e9
            print(f"{name} {tile}: {took / n_runs:.4f} ms per run, {read:.3f} TB/s", flush=True)
    for kernels in ("fused", "dense"):
        batch.kernels = kernels
        took = triton.testing.do_bench(batch.run_round, warmup=50, rep=1000, return_mode="median")
        print(f"a whole round, {kernels}: {took / n_runs:.4f} ms per run", flush=True)


def main() -> int:
    """Checks, then times."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    print(f"copy on the device: {copy_bandwidth() / 1e12:.2f} TB/s", flush=True)
    small, large = (Grid.load(path) for path in sys.argv[1:3])
    if not agree(small):
        return 1
    try:
        time_kernels(large)
    except Exception as error:  # timing is not needed for what follows
        print(f"timing failed: {type(error).__name__}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
