"""Checks the fused kernels on this GPU against plain PyTorch, then times both, and tile shapes.

    PYTHONPATH=src python3 benchmarks/gpu.py check SMALL_GRID.npz
    PYTHONPATH=src python3 benchmarks/gpu.py time LARGE_GRID.npz

The grids come from `hushrec experiment FILE.toml --export GRID.npz`. `check` exits with 1 if the two versions disagree.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
import triton

from hushrec.engines.gpu import dense, fused
from hushrec.engines.gpu.engine import GpuBatch
from hushrec.experiments.grid import Grid, make_problems, run_grid
from hushrec.randomness import Purpose

TILES = {
    "users": [fused.USER_TILE, fused.Tile(64, 64, warps=8, stages=2), fused.Tile(32, 64)],
    "items": [fused.ITEM_TILE, fused.Tile(64, 32), fused.Tile(32, 32), fused.Tile(32, 64, warps=8)],
}


def first_runs(grid: Grid, count: int, rounds: int) -> Grid:
    """The first runs of a grid, for a few rounds."""
    return replace(grid, runs=[{**run, "rounds": rounds} for run in grid.runs[:count]])


def kernels_agree(grid: Grid) -> bool:
    """Both versions of the sums with nothing left to chance: fakes without mass, selection decided by the bits."""
    few = first_runs(grid, 4, 1)
    batch = GpuBatch(make_problems(few, few.runs), kernels="fused")
    vectors, sets = (batch.user_vectors, batch.item_vectors), batch._sets
    bits = torch.rand((4, grid.n_users, grid.n_items), device="cuda") < 0.05
    ones = torch.ones((4, grid.n_users), device="cuda")
    law = dense.FakeLaw(ones, 0.5 * ones, 0.2 * ones, 0.1 * ones, 0 * ones, 2 * ones)
    fakes = law.errors(torch.rand_like(bits, dtype=torch.float32))
    keys = torch.arange(4, device="cuda")
    users = fused.user_sums(batch._values, sets, batch._counts, *vectors)
    items = fused.item_sums(batch._values, sets, bits, keys, 0 * ones, ones, law, *vectors)
    worst = 0.0
    for run in range(4):
        values, own = batch._values[sets[run]], (vectors[0][run], vectors[1][run])
        truths = [
            dense.user_sums(values, batch._counts[run], *own),
            dense.item_sums(values, bits[run], fakes[run], *own),
        ]
        for found, truth in zip((users, items), truths, strict=True):
            for name, expected in vars(truth).items():
                error = (vars(found)[name][run] - expected).norm() / expected.float().norm()
                worst = max(worst, float(error))
    print(f"sums of the two versions differ by at most {worst:.1e} of their norm", flush=True)
    return worst < 1e-2


def curves_agree(grid: Grid) -> bool:
    """Ten rounds of a split's curves: as close as two draws of the same version come to each other.

    Where nothing is drawn but noise (plain, isgld) that is rounding: 0.006 in round 2 and 0.0005 in round 10 on an
    H200. With fakes, 0.02 in a round has been seen.
    """
    few = first_runs(grid, 22, 10)
    plain, quick = (run_grid(few, kernels=kernels).curve for kernels in ("dense", "fused"))
    good = True
    for run, one, other in zip(few.runs, plain, quick, strict=True):
        worst, last = np.abs(one - other).max(), abs(one[-1] - other[-1])
        drawn = run["protocol"] == "sdcf"
        fine = bool(worst < (0.05 if drawn else 0.01) and last < (0.02 if drawn else 0.002))
        good &= fine
        budget = {name: run[name] for name in ("epsilon", "clamp", "epsilon_i", "epsilon_g") if name in run}
        print(
            f"{run['protocol']} {budget}: {one[-1]:.4f}, {other[-1]:.4f}, at most {worst:.4f} apart {fine}", flush=True
        )
    return good


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GB on the device."""
    source = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    milliseconds = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * 4 * 2**30 / milliseconds * 1e3


def time_kernels(grid: Grid) -> None:
    """Milliseconds per run and round of whole rounds, then of each kernel by tile."""
    runs = first_runs(grid, 22, 10**6)
    batch = GpuBatch(make_problems(runs, runs.runs), kernels="fused")
    n_runs = len(runs.runs)
    for kernels in ("fused", "dense"):
        batch.kernels = kernels
        took = triton.testing.do_bench(batch.run_round, warmup=50, rep=500, return_mode="median")
        print(f"a whole round, {kernels}: {took / n_runs:.4f} ms per run", flush=True)
    vectors, values, sets = (batch.user_vectors, batch.item_vectors), batch._values, batch._sets
    cells = grid.n_users * grid.n_items * n_runs
    users = fused.user_sums(values, sets, batch._counts, *vectors)
    law = dense.fake_law(users.error_mean, users.error_deviation, batch._epsilon_g)
    keys = torch.tensor([batch._key(run, Purpose.SELECTION) for run in range(n_runs)], device="cuda")
    jobs = {
        "users": lambda tile: fused.user_sums(values, sets, batch._counts, *vectors, tile=tile),
        "items": lambda tile: fused.item_sums(
            values, sets, batch._bits, keys, batch._zero, batch._one, law, *vectors, tile=tile
        ),
    }
    for name, job in jobs.items():
        for tile in TILES[name]:
            took = triton.testing.do_bench(
                lambda job=job, tile=tile: job(tile), warmup=20, rep=100, return_mode="median"
            )
            read = cells * (4 if name == "users" else 5) / took / 1e9
            print(f"{name} {tile}: {took / n_runs:.4f} ms per run, {read:.3f} TB/s", flush=True)


def main() -> int:
    """Checks, or times."""
    what, path = sys.argv[1:3]
    grid = Grid.load(path)
    if what == "check":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
        return 0 if kernels_agree(grid) and curves_agree(grid) else 1
    print(f"copy on the device: {copy_bandwidth() / 1e12:.2f} TB/s", flush=True)
    time_kernels(grid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
