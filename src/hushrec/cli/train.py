"""The command `hushrec train`: train a recommender on simulated devices and measure it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.cli.app import JsonFlag, app, print_json, progress_bar, say, say_on_interrupt
from hushrec.cli.cluster import Address, Dashboard, Workers, on_cluster
from hushrec.cli.options import ModelOption, ProtocolOption, with_declared_options
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.cli.results import kept_run, print_result
from hushrec.errors import ParameterError
from hushrec.models import find_model

Patience = Annotated[
    int | None,
    typer.Option(
        help="Early stopping: stop after this many rounds without progress on a validation part of the training data,"
        " and keep the model of the best round. Not for masked.  [default: train all rounds]"
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="Engine that simulates the devices: cpu, gpu (needs torch), ray (a Ray cluster; the same results as cpu)"
        " or reference (one object per device).  [default: cpu]"
    ),
]


@app.command(epilog="Example: hushrec train ml-100k --epsilon 4 --out runs/first")
@reads_ratings
@with_declared_options
def train(
    data: Data,
    reading: Reading,
    model: ModelOption = None,
    protocol: ProtocolOption = None,
    split_seed: Annotated[
        int,
        typer.Option(
            help="Seed of the 80/20 split into training and test ratings; bpr, audience: seed of the choice of one"
            " test item per person."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of all other random numbers.")] = 0,
    patience: Patience = None,
    engine: EngineOption = None,
    address: Address = None,
    workers: Workers = None,
    dashboard: Dashboard = False,
    final: Annotated[
        bool, typer.Option("--final", help="Train on all ratings, without a test part; the accuracy is not measured.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="isgld, sdcf: also train plain, which is not private, on the same split; for sdcf, also isgld.",
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the run. Keep the folder private: it holds every rating.  [default: print the result only]"
        ),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="With --out: number of rounds between two checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Train a recommender and measure it on held-out ratings. Devices are simulated, on this machine or a cluster."""
    from hushrec.data.shards import is_shards
    from hushrec.recommender import train as run_training
    from hushrec.simulation.settings import default_model, nested

    common = {"protocol": protocol, "seed": seed, "engine": engine, **options}
    if is_shards(data):
        if resume or reading.given():
            raise ParameterError(
                "a run on shards can use neither --resume nor the options for reading a file. Leave them out."
            )
        chosen = {"model": model, "split_seed": split_seed, "patience": patience, "final": final, **common}
        with on_cluster(engine, address, workers, dashboard):
            _print(_train_on_shards(data, out, chosen), as_json)
        return
    ratings = reading.load(data)
    model = model or default_model(protocol, has_values=ratings.values is not None)
    ranks = find_model(model).predicts == "ranking"
    with (
        on_cluster(engine, address, workers, dashboard),
        say_on_interrupt(lambda: kept_run(out)),
        _training_bar("auc" if ranks else "rmse") as progress,
    ):
        result = run_training(
            ratings,
            compare=compare,
            out=out,
            checkpoint_every=checkpoint_every,
            resume=resume,
            progress=progress,
            remark=say,
            split_seed=split_seed,
            patience=patience,
            final=final,
            **nested({"model": model, **common}),
        )
    _print(result.record, as_json)
    if out is not None and not as_json:
        say(f"the run was written to {out} (private to you: it holds every rating)")


def _train_on_shards(folder: str, out: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Train on a folder of shards, without loading all ratings at once, and return the record of the run."""
    from hushrec.simulation.sharded import train_shards

    with _training_bar("") as progress:
        record, _ = train_shards(folder, out=out, progress=progress, remark=say, **settings)
    return record


def _print(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print_result(record)


@contextmanager
def _training_bar(headline: str) -> Iterator[Any]:
    """Yield a function that shows the round and the value of the metric `headline` of each training on stderr."""
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with progress_bar(MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, round_number: int, rounds: int, error: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=rounds)
            shown = "" if error != error else f" {headline} {error:.4f}"  # NaN if no rating is held out
            bar.update(tasks[what], completed=round_number, description=f"{what:6}{shown}")

        yield advance
