"""The command `hushrec experiment`: run a grid of settings and splits from a TOML file."""

from pathlib import Path
from typing import Annotated

from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from typer import Argument, Option

from hushrec.cli.app import JsonFlag, app, counted, print_json, progress_bars, say, say_on_interrupt
from hushrec.cli.cluster import Address, Dashboard, Workers, on_cluster
from hushrec.cli.reading import Reading, announce, reads_ratings
from hushrec.errors import ParameterError


@app.command(epilog="Example: hushrec experiment experiments/task1-ml-100k.toml --jobs 2")
@reads_ratings
def experiment(
    file: Annotated[Path, Argument(help="Experiment file (TOML), such as the files in experiments/.")],
    reading: Reading,
    jobs: Annotated[int, Option(min=1, help="Number of runs at a time, each in a process of its own.")] = 1,
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted experiment.")] = False,
    out: Annotated[
        Path, Option(help="Folder for records; the experiment writes into a subfolder with its name.")
    ] = Path("experiments/records"),
    splits: Annotated[
        int | None, Option(min=1, help="Run only this many splits, beginning with the first.  [default: all]")
    ] = None,
    export: Annotated[
        Path | None,
        Option(
            help="Run nothing; write the settings of all runs and the ratings into this .npz file, the grid file."
            " `python -m hushrec.experiments.grid OUT FILE` runs them on a machine with a GPU."
        ),
    ] = None,
    collect: Annotated[
        Path | None,
        Option(
            help="Run nothing; read this result file, which `python -m hushrec.experiments.grid` made from the grid"
            " file of --export, and write the records of its runs."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        Option(
            help="ray: spread the runs over a Ray cluster.  [default: run on this machine, with the engine that the"
            " file names]"
        ),
    ] = None,
    address: Address = None,
    workers: Workers = None,
    dashboard: Dashboard = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a grid of settings and splits, and write a record of every run.

    All settings are checked before the first run starts.
    """
    from hushrec.experiment_records import read_records
    from hushrec.experiments.grid import GridResult
    from hushrec.experiments.running import collect as collect_grid
    from hushrec.experiments.running import make_grid, prepare, run_experiment

    if engine not in (None, "ray"):
        raise ParameterError(f"--engine must be ray, got {engine}. Set any other engine in the experiment file.")
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
        done = len(list((out / name / "parts").glob("*.json")))  # runs that an interrupted call finished
        with (
            on_cluster(engine, address, workers, dashboard),
            say_on_interrupt(lambda: _kept_runs(done, len(prepared.plans))),
            progress_bars(MofNCompleteColumn(), TimeRemainingColumn()) as show,
        ):

            def progress(finished: int, total: int) -> None:
                nonlocal done
                done = finished
                show(name, finished, total)

            folder = run_experiment(prepared, out, jobs=jobs, resume=resume, progress=progress, cluster=engine == "ray")
    diverged = sum(bool(record.get("diverged")) for record in read_records(folder))
    if as_json:
        print_json({"records": str(folder), "runs": len(prepared.plans), "diverged": diverged})
    else:
        runs = f"{counted(len(prepared.plans), 'run')} kept in {folder}"
        failed = f", {diverged} diverged" if diverged else ""
        say(f"{runs}{failed}. To see the results: hushrec report {folder}")


def _kept_runs(done: int, total: int) -> str:
    if not done:
        return "No run was finished; nothing was kept."
    return f"{done} of {counted(total, 'run')} kept. Continue with the same command and --resume."
