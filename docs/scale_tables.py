"""The tables of docs/scale.md: what `hushrec capacity` predicts, and how well it did where it was checked."""

import json
import re
from pathlib import Path

from hushrec.capacity import LIMITS, capacity, in_digits

RECORDS = Path(__file__).parents[1] / "benchmarks" / "records"
PEOPLE, ITEMS = (1e6, 1e8, 1e9), (1e5, 1e6)
WORDS = {
    "device_mb_up": "a device sends more than {} MB",
    "device_mb_down": "a device fetches more than {} MB",
    "device_seconds": "a device computes for more than {} s",
    "server_cores": "the server needs more than {} cores",
    "server_gbit_up": "the server receives more than {} Gbit/s",
}
MARK = re.compile(r"(<!-- (capacity \w+|checks|breaks): made by `make docs` -->\n).*?(<!-- end -->)", re.DOTALL)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Rows of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows)) + "\n"


def power(number: float) -> str:
    """A large number by its power of ten."""
    lead, _, exponent = f"{number:.1e}".partition("e+")
    raised = "10" + str(int(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return raised if lead == "1.0" else f"{lead} · {raised}"


def predictions(protocol: str) -> str:
    """The largest round of every size, and the whole training."""
    heads = ["people × items", "rounds", "item blocks", "device: up", "down", "processor", "server, in 24 h a round",
             "", "sums", "whole training: device up + down", "server"]  # fmt: skip
    rows = []
    for people in PEOPLE:
        for items in ITEMS:
            found = capacity(people, items, protocol=protocol)
            largest, training = found["largest_round"], found["training"]
            seconds = f"{largest['device_seconds']:.2g} s"
            costs = {name: in_digits(value) for name, value in largest.items()}
            rows.append([
                f"{power(people)} × {power(items)}", str(found["rounds"]), str(found["item_blocks"]),
                f"{costs['device_mb_up']} MB", f"{costs['device_mb_down']} MB", seconds,
                f"{costs['server_cores']} cores", f"{costs['server_gbit_up']} Gbit/s", f"{costs['server_gb_sums']} GB",
                f"{in_digits(training['device_mb_up'] + training['device_mb_down'])} MB",
                f"{in_digits(training['server_core_hours'])} core-hours",
            ])  # fmt: skip
    return table(heads, rows)


def breaks() -> str:
    """From which catalogue, or from how many people on, each limit is passed by a masked round without item blocks."""
    rows = []
    for limited, (most, advice) in LIMITS.items():
        by_items = limited.startswith("device")
        first, last = 1e3, 1e13

        def passed(size: float, name: str = limited, by_items: bool = by_items) -> bool:
            sizes = (1e6, size) if by_items else (size, 1e5)
            return any(one["what"] == name for one in capacity(*sizes, item_blocks=1)["too_much"])

        while last / first > 1.001:
            middle = (first * last) ** 0.5
            first, last = (first, middle) if passed(middle) else (middle, last)
        size = f"{power(last)} items" if by_items else f"{power(last)} people and {power(1e5)} items"
        rows.append([WORDS[limited].format(f"{most:g}"), size, advice])
    return table(["a round is too much where", "from", "then"], rows)


def checks() -> str:
    """Predicted against measured, at sizes that no constant was fitted to."""
    found = json.loads((RECORDS / "capacity.json").read_text("utf-8"))
    rows = [
        [
            f"`masked`, {point['numbers']:,.0f} numbers, cohort of {point['cohort']:,.0f}: {who}",
            f"{point[f'{name}_predicted']:.3g} ms", f"{point[name]:.3g} ms", f"{point[f'{name}_error']:+.0%}",
        ]
        for point in found["check"] for name, who in (("device_ms", "device"), ("server_ms", "server, per report"))
    ]  # fmt: skip
    rows += [
        [
            f"`sdcf`, {point['items']:,} items: device", f"{point['device_ms_predicted']:.3g} ms",
            f"{point['device_ms']:.3g} ms", f"{point['device_ms_error']:+.0%}",
        ]
        for point in json.loads((RECORDS / "capacity-sdcf.json").read_text("utf-8"))["check"]
    ]  # fmt: skip
    first, second, third = json.loads((RECORDS / "masked-scaling.json").read_text("utf-8"))["sizes"][-3:]
    slope = (second["seconds"] - first["seconds"]) / (second["ratings"] - first["ratings"])
    predicted = second["seconds"] + slope * (third["ratings"] - second["ratings"])
    rows.append([
        f"engine `cpu`, {third['ratings']:,} ratings, whole training", f"{predicted:.3g} s",
        f"{third['seconds']:.3g} s", f"{predicted / third['seconds'] - 1:+.0%}",
    ])  # fmt: skip
    return table(["processor time of one round", "predicted", "measured", "error"], rows)


def with_scale(page: str) -> str:
    """The page with its tables made anew."""
    made = {"capacity masked": lambda: predictions("masked"), "capacity sdcf": lambda: predictions("sdcf"),
            "breaks": breaks, "checks": checks}  # fmt: skip
    return MARK.sub(lambda found: found[1] + made[found[2]]() + found[3], page)
