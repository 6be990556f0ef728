"""An audit's record as tables, plots and a page. Reads what `hushrec audit` found and never recomputes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.report import audit_plots
from hushrec.report.page import Figures, Section, make_page

Record = dict[str, Any]

TARGETS = {
    "existence": "which items were rated",
    "value": "what the ratings are",
    "model": "the person's own vector",
    "person": "gender, age, occupation",
    "metadata": "how much was rated, and by whom",
    "integrity": "promoting an item",
    "epsilon": "ε ruled out by canaries",
}
FILE = "audit.json"
SWEPT = {
    "noise": "{}: what it takes to stop the rank-one attack, and the accuracy left",
    "budget": "{}: success against ε_g, and accuracy",
}
INTRODUCTION = (
    "Attacks as the server could run them, on messages and public state alone, beside what is claimed. A protocol is"
    " private only as far as its attacks fail."
)


def audit_section(record: Record) -> Section:
    """Protocol by target with the most successful attack on each, and every attack below."""
    rows = [
        [
            attack["protocol"],
            TARGETS[attack["target"]],
            attack["name"],
            attack["metric"].replace("_", " "),
            f"{attack['value']:.3f}",
            _pair(attack["interval"]),
            _number(attack["tpr_at_1pct_fpr"]),
            _number(attack["chance"]),
            attack["claim"],
        ]
        for attack in record["attacks"]
    ]
    return Section(
        heading=f"Audit: {record['dataset']}, {record['model']}, {record['rounds']} rounds, {record['users']} people",
        paragraphs=[
            INTRODUCTION,
            *worst_sentences(record),
        ],
        header=["protocol", "target", "attack", "measure", "value", "95 %", "TPR at 1 % FPR", "chance", "claim"],
        rows=rows,
    )


def worst_sentences(record: Record) -> list[str]:
    """Per protocol, the most successful attack on each target."""
    sentences = []
    for protocol, targets in record["worst"].items():
        found = [
            f"{TARGETS[target]}: {one['metric'].replace('_', ' ')} {one['value']:.3f} ({one['name']})"
            for target, one in targets.items()
            if one is not None
        ]
        sentences.append(f"{protocol} — {'; '.join(found)}.")
    return sentences


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _pair(interval: list[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def audit_figures(record: Record) -> Figures:
    """ROC curves and success against rounds of every protocol, and what permanent bits do."""
    figures: Figures = {}
    for protocol, curves in record["curves"].items():
        if curves["roc"]:
            figures[f"{protocol}-roc"] = (
                f"{protocol}: telling rated from unrated items",
                audit_plots.roc_plot(curves["false_rates"], curves["roc"]),
            )
        if len(curves["rounds"]) > 1:
            figures[f"{protocol}-rounds"] = (
                f"{protocol}: success by round",
                audit_plots.lines_plot(curves["rounds"], "rounds"),
            )
        for kind, across in (("noise", "noise"), ("budget", "epsilon_g")):
            if kind in curves:
                figures[f"{protocol}-{kind}"] = (
                    SWEPT[kind].format(protocol),
                    audit_plots.sweep_plot(curves[kind], across),
                )
        if "selection" in curves:
            figures[f"{protocol}-selection"] = (
                f"{protocol}: selections alone, with permanent bits and without",
                audit_plots.lines_plot(
                    [
                        {
                            "rounds": point["rounds"],
                            "with permanent bits": point["with_permanent_bits"],
                            "ceiling of ε_P": point["ceiling"],
                            "without permanent bits": point["without"],
                        }
                        for point in curves["selection"]
                    ],
                    "rounds",
                ),
            )
    return figures


def write_audit(record: Record, folder: str | Path) -> Path:
    """Record, plots and one page in a folder; returns the page."""
    place = Path(folder)
    figures = audit_figures(record)
    page = make_page([], [], title="hushrec audit", sections=[audit_section(record)], figures=figures)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / FILE).write_text(json.dumps(record, indent=1, allow_nan=False), "utf-8")
        for name, (_, svg) in figures.items():
            (place / f"{name}.svg").write_text(svg, "utf-8")
        (place / "audit.html").write_text(page, "utf-8")
    except OSError as error:
        raise RunError(f"the audit could not be written to {place} ({error.strerror or error}).") from None
    return place / "audit.html"


def read_audits(folders: Iterable[str | Path]) -> list[Record]:
    """The audits in or below the folders that `hushrec audit --plots` wrote."""
    files = [file for folder in map(Path, folders) for file in sorted(folder.rglob(FILE))]
    records = []
    for file in files:
        try:
            record = json.loads(file.read_text("utf-8"))
            audit_section(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {type(error).__name__} while reading it.") from None
        records.append(record)
    return records
