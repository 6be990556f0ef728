"""`hushrec audit`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hushrec.cli.app import DataDir, JsonFlag, app, print_json, say

if TYPE_CHECKING:
    from hushrec.audit.run import Audit


@app.command(epilog="Example: hushrec audit ml-100k --protocol plain --protocol sdcf --epsilon-g 0 --plots audit-plots")
def audit(
    data: Annotated[str, typer.Argument(help="A named data set (synthetic, ml-100k, …) or a path to a rating file.")],
    model: Annotated[str, typer.Option(help="What is learned: mf or bpr.")] = "mf",
    protocol: Annotated[
        list[str] | None, typer.Option(help="What devices send; may repeat.  [default: all of the model]")
    ] = None,
    users: Annotated[int, typer.Option(help="How many people to attack.")] = 100,
    epsilon_i: Annotated[
        float | None, typer.Option(help="sdcf: budget of one round's selection.  [default: 4]")
    ] = None,
    epsilon_p: Annotated[
        float | None, typer.Option(help="sdcf: budget of all rounds' selections.  [default: 2 × epsilon-i]")
    ] = None,
    epsilon_g: Annotated[float | None, typer.Option(help="sdcf: range of the fake errors.  [default: 4]")] = None,
    epsilon: Annotated[float | None, typer.Option(help="isgld: budget of one rating's value.  [default: 4]")] = None,
    profile_cap: Annotated[int | None, typer.Option(help="sdcf: calibrate from this public number of ratings.")] = None,
    factors: Annotated[int | None, typer.Option(help="Numbers in each vector.  [default: 50; bpr: 10]")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to train and to watch.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the run, of who is attacked, and of the attacks.")] = 0,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Also train anew along a range: noise (of Langevin), budget (epsilon-g); may repeat."),
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Write plots and a page of the audit into this folder.")] = None,
    data_dir: DataDir = None,
    as_json: JsonFlag = False,
) -> None:
    """Attack the protocols as a server could, and print what succeeds beside what is claimed."""
    import time

    from hushrec.audit.run import audit as run_audit
    from hushrec.audit.run import settings_for
    from hushrec.audit.sweeps import swept
    from hushrec.data.people import load_people
    from hushrec.data.sources import load as load_ratings

    ratings = load_ratings(data, data_dir=data_dir)
    settings = settings_for(
        protocol,
        model=model,
        factors=factors,
        rounds=rounds,
        seed=seed,
        epsilon=epsilon,
        epsilon_i=epsilon_i,
        epsilon_p=epsilon_p,
        epsilon_g=epsilon_g,
        profile_cap=profile_cap,
    )
    people = load_people(data, ratings.user_ids, data_dir)
    with _audit_bar() as progress:
        found = run_audit(ratings, settings, n_victims=users, people=people, clock=time.perf_counter, progress=progress)
        found = swept(found, ratings, settings, sweep or [])
    if plots is not None:
        from hushrec.report.audits import write_audit
        from hushrec.runs import to_json

        say(f"page, plots and record: {write_audit(to_json(found.record()), plots)}")
    if as_json:
        print_json(found.record())
    else:
        print_audit(found)


@contextmanager
def _audit_bar() -> Iterator[Any]:
    """A progress bar on stderr; silent where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def advance(protocol: str, what: str, step: int, steps: int) -> None:
            if protocol not in tasks:
                tasks[protocol] = bar.add_task(protocol, total=steps)
            bar.update(tasks[protocol], completed=step, description=f"{protocol:6} {what}")

        yield advance


def print_audit(found: "Audit") -> None:
    """Protocol by target with the worst attack, then every attack."""
    from hushrec.audit.findings import TARGETS

    console = Console(width=None if Console().is_terminal else 160)
    summary = Table("target", *found.protocols, box=None, title="most successful attack")
    for target in TARGETS:
        cells = []
        for protocol in found.protocols:
            one = found.worst(protocol, target)
            cells.append("" if one is None else f"{one.metric} {one.value:.3f}\n{one.name}")
        summary.add_row(target, *cells)
    console.print(summary)
    table = Table("protocol", "target", "attack", "metric", "value", "95 %", "TPR at 1 %", "chance", box=None)
    for one in found.findings:
        interval = "" if one.interval is None else f"{one.interval[0]:.3f}–{one.interval[1]:.3f}"
        rate = "" if one.tpr_at_1pct_fpr is None else f"{one.tpr_at_1pct_fpr:.3f}"
        chance = "" if one.chance is None else f"{one.chance:.3f}"
        table.add_row(one.protocol, one.target, one.name, one.metric, f"{one.value:.3f}", interval, rate, chance)
    console.print(table)
