"""The figures of the paper [SDCF], drawn from the records of our experiments: learning curves in panels.

Section 4.2 of the paper describes two figures of Task 1 (predicting ratings) for each data set, with four panels each.
A panel of the first figure has a fixed ε_I and one curve per ε_g. A panel of the second has a fixed ε_g and one curve
per ε_I. Every panel also shows the non-private protocol, ISGLD, and fake errors of unbounded range (α = ∞). Task 2
(ranking items) has one panel per data set, with one curve per ε_I. Our figures follow this description.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hushrec.protocols import find_protocol
from hushrec.report import plots
from hushrec.report.studies import Setting, Study, spread
from hushrec.report.tables import baseline_lines, baseline_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"epsilon_i": "ε_I", "epsilon_g": "ε_g"}
LINE = 1.6
NESTED = (5.2, 3.8, 2.4, 1.0)  # line widths of curves that may coincide, so that each shows below the next
BUDGET_COLOURS = ("#0b62a4", "#00795a", "#8a6500", "#a8407f")  # from the weakest privacy to the strongest
NOT_PRIVATE, NOISY_RATINGS, UNBOUNDED = (plots.INK, "-"), (plots.MUTED, "--"), ("#7d3ac1", "-.")


def paper_figures(study: Study) -> dict[str, tuple[str, plots.Drawing]]:
    """Return captions and plots by file name; empty for a study that is not one of the paper's experiments."""
    grid = [setting for setting in study.settings if _on_the_grid(setting)]
    shared = [setting for setting in study.settings if setting.curve and not _on_the_grid(setting)]
    if study.measure == "auc":
        values = {setting.budgets["epsilon_i"] for setting in study.settings if "epsilon_i" in setting.budgets}
        if len(values) < 2:
            return {}
        return {"task2": ("Quality of the ranking by round: ε_I varies", _ranking_panel(study))}
    mixed = [setting for setting in study.settings if setting.groups]
    if mixed:
        return {"groups": ("Error of the people with each budget", _group_panel(study, mixed[0]))}
    pairs = {tuple(setting.budgets[name] for name in NAMES) for setting in grid}
    n_cells = math.prod(len(_values(grid, name)) for name in NAMES)
    if len(grid) < 4 or not len(grid) == len(pairs) == n_cells:
        return {}
    return {
        f"task1-{varied.replace('_', '-')}": (
            f"Error of predicted ratings by round: {NAMES[varied]} varies, {NAMES[fixed]} is fixed in each panel",
            _panels(study, grid, shared, fixed, varied),
        )
        for fixed, varied in (("epsilon_i", "epsilon_g"), ("epsilon_g", "epsilon_i"))
    }


def _on_the_grid(setting: Setting) -> bool:
    return bool(setting.curve) and setting.budgets.get("epsilon_g", 0.0) > 0 and "epsilon_i" in setting.budgets


def _values(settings: Sequence[Setting], name: str) -> list[float]:
    return sorted({setting.budgets[name] for setting in settings}, reverse=True)


def _panels(study: Study, grid: Sequence[Setting], shared: Sequence[Setting], fixed: str, varied: str) -> plots.Drawing:
    levels = _values(grid, fixed)
    rows = (len(levels) + 1) // 2
    low, high = _limits(study)
    with plots.new_axes(2 * plots.WIDTH, 3.2 * rows + 0.9, columns=2, rows=rows) as (figure, axes):
        for panel, level in zip(axes.flat, levels, strict=False):
            _baselines(study, panel, low, high)
            for setting in (setting for setting in grid if setting.budgets[fixed] == level):
                place = _values(grid, varied).index(setting.budgets[varied]) % len(BUDGET_COLOURS)
                name = f"{setting.protocol} {NAMES[varied]} = {setting.budgets[varied]:g}"
                width = LINE if varied == "epsilon_g" else NESTED[place]
                _curve(panel, setting, BUDGET_COLOURS[place], "-", name, width)
            for setting in shared:
                _curve(panel, setting, *_mark(setting), _shared_name(setting))
            panel.set_title(f"{NAMES[fixed]} = {level:g}", loc="left", fontsize=10)
            panel.set_ylim(low, high)
            _name_settings_above(panel, shared, high)
        for panel in axes.flat[-2:]:
            panel.set_xlabel("round")
        for panel in axes.flat[::2]:  # of two columns; a single row has one dimension only
            panel.set_ylabel("test RMSE")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9, handlelength=2.8)
        return plots.to_svg(figure)


def _ranking_panel(study: Study) -> plots.Drawing:
    with plots.new_axes(1.3 * plots.WIDTH, plots.HEIGHT) as (figure, axes):
        private = [setting for setting in study.settings if "epsilon_i" in setting.budgets]
        low, high = _ranking_limits(study)
        for setting in (setting for setting in study.settings if setting.curve):  # comparisons have no curve
            if setting in private:
                place = _values(private, "epsilon_i").index(setting.budgets["epsilon_i"]) % len(BUDGET_COLOURS)
                name = f"{setting.protocol} ε_I = {setting.budgets['epsilon_i']:g}"
                _curve(axes, setting, BUDGET_COLOURS[place], "-", name, NESTED[place])
            else:
                _curve(axes, setting, plots.INK, "-", "non-private")
        _baselines(study, axes, low, high)
        axes.set_ylim(low, high)
        axes.set_xlabel("round")
        axes.set_ylabel("test AUC")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, handlelength=2.8)
        return plots.to_svg(figure)


