"""The report as one self-contained HTML page, for light and dark colour schemes, narrow and wide screens."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hushrec.files import stamp, written
from hushrec.report import plots
from hushrec.report.exports import as_csv, as_latex
from hushrec.report.figures import paper_figures
from hushrec.report.studies import Study, read_studies
from hushrec.report.tables import header, study_rows, verdict

SERIES_DARK = ("#6cb4ee", "#ff9d5c", "#4fd1a5", "#f08cc6", "#e3bd4a", "#9cc9f5", "#c39bff", "#b3b8c2")
Figures = dict[str, tuple[str, plots.Drawing]]  # file name: caption, plot


@dataclass(frozen=True)
class Section:
    """A section of the page besides the studies: a heading, paragraphs and a table, all as plain text."""

    heading: str
    paragraphs: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Report:
    """The files that `write_report` has written, and the studies that they show."""

    page: Path
    plots: list[Path]  # as SVG
    exports: list[Path]  # the plots as PDF, the tables as CSV and LaTeX
    studies: list[Study]


def write_report(
    folders: Iterable[str | Path],
    page: str | Path,
    *,
    plots_folder: str | Path | None = None,
    title: str = "hushrec report",
    sections: Sequence[Section] = (),
    more_figures: Figures | None = None,
    command: str | None = None,
) -> Report:
    """Read the runs in the folders; write one page, every plot as SVG and PDF, and every table as CSV and LaTeX.

    Plots and tables go to `plots_folder`, by default a folder beside the page. `sections` and `more_figures` are added
    to the page, which shows `command` as the command that wrote it.
    """
    sources = [Path(folder) for folder in folders]
    studies = read_studies(sources)
    path = Path(page)
    folder = path.with_name(f"{path.stem}-plots") if plots_folder is None else Path(plots_folder)
    drawn = [study_plots(study) for study in studies]
    if command is None:  # without the folders' paths, which a published page must not show
        command = f"hushrec report {shlex.join(source.name or '.' for source in sources)}"
    made = f"Written on {stamp()['date']} by hushrec {stamp()['hushrec']}: {command}"
    text = make_page(studies, drawn, title=title, sections=sections, figures=more_figures, made=made)
    contents: dict[str, bytes] = {}
    for number, (study, figures) in enumerate(zip(studies, drawn, strict=True), start=1):
        start = "" if len(drawn) == 1 else f"{number}-"
        for name, (_, drawing) in figures.items():
            contents |= drawing.files(f"{start}{name}")
        contents |= {f"{start}table.csv": as_csv(study).encode(), f"{start}table.tex": as_latex(study).encode()}
    with written(path, "path"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        path.write_text(text, "utf-8")
    plotted = [folder / name for name in contents if name.endswith(".svg")]
    return Report(path, plotted, [folder / name for name in contents if not name.endswith(".svg")], studies)


def study_plots(study: Study) -> Figures:
    """Return the plots of a study by file name: `paper_figures` or, if there are none, final metrics and curves."""
    panels = paper_figures(study)
    if panels:
        return panels
    figures = {"finals": ("Final metric of each setting", plots.finals(study))}
    if any(setting.curve for setting in study.settings):
        figures["curves"] = ("Learning curve of each setting", plots.curves(study))
    return figures


def make_page(
    studies: Sequence[Study],
    drawn: Sequence[Figures],
    *,
    title: str,
    sections: Sequence[Section] = (),
    figures: Figures | None = None,
    made: str = "",
) -> str:
    """Return the HTML of the page, rendered from the template `page.html`; Jinja2 escapes all text from runs.

    `drawn` holds the plots of each study. `sections` and `figures` are shown in addition to the studies, and `made` is
    a line that says when and how the page was made.
    """
    import jinja2
    from markupsafe import Markup

    templates = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = templates.from_string(_beside("page.html"))
    shown = [_study(study, own) for study, own in zip(studies, drawn, strict=True)]
    return template.render(
        title=title,
        made=made,
        contents=[*(study["title"] for study in shown), *(section.heading for section in sections)],
        style=Markup(_style()),
        studies=shown,
        sections=[vars(section) | {"rows": [("setting", row) for row in section.rows]} for section in sections],
        figures=figures,
        budgets=_budgets(studies),
        inline=lambda svg, caption: Markup(plots.inline(svg, caption)),
    )


def _beside(name: str) -> str:
    return files("hushrec.report").joinpath(name).read_text("utf-8")


def _style() -> str:
    def series(colours: Sequence[str]) -> str:
        variables = " ".join(f"--series-{number}: {colour};" for number, colour in enumerate(colours, start=1))
        return f":root {{ {variables} }}"

    dark = f"@media (prefers-color-scheme: dark) {{ {series(SERIES_DARK)} }}"
    return "\n".join([_beside("style.css"), series(plots.SERIES), dark])


def _study(study: Study, figures: Figures) -> dict[str, Any]:
    return {
        "title": study.title or study.dataset,
        "facts": f"{study.facts}.",
        "splits": splits_in_words(study),
        "made_by": study.made_by,
        "verdict": verdict(study),
        "header": header(study),
        "rows": [(row.kind, row.cells) for row in study_rows(study)],
        "figures": figures,
        "commands": [(one.label, one.command) for one in (*study.settings, *study.diverged) if one.command],
    }


def splits_in_words(study: Study) -> str:
    """Return sentences that say which splits were run and what ± means."""
    first, last = study.seeds[0], study.seeds[-1]
    if first == last:
        return f"One split (seed {first}), one run of each setting: differences of 0.01 may be chance."
    seeds = f"{first} to {last}" if len(study.seeds) == last - first + 1 else ", ".join(map(str, study.seeds))
    return (
        f"{len(study.seeds)} splits (seeds {seeds}). Numbers are means over the splits of a setting, and ± is the"
        " standard deviation between splits. All settings share the splits, so differences between settings are more"
        " certain than ± suggests."
    )


def _budgets(studies: Sequence[Study]) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Return each different guarantee as (unit, what is not covered, labels of the settings with this guarantee)."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for setting in (setting for study in studies for setting in (*study.settings, *study.diverged)):
        labels = groups.setdefault((setting.unit, setting.not_covered), [])
        labels += [setting.label] * (setting.label not in labels)
    return [(unit, not_covered, labels) for (unit, not_covered), labels in groups.items()]
