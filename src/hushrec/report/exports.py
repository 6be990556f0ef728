"""Export the table of a study: as CSV with full precision, and as LaTeX with the rounded numbers of the page."""

import csv
import io
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from hushrec.report.studies import Study, spread
from hushrec.report.tables import baseline_name, header, study_rows

LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "α": r"$\alpha$", "∞": r"$\infty$", "±": r"$\pm$", "−": "--",
})  # fmt: skip


def as_csv(study: Study) -> str:
    """Return the study as CSV, with the mean, standard deviation and number of splits of every metric."""
    settings, others = [*study.settings, *study.diverged], study.baselines | study.of_lists
    tables = [*(setting.metrics for setting in study.settings), *others.values(), *study.peers.values()]
    shown = list(dict.fromkeys(measure for table in tables for measure in table))
    budgets = dict.fromkeys(name for setting in settings for name in setting.budgets)
    columns = ["name", "kind", "protocol", "private", *budgets, "protects"]
    columns += [f"{measure}_{what}" for measure in shown for what in ("mean", "sd", "splits")]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for setting in settings:
        about = {"name": setting.label, "protocol": setting.protocol, "private": setting.private, **setting.budgets}
        about |= {"kind": "diverged" if setting.n_diverged else "setting", "protects": setting.protects}
        writer.writerow(about | _numbers({} if setting.n_diverged else setting.metrics, shown))
    for kind, own in (("baseline", others), ("peer", study.peers)):
        for name, table in own.items():
            named = name if kind == "peer" else baseline_name(name)
            writer.writerow({"name": named, "kind": kind, "private": False} | _numbers(table, shown))
    return out.getvalue()


def _numbers(table: Mapping[str, list[float]], shown: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for measure in (measure for measure in shown if measure in table):
        values = table[measure]
        found |= {f"{measure}_mean": fmean(values), f"{measure}_splits": len(values)}
        found |= {f"{measure}_sd": spread(values)} if len(values) > 1 else {}
    return found


def as_latex(study: Study) -> str:
    """Return the study's table as a LaTeX `tabular` with the numbers of the page; it needs the package booktabs."""
    names = header(study)
    lines = [r"\begin{tabular}{l" + "r" * (len(names) - 2) + "l}", r"\toprule", _latex_row(names), r"\midrule"]
    lines += [_latex_row(row.cells) for row in study_rows(study)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
