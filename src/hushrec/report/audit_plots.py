"""Plots for an audit: ROC curves, sweeps, and the success of attacks by round."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hushrec.report.plots import HEIGHT, INK, MUTED, SERIES, WIDTH, Drawing, new_axes, with_legend

Points = Sequence[Mapping[str, float | None]]


def roc_plot(false_rates: Sequence[float], curves: Mapping[str, Sequence[float]]) -> Drawing:
    """Plot ROC curves with a logarithmic x axis, because small false-positive rates matter most.

    `curves` has the true-positive rates of each attack by name, one for each of `false_rates`.
    """
    with new_axes(WIDTH, HEIGHT) as (figure, axes):
        axes.plot(false_rates, false_rates, color=MUTED, linewidth=1, label="chance")
        for number, (name, true_rates) in enumerate(curves.items()):
            axes.plot(false_rates, true_rates, color=SERIES[number % len(SERIES)], linewidth=1.8, label=name)
        _logarithmic(axes, [1e-4, 1e-3, 1e-2, 0.1, 1.0])
        axes.set_xlim(1e-4, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("share of unrated items accused")
        axes.set_ylabel("share of rated items found")
        return with_legend(figure)


def sweep_plot(points: Points, across: str, baselines: Mapping[str, float]) -> Drawing:
    """Plot the success of attacks and the test error of several runs that differ in one quantity.

    A point maps names to numbers of one attacked run. `across` names the quantity in which the runs differ, the x
    coordinate of each point. The panels show, from left to right: the cosine of the recovered and the true user vector,
    if there are attacks on it; the AUCs of attacks; the test error, with the test errors of `baselines`. An error too
    large for its panel is written at the upper edge. A run that diverged leaves a gap.
    """
    names = [name for name in points[0] if name not in (across, "rmse")]
    cosines = [name for name in names if name.startswith("cosine")]
    panels = [("cosine with the person's vector", cosines)] if cosines else []
    panels.append(("AUC, rated against unrated items", [name for name in names if name not in cosines]))
    with new_axes((1 + len(panels)) * 3.6, HEIGHT, columns=1 + len(panels)) as (figure, every):
        colours = iter(SERIES * 2)
        for axes, (label, shown) in zip(every, panels, strict=False):
            for name in shown:
                short = name.removeprefix("cosine, ").removeprefix("AUC, ")
                axes.plot(*_line(points, across, name), "o-", color=next(colours), markersize=4, label=short)
            axes.axhline(0.5 if shown is not cosines else 0.0, color=MUTED, linewidth=1)
            axes.set_ylim(0 if shown is cosines else 0.45, 1.03)
            axes.set_ylabel(label)
        _error_panel(every[-1], points, across, baselines)
        for axes in every:
            _logarithmic(axes, *_x_positions(points, across))
            axes.set_xlabel("variance of the noise, times its own" if across == "noise" else "ε_g")
        return with_legend(figure)


def _error_panel(axes: Any, points: Points, across: str, baselines: Mapping[str, float]) -> None:
    places, errors = _line(points, across, "rmse")
    known = [error for error in errors if not math.isnan(error)]
    top = max(min(max(known), 1.3), min(known) + 0.05, *(1.02 * value for value in baselines.values()))
    axes.plot(places, errors, "o-", color=INK, markersize=4, label="test RMSE")
    for number, (name, value) in enumerate(baselines.items()):
        axes.axhline(value, color=MUTED, linewidth=1, linestyle=(":", "--")[number % 2], label=f"RMSE of {name}")
    axes.set_ylim(min(*known, *baselines.values()) - 0.01, top)
    for place, error in zip(places, errors, strict=True):
        if error > top:
            axes.annotate(f"{error:.2f} ↑", (place, top), ha="center", va="top", fontsize=8)
    axes.set_ylabel("test RMSE")


def rounds_plot(points: Points) -> Drawing:
    """Plot AUCs against the number of rounds, on a logarithmic axis.

    A point maps "rounds" to a number of rounds, and the name of each line of the plot to an AUC.
    """
    with new_axes(WIDTH, HEIGHT) as (figure, axes):
        for number, name in enumerate(name for name in points[0] if name != "rounds"):
            colour = SERIES[number % len(SERIES)]
            axes.plot(*_line(points, "rounds", name), "o-", color=colour, markersize=4, label=name)
        _logarithmic(axes, *_x_positions(points, "rounds"))
        axes.set_ylim(0.45, 1.03)
        axes.set_xlabel("rounds")
        axes.set_ylabel("AUC")
        return with_legend(figure)


def _line(points: Points, across: str, name: str) -> tuple[list[float], list[float]]:
    """Return the entries `across` and `name` of the points, as x and y coordinates; y is NaN if it is missing."""
    values = [point.get(name) for point in points]
    return _x_positions(points, across)[0], [math.nan if one is None else one for one in values]


def _x_positions(points: Points, across: str) -> tuple[list[float], list[str]]:
    """Return the x coordinates and tick labels of the points on a logarithmic axis; 0 is drawn at the left end."""
    numbers = [float(point[across] or 0.0) for point in points]
    least = min((number for number in numbers if number), default=1.0)
    return [number or least / 4 for number in numbers], [_plain(number) for number in numbers]


def _logarithmic(axes: Any, places: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Make the x axis logarithmic, with ticks at `places` only; default labels are numbers such as 1, 100 or 10⁴."""
    axes.set_xscale("log")
    axes.set_xticks(list(places), labels or [_plain(place) for place in places])
    axes.set_xticks([], minor=True)


def _plain(number: float) -> str:
    power = round(math.log10(number or 1.0))
    if power >= 4 and math.isclose(number, 10.0**power):
        return "10" + str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{number:,.4f}".rstrip("0").rstrip(".")