def _ranking_limits(study: Study) -> tuple[float, float]:
    """Return the limits of the AUC axis.

    The axis shows the AUC of the popularity baseline, and of each curve after a tenth of its rounds and at its end.
    """
    curves = [setting.curve for setting in study.settings if setting.curve]
    popular = study.baseline("popularity")
    ends = [curve.mean[-1] for curve in curves]
    low = min([popular, *ends, *(curve.mean[len(curve.mean) // 10] for curve in curves)])
    high = max([popular, *ends])
    margin = 0.1 * (high - low or 0.1)
    return low - margin, high + margin


def _group_panel(study: Study, setting: Setting) -> plots.Drawing:
    """Plot the test RMSE of a setting in which people have different budgets.

    There is one mark for each group of people with the same budget, one for everybody, and one for each non-private
    setting of the study. The bars are standard deviations over the splits.
    """
    shown = [(f"people at {name}", measure, setting) for name, measure in setting.groups.items()]
    shown += [("everybody", "rmse", setting)]
    shown += [(_shared_name(other), "rmse", other) for other in study.settings if not _is_private(other)]
    with plots.new_axes(1.3 * plots.WIDTH, 1.4 + 0.4 * len(shown)) as (figure, axes):
        for place, (name, measure, own) in enumerate(reversed(shown)):
            colour = plots.INK if name in ("everybody", "non-private") else BUDGET_COLOURS[(len(shown) - 1 - place) % 4]
            mean, deviation = own.mean(measure), spread(own.metrics[measure])
            axes.errorbar(mean, place, xerr=deviation, fmt="o", color=colour, markersize=6, linewidth=2)
            axes.annotate(
                f"{mean:.3f}", (mean, place), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=8
            )
        for name in study.baselines:
            at = study.baseline(name)
            if at < setting.mean("rmse") + 0.05:
                axes.axvline(at, color=plots.MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
                axes.annotate(
                    baseline_name(name), (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                    textcoords="offset points", ha="center", va="bottom", fontsize=8, color=plots.MUTED,
                )  # fmt: skip
        axes.set_yticks(range(len(shown)), [name for name, _, _ in reversed(shown)])
        axes.set_ylim(-0.6, len(shown) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("test RMSE, mean and standard deviation over the splits")
        return plots.to_svg(figure)


def _curve(axes: "Axes", setting: Setting, colour: str, dash: str, label: str, width: float = LINE) -> None:
    """Plot a setting's learning curve: the mean over the splits, and a band of one standard deviation on both sides.

    If a curve has more than 40 points, its band uses only every fifth point after the tenth, to keep files small.
    """
    curve = setting.curve
    assert curve is not None
    axes.plot(curve.rounds, curve.mean, dash, color=colour, linewidth=width, label=label)
    every = 5 if len(curve.rounds) > 40 else 1
    places = [
        place for place in range(len(curve.rounds)) if place < 10 or place % every == 0 or place + 1 == len(curve.mean)
    ]
    lower = [curve.mean[place] - curve.deviation[place] for place in places]
    upper = [curve.mean[place] + curve.deviation[place] for place in places]
    axes.fill_between([curve.rounds[place] for place in places], lower, upper, color=colour, alpha=0.13, linewidth=0)


def _is_private(setting: Setting) -> bool:
    return find_protocol(setting.protocol).is_private


def _is_noisy(setting: Setting) -> bool:
    """Return whether the setting's protocol adds noise to ratings, as ISGLD does.

    Such a setting is private, and its budget has ε but no ε_I.
    """
    return _is_private(setting) and "epsilon" in setting.budgets and "epsilon_i" not in setting.budgets


def _mark(setting: Setting) -> tuple[str, str]:
    if _is_noisy(setting):
        colour, dash = NOISY_RATINGS
        return (colour if setting.budgets["epsilon"] > 3 else "#c2500a"), (":" if setting.clamped else dash)
    return UNBOUNDED if _is_private(setting) else NOT_PRIVATE


def _shared_name(setting: Setting) -> str:
    if not _is_private(setting):
        return "non-private"
    if _is_noisy(setting):
        clamped = ", clamped" if setting.clamped else ""
        return f"{setting.protocol.upper()} ε = {setting.budgets['epsilon']:g}{clamped}"
    return f"{setting.protocol} α = ∞" if "epsilon_i" in setting.budgets else setting.label


def _limits(study: Study) -> tuple[float, float]:
    """Return the limits of the error axis, which shows the last error of each curve, except errors far above others."""
    ends = [setting.mean("rmse") for setting in study.settings if not _is_noisy(setting)]
    low = min([*ends, study.baseline(study.best_baseline)])
    near = [setting.mean("rmse") for setting in study.settings if setting.mean("rmse") < low + 5 * (max(ends) - low)]
    return low - 0.1 * (max(near) - low), max(near) + 0.35 * (max(near) - low)


def _name_settings_above(axes: "Axes", settings: Sequence[Setting], high: float) -> None:
    """Write the names and final errors of the settings with an error above `high` into the upper right corner."""
    above = [setting for setting in settings if setting.mean("rmse") > high]
    text = "\n".join(f"↑ {_shared_name(setting)} ends at {setting.mean('rmse'):.2f}" for setting in above)
    if text:
        axes.annotate(text, (0.98, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=plots.MUTED)


def _baselines(study: Study, axes: "Axes", low: float, high: float) -> None:
    lines = {name: at for name, at in baseline_lines(study).items() if low < at < high}
    for at in lines.values():
        axes.axhline(at, color=plots.MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    plots.name_lines(axes, lines, (low, high), (3, 0), step=0.05, size=8)
