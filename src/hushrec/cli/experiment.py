"""`hushrec experiment`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.cli.app import JsonFlag, app, counted, print_json, say, saying_what_was_kept
from hushrec.cli.cluster import Address, Dashboard, Workers, on_cluster
from hushrec.cli.reading import Reading, announce, reads_ratings
from hushrec.errors import ParameterError


@app.command(epilog="Example: hushrec experiment experiments/task1-ml-100k.toml --jobs 2")
@reads_ratings
def experiment(
    file: Annotated[Path, typer.Argument(help="An experiment file; experiments/ holds one per figure of the paper.")],
    reading: Reading,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, a process each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what an interrupted call left.")] = False,
    out: Annotated[Path, typer.Option(help="Where the folder of records goes.")] = Path("experiments/records"),
    splits: Annotated[int | None, typer.Option(min=1, help="Run only so many of the splits.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the runs as one grid file for a machine with a GPU, and run nothing.")
    ] = None,
    collect: Annotated[Path | None, typer.Option(help="Make the records from such a machine's result file.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="ray: spread the runs over a cluster.  [default: this machine, as the file says]")
    ] = None,
    address: Address = None,
    workers: Workers = None,
    dashboard: Dashboard = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a grid of settings and splits, and keep a record of every run. Everything is checked before the first one."""
    from hushrec.experiment_records import read_records
    from hushrec.experiments.grid import GridResult
    from hushrec.experiments.running import collect as collect_grid
    from hushrec.experiments.running import make_grid, prepare, run_experiment

    if engine not in (None, "ray"):
        raise ParameterError(f"engine of a whole experiment must be ray, got {engine}. Name others in the file.")
    prepared = prepare(file, data_dir=reading.data_dir, n_splits=splits, reading=reading.given())
    announce(prepared.ratings)
    if export is not None:
        make_grid(prepared).save(export)
        runs = counted(len(prepared.plans), "run")
        say(f"{runs}: {export}. Run it with: python -m hushrec.experiments.grid OUT {export}")
        return
    name = prepared.experiment.name
    if collect is not None:
        folder = out / name
        collect_grid(prepared, GridResult.load(collect), folder)
    else:
        done = [len(list((out / name / "parts").glob("*.json")))]  # of an earlier call
        with (
            on_cluster(engine, address, workers, dashboard),
            saying_what_was_kept(lambda: _kept_runs(done[0], len(prepared.plans))),
            _bar(name, done) as progress,
        ):
            folder = run_experiment(prepared, out, jobs=jobs, resume=resume, progress=progress, cluster=engine == "ray")
    diverged = sum(bool(record.get("diverged")) for record in read_records(folder))
    if as_json:
        print_json({"records": str(folder), "runs": len(prepared.plans), "diverged": diverged})
    else:
        kept = f"{counted(len(prepared.plans), 'run')} kept in {folder}" + (
            f", {diverged} diverged" if diverged else ""
        )
        say(f"{kept}. Look at them with: hushrec report {folder}")


def _kept_runs(done: int, total: int) -> str:
    if not done:
        return "No run was finished; nothing was kept."
    return f"{done} of {counted(total, 'run')} kept. The same command with --resume goes on from there."


@contextmanager
def _bar(name: str, done: list[int]) -> Iterator[Any]:
    """A progress bar on stderr, silent where that is no terminal; `done` holds how many runs are finished."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def advance(finished: int, total: int) -> None:
            done[0] = finished
            bar.update(task, completed=finished, total=total)

        yield advance
