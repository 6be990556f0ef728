"""Run an experiment on the cores of this machine, on a cluster, or in batches on a GPU, and write its records.

An interrupted experiment can be resumed.
"""

import dataclasses
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.engines import make_engine
from hushrec.errors import HushrecError, ParameterError, RunError
from hushrec.experiment_records import Record, Shared, is_experiment, write_records
from hushrec.experiments.config import DataTable, Experiment, Plan, make_plans, read_experiment
from hushrec.experiments.grid import MODELS, Grid, GridResult, RunSettings, run_grid, versions
from hushrec.experiments.single import check_plan, make_plan_problem, run_plan, split_record, without_result
from hushrec.files import replacing
from hushrec.json_values import to_json
from hushrec.protocols.configured import Spending
from hushrec.scale import HIGHEST, LOWEST
from hushrec.simulation.settings import declared_options
from hushrec.simulation.tasks import RatingTask, Task

Progress = Callable[[int, int], None]  # runs done, number of all runs
SEEDS = ("split_seed", "seed")
SPLITS_AT_ONCE = 5  # splits of one batch on engine gpu; results are saved after each batch


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment that is ready to run: its data, and the checked plans of all its runs."""

    experiment: Experiment
    ratings: Ratings
    plans: list[Plan]

    def task(self, plan: Plan) -> Task:
        return _make_task(self.ratings, plan)


def prepare(
    path: str | Path,
    *,
    data_dir: str | Path | None = None,
    n_splits: int | None = None,
    reading: dict[str, Any] | None = None,
) -> Prepared:
    """Read an experiment file, load its data, and check every run.

    `data_dir` is searched for named data sets first. `reading` overrides the file's options for reading the data, and
    `n_splits` limits the number of splits.
    """
    experiment = read_experiment(path)
    if reading:
        chosen = {name: str(value) if isinstance(value, Path) else value for name, value in reading.items()}
        experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update=chosen)})
    try:
        plans = make_plans(experiment, n_splits=n_splits)  # raises on contradictions before the data is read
        ratings = _load(experiment.data, data_dir)
        for plan in plans:
            check_plan(_make_task(ratings, plan), plan)
        _check_engines(ratings, plans)
    except HushrecError as error:
        raise ParameterError(f"{path}: {error}") from None
    return Prepared(experiment, ratings, plans)


def _load(data: DataTable, data_dir: str | Path | None) -> Ratings:
    try:
        return load_ratings(data.set, data_dir=data_dir, **data.reading)
    except HushrecError as error:
        raise ParameterError(f"data.set: {error}") from None


def _check_engines(ratings: Ratings, plans: Sequence[Plan]) -> None:
    """Raise `ParameterError` if an engine cannot run its plans.

    To find out, each engine is created once, for the last plan that uses it.
    """
    engines = {plan.settings.chosen_engine: plan for plan in plans}
    if "gpu" in engines:
        if len(engines) > 1:
            raise ParameterError("engine must be gpu for all curves of an experiment or for none. Set it in [run].")
        _check_grid(plans)
    for name, plan in engines.items():
        make_engine(name, make_plan_problem(_make_task(ratings, plan), plan))


_TASKS: dict[tuple[Any, ...], Task] = {}


def _make_task(ratings: Ratings, plan: Plan) -> Task:
    """Return the task for a plan's split. The last task is cached, because plans are ordered by split."""
    settings = plan.settings
    key = (id(ratings), settings.model, settings.split_seed, settings.options.get("at_least"), plan.validation)
    if key not in _TASKS:
        _TASKS.clear()
        task = settings.make_task(ratings)
        _TASKS[key] = task.validation(settings.split_seed) if plan.validation else task
    return _TASKS[key]


# Runs on the cores of this machine -----------------------------------------------------------------------------


