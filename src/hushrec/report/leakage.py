"""One picture of what every protocol costs in accuracy and gives away: test error against what attacks recover.

A point is a run that was attacked. Across: how far the most successful attack gets from what is known anyway (0) to
everything (1). For items it is the true-positive rate at 1 % false alarms beside popularity alone, for ratings the
share that is exact beside the best blind guess, for taste the cosine beside a stranger's vector. The server follows
its protocol in all of them; against `masked` it knows everybody else's ratings as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hushrec.report.plots import INK, MUTED, SERIES, Drawing, new_axes, to_svg

Record = Mapping[str, Any]
PANELS = {"items": "rated items", "ratings": "ratings", "taste": "taste"}
MARKS = {"masked": ("o", 0), "sdcf": ("s", 1), "isgld": ("^", 2), "plain": ("D", 3)}
OTHER = ("v", 4)  # somebody else's protocol
CHEATING = "malicious"
LINE, POINTS = 0.038, 9  # of a panel's height, and of its print: one line of text


@dataclass(frozen=True)
class Recovered:
    """What the best attack reaches, and what is reached without any message."""

    attack: str
    value: float
    known_anyway: float

    @property
    def gained(self) -> float:
        """How far the attack gets: 0 is what is known without it, 1 is everything."""
        return min(max((self.value - self.known_anyway) / max(1 - self.known_anyway, 1e-9), 0.0), 1.0)


@dataclass(frozen=True)
class Point:
    """One protocol at one budget; a kind of attack that there is nothing to say about is absent."""

    label: str
    protocol: str
    rmse: float
    recovered: Mapping[str, Recovered]


def recovered(record: Record, protocol: str) -> dict[str, Recovered]:
    """Return the most successful attacks of an audit's record on one protocol, by what they are after."""
    attacks = [one for one in record["attacks"] if one["protocol"] == protocol and not one["name"].startswith(CHEATING)]
    existence = [one for one in attacks if (one["target"], one["metric"]) == ("existence", "auc")]
    found: dict[str, Recovered] = {}
    whole = [one for one in existence if not one["name"].endswith("items never reported")]
    if whole:
        known = next(one["tpr_at_1pct_fpr"] for one in whole if one["name"] == "popularity")
        best = max(whole, key=lambda one: float(one["tpr_at_1pct_fpr"]))
        found["items"] = Recovered(best["name"], best["tpr_at_1pct_fpr"], known)
    for kind, target, metric in (
        ("ratings", "value", "share_of_ratings_exact"),
        ("taste", "model", "mean_abs_cosine"),
    ):
        asked = [one for one in attacks if (one["target"], one["metric"]) == (target, metric)]
        if asked:
            best = max(asked, key=lambda one: float(one["value"]))
            found[kind] = Recovered(best["name"], best["value"], best["chance"])
    return found


def leakage_record(points: Sequence[Point], lines: Mapping[str, float], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the picture shows as JSON has it."""
    return {**about, "points": [asdict(point) for point in points], "lines": dict(lines)}


def read_points(record: Record) -> list[Point]:
    """Return the points of a record."""
    return [
        Point(one["label"], one["protocol"], one["rmse"], {k: Recovered(**v) for k, v in one["recovered"].items()})
        for one in record["points"]
    ]


def leakage_plot(points: Sequence[Point], lines: Mapping[str, float]) -> Drawing:
    """Draw one panel for each kind of attack, sharing the axis of test error; models that send nothing as lines."""
    shown = [kind for kind in PANELS if any(kind in point.recovered for point in points)]
    with new_axes(3.1 * len(shown) + 0.9, 4.4, columns=len(shown)) as (figure, every):
        panels = [every] if len(shown) == 1 else list(every)
        low, high = _window(points, lines)
        for axes, kind in zip(panels, shown, strict=True):
            _draw_panel(axes, kind, [point for point in points if kind in point.recovered], (low, high), lines.values())
            for value in lines.values():
                axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
            axes.set_ylim(high, low)  # better is higher
        _name_lines(panels[-1], lines, low, high)
        panels[0].set_ylabel("test RMSE (higher up is better)")
        for axes in panels[1:]:
            axes.tick_params(labelleft=False)
        figure.supxlabel("what the best attack recovers: 0 is what is known anyway, 1 is everything", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False, fontsize=8)
        return to_svg(figure)


def _draw_panel(
    axes: Any, kind: str, points: Sequence[Point], window: tuple[float, float], lines: Collection[float]
) -> None:
    named: set[str] = set()
    texts: list[tuple[bool, float]] = []  # side and place of those written so far
    for point in sorted(points, key=lambda point: point.rmse):
        shape, colour = MARKS.get(point.protocol, OTHER)
        gained, at = point.recovered[kind].gained, min(max(point.rmse, window[0]), window[1])
        name = None if point.protocol in named else point.protocol
        named.add(point.protocol)
        axes.plot(gained, at, shape, color=SERIES[colour], markersize=8, clip_on=False, label=name)
        beyond = "" if at == point.rmse else f" ({point.rmse:.2f})"
        text = point.label.removeprefix(point.protocol).strip(" ,") or point.protocol
        side = gained > 0.6
        step = LINE * (window[1] - window[0])
        taken = [place for one, place in texts if one == side]
        up = free_step(at, step, lines, taken)
        texts.append((side, at - up * step))
        axes.annotate(
            text + beyond, (gained, at), xytext=(-8 if side else 8, POINTS * up), textcoords="offset points",
            fontsize=7.5, ha="right" if side else "left", va="center", color=INK,
        )  # fmt: skip
    axes.set_xlim(-0.04, 1.04)
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    axes.set_title(PANELS[kind], fontsize=9.5)


def free_step(at: float, step: float, ruled: Collection[float], taken: Collection[float]) -> int:
    """Return how many lines of text a name is moved up from its mark: the least that is clear of rules and of names."""
    steps = [0, 1, -1, 2, -2]
    places = [at - up * step for up in steps]
    far = [[2 * abs(place - rule) for rule in ruled] + [abs(place - other) for other in taken] for place in places]
    room = [min([*distances, step]) for distances in far]
    return steps[int(np.argmax(room))]


def _window(points: Sequence[Point], lines: Mapping[str, float]) -> tuple[float, float]:
    """Best and worst error to show; what is far worse than all models that send nothing is drawn at the edge."""
    low = min([point.rmse for point in points] + list(lines.values()))
    near = [point.rmse for point in points if point.rmse <= 1.15 * max(lines.values(), default=2.0)]
    high = max([*near, *lines.values()])
    margin = 0.08 * (high - low or 0.1)
    return low - margin, high + margin


def _name_lines(axes: Any, lines: Mapping[str, float], low: float, high: float) -> None:
    """Name each line to the right of the last panel, close names moved apart."""
    taken = -float("inf")
    for name, value in sorted(lines.items(), key=lambda pair: pair[1]):
        taken = max(value, taken + 0.045 * (high - low))
        axes.annotate(
            name, (1, taken), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
            ha="left", va="center", fontsize=7.5, color=MUTED,
        )  # fmt: skip
