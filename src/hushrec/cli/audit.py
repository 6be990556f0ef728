"""`hushrec audit`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from hushrec.cli.app import JsonFlag, app, print_json, say, saying_what_was_kept
from hushrec.cli.reading import Data, Reading, reads_ratings


@app.command(epilog="Example: hushrec audit ml-100k --protocol plain --protocol sdcf --epsilon-g 0 --plots audit-plots")
@reads_ratings
def audit(
    data: Data,
    reading: Reading,
    model: Annotated[str, typer.Option(help="What is learned: mf or bpr.")] = "mf",
    protocol: Annotated[
        list[str] | None, typer.Option(help="What devices send; may repeat.  [default: all of the model]")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="How many people to attack.  [default: 100, or half of those who take part]")
    ] = None,
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
    as_json: JsonFlag = False,
) -> None:
    """Attack the protocols as a server could, and print what succeeds beside what is claimed."""
    import time

    from hushrec.audit.run import audit as run_audit
    from hushrec.audit.run import settings_for
    from hushrec.audit.sweeps import check_sweeps, swept
    from hushrec.data.people import load_people
    from hushrec.report.audits import check_writable, write_audit

    started = time.perf_counter()
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
    check_sweeps(settings, sweep or [])
    if plots is not None:
        check_writable(plots)
    ratings = reading.load(data)
    people = load_people(data, ratings.user_ids, reading.data_dir)
    with saying_what_was_kept(lambda: "Nothing was kept: an audit is whole or nothing."), _audit_bar() as progress:
        found = run_audit(
            ratings,
            settings,
            n_victims=users,
            people=people,
            clock=time.perf_counter,
            progress=progress,
            run_all=partial(side_by_side, progress=progress) if len(settings) > 1 else None,
        )
        found = swept(found, ratings, settings, sweep or [])
    record = {**found.record(), "seconds": round(time.perf_counter() - started, 1)}
    if plots is not None:
        from hushrec.simulation.results import to_json

        say(f"page, plots and record: {write_audit(to_json(record), plots)}")
    if as_json:
        print_json(record)
    else:
        print_audit(record)


def side_by_side(tasks: list[Any], progress: Callable[[str, str, int, int], None]) -> list[Any]:
    """Every protocol in a process of its own, as many at a time as there are cores; the last, the slowest, is first.

    `progress` hears of whole protocols alone.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from hushrec.audit.run import STEPS, run_task

    jobs = min(os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_task, task): task[1].protocol for task in reversed(tasks)}
        for name in running.values():
            progress(name, "attacks", 0, STEPS)
        for done in as_completed(running):
            progress(running[done], "done", STEPS, STEPS)
        return [done.result() for done in reversed(running)]


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


def print_audit(record: dict[str, Any]) -> None:
    """Protocol by target with the worst attack, then every attack, then the claims they test."""
    from hushrec.report.audits import TARGETS, attack_rows, audit_words, worst_cell

    console = Console(width=None if Console().is_terminal else 160)
    protocols = list(record["worst"])
    summary = Table("most successful attack on", *protocols, box=None, title_justify="left")
    for target, words in TARGETS.items():
        summary.add_row(words, *(worst_cell(record["worst"][protocol].get(target)) for protocol in protocols))
    console.print(summary, "")
    for sentence in audit_words(record)[1:]:
        console.print(sentence, "", highlight=False)
    rows = attack_rows(record)
    cells = (Column(protocol, no_wrap=True) for protocol in protocols)
    table = Table("target", Column("attack", min_width=28), "measure", "chance", *cells, box=None)
    for number, row in enumerate(rows):
        first = number == 0 or rows[number - 1].target != row.target
        table.add_row(row.target if first else "", row.name, row.measure, row.chance, *row.cells)
    console.print(table, "")
    claims = Table("attack", "claim that it tests", box=None)
    for row in {row.name: row for row in rows}.values():
        claims.add_row(row.name, row.claim)
    console.print(claims)