def run_experiment(
    prepared: Prepared,
    out: str | Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    progress: Progress | None = None,
    cluster: bool = False,
) -> Path:
    """Run every plan, write the records to the folder `out`/NAME, and return that folder.

    NAME is the name of the experiment, and `jobs` the number of processes. With `cluster`, the runs are spread over the
    connected Ray cluster instead, one core for each. Engine `gpu` ignores `jobs` and `cluster`. `resume` continues an
    unfinished experiment. `progress` is called with the number of finished runs and the number of all runs.
    """
    folder = Path(out) / prepared.experiment.name
    parts = folder / "parts"
    if is_experiment(folder) or (parts.is_dir() and not resume):
        raise RunError(
            f"{folder} must not hold records already. Remove it, choose another --out, or continue an unfinished"
            " experiment with --resume."
        )
    parts.mkdir(parents=True, exist_ok=True)
    if prepared.plans[0].settings.chosen_engine == "gpu":
        collect(prepared, _run_batches(prepared, parts, progress), folder)
    else:
        store(prepared, _run_on_cores(prepared, parts, 0 if cluster else jobs, progress), folder)
    shutil.rmtree(parts)
    return folder


def _run_on_cores(prepared: Prepared, parts: Path, jobs: int, progress: Progress | None) -> list[Record]:
    files = [parts / f"{number:04}-{_plan_key(prepared, plan)}.json" for number, plan in enumerate(prepared.plans)]
    waiting = [number for number, file in enumerate(files) if not file.is_file()]
    done = len(files) - len(waiting)
    for number, row in _results(prepared, waiting, jobs):
        with replacing(files[number]) as file:
            file.write(json.dumps(to_json(row)).encode())
        done += 1
        if progress is not None:
            progress(done, len(files))
    return [json.loads(file.read_text()) for file in files]


def _results(prepared: Prepared, waiting: Sequence[int], jobs: int) -> Iterator[tuple[int, Record]]:
    """Run the plans with the numbers in `waiting`; yield the number and the record of each plan when it has run.

    `jobs` is the number of processes on this machine; 0 means that the connected Ray cluster runs the plans.
    """
    if jobs == 0:
        from hushrec.engines.ray.grid import run_all

        plans = [prepared.plans[number] for number in waiting]
        for place, row in run_all(_work_on, prepared.ratings, plans):
            yield waiting[place], row
        return
    if jobs == 1:
        for number in waiting:
            yield number, _work_on(prepared.ratings, prepared.plans[number])
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (prepared.ratings, threads)) as pool:
        futures = {pool.submit(_work, prepared.plans[number]): number for number in waiting}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_ratings: list[Ratings] = []


def _start_worker(ratings: Ratings, threads: int) -> None:
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    _ratings.append(ratings)


def _work(plan: Plan) -> Record:
    return _work_on(_ratings[0], plan)


def _work_on(ratings: Ratings, plan: Plan) -> Record:
    return run_plan(_make_task(ratings, plan), plan)


def _plan_key(prepared: Prepared, plan: Plan) -> str:
    content = repr([_plain_plan(plan), plan.settings.seed, plan.settings.split_seed, prepared.ratings.checksum])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


# Runs as one batch, here or on another machine -----------------------------------------------------------------


def make_grid(prepared: Prepared) -> Grid:
    """Return one grid with the runs of all plans, for engine `gpu`."""
    plans = prepared.plans
    _check_grid(plans)
    seeds = sorted({plan.settings.split_seed for plan in plans})
    task = prepared.task(plans[0])
    rows = np.concatenate([task.split.train, task.split.test])
    rows = rows[np.lexsort((task.ratings.items[rows], task.ratings.users[rows]))]
    held_out = np.zeros((len(seeds), task.ratings.n_ratings), dtype=np.bool_)
    for plan in {plan.settings.split_seed: plan for plan in plans}.values():
        held_out[seeds.index(plan.settings.split_seed), prepared.task(plan).split.test] = True
    values = task.scale.to_unit(task.values[rows]) if isinstance(task, RatingTask) else np.ones(len(rows))
    runs = [_grid_run(plan, seeds) for plan in plans]
    users, items = task.ratings.users[rows], task.ratings.items[rows]
    return Grid(task.ratings.n_users, task.ratings.n_items, users, items, values, held_out[:, rows], runs)


