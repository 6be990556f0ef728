"""Plots of an audit as SVG text."""

import math
from collections.abc import Mapping, Sequence

from hushrec.report.plots import HEIGHT, INK, MUTED, SERIES, WIDTH, new_axes, to_svg


def roc_plot(false_rates: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """True against false accusations, on logarithmic false rates: the left end is where an accusation counts."""
    with new_axes(WIDTH, HEIGHT) as (figure, axes):
        axes.plot(false_rates, false_rates, color=MUTED, linewidth=1, label="chance")
        for number, (name, true_rates) in enumerate(curves.items()):
            axes.plot(false_rates, true_rates, color=SERIES[number % len(SERIES)], linewidth=1.8, label=name)
        axes.set_xscale("log")
        axes.set_xlim(1e-4, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("unrated items accused")
        axes.set_ylabel("rated items found")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8, handlelength=2.4)
        return to_svg(figure)


def sweep_plot(points: Sequence[Mapping[str, float | None]], across: str) -> str:
    """Success of attacks above, test error below, against what was swept; a run that diverged leaves a gap."""
    with new_axes(2 * WIDTH, HEIGHT, columns=2) as (figure, (left, right)):
        names = [name for name in points[0] if name not in (across, "rmse")]
        places = [point[across] for point in points]
        for number, name in enumerate(names):
            values = [point.get(name, math.nan) for point in points]
            left.plot(places, values, "o-", color=SERIES[number % len(SERIES)], label=name)
        errors = [math.nan if point["rmse"] is None else point["rmse"] for point in points]
        right.plot(places, errors, "o-", color=INK)
        for axes, label in ((left, "success"), (right, "test RMSE")):
            axes.set_xscale("log")
            axes.set_xlabel("variance of the noise, times its own" if across == "noise" else across)
            axes.set_ylabel(label)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8, handlelength=2.4)
        return to_svg(figure)


def lines_plot(points: Sequence[Mapping[str, float]], across: str, along: str = "AUC") -> str:
    """Every other entry of the points against the entry `across`, on a logarithmic axis."""
    with new_axes(WIDTH, HEIGHT) as (figure, axes):
        names = [name for name in points[0] if name != across]
        for number, name in enumerate(names):
            colour = SERIES[number % len(SERIES)]
            axes.plot(
                [point[across] for point in points], [point[name] for point in points], "o-", color=colour, label=name
            )
        axes.set_xscale("log")
        axes.set_xlabel(across)
        axes.set_ylabel(along)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8, handlelength=2.4)
        return to_svg(figure)
