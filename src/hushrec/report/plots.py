"""Plots as SVG text. A page can replace their colours for a dark scheme. Only drawing a plot imports matplotlib."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hushrec.report.studies import Setting, Study
from hushrec.report.tables import baseline_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of all plots; `inline` replaces each by a CSS variable. SERIES is a colour-blind-safe palette.
INK, MUTED, RULE = "#1f2430", "#5b6372", "#d5d9e0"
SERIES = ("#0b62a4", "#c2500a", "#00795a", "#a8407f", "#8a6500", "#3e7cb8", "#7d3ac1", "#63656b")
DASHES = ("-", "--", "-.", ":")
VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
WIDTH, HEIGHT = 5.4, 4.3  # inches; small, so that text stays readable on a phone


class Drawing(str):
    """A plot as SVG text. `pdf` is the same plot as PDF, and `wide` says whether it needs the full width of a page."""

    __slots__ = ("pdf", "wide")
    pdf: bytes
    wide: bool

    def files(self, name: str) -> dict[str, bytes]:
        """Return the contents of the files NAME.svg and NAME.pdf by file name."""
        return {f"{name}.svg": self.encode(), f"{name}.pdf": self.pdf}


def curves(study: Study) -> Drawing:
    """Plot the main metric of every setting by round: its mean over the seeds, and a band from lowest to highest."""
    with new_axes(WIDTH, HEIGHT) as (figure, axes):
        _baseline_lines(study, axes, upright=False)
        for number, setting in enumerate(setting for setting in study.settings if setting.curve):
            _draw_curve(axes, number, setting, _window(study))
        axes.set_ylim(*_window(study))
        axes.set_xlabel("round")
        axes.set_ylabel(_axis_name(study))
        return with_legend(figure, 1 if max(len(setting.label) for setting in study.settings) > 28 else 2)


def _draw_curve(axes: "Axes", number: int, setting: Setting, window: tuple[float, float]) -> None:
    curve = setting.curve
    assert curve is not None
    outside = "" if window[0] <= curve.mean[-1] <= window[1] else " (ends off the plot)"
    colour, dash = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
    axes.plot(curve.rounds, curve.mean, dash, color=colour, linewidth=1.8, label=setting.label + outside)
    if len(setting.metrics[next(iter(setting.metrics))]) > 1:
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def finals(study: Study) -> Drawing:
    """Plot the final main metric of every setting, one below the other, and the baselines as vertical lines."""
    settings = sorted(
        study.settings, key=lambda setting: setting.mean(study.measure), reverse=not study.larger_is_better
    )
    with new_axes(WIDTH, 1.5 + 0.52 * len(settings)) as (figure, axes):
        _baseline_lines(study, axes, upright=True)
        low, high = _window(study)
        for place, setting in enumerate(settings):
            colour = SERIES[study.settings.index(setting) % len(SERIES)]
            values, mean = setting.metrics[study.measure], setting.mean(study.measure)
            axes.plot([min(values), max(values)], [place, place], color=colour, linewidth=2)
            shown = min(max(mean, low), high)
            axes.plot(shown, place, "o" if shown == mean else "x", color=colour, markersize=6, clip_on=False)
            axes.annotate(
                f"{mean:.3f}", (shown, place), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7.5
            )
        axes.set_xlim(low, high)
        axes.set_yticks(range(len(settings)), [f"{setting.label}\n{setting.protects}" for setting in settings])
        for label in axes.get_yticklabels():
            label.set_fontsize(7.5)
        axes.set_ylim(-0.6, len(settings) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(_axis_name(study))
        return to_svg(figure)


def _baseline_lines(study: Study, axes: "Axes", *, upright: bool) -> None:
    lines = baseline_lines(study)
    for name, at in lines.items():
        (axes.axvline if upright else axes.axhline)(at, color=MUTED, linestyle=(0, (4, 2)), linewidth=1, zorder=1)
        if upright:
            axes.annotate(
                name, (at, 1), xycoords=("data", "axes fraction"), xytext=(2, 1), textcoords="offset points",
                rotation=40, ha="left", va="bottom", fontsize=7.5, color=MUTED,
            )  # fmt: skip
    if not upright:
        name_lines(axes, lines, _window(study), (2, 1))


def name_lines(
    axes: Any,
    lines: Mapping[str, float],
    window: tuple[float, float],
    offset: tuple[float, float],
    *,
    step: float = 0.045,
    size: float = 7.5,
) -> None:
    """Write the names of horizontal lines to the right of the axes.

    Names that would overlap are moved apart by the fraction `step` of the y axis, whose limits are `window`. Every name
    is moved by `offset` from the end of its line. `offset` and the font size, `size`, are in points.
    """
    taken = -float("inf")
    for name, at in sorted(lines.items(), key=lambda line: line[1]):
        taken = max(at, taken + step * (window[1] - window[0]))
        axes.annotate(
            name, (1, taken), xycoords=("axes fraction", "data"), xytext=offset, textcoords="offset points",
            ha="left", va="center", fontsize=size, color=MUTED,
        )  # fmt: skip


def _window(study: Study) -> tuple[float, float]:
    """Return the limits of the main metric's axis, which leave out settings far worse than the baselines."""
    lines = [study.baseline(name) for name in study.baselines]
    ends = [setting.mean(study.measure) for setting in study.settings]
    worst, best = (min(lines), max(lines + ends)) if study.larger_is_better else (max(lines), min(lines + ends))
    reach = abs(worst - best) or 0.1
    near = [end for end in ends if abs(end - best) <= 1.5 * reach] or ends
    low, high = min([*near, *lines]), max([*near, *lines])
    margin = 0.1 * (high - low or 0.1)
    return low - margin, high + margin


def _axis_name(study: Study) -> str:
    better = "larger" if study.larger_is_better else "smaller"
    return f"{study.measure.upper()} on the {study.part} part ({better} is better)"


@contextmanager
def new_axes(width: float, height: float, columns: int = 1, rows: int = 1) -> Iterator[tuple["Figure", Any]]:
    """Yield a new figure and its axes in the style of all plots, without the global state of pyplot."""
    import matplotlib
    from matplotlib.figure import Figure

    looks: dict[Any, Any] = {
        "text.parse_math": False,  # a name may contain a dollar sign
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # keeps text selectable
        "svg.hashsalt": "hushrec",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": RULE,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context(looks):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=rows > 1, sharey=rows > 1)
        yield figure, axes


def with_legend(figure: "Figure", columns: int = 2) -> Drawing:
    """Return the figure as a `Drawing`, with a legend below its axes."""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=2.4)
    return to_svg(figure)


def to_svg(figure: "Figure") -> Drawing:
    """Return the figure as a `Drawing`; the same figure always gives the same text."""
    file, print_file = io.StringIO(), io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "hushrec"})
    figure.savefig(print_file, format="pdf", metadata={"CreationDate": None, "Creator": "hushrec"})
    drawing = Drawing(file.getvalue())
    drawing.pdf, drawing.wide = print_file.getvalue(), figure.get_figwidth() > 1.5 * WIDTH
    return drawing


def inline(svg: str, title: str) -> str:
    """Return the SVG for use inside a page: with the page's colours, no background, and `title` for screen readers."""
    from html import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[a-zA-Z0-9]+_\d+"', "", body)
    for size in ("width", "height"):
        body = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", body)
    body = re.sub(r"fill: #ffffff(?=[;\"])", "fill: none", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    return body.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