def _check_grid(plans: Sequence[Plan]) -> None:
    if any(plan.settings.model not in MODELS or plan.groups or plan.data_weight for plan in plans):
        raise ParameterError(
            "engine gpu needs model mf or bpr in all curves, and no curve with groups or data_weight. Use engine cpu."
        )
    if any(plan.settings.options.get("no_fallback") is False for plan in plans):
        raise ParameterError(
            "no_fallback must be true on engine gpu, which makes no cold-start predictions. Set no_fallback = true."
        )
    shared = {
        (plan.settings.model, *(plan.settings.options.get(name) for name in ("factors", "rounds", "at_least")))
        for plan in plans
    }
    if len(shared) > 1 or len({plan.measure_every for plan in plans}) > 1:
        raise ParameterError(
            "model, factors, rounds, at_least and measure_every must be the same for all curves on engine gpu. Move"
            " them to [run], or use engine cpu."
        )
    if plans[0].validation and len({plan.settings.split_seed for plan in plans}) > 1:
        raise ParameterError("splits.count must be 1 on engine gpu with splits.validation. Use --splits 1.")


def _grid_run(plan: Plan, seeds: list[int]) -> RunSettings:
    settings = plan.settings
    chosen = {name: value for name, value in (settings.chosen() | settings.options).items() if value is not None}
    shape = {"split": seeds.index(settings.split_seed), "measure_every": plan.measure_every}
    return chosen | settings.make_protocol().chosen_options() | shape


def _run_batches(prepared: Prepared, parts: Path, progress: Progress | None) -> GridResult:
    """Run all plans on engine `gpu` in batches of splits, except the batches that an earlier call saved in `parts`."""
    keys = "".join(_plan_key(prepared, plan) for plan in prepared.plans)
    file = parts / f"{hashlib.sha256(keys.encode()).hexdigest()[:16]}.npz"

    def keep(result: GridResult) -> None:
        with replacing(file) as out:
            result.save(out)
        if progress is not None:
            progress(result.about["runs"], len(prepared.plans))

    done = GridResult.load(file) if file.is_file() else None
    return run_grid(make_grid(prepared), splits_at_once=SPLITS_AT_ONCE, after_batch=keep, done=done)


def collect(prepared: Prepared, result: GridResult, folder: Path) -> None:
    """Write the records of a grid's result to a folder, with the machine and the versions from the result."""
    used = versions("hushrec") | result.about["versions"]
    store(prepared, grid_rows(prepared, result), folder, "gpu", result.about["device"], used)


def grid_rows(prepared: Prepared, result: GridResult) -> list[Record]:
    """Return one record per plan from a grid's result; "seconds" in every record is the mean over all runs."""
    scale = prepared.task(prepared.plans[0]).scale
    stretch = 1.0 if scale is None else (scale.high - scale.low) / (HIGHEST - LOWEST)
    places = {_grid_key(run): place for place, run in enumerate(result.about["run_settings"])}
    rows = []
    for number, plan in enumerate(prepared.plans):
        place = places.get(_grid_key(_grid_run(plan, [plan.settings.split_seed])))
        if place is None or np.isnan(result.bytes_per_client_round[place]):
            raise RunError(
                f"the result must contain all {len(prepared.plans)} runs of the experiment, but lacks run {number + 1}."
                " Give the result of this experiment, or a smaller number with --splits."
            )
        row = _grid_row(result, place, stretch) | _divergence(plan, result.curve[place])
        if number < _n_settings(prepared):  # the budget of a setting is stored once
            problem = make_plan_problem(prepared.task(plan), plan)
            median, most = np.nan_to_num(result.value_rho[place], nan=np.inf, posinf=np.inf)  # NaN: unbounded
            losses = {"value_rho": np.array([median, median, most])}  # any values with this median and maximum
            terms, counts = problem.terms, problem.rated_counts[problem.active_users]
            spending = Spending(terms.max_rounds, terms, problem.model, problem.protocols, counts, losses)
            row["budget"] = to_json(problem.protocols[0].statement(spending))
        rows.append(row)
    return rows


def _divergence(plan: Plan, curve: FloatArray) -> Record:
    """Return record entries for a run that diverged, so that its last point is not finite; {} for other runs."""
    if np.isfinite(curve[-1]):
        return {}
    last = int(np.flatnonzero(np.isfinite(curve)).max(initial=-1)) + 1
    return without_result(
        f"training with {plan.settings.protocol} diverged after round {last} at step {plan.settings.options['step']:g}."
        " Lower the step."
    )


