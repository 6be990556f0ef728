"""`hushrec train`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushrec.cli.app import (
    Columns,
    Data,
    DataDir,
    Duplicates,
    Implicit,
    ItemsFile,
    JsonFlag,
    ScaleOption,
    app,
    counted,
    harmless,
    print_json,
    say,
)

if TYPE_CHECKING:
    from rich.console import Console


@app.command(epilog="Example: hushrec train ml-100k --protocol sdcf --epsilon-i 4 --epsilon-g 4")
def train(
    data: Data,
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
    columns: Columns = None,
    scale: ScaleOption = None,
    duplicates: Duplicates = "refuse",
    items: ItemsFile = None,
    implicit: Implicit = False,
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
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep the run in this folder (private: it holds user vectors).")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="With --out: rounds between two checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out that was cut short.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a recommender on ratings that stay with their devices, all of them played here, and measure it."""
    from hushrec.data.sources import load as load_ratings
    from hushrec.training import train as run_training

    ratings = load_ratings(
        data,
        data_dir=data_dir,
        columns=columns,
        scale=scale,
        duplicates=duplicates,
        items_file=items,
        implicit=implicit,
    )
    if scale is None:
        sizes = {"user": ratings.n_users, "item": ratings.n_items, "rating": ratings.n_ratings}
        counts = ", ".join(counted(number, noun) for noun, number in sizes.items())
        say(f"{ratings.name}: {counts}, {'no scale' if ratings.scale is None else f'scale {ratings.scale}'}")
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


# A metric by its name in a result, and as the table's heading.
COLUMNS = {
    "rmse": "RMSE",
    "mae": "MAE",
    "auc": "AUC",
    "hr_at_10": "HR@10",
    "ndcg_at_10": "NDCG@10",
    "recall_at_10": "Recall@10",
}


def print_result(record: dict[str, Any]) -> None:
    """One table with the baselines in it, then the budget in words."""
    from rich.console import Console
    from rich.table import Table

    data = record["data"]
    columns = [name for name in COLUMNS if name in record["metrics"]]
    table = Table("", *(COLUMNS[name] for name in columns), "protects", box=None)
    own = f"{record['protocol']} (this run)"
    rows = [(own, record["metrics"], record["budget"])]
    names = {"plain": "plain, not private", "isgld": "isgld"}
    rows += [(names[name], entry, entry["budget"]) for name, entry in record["comparisons"].items()]
    for name, metrics, budget in rows:
        table.add_row(name, *(f"{metrics[column]:.4f}" for column in columns), _short_budget(budget))
    for name, metrics in record["baselines"].items():
        table.add_row(name.replace("_", " "), *(f"{metrics[column]:.4f}" for column in columns), "not personal")
    console = Console()
    console.print(
        f"{harmless(record['dataset'])}: {counted(data['train'], 'rating')} to train, {data['test']} to test,"
        f" {record['model']} with {counted(record['factors'], 'factor')}, {counted(record['rounds'], 'round')},"
        f" {record['seconds']:.1f} s"
        + ("" if record["best_round"] is None else f", the model of round {record['best_round']} kept")
        + (", interrupted" if record["interrupted"] else ""),
        highlight=False,
    )
    if data["cold_users"] or data["cold_items"]:
        console.print(
            f"in the test part without training ratings: {counted(data['cold_users'], 'user')},"
            f" {counted(data['cold_items'], 'item')}"
        )
    console.print(table)
    print_budget(console, record["budget"])


def _short_budget(budget: dict[str, Any]) -> str:
    if "epsilon_p" in budget:
        return f"selection, ε {budget['epsilon']:g} profile-level, all rounds"
    if "clamp" in budget:
        return f"one rating's value, ε {budget['epsilon']:g}, all rounds"
    return "nothing"


def print_budget(console: "Console", budget: dict[str, Any]) -> None:
    """The budget with its unit, and what it does not cover."""
    lines = [f"budget: {budget['unit']}"]
    if "epsilon_p" in budget:
        lines.append(
            f"  ε = {budget['epsilon']:g} (δ = 0, {counted(budget['rounds'], 'round')});"
            f" {budget['item_level_unit']}: ε = {budget['item_level']:.3g}"
        )
    elif "clamp" in budget:
        lines.append(f"  ε = {budget['epsilon']:g} (δ = 0, {counted(budget['rounds'], 'round')})")
    rho = budget["value_rho"]
    lines.append(
        f"  gradient values really sent: ρ = {rho['median']:.3g} ({rho['unit']}, median),"
        f" that is ε = {rho['median_epsilon']:.3g} at δ = {rho['delta']:g}"
    )
    lines += [f"  not covered: {what}" for what in budget["not_covered"]]
    console.print("\n".join(lines), highlight=False)
