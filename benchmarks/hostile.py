"""One hostile device among honest ones: does the run end for everybody, and what do the others still learn?

    python benchmarks/hostile.py [--devices 40] [--data ml-100k] [--seeds 3]

`every item` is the attack that ended runs: in rounds 1 to 3 the device reports all items, each with a gradient of norm
5. The others stay within what the server takes, in all rounds: as many items and as long a report as it may send, on
the items that these people rated most often (the strongest choice, which no device knows), pulled in one direction
(`together`) or shortened (`away`), or on random items (`spread`). Each is played against the server with and without
its bounds on the norm of a report and on what few reports move; the limit on items is always there.
"""

import argparse
from collections.abc import Callable

import numpy as np
from measure import load_data, write_record
from network_run import Attack, People, draw_people, play

from hushrec.arrays import IntArray
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.protocols.gradient.plausible import LARGEST_GRADIENT


def every_item(announcement: ItemVectors) -> GradientReport:
    """All items, norm 5, in the first three rounds; afterwards one item and nothing."""
    table, number = announcement.item_vectors, announcement.round_number
    items = np.arange(len(table) if number <= 3 else 1)
    size = (5.0 if number <= 3 else 0.0) / np.sqrt(table.shape[1])
    return GradientReport(number, items, np.full((len(items), table.shape[1]), size))


def within_bounds(choose: Callable[[ItemVectors], IntArray], *, away: bool) -> Attack:
    """The longest report that the server takes, of the chosen items."""

    def attack(announcement: ItemVectors) -> GradientReport:
        items = np.sort(choose(announcement))
        rows = announcement.item_vectors[items]
        directions = -rows if away else np.ones_like(rows)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return GradientReport(announcement.round_number, items, directions * _length(announcement, len(items)))

    return attack


def _length(announcement: ItemVectors, count: int) -> float:
    """Of each of so many gradients: what the announced bound allows, or 0.999 of what a server without it takes."""
    terms = announcement.terms
    if announcement.max_report_norm is None:
        return 0.999 * LARGEST_GRADIENT * terms.step_size(announcement.round_number) * terms.data_weight
    return announcement.max_report_norm / np.sqrt(count)


def attacks(people: People) -> dict[str, Attack]:
    """Every attack by name."""
    popular = np.argsort(-np.bincount(people.ratings.items[people.rows("train")], minlength=people.ratings.n_items))

    def first(count: int) -> Callable[[ItemVectors], IntArray]:
        return lambda announcement: popular[: min(count, announcement.terms.most_items)]

    def spread(announcement: ItemVectors) -> IntArray:
        rng = np.random.default_rng(announcement.round_number)
        return rng.permutation(announcement.terms.n_items)[: announcement.terms.most_items]

    return {
        "every item": every_item,
        "together, 10 items": within_bounds(first(10), away=False),
        "together, all it may": within_bounds(first(10**9), away=False),
        "away, 10 items": within_bounds(first(10), away=True),
        "away, all it may": within_bounds(first(10**9), away=True),
        "spread": within_bounds(spread, away=False),
    }


def measured(people: People, seed: int) -> dict[str, dict[str, object]]:
    """Each attack with and without the bounds, beside the run without a hostile device."""
    found: dict[str, dict[str, object]] = {}
    alone = {bounded: play(people, seed=seed, bounded=bounded) for bounded in (True, False)}
    for name, attack in {"none": None, **attacks(people)}.items():
        for bounded, words in ((True, "bounded"), (False, "without bounds")):
            done = alone[bounded] if attack is None else play(people, seed=seed, attack=attack, bounded=bounded)
            before = alone[bounded].rmse
            shift = None if done.rmse is None or before is None else done.rmse - before
            found[f"{name}, {words}"] = {
                "honest devices that finished": done.finished,
                "rmse": done.rmse,
                "shift": shift,
                "reports refused": done.refused,
            }
    return found


def main() -> None:
    """Measure, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    ratings = load_data(options.data)
    runs = [measured(draw_people(ratings, options.devices, seed), seed) for seed in range(options.seeds)]
    shifts = {name: [run[name]["shift"] for run in runs] for name in runs[0]}
    write_record(
        f"hostile-{options.data}",
        {
            "command": f"python benchmarks/hostile.py --devices {options.devices} --seeds {options.seeds}",
            "devices": options.devices,
            "largest shift, bounded": max(max(shift) for name, shift in shifts.items() if name.endswith(", bounded")),
            "seeds": runs,
        },
    )


if __name__ == "__main__":
    main()
