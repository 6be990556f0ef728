"""The command `hushrec audit`: attack the protocols as a server could."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Column, Table
from typer import Option

from hushrec.cli.app import JsonFlag, app, deliver, progress_bars, say, say_on_interrupt
from hushrec.cli.options import with_declared_options
from hushrec.cli.reading import Data, Reading, reads_ratings

# Without `epsilon`: an audit of masked has other defaults.
DECLARED = ("factors", "rounds", "epsilon_i", "epsilon_p", "epsilon_g", "profile_cap")


@app.command(epilog="Example: hushrec audit ml-100k --protocol plain --protocol sdcf --epsilon-g 0 --plots audit-plots")
@reads_ratings
@partial(with_declared_options, names=DECLARED)
def audit(
    data: Data,
    reading: Reading,
    model: Annotated[
        str | None,
        Option(help="Model to audit: mf, bpr or fm; with protocol masked, gp or audience.  [default: mf; masked: gp]"),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        Option(
            help="Protocol to attack; may be repeated, but masked is audited alone.  [default: all protocols of the"
            " model]"
        ),
    ] = None,
    users: Annotated[
        int | None,
        Option(help="Number of people to attack.  [default: 100, or half of all people if that is fewer]"),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(
            help="isgld: privacy budget of one rating's value.  [default: 4]  masked: privacy budget of a person's"
            " whole profile.  [default: audit 8, 1 and inf]"
        ),
    ] = None,
    seed: Annotated[
        int, Option(help="Seed of the training, of the choice of people to attack, and of the attacks.")
    ] = 0,
    sweep: Annotated[
        list[str] | None,
        Option(
            help="Model mf: after the audit, train and attack the last --protocol (by default sdcf) again with several"
            " values of one quantity: the variance of the Langevin noise (--sweep noise) or, for sdcf only, epsilon-g"
            " (--sweep budget). May be repeated.  [default: no sweep]"
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        Option(help="Write the record, its plots and an HTML page into this folder.  [default: only print]"),
    ] = None,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Attack the protocols as a server could; print the success of each attack and the claim that it tests."""
    from hushrec.audit.auditors import find_auditor
    from hushrec.audit.sweeps import check_sweeps
    from hushrec.json_values import to_json
    from hushrec.report.audits import check_writable, write_audit

    started = time.perf_counter()
    auditor = find_auditor(model, protocol)
    settings = auditor.choose(model, protocol, {"epsilon": epsilon, **options}, seed)
    check_sweeps(settings, sweep or [])
    if plots is not None:
        check_writable(plots)
    found = _attack(data, reading, auditor, settings, users, sweep or [])
    record = {**found.record(), **_spent(started)}
    if plots is not None:
        say(f"page, plots and record: {write_audit(to_json(record), plots)}")
    deliver(record, print_audit, as_json=as_json)


def _attack(data: str, reading: Reading, auditor: Any, settings: list[Any], users: int | None, sweep: list[str]) -> Any:
    """Load the ratings, run the audit (several settings in parallel processes), and return the `Audit`."""
    from hushrec.audit.sweeps import swept
    from hushrec.data.named import load_people

    ratings = reading.load(data)
    people = load_people(data, ratings.user_ids, reading.data_dir)
    names = [auditor.label(one) for one in settings]
    interrupted = say_on_interrupt(lambda: "Nothing was saved: an audit cannot be resumed.")
    with interrupted, progress_bars(MofNCompleteColumn()) as show:

        def progress(name: str, what: str, step: int, steps: int) -> None:
            show(name, step, steps, f"{name:6} {what}")

        at_once = partial(side_by_side, names=names, steps=auditor.steps, progress=progress)
        found = auditor.audit(
            ratings,
            settings,
            n_victims=users,
            people=people,
            clock=time.perf_counter,
            progress=progress,
            run_all=at_once if len(settings) > 1 else None,
        )
        return swept(found, ratings, settings, sweep)


def _spent(started: float) -> dict[str, float]:
    """Return `seconds`, the time since `started`, and `processor_seconds`, the processor time of this process.

    Processor time counts from the start of the process and includes child processes that have ended.
    """
    times = os.times()
    spent = times.user + times.system + times.children_user + times.children_system
    return {"seconds": round(time.perf_counter() - started, 1), "processor_seconds": round(spent, 1)}


def side_by_side(
    work: Callable[[Any], Any],
    tasks: list[Any],
    *,
    names: list[str],
    steps: int,
    progress: Callable[[str, str, int, int], None],
) -> list[Any]:
    """Return the result of `work` for each task, in order, computed in a pool with at most one process per core.

    Tasks start in reverse order, because the last tasks take longest. `names` has the name of each task, and `steps`
    the number of steps of its progress bar. `progress` is called with (name, "attacks", 0, `steps`) for every task at
    the beginning, and with (name, "done", `steps`, `steps`) when a task is done.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    jobs = min(os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(work, task): name for task, name in reversed([*zip(tasks, names, strict=True)])}
        for name in running.values():
            progress(name, "attacks", 0, steps)
        for done in as_completed(running):
            progress(running[done], "done", steps, steps)
        return [done.result() for done in reversed(running)]


def print_audit(record: dict[str, Any]) -> None:
    """Print the record of an audit.

    First come the most successful attack on each target, such as which items were rated, and whether each guarantee
    held; then a table of every attack, and the claim that each attack tests.
    """
    from hushrec.report.audits import attack_rows, audit_words, worst_rows

    console = Console(width=None if Console().is_terminal else 160)
    protocols = list(record["worst"])
    summary = Table("most successful attack on", *protocols, box=None, title_justify="left")
    for cells in worst_rows(record):
        summary.add_row(*cells)
    console.print(summary, "")
    for sentence in audit_words(record)[1:]:
        console.print(sentence, "", highlight=False)
    rows = attack_rows(record)
    columns = (Column(protocol, no_wrap=True) for protocol in protocols)
    table = Table("target", Column("attack", min_width=28), "measure", "chance", *columns, box=None)
    for number, row in enumerate(rows):
        first = number == 0 or rows[number - 1].target != row.target
        table.add_row(row.target if first else "", row.name, row.measure, row.chance, *row.cells)
    console.print(table, "")
    claims = Table("attack", "claim that it tests", box=None)
    for row in {row.name: row for row in rows}.values():
        claims.add_row(row.name, row.claim)
    console.print(claims)
