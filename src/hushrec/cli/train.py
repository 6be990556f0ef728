"""`hushrec train`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.cli.app import JsonFlag, app, print_json, say
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.cli.results import print_result


@app.command(epilog="Example: hushrec train ml-100k --protocol sdcf --epsilon-i 4 --epsilon-g 4")
@reads_ratings
def train(
    data: Data,
    reading: Reading,
    model: Annotated[
        str, typer.Option(help="What is learned: mf (ratings), fm (ratings, with item attributes), bpr (who met what).")
    ] = "mf",
    protocol: Annotated[str, typer.Option(help="What devices send: plain, isgld or sdcf.")] = "sdcf",
    epsilon_i: Annotated[
        float | None, typer.Option(help="sdcf: budget of one round's selection.  [default: 4]")
    ] = None,
    epsilon_p: Annotated[
        float | None, typer.Option(help="sdcf: budget of all rounds' selections.  [default: 2 × epsilon-i]")
    ] = None,
    epsilon_g: Annotated[
        float | None, typer.Option(help="sdcf: range of the fake errors; 0 is α = ∞. No guarantee.  [default: 4]")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="isgld: budget of one rating's value.  [default: 4]")] = None,
    clamp: Annotated[bool, typer.Option("--clamp", help="isgld: bring noisy ratings back to the scale.")] = False,
    profile_cap: Annotated[
        int | None, typer.Option(help="sdcf: calibrate from this public number of ratings, hiding how many there are.")
    ] = None,
    reports_per_client: Annotated[
        float | None,
        typer.Option(help="sdcf: items a device reports per round, on average.  [default: ratings / users]"),
    ] = None,
    epoch_rounds: Annotated[
        int | None,
        typer.Option(help="sdcf: draw the permanent bits anew every so many rounds, paying epsilon-p again."),
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="bpr: the lowest rating that counts as an action.  [default: any rating]")
    ] = None,
    order: Annotated[
        int | None, typer.Option(help="fm: how many columns interact at once, 2 or 3.  [default: 2]")
    ] = None,
    attributes: Annotated[
        str | None, typer.Option(help="fm: names of item attributes to learn from, or none.  [default: all]")
    ] = None,
    factors: Annotated[int | None, typer.Option(help="Numbers in each vector.  [default: 50; bpr: 10]")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 100,
    step: Annotated[
        float | None, typer.Option(help="First step size times the number of ratings.  [default: 0.4; bpr: 4; fm: 0.2]")
    ] = None,
    split_seed: Annotated[
        int, typer.Option(help="Seed of the 80/20 split; bpr: of the item held out of each user's.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of everything else.")] = 0,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many rounds without progress on a validation part of the training data; keep the best."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="How it is computed: cpu, gpu (needs torch) or reference (one object per client).  [default: cpu]"
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Also train the non-private model and isgld on the same split."),
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="Keep the run in this folder (private: it holds user vectors).")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="With --out: rounds between two checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out that was cut short.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a recommender on ratings that stay with their devices, all of them played here, and measure it."""
    from hushrec.simulation.training import train as run_training

    ratings = reading.load(data)
    with _training_bar("auc" if model == "bpr" else "rmse") as progress:
        result = run_training(
            ratings,
            compare=compare,
            out=out,
            checkpoint_every=checkpoint_every,
            resume=resume,
            progress=progress,
            remark=say,
            model=model,
            protocol=protocol,
            epsilon=epsilon,
            clamp=clamp or None,
            epsilon_i=epsilon_i,
            epsilon_p=epsilon_p,
            epsilon_g=epsilon_g,
            profile_cap=profile_cap,
            reports_per_client=reports_per_client,
            epoch_rounds=epoch_rounds,
            at_least=at_least,
            order=order,
            attributes=attributes,
            factors=factors,
            rounds=rounds,
            step=step,
            split_seed=split_seed,
            seed=seed,
            patience=patience,
            engine=engine,
        )
    if as_json:
        print_json(result.record)
    else:
        print_result(result.record)
        if out is not None:
            say(f"kept in {out} (private to you: it holds user vectors)")


@contextmanager
def _training_bar(headline: str) -> Iterator[Any]:
    """A progress bar on stderr; silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, round_number: int, rounds: int, error: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=rounds)
            bar.update(tasks[what], completed=round_number, description=f"{what:6} {headline} {error:.4f}")

        yield advance
