"""Printing of a training run: a table of its accuracy beside the baselines, then its privacy budget in words."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from hushrec.cli.app import counted, harmless
from hushrec.errors import RunError
from hushrec.models import find_model
from hushrec.protocols import find_protocol

NOT_PERSONAL = "not personal"


def kept_run(out: Path | None) -> str:
    """Return sentences about what an interrupted `train` has saved in the folder `out`, and how to continue.

    Nothing is saved if the command had no --out, so that `out` is None.
    """
    from hushrec.simulation.results import read_record

    if out is None:
        return "Nothing was kept. With --out, a run writes checkpoints and can be resumed."
    try:
        rounds = read_record(out)["rounds"]
    except RunError:
        return f"Nothing was kept in {out}: no round was finished."
    return (
        f"Kept in {out}: the model after {counted(rounds, 'round')}, and a checkpoint. Continue with the same command"
        " and --resume."
    )


def print_result(record: dict[str, Any]) -> None:
    """Print the record of a training run: data, accuracy, privacy budget, and whether it beats the best baseline."""
    console = Console()
    console.print(_facts(record), highlight=False)
    for step in record["tried"]:
        console.print(
            f"with step {step['step']:g} the run diverged in round {step['round']} and was started again; real devices"
            " would have spent privacy budget on those rounds, too",
            highlight=False,
        )
    if record["metrics"]:
        _print_accuracy(console, record)
    else:
        console.print("trained on all ratings: none was held out, so the accuracy is unknown")
    budget = record["budget"]
    lines = [f"budget: {budget['unit']}"]
    lines += [f"  {sentence}" for sentence in find_protocol(record["protocol"]).wording.numbers(budget)]
    lines += [f"  not covered: {what}" for what in budget["not_covered"]]
    console.print("\n".join(lines), highlight=False)
    if record["verdict"]:
        console.print(f"verdict: {record['verdict']}", highlight=False)


def _facts(record: dict[str, Any]) -> str:
    data = record["data"]
    factors = "" if record.get("factors") is None else f" with {counted(record['factors'], 'factor')}"
    return (
        f"{harmless(record['dataset'])}: {counted(data['train'], 'rating')} to train, {data['test']} to test,"
        f" {record['model']}{factors}, {counted(record['rounds'], 'round')}, {record['seconds']:.1f} s in"
        f" rounds, {record['seconds_in_all']:.1f} s in all"
        + ("" if record["best_round"] is None else f", the model of round {record['best_round']} kept")
        + (", interrupted" if record["interrupted"] else "")
    )


def _print_accuracy(console: Console, record: dict[str, Any]) -> None:
    from hushrec.evaluate import HEADINGS

    data = record["data"]
    columns = [name for name in HEADINGS if name in record["metrics"]]
    protects = Column("protects", min_width=len(NOT_PERSONAL))
    table = Table(Column(no_wrap=True), *(HEADINGS[name] for name in columns), protects, box=None, pad_edge=False)
    rows = [(f"{record['protocol']} (this run)", record["protocol"], record["metrics"], record["budget"])]
    for name, entry in record["comparisons"].items():
        rows.append((find_protocol(name).row_label, name, entry, entry["budget"]))
    for label, name, metrics, budget in rows:
        protected = find_protocol(name).wording.protects(budget)
        table.add_row(label, *(_cell(metrics, column) for column in columns), protected)
    for name, metrics in record["baselines"].items():
        table.add_row(name.replace("_", " "), *(_cell(metrics, column) for column in columns), NOT_PERSONAL)
    if data["cold_users"] or data["cold_items"]:
        console.print(
            f"cold start: {counted(data['cold_users'], 'user')} and {counted(data['cold_items'], 'item')} of the test"
            " part have no training ratings"
        )
    console.print(table)
    if "precision_at_10" in record["metrics"]:
        console.print(
            f"@10: a list of ten items is compared with the held-out ratings of {data['liked_from']:g} or more;"
            f" {find_model(record['model']).lists}",
            highlight=False,
        )
    for entry in record["comparisons"].values():
        if "diverged" in entry:
            console.print(entry["diverged"], highlight=False)


def _cell(metrics: dict[str, Any], column: str) -> str:
    if column not in metrics:
        return ""
    return "diverged" if metrics[column] is None else f"{metrics[column]:.4f}"
