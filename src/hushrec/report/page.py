"""One HTML page without outside parts: it opens from a disk, in light and dark, on a phone and on a desk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from hushrec.errors import RunError
from hushrec.report import plots
from hushrec.report.figures import paper_figures
from hushrec.report.records import Study, read_studies
from hushrec.report.tables import Row, measures, study_rows, verdict

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
    """The whole page. Whatever came from a run is escaped."""
    style = _style()
    parts = [_study(study, own) for study, own in zip(studies, drawn, strict=True)]
    parts += [_section(section) for section in sections]
    parts += [f'<div class="figures">{_figures(figures)}</div>'] if figures else []
    parts += [_budgets(studies)] if studies else []
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="muted">Made from finished runs; nothing was computed anew. Every private setting carries its '
        f"budget with its unit; what no budget covers is listed with it.</p>\n{body}\n</body>\n</html>\n"
    )


def _style() -> str:
    """The style sheet, which stands beside this module, and the colours of the plots for light and dark."""
    sheet = files("hushrec.report").joinpath("style.css").read_text("utf-8")
    dark = f"@media (prefers-color-scheme: dark) {{ {_series(SERIES_DARK)} }}"
    return "\n".join([sheet, _series(plots.SERIES), dark])


def _series(colours: Sequence[str]) -> str:
    variables = " ".join(f"--series-{number}: {colour};" for number, colour in enumerate(colours, start=1))
    return f":root {{ {variables} }}"


def _study(study: Study, figures: Figures) -> str:
    facts = (
        f"{study.users:,} people, {study.items:,} items, {study.n_train:,} ratings to train, {study.n_test:,} to "
        f"{'test' if study.part == 'test' else 'validate'}, model {study.model}."
    )
    return (
        f'<section>\n<h2>{escape(study.title or study.dataset)}</h2>\n<p class="muted">{escape(facts)}</p>\n'
        f'<p class="note">{escape(verdict(study))}</p>\n{_table(study)}\n'
        f'<div class="figures">{_figures(figures)}</div>\n'
        "</section>"
    )


def _figures(figures: Figures) -> str:
    return "".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{plots.inline(svg, caption)}</figure>"
        for caption, svg in figures.values()
    )


def _table(study: Study) -> str:
    header = ["", *(name.upper().replace("_", " ") for name in measures(study)), "to best baseline", "protects"]
    rows = "".join(_row(header, row) for row in study_rows(study))
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(header: Sequence[str], row: Row) -> str:
    kind = "baseline" if row.baseline else "better" if row.better else "setting"
    return _cells(header, [row.name, *row.values, row.gap, row.protects], kind)


def _cells(header: Sequence[str], cells: Sequence[str], kind: str) -> str:
    inside = "".join(
        f'<td data-name="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(header, cells, strict=True)
    )
    return f'<tr class="{kind}">{inside}</tr>'


def _budgets(studies: Sequence[Study]) -> str:
    """Each unit once, with the settings that it is for and what it leaves open."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for setting in (setting for study in studies for setting in (*study.settings, *study.diverged)):
        labels = groups.setdefault((setting.unit, setting.not_covered), [])
        labels += [setting.label] * (setting.label not in labels)
    shown = []
    for (unit, not_covered), labels in groups.items():
        items = "".join(f"<li>{escape(what)}</li>" for what in not_covered)
        shown.append(
            f"<h3>{escape('; '.join(labels))}</h3><p>Budget: {escape(unit)}.</p><p>Not covered:</p><ul>{items}</ul>"
        )
    return f"<h2>What the budgets cover, and what not</h2>{''.join(shown)}"


def _section(section: Section) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in section.paragraphs)
    table = ""
    if section.rows:
        head = "".join(f"<th>{escape(name)}</th>" for name in section.header)
        rows = "".join(_cells(section.header, row, "setting") for row in section.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section>\n<h2>{escape(section.heading)}</h2>{paragraphs}{table}\n</section>"
