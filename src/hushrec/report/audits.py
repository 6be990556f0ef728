"""Tables, plots and a page about an audit, made from its record alone."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.files import stamp, written
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
    "epsilon": "lower bound on ε, from canaries",
}
FILE = "audit.json"
INTRODUCTION = (
    "Attacks that a server can run on messages and public tables, and the claims that they test. A protocol is private"
    " only as far as the attacks on it fail."
)
HOW_TO_READ = (
    "In brackets: the 95 % confidence interval. TPR: the true-positive rate at a false-positive rate of 1 %. A lower"
    " bound on ε holds with 95 % confidence."
)


def audit_sections(record: Record) -> list[Section]:
    """Return three page sections: the best attack on each target, every attack, and the claims that they test."""
    protocols = list(record["worst"])
    rows, claims, before = [], {}, ""
    for row in attack_rows(record):
        target = "" if row.target == before else TARGETS[row.target]
        rows.append([target, row.name, row.measure, row.chance, *map(_unbroken, row.cells)])
        claims[row.name] = row.claim
        before = row.target
    facts = f"{record['dataset']}, {record['model']}, {record['rounds']} rounds, {record['users']} people"
    return [
        Section(f"Audit: {facts}", audit_words(record), ["most successful attack", *protocols], worst_rows(record)),
        Section("Every attack", [HOW_TO_READ], ["target", "attack", "measure", "chance", *protocols], rows),
        Section("What the attacks test", [], ["attack", "claim"], [list(pair) for pair in claims.items()]),
    ]


def audit_words(record: Record) -> list[str]:
    """Return sentences about an audit.

    They say what the page shows, how attacks on ratings are scored, and whether the guarantee of each run held.
    """
    kind = record.get("ratings") if find_model(record["model"]).predicts == "rating" else None
    verdicts = [_verdict(label, run) for label, run in record.get("runs", {}).items()]
    return [INTRODUCTION, *([f"{kind[0].upper()}{kind[1:]}."] if kind else []), *verdicts]


def _verdict(label: str, run: Record) -> str:
    """Return a sentence on whether any attack contradicts the guarantee of a run.

    A run without noise has no guarantee. For such a run, the sentence says what percentage of the people have rated an
    item that nobody else has rated.
    """
    if run["budget"]["epsilon"] == "inf":
        exposed = f"{run['people_with_a_rare_item']:.1%} of the people have rated an item that nobody else has rated"
        return f"{label}: no guarantee; the sums reveal a person's ratings to anyone who knows all others'. {exposed}."
    if run["contradictions"]:
        return f"{label}: CONTRADICTED. {'; '.join(run['contradictions'])}."
    return f"{label}: no attack contradicts the guarantee; all lower bounds on ε hold together with 95 % confidence."


def _unbroken(cell: str) -> str:
    """Return the text of a cell with non-breaking characters, so that a value and its interval stay on one line."""
    return cell.replace(" (", "\u00a0(").replace("–", "\u2060–\u2060")


def worst_rows(record: Record) -> list[list[str]]:
    """Return a table row for each target of attacks: the target in words, and the best attack on each protocol."""
    return [
        [words, *(_worst_cell(found.get(target)) for found in record["worst"].values())]
        for target, words in TARGETS.items()
    ]


def _worst_cell(found: Record | None) -> str:
    return "" if found is None else f"{found['metric'].replace('_', ' ')} {found['value']:.3f}: {found['name']}"


@dataclass(frozen=True)
class AttackRow:
    """One row of the table of attacks: an attack and a metric, with a cell for every protocol."""

    target: str  # what the attack tries to recover
    name: str
    measure: str  # the metric
    chance: str  # the metric of a guess that uses no message
    cells: list[str]
    claim: str  # the privacy claim that the attack tests


def attack_rows(record: Record) -> list[AttackRow]:
    """Return one row for every attack and metric, in the order of `TARGETS`; a cell without a result is empty."""
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
    """Return a table cell such as "0.863 (0.852–0.873), TPR 0.17": value, interval, TPR at 1 % false positives."""
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
    """Return the plots of every protocol: ROC curves, success by round, sweeps, and the effect of permanent bits."""
    figures: Figures = {}
    for protocol, curves in record["curves"].items():
        own: Figures = {}
        if curves["roc"]:
            drawing = audit_plots.roc_plot(curves["false_rates"], curves["roc"])
            own["roc"] = "telling rated from unrated items", drawing
        if len(curves["rounds"]) > 1:
            own["rounds"] = "success by round", audit_plots.rounds_plot(curves["rounds"])
        for kind, across, swept in (("noise", "noise", "the variance of the noise"), ("budget", "epsilon_g", "ε_g")):
            if kind in curves:
                drawing = audit_plots.sweep_plot(curves[kind], across, record.get("baselines", {}))
                own[kind] = f"attacks and accuracy by {swept}", drawing
        if "selection" in curves:
            names = {"rounds": "rounds", "with permanent bits": "with_permanent_bits", "ceiling of ε_P": "ceiling"}
            names |= {"without permanent bits": "without"}
            points = [{shown: point[name] for shown, name in names.items()} for point in curves["selection"]]
            drawing = audit_plots.rounds_plot(points)
            own["selection"] = "selections alone, with permanent bits and without", drawing
        figures |= {f"{protocol}-{kind}": (f"{protocol}: {caption}", one) for kind, (caption, one) in own.items()}
    return figures


def check_writable(folder: str | Path) -> None:
    """Create the folder, and raise `RunError` if it is not writable; to be called before a long audit."""
    probe = Path(folder) / f"{FILE}.part"
    with written(folder, "folder for plots"):
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()


def write_audit(record: Record, folder: str | Path) -> Path:
    """Write the record, the plots and the page of an audit into a folder; return the path of the page."""
    place = Path(folder)
    figures = audit_figures(record)
    seed = f", seed {record['seed']}" if "seed" in record else ""  # older records have none
    made = f"Written on {stamp()['date']} by hushrec {stamp()['hushrec']}{seed}."
    page = make_page([], [], title="hushrec audit", sections=audit_sections(record), figures=figures, made=made)
    contents = {FILE: json.dumps(record, indent=1, allow_nan=False).encode(), "audit.html": page.encode()}
    for name, (_, drawing) in figures.items():
        contents |= drawing.files(name)
    with written(place, "folder for plots"):
        place.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (place / name).write_bytes(content)
    return place / "audit.html"


def read_audits(folders: Iterable[str | Path]) -> list[Record]:
    """Return the records of all audits in or below the folders, as `hushrec audit --plots` wrote them."""
    files = [file for folder in map(Path, folders) for file in sorted(folder.rglob(FILE))]
    records = []
    for file in files:
        try:
            record = json.loads(file.read_text("utf-8"))
            audit_sections(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{file} is damaged: {type(error).__name__} while reading it. Run the audit again."
            ) from None
        records.append(record)
    return records
