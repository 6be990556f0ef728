"""One HTML page without outside parts: it opens from a disk, in light and dark, on a phone and on a desk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hushrec.errors import RunError
from hushrec.report import plots
from hushrec.report.figures import paper_figures
from hushrec.report.records import Study, read_studies
from hushrec.report.tables import Row, measure_name, measures, study_rows, verdict

SERIES_DARK = ("#6cb4ee", "#ff9d5c", "#4fd1a5", "#f08cc6", "#e3bd4a", "#9cc9f5", "#c39bff", "#b3b8c2")


Figures = dict[str, tuple[str, str]]  # file name: caption, SVG


@dataclass(frozen=True)
class Section:
    """Something a caller adds to the page: plain text throughout, escaped here."""

    heading: str
    paragraphs: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Report:
    """What was written."""

    page: Path
    plots: list[Path]
    studies: list[Study]


def write_report(
    folders: Iterable[str | Path],
    page: str | Path,
    *,
    plots_folder: str | Path | None = None,
    title: str = "hushrec report",
    sections: Sequence[Section] = (),
    more_figures: Figures | None = None,
) -> Report:
    """Reads the runs, writes each plot as an SVG file and everything as one page."""
    studies = read_studies(folders)
    path = Path(page)
    folder = path.with_name(f"{path.stem}-plots") if plots_folder is None else Path(plots_folder)
    drawn = [study_plots(study) for study in studies]
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, figures in enumerate(drawn, start=1):
            for name, (_, svg) in figures.items():
                file = folder / (f"{name}.svg" if len(drawn) == 1 else f"{number}-{name}.svg")
                file.write_text(svg, "utf-8")
                written.append(file)
        path.write_text(make_page(studies, drawn, title=title, sections=sections, figures=more_figures), "utf-8")
    except OSError as error:
        raise RunError(f"the report could not be written to {path} ({error.strerror or error}).") from None
    return Report(path, written, studies)


def study_plots(study: Study) -> Figures:
    """The plots of one study."""
    panels = paper_figures(study)
    if panels:
        return panels
    figures = {"finals": ("Where each setting ends", plots.finals(study))}
    if any(setting.curve for setting in study.settings):
        figures["curves"] = ("How each setting learns", plots.curves(study))
    return figures


def make_page(
    studies: Sequence[Study],
    drawn: Sequence[Figures],
    *,
    title: str,
    sections: Sequence[Section] = (),
    figures: Figures | None = None,
) -> str:
    """Return the whole page: `page.html` with these parts. Jinja2 escapes whatever came from a run."""
    templates = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = templates.from_string(_beside("page.html"))
    return template.render(
        title=title,
        style=Markup(_style()),
        studies=[_study(study, own) for study, own in zip(studies, drawn, strict=True)],
        sections=[vars(section) | {"rows": [("setting", row) for row in section.rows]} for section in sections],
        figures=figures,
        budgets=_budgets(studies),
        inline=lambda svg, caption: Markup(plots.inline(svg, caption)),
    )


def _beside(name: str) -> str:
    """The text of a file beside this module."""
    return files("hushrec.report").joinpath(name).read_text("utf-8")


def _style() -> str:
    """The style sheet, and the colours of the plots for light and dark."""
    dark = f"@media (prefers-color-scheme: dark) {{ {_series(SERIES_DARK)} }}"
    return "\n".join([_beside("style.css"), _series(plots.SERIES), dark])


def _series(colours: Sequence[str]) -> str:
    variables = " ".join(f"--series-{number}: {colour};" for number, colour in enumerate(colours, start=1))
    return f":root {{ {variables} }}"


def _study(study: Study, figures: Figures) -> dict[str, Any]:
    header = ["", *map(measure_name, measures(study)), "to best baseline", "protects"]
    return {
        "title": study.title or study.dataset,
        "facts": f"{study.users:,} people, {study.items:,} items, {study.n_train:,} ratings to train,"
        f" {study.n_test:,} to {'test' if study.part == 'test' else 'validate'}, model {study.model}.",
        "verdict": verdict(study),
        "header": header,
        "rows": [_row(row) for row in study_rows(study)],
        "figures": figures,
    }


def _row(row: Row) -> tuple[str, list[str]]:
    kind = "baseline" if row.baseline else "better" if row.better else "setting"
    return kind, [row.name, *row.values, row.gap, row.protects]


def _budgets(studies: Sequence[Study]) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Each unit once, with what it leaves open and the settings that it is for."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for setting in (setting for study in studies for setting in (*study.settings, *study.diverged)):
        labels = groups.setdefault((setting.unit, setting.not_covered), [])
        labels += [setting.label] * (setting.label not in labels)
    return [(unit, not_covered, labels) for (unit, not_covered), labels in groups.items()]
