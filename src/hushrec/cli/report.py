"""The command `hushrec report`: tables, plots and a page about finished runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from hushrec.cli.app import JsonFlag, app, harmless, print_json, say

if TYPE_CHECKING:
    from hushrec.report import Study


@app.command(epilog="Example: hushrec report runs/first runs/second --out compare.html")
def report(
    folders: Annotated[
        list[Path],
        Argument(help="Folders written by `train --out` or `experiment`, or folders that contain such folders."),
    ],
    out: Annotated[Path, Option(help="HTML file to write.")] = Path("report.html"),
    plots: Annotated[
        Path | None, Option(help="Folder for plots and tables as files.  [default: beside the page]")
    ] = None,
    audit: Annotated[
        list[Path] | None,
        Option(help="Include the audits that `audit --plots` wrote into this folder; may be repeated."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write tables, plots and one self-contained HTML page about finished runs, from their records alone.

    Runs with the same ratings and the same --items share one table; there, runs that differ only in their seeds are one
    row. Runs with other ratings, --items, --public or --scale have a table of their own.
    """
    from hushrec.report import write_report
    from hushrec.report.audits import audit_figures, audit_sections, read_audits

    audits = read_audits(audit or [])
    written = write_report(
        folders,
        out,
        plots_folder=plots,
        sections=[section for record in audits for section in audit_sections(record)],
        more_figures={
            f"{number}-{name}": figure
            for number, record in enumerate(audits, start=1)
            for name, figure in audit_figures(record).items()
        },
    )
    if as_json:
        print_json(
            {
                "page": str(written.page),
                "plots": [str(path) for path in written.plots],
                "exports": [str(path) for path in written.exports],
                "studies": [study_summary(study) for study in written.studies],
            }
        )
        return
    for study in written.studies:
        print_study(study)
    say(f"page: {written.page}; plots as SVG and PDF, tables as CSV and LaTeX: {written.plots[0].parent}")


def print_study(study: "Study") -> None:
    """Print a table of the accuracy of all runs on one data set and of the baselines, the best first.

    Sentences below the table compare the runs with the best baseline.
    """
    from hushrec.report.tables import measure_name, study_rows, terminal_measures, verdict

    console = Console(highlight=False)
    console.print(harmless(f"{study.title or study.dataset}: {study.facts}"))
    shown = terminal_measures(study)
    table = Table("", *map(measure_name, shown), "gap", "protects", box=None, pad_edge=False)
    for row in study_rows(study, shown):
        table.add_row(*map(harmless, row.cells), style="dim" if row.kind == "baseline" else None)
    console.print(table)
    console.print(harmless(verdict(study)))


def study_summary(study: "Study") -> dict[str, Any]:
    """Return a study, all runs on one data set, as a dictionary for `--json`."""
    return {
        "dataset": study.dataset,
        "model": study.model,
        "measure": study.measure,
        "settings": [
            {
                "label": setting.label,
                "protocol": setting.protocol,
                "unit": setting.unit,
                "protects": setting.protects,
                "not_covered": list(setting.not_covered),
                "metrics": setting.metrics,
                "beats_best_baseline": study.beats(setting),
            }
            for setting in study.settings
        ],
        "diverged": [setting.label for setting in study.diverged],
        "baselines": {**study.baselines, **study.of_lists},
    }
