"""An audit's record as tables, plots and a page. Reads what `hushrec audit` found and never recomputes."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.files import stamp
from hushrec.models import find_model
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
HOW_TO_READ = (
    "In brackets the 95 % interval; TPR is the share of true cases found when 1 % of the false ones are accused. An ε"
    " that canaries rule out is itself a bound at 95 %."
)


def audit_sections(record: Record) -> list[Section]:
    """Protocol by target with the most successful attack on each, every attack, and the claim that each tests."""
    protocols = list(record["worst"])
    worst = [
        [TARGETS[target], *(worst_cell(record["worst"][protocol].get(target)) for protocol in protocols)]
        for target in TARGETS
    ]
    rows, claims, before = [], {}, ""
    for row in attack_rows(record):
        target = "" if row.target == before else TARGETS[row.target]
        rows.append([target, row.name, row.measure, row.chance, *map(_unbroken, row.cells)])
        claims[row.name] = row.claim
        before = row.target
    facts = f"{record['dataset']}, {record['model']}, {record['rounds']} rounds, {record['users']} people"
    return [
        Section(f"Audit: {facts}", audit_words(record), ["most successful attack", *protocols], worst),
        Section(
            "Every attack",
            [HOW_TO_READ],
            ["target", "attack", "measure", "chance", *protocols],
            rows,
        ),
        Section("What they test", [], ["attack", "claim"], [list(pair) for pair in claims.items()]),
    ]


def audit_words(record: Record) -> list[str]:
    """Return what an audit is, and on which kind of ratings this one was."""
    kind = record.get("ratings") if find_model(record["model"]).predicts == "rating" else None
    return [INTRODUCTION, *([f"{kind[0].upper()}{kind[1:]}."] if kind else []), *map(_verdict, *_runs(record))]


def _runs(record: Record) -> tuple[list[str], list[Record]]:
    runs = record.get("runs", {})
    return list(runs), list(runs.values())


def _verdict(label: str, run: Record) -> str:
    """Return whether anything contradicts what the budget promises, and without a budget, whom exact sums expose."""
    if run["budget"]["epsilon"] == "inf":
        exposed = f"{run['people_with_a_rare_item']:.1%} of the people have rated an item that nobody else has"
        return f"{label}: nothing is promised, and whoever knows everybody else reads everything; {exposed}."
    if run["contradictions"]:
        return f"{label}: CONTRADICTED. {'; '.join(run['contradictions'])}."
    return f"{label}: no attack contradicts the promise; all bounds on ε hold together at 95 %."


def _unbroken(cell: str) -> str:
    """Return the value and its interval on one line of a narrow column."""
    return cell.replace(" (", "\u00a0(").replace("–", "\u2060–\u2060")


def worst_cell(found: Record | None) -> str:
    """Return the measure, its value, and the attack that reached it."""
    return "" if found is None else f"{found['metric'].replace('_', ' ')} {found['value']:.3f}: {found['name']}"


@dataclass(frozen=True)
class AttackRow:
    """One attack and measure, with a cell for every protocol."""

    target: str
    name: str
    measure: str
    chance: str
    cells: list[str]
    claim: str


def attack_rows(record: Record) -> list[AttackRow]:
    """Return every attack once, in the order of targets; where it does not apply the cell is empty."""
    protocols = list(record["worst"])
    found: dict[tuple[str, str, str], dict[str, Record]] = {}
    for attack in sorted(record["attacks"], key=lambda attack: list(TARGETS).index(attack["target"])):
        found.setdefault((attack["target"], attack["name"], attack["metric"]), {})[attack["protocol"]] = attack
    return [
        AttackRow(
            target,
            name,
            metric.replace("_", " "),
            _distinct("" if one["chance"] is None else f"{one['chance']:.2f}" for one in by_protocol.values()),
            [_cell(by_protocol.get(protocol)) for protocol in protocols],
            _distinct(one["claim"] for one in by_protocol.values()),
        )
        for (target, name, metric), by_protocol in found.items()
    ]


def _distinct(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(texts))


def _cell(attack: Record | None) -> str:
    """0.863 (0.852–0.873), TPR 0.17: the value, its interval, the true-positive rate at 1 % false positives."""
    if attack is None:
        return ""
    text = f"{attack['value']:.3f}"
    if attack["interval"] is not None:
        low, high = attack["interval"]
        text += f" ({low:.3f}{'–' if low >= 0 else ' to '}{high:.3f})"
    if attack["tpr_at_1pct_fpr"] is not None:
        text += f", TPR {attack['tpr_at_1pct_fpr']:.2f}"
    return text.replace("-", "−")


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
                    audit_plots.sweep_plot(curves[kind], across, record.get("baselines", {})),
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


def check_writable(folder: str | Path) -> None:
    """Make the folder of an audit, and try to write into it: before an hour of attacks, not after."""
    place = Path(folder)
    probe = place / f"{FILE}.part"
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(f"the folder for plots must be writable, got {place} ({error.strerror or error}).") from None


def _seed_words(record: Record) -> str:
    """Return the seed of an audit for its page; records of older versions have none."""
    return f", seed {record['seed']}" if "seed" in record else ""


def write_audit(record: Record, folder: str | Path) -> Path:
    """Write an audit's record, plots and page into a folder; return the page."""
    place = Path(folder)
    figures = audit_figures(record)
    made = f"Written on {stamp()['date']} by hushrec {stamp()['hushrec']}{_seed_words(record)}."
    page = make_page([], [], title="hushrec audit", sections=audit_sections(record), figures=figures, made=made)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / FILE).write_text(json.dumps(record, indent=1, allow_nan=False), "utf-8")
        for name, (_, drawing) in figures.items():
            (place / f"{name}.svg").write_text(drawing, "utf-8")
            (place / f"{name}.pdf").write_bytes(drawing.pdf)
        (place / "audit.html").write_text(page, "utf-8")
    except OSError as error:
        raise RunError(f"the audit could not be written to {place} ({error.strerror or error}).") from None
    return place / "audit.html"


def read_audits(folders: Iterable[str | Path]) -> list[Record]:
    """Return the audits in or below the folders that `hushrec audit --plots` wrote."""
    files = [file for folder in map(Path, folders) for file in sorted(folder.rglob(FILE))]
    records = []
    for file in files:
        try:
            record = json.loads(file.read_text("utf-8"))
            audit_sections(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {type(error).__name__} while reading it.") from None
        records.append(record)
    return records