def _grid_row(result: GridResult, place: int, stretch: float) -> Record:
    names = result.about["metrics"]
    values = stretch * result.curve[place]
    measured = np.flatnonzero(np.isfinite(values)).tolist()
    return {
        "metrics": dict(zip(names, map(float, stretch * result.metrics[place]), strict=True)),
        "curve": [{"round": number + 1, names[0]: float(values[number])} for number in measured],
        "seconds": result.about["seconds"] / result.about["runs"],
        "bytes_per_client_round": float(result.bytes_per_client_round[place]),
        "value_rho": dict(zip(("median", "max"), map(float, result.value_rho[place]), strict=True)),
    }


def _grid_key(run: RunSettings) -> tuple[Any, ...]:
    """Return a key that identifies a run in a grid: model, protocol, seeds, and every option of models and protocols.

    Options that are not set or False are None in the key.
    """
    values = (run.get(name) for name in ("model", "protocol", "split_seed", "seed", *declared_options()))
    return tuple(None if value is False else value for value in values)


# Records ---------------------------------------------------------------------------------------------------------


def store(
    prepared: Prepared,
    rows: list[Record],
    folder: Path,
    engine: str | None = None,
    machine: str | None = None,
    used: dict[str, str] | None = None,
) -> None:
    """Write `rows`, one record per plan, to a folder.

    `used` has the versions of packages by name. By default, machine and versions are those of this process, and every
    plan names its engine.
    """
    plans, ratings, experiment = prepared.plans, prepared.ratings, prepared.experiment
    settings = [_setting_record(*own, engine) for own in zip(plans[: _n_settings(prepared)], rows, strict=False)]
    by_split = {plan.settings.split_seed: plan for plan in plans}
    splits = {seed: split_record(prepared.task(plan)) for seed, plan in by_split.items()}
    scale = ratings.scale
    about = {
        "name": experiment.name,
        "title": experiment.title,
        "config": experiment.model_dump(exclude_none=True),
        "dataset": ratings.name,
        "data": {
            "users": ratings.n_users,
            "items": ratings.n_items,
            "scale": None if scale is None else [scale.low, scale.high],
            "checksum": ratings.checksum,
        },
        "versions": used or versions("hushrec", "numpy", "scipy", "numba"),
        "machine": machine or f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    stored = []
    for number, (plan, row) in enumerate(zip(plans, rows, strict=True)):
        place = {"setting": number % len(settings)} | {name: getattr(plan.settings, name) for name in SEEDS}
        stored.append(place | {name: value for name, value in row.items() if name != "budget"})
    write_records(folder, Shared(to_json(about), to_json(settings), to_json(splits)), stored)


def _setting_record(plan: Plan, row: Record, engine: str | None) -> Record:
    settings, budget = plan.settings, row["budget"]
    return {
        "label": _label(plan, budget),
        "model": settings.model,
        "protocol": settings.protocol,
        "engine": engine or settings.chosen_engine,
        "rounds": budget["rounds"],  # some protocols plan their rounds themselves
        **{name: settings.options.get(name) for name in ("factors", "step", "at_least")},
        "config": _plain_plan(plan),
        "budget": budget,
    }


def _label(plan: Plan, budget: Record) -> str:
    if plan.groups:
        return f"{plan.settings.protocol}, {len(plan.groups)} budget groups"
    weight = "" if plan.data_weight is None else f", N={plan.data_weight:g}"
    return plan.settings.declared.wording.label(budget) + weight


def _plain_plan(plan: Plan) -> Record:
    """Return everything that defines a run except its seeds, as JSON data."""
    settings = {name: value for name, value in plan.settings.chosen().items() if name not in SEEDS}
    special: Record = {"data_weight": plan.data_weight, "measure_every": plan.measure_every}
    special |= {"validation": plan.validation or None, "groups": [group.model_dump() for group in plan.groups] or None}
    return {name: value for name, value in (settings | special).items() if value not in (None, [])}


def _n_settings(prepared: Prepared) -> int:
    """Return the number of different settings, which is the number of plans on the first split."""
    first = prepared.plans[0].settings.split_seed
    return sum(plan.settings.split_seed == first for plan in prepared.plans)
