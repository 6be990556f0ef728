"""A plot of accuracy against leakage: the test error of every protocol, and how much attacks on it recover.

A point is one attacked run. Its x coordinate is the success of the best attack, from 0 (a guess without any message) to
1 (everything is recovered). There are three kinds of attacks, each with its own measure of success:

- items: the true-positive rate at 1 % false positives, compared with popularity alone
- ratings: the fraction of exact ratings, compared with the best constant guess
- taste: the cosine with the person's vector, compared with another person's vector

In all these attacks the server follows its protocol. Attacks on `masked` also know the ratings of everybody else.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from hushrec.protocols import PROTOCOLS
from hushrec.report.plots import INK, MUTED, SERIES, Drawing, name_lines, new_axes, to_svg

Record = Mapping[str, Any]
PANELS = {"items": "rated items", "ratings": "ratings", "taste": "taste"}
MARKS = (("D", 3), ("^", 2), ("s", 1), ("o", 0))  # shape and colour of the protocols, in the order of the registry
OTHER = ("v", 4)  # shape and colour of the protocols of plug-ins
CHEATING = "malicious"  # the first word of attacks by a server that does not follow its protocol
LINE, POINTS = 0.038, 9  # height of a line of text: as a fraction of the panel, and in points


@dataclass(frozen=True)
class Recovered:
    """The success of the best attack of one kind: on items, ratings or taste.

    Success is the true-positive rate at 1 % false positives (items), the fraction of exact ratings (ratings), or the
    mean cosine with the person's vector (taste).
    """

    attack: str  # name of the attack
    value: float  # success of the attack
    known_anyway: float  # success of a guess without any message

    @property
    def gained(self) -> float:
        """The success of the attack, scaled so that 0 is a guess without any message and 1 is full recovery."""
        return min(max((self.value - self.known_anyway) / max(1 - self.known_anyway, 1e-9), 0.0), 1.0)


@dataclass(frozen=True)
class Point:
    """One attacked run: a protocol with a budget, its test RMSE, and the best attack of each kind that applies."""

    label: str
    protocol: str
    rmse: float
    recovered: Mapping[str, Recovered]


def recovered(record: Record, protocol: str) -> dict[str, Recovered]:
    """Return the best attack on one protocol in an audit's record, by kind: "items", "ratings" or "taste".

    Attacks by a server that does not follow its protocol are left out.
    """
    attacks = [one for one in record["attacks"] if one["protocol"] == protocol and not one["name"].startswith(CHEATING)]
    existence = [one for one in attacks if (one["target"], one["metric"]) == ("existence", "auc")]
    found: dict[str, Recovered] = {}
    whole = [one for one in existence if not one["name"].endswith("items never reported")]
    if whole:
        known = next(one["tpr_at_1pct_fpr"] for one in whole if one["name"] == "popularity")
        best = max(whole, key=lambda one: float(one["tpr_at_1pct_fpr"]))
        found["items"] = Recovered(best["name"], best["tpr_at_1pct_fpr"], known)
    for kind, target, metric in (("ratings", "value", "share_of_ratings_exact"), ("taste", "model", "mean_abs_cosine")):
        matching = [one for one in attacks if (one["target"], one["metric"]) == (target, metric)]
        if matching:
            best = max(matching, key=lambda one: float(one["value"]))
            found[kind] = Recovered(best["name"], best["value"], best["chance"])
    return found


def leakage_record(points: Sequence[Point], lines: Mapping[str, float], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `points` and `lines` of `leakage_plot` as a record for a JSON file.

    `about` has further entries of the record, such as the data set.
    """
    return {**about, "points": [asdict(point) for point in points], "lines": dict(lines)}


def read_points(record: Record) -> list[Point]:
    """Return the points in a record that `leakage_record` made."""
    return msgspec.convert(record["points"], list[Point])


def leakage_plot(points: Sequence[Point], lines: Mapping[str, float]) -> Drawing:
    """Plot one panel for each kind of attack; `lines` are the test errors of non-personal models by name."""
    shown = [kind for kind in PANELS if any(kind in point.recovered for point in points)]
    with new_axes(3.1 * len(shown) + 0.9, 4.4, columns=len(shown)) as (figure, every):
        panels = [every] if len(shown) == 1 else list(every)
        low, high = _window(points, lines)
        for axes, kind in zip(panels, shown, strict=True):
            _draw_panel(axes, kind, [point for point in points if kind in point.recovered], (low, high), lines.values())
            for value in lines.values():
                axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
            axes.set_ylim(high, low)  # better is higher
        name_lines(panels[-1], lines, (low, high), (6, 0))
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
    texts: list[tuple[bool, float]] = []  # for each label so far: whether it is left of its mark, and its y
    marks = dict(zip(PROTOCOLS, MARKS, strict=False))
    for point in sorted(points, key=lambda point: point.rmse):
        shape, colour = marks.get(point.protocol, OTHER)
        gained, at = point.recovered[kind].gained, min(max(point.rmse, window[0]), window[1])
        name = None if point.protocol in named else point.protocol
        named.add(point.protocol)
        axes.plot(gained, at, shape, color=SERIES[colour], markersize=8, clip_on=False, label=name)
        beyond = "" if at == point.rmse else f" ({point.rmse:.2f})"
        text = point.label.removeprefix(point.protocol).strip(" ,") or point.protocol
        side = gained > 0.6
        step = LINE * (window[1] - window[0])
        up = free_step(at, step, lines, [y for one, y in texts if one == side])
        texts.append((side, at - up * step))
        axes.annotate(
            text + beyond, (gained, at), xytext=(-8 if side else 8, POINTS * up), textcoords="offset points",
            fontsize=7.5, ha="right" if side else "left", va="center", color=INK,
        )  # fmt: skip
    axes.set_xlim(-0.04, 1.04)
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    axes.set_title(PANELS[kind], fontsize=9.5)


def free_step(at: float, step: float, ruled: Collection[float], taken: Collection[float]) -> int:
    """Return by how many lines of text, at most two, to move a label up from its mark; negative is down.

    `at` is the y coordinate of the mark, and `step` the height of a line of text. `ruled` and `taken` are the y
    coordinates of horizontal rules and of other labels. The result is the smallest move that avoids them all or, if
    there is none, the move with the most room.
    """
    steps = [0, 1, -1, 2, -2]
    heights = [at - up * step for up in steps]
    far = [[2 * abs(height - rule) for rule in ruled] + [abs(height - other) for other in taken] for height in heights]
    room = [min([*distances, step]) for distances in far]
    return steps[int(np.argmax(room))]


def _window(points: Sequence[Point], lines: Mapping[str, float]) -> tuple[float, float]:
    """Return the limits of the error axis, which leave out points far above the non-personal models."""
    low = min([point.rmse for point in points] + list(lines.values()))
    near = [point.rmse for point in points if point.rmse <= 1.15 * max(lines.values(), default=2.0)]
    high = max([*near, *lines.values()])
    margin = 0.08 * (high - low or 0.1)
    return low - margin, high + margin
