"""The command `hushrec train`: train a recommender on simulated devices and measure it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from typer import Option

from hushrec.cli.app import JsonFlag, app, deliver, progress_bars, say, say_on_interrupt
from hushrec.cli.cluster import Address, Dashboard, Workers, on_cluster
from hushrec.cli.options import ModelOption, ProtocolOption, with_declared_options
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.cli.results import kept_run, print_result
from hushrec.errors import ParameterError
from hushrec.models import find_model

Patience = Annotated[
    int | None,
    Option(
        help="Early stopping: stop after this many rounds without progress on a validation part of the training data,"
        " and keep the model of the best round. Not for masked.  [default: train all rounds]"
    ),
]
EngineOption = Annotated[
    str | None,
    Option(
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
        Option(
            help="Seed of the 80/20 split into training and test ratings; bpr, audience: seed of the choice of one"
            " test item per person."
        ),
    ] = 0,
    seed: Annotated[int, Option(help="Seed of all random numbers except those of --split-seed.")] = 0,
    patience: Patience = None,
    engine: EngineOption = None,
    address: Address = None,
    workers: Workers = None,
    dashboard: Dashboard = False,
    final: Annotated[
        bool, Option("--final", help="Train on all ratings, without a test part; the accuracy is not measured.")
    ] = False,
    compare: Annotated[
        bool,
        Option(
            "--compare/--no-compare",
            help="isgld, sdcf: also train other protocols on the same split, for comparison: plain, which is not"
            " private, and for sdcf also isgld if it supports the model.",
        ),
    ] = True,
    out: Annotated[
        Path | None,
        Option(
            help="Folder for the run. Keep the folder private: it holds every rating.  [default: print the result only]"
        ),
    ] = None,
    checkpoint_every: Annotated[int, Option(help="With --out: number of rounds between two checkpoints.")] = 10,
    resume: Annotated[bool, Option("--resume", help="Continue the interrupted run in --out.")] = False,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Train a recommender and measure it on held-out ratings. Devices are simulated, on this machine or a cluster."""
    from hushrec.data.shards import is_shards
    from hushrec.recommender import train as run_training
    from hushrec.simulation.settings import default_model, nested

    common = {"protocol": protocol, "seed": seed, "engine": engine, **options}
    if is_shards(data):
        from hushrec.simulation.sharded import train_shards

        if resume or reading.given():
            raise ParameterError(
                "a run on shards can use neither --resume nor the options for reading a file. Leave them out."
            )
        chosen = {"model": model, "split_seed": split_seed, "patience": patience, "final": final, **common}
        with on_cluster(engine, address, workers, dashboard), _training_bars("") as progress:
            record, _ = train_shards(data, out=out, progress=progress, remark=say, **chosen)
        deliver(record, print_result, as_json=as_json)
        return
    ratings = reading.load(data)
    model = model or default_model(protocol, has_values=ratings.values is not None)

    def remark(text: str) -> None:
        if text != ratings.scale_doubt:  # which `reading.load` has printed
            say(text)

    with (
        on_cluster(engine, address, workers, dashboard),
        say_on_interrupt(lambda: kept_run(out)),
        _training_bars("auc" if find_model(model).predicts == "ranking" else "rmse") as progress,
    ):
        result = run_training(
            ratings,
            compare=compare,
            out=out,
            checkpoint_every=checkpoint_every,
            resume=resume,
            progress=progress,
            remark=remark,
            split_seed=split_seed,
            patience=patience,
            final=final,
            **nested({"model": model, **common}),
        )
    deliver(result.record, print_result, as_json=as_json)
    if out is not None and not as_json:
        say(f"the run was written to {out} (private to you: it holds every rating)")


@contextmanager
def _training_bars(headline: str) -> Iterator[Callable[..., None]]:
    """Yield a function that shows the progress of each training on stderr: the round, and the metric `headline`."""
    with progress_bars(MofNCompleteColumn(), TimeRemainingColumn()) as show:

        def progress(what: str, round_number: int, rounds: int, error: float) -> None:
            shown = "" if error != error else f" {headline} {error:.4f}"  # NaN if no rating is held out
            show(what, round_number, rounds, f"{what:6}{shown}")

        yield progress
