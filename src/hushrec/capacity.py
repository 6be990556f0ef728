"""Capacity planning: estimates of what a run costs its devices and its server, from measured constants.

This is what one round of `masked` costs a device. Its cohort has n devices, its table d numbers, the catalogue m items,
and it draws k neighbours:

    bytes up        4 d + u k             u bytes of shares, keys and signatures per neighbour
    bytes down      4 m (L + 5) + r n     public table: L + 5 numbers per item; roster: r bytes per device
    milliseconds    a + b d + c n + s     s for the store, the ledger and the HTTPS requests

L is the length of an item row under model `gp`; it grows during a run. `Measured` holds the constants u, r, a, b, c
and s.

A cohort has at most 10,000 devices; more people form more cohorts. A catalogue that is too long for one table is
divided into *item blocks*: every device is assigned one block by its key, independently of ratings, and its table
covers only the items of that block. With B blocks, reports shrink by a factor of B, and each item is learned from one
in B people.

A report of `sdcf` has gradients of length K for z items: z (4 + 4 K) bytes up and 4 m K bytes down in every round. A
device reads the item vectors of the whole catalogue, so its time is a constant plus a constant times m.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from hushrec.budget.gaussian import Cohort, default_delta, run_mu
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import PROTOCOLS, find_protocol
from hushrec.protocols.masked.gp.plan import choose_plan
from hushrec.protocols.masked.protocol import LARGEST_COHORT, NETWORK_CORRUPT, NETWORK_SURVIVORS
from hushrec.protocols.masked.secagg.roster import choose_rules

SMALLEST_FLEET = 100
TASTE_COLUMNS = 21  # attribute columns of the items, as for MovieLens
TABLE_COLUMNS = 5  # numbers per item in the public table, besides its row of length L
FIXED_COLUMNS = 3  # columns of a row besides taste columns: quality, popularity, level
SDCF_ROUNDS, SDCF_FACTORS, SDCF_REPORTS = 100, 50, 100


@dataclass(frozen=True)
class Measured:
    """Measured costs of parts of a round, in milliseconds and bytes, from which the costs of a run are estimated.

    The comments name the letter in the module's formulas, and the file in benchmarks/records that has the measurement.
    Tests compare all values with these files.
    """

    device_ms: tuple[float, float, float] = (27.037, 0.0001626, 0.050442)  # a, b, c: capacity.json
    server_ms: tuple[float, float] = (0.78308, 5.8654e-06)  # per report, and per number in a table: capacity.json
    device_session_ms: float = 49.0  # s, between masked-device.json (idle cores) and masked-fleet.json (busy)
    server_session_ms: float = 2.71  # per report, for the server's work besides server_ms: masked-fleet.json
    bytes_per_neighbour: float = 316.06  # u, per neighbour that a device draws: masked-fleet.json
    bytes_per_member: float = 398.41  # r, per device of the cohort: masked-fleet.json
    sdcf_device_ms: tuple[float, float] = (11.14, 0.001787)  # per round, and per item, over HTTPS: capacity-sdcf.json
    sdcf_server_ms: float = 4.06  # per report, over HTTPS: service-fleet.json


MEASURED = Measured()


LARGEST_REPORT_MB = 10.0
# The largest acceptable value of fields of `Round`, and advice for a run that exceeds it.
LIMITS = {
    "device_mb_up": (LARGEST_REPORT_MB, "divide the catalogue into item blocks"),
    "device_mb_down": (50.0, "publish fewer columns, or remove items that are recommended to nobody"),
    "device_seconds": (10.0, "divide the catalogue into item blocks, or make cohorts smaller"),
    "server_cores": (1_000.0, "allow more hours per round"),
    "server_gbit_up": (10.0, "allow more hours per round, or divide the catalogue into item blocks"),
}


@dataclass(frozen=True)
class Round:
    """The estimated costs of one round, for one device and for the server.

    The server's costs do not include downloads of the public table, because a cache serves them.
    """

    device_mb_up: float
    device_mb_down: float
    device_seconds: float
    server_cores: float  # mean number of busy processor cores during the round
    server_gbit_up: float  # mean rate at which all devices together send, in Gbit/s
    server_gb_sums: float  # memory for the sums of this round, over all cohorts, in GB


@dataclass(frozen=True)
class Training:
    """The estimated costs of every round of a training, and its numbers of item blocks and cohorts."""

    rounds: list[Round]
    item_blocks: int = 1
    cohorts: int | None = None  # None for a protocol without cohorts


def masked_training(people: int, items: int, *, epsilon: float, hours: float, item_blocks: int | None) -> Training:
    """Return the estimated costs of a masked training of model `gp` whose rounds take `hours` hours each.

    The catalogue is divided into `item_blocks` item blocks, and each device's table covers the items of one block. If
    `item_blocks` is None, it is chosen so that reports are probably at most `LARGEST_REPORT_MB`: the size of the
    largest report without division, divided by this limit and rounded up.
    """
    blocks = item_blocks or 1
    rounds = masked_rounds(people, items, epsilon=epsilon, hours=hours, item_blocks=blocks)
    largest = max(one.device_mb_up for one in rounds)
    if item_blocks is None and largest > LARGEST_REPORT_MB:
        blocks = math.ceil(largest / LARGEST_REPORT_MB)
        rounds = masked_rounds(people, items, epsilon=epsilon, hours=hours, item_blocks=blocks)
    return Training(rounds, blocks, math.ceil(people / LARGEST_COHORT))


def masked_rounds(people: int, items: int, *, epsilon: float, hours: float, item_blocks: int) -> list[Round]:
    """Return the estimated costs of every round of a masked training of model `gp` whose rounds take `hours` hours.

    The catalogue is divided into `item_blocks` item blocks, and each device's table covers the items of one block.
    """
    mu = run_mu(epsilon, default_delta(people))
    plan = choose_plan(people // item_blocks, math.ceil(items / item_blocks), TASTE_COLUMNS, mu)
    cohort = Cohort(min(people, LARGEST_COHORT), NETWORK_SURVIVORS, NETWORK_CORRUPT)
    n_devices, n_cohorts = cohort.devices, math.ceil(people / cohort.devices)
    neighbours = choose_rules(n_devices, cohort.smallest, cohort.most_corrupt).neighbours
    own, served = MEASURED.device_ms, MEASURED.server_ms
    rounds, length = [], TASTE_COLUMNS + FIXED_COLUMNS  # length of an item's row in the public table: L
    for one in plan.rounds:
        up = 4 * one.size + MEASURED.bytes_per_neighbour * neighbours
        down = 4 * items * (length + TABLE_COLUMNS) + MEASURED.bytes_per_member * n_devices
        device_ms = own[0] + own[1] * one.size + own[2] * n_devices + MEASURED.device_session_ms
        server_ms = served[0] + served[1] * one.size + MEASURED.server_session_ms
        rounds.append(_round(up, down, device_ms, server_ms, 4 * one.size * n_cohorts, people, hours))
        for block in one.blocks:  # these make the rows longer that devices download in later rounds
            if block.name == "audience":
                length += block.shape[1]
            if block.name == "factors":
                length += block.shape[1] - 1  # one column corrects the items' own effect
    return rounds


def sdcf_training(people: int, items: int, *, hours: float, **_: Any) -> Training:
    """Return the estimated costs of an `sdcf` training of model `mf` whose rounds take `hours` hours each.

    The further arguments of `masked_training`, `epsilon` and `item_blocks`, have no effect here.
    """
    up, down = SDCF_REPORTS * (4 + 4 * SDCF_FACTORS), 4 * items * SDCF_FACTORS
    device_ms = MEASURED.sdcf_device_ms[0] + MEASURED.sdcf_device_ms[1] * items
    one = _round(up, down, device_ms, MEASURED.sdcf_server_ms, 8 * items * SDCF_FACTORS, people, hours)
    return Training([one] * SDCF_ROUNDS)


def _round(up: float, down: float, device_ms: float, server_ms: float, sums: float, people: int, hours: float) -> Round:
    seconds = 3600 * hours
    return Round(
        device_mb_up=up / 1e6,
        device_mb_down=down / 1e6,
        device_seconds=device_ms / 1e3,
        server_cores=people * server_ms / 1e3 / seconds,
        server_gbit_up=people * up * 8 / 1e9 / seconds,
        server_gb_sums=sums / 1e9,
    )


def capacity(
    people: float,
    items: float,
    *,
    protocol: str = "masked",
    epsilon: float = 8.0,
    hours: float = 24.0,
    item_blocks: int | None = None,
) -> dict[str, Any]:
    """Return the estimated costs of a training, as a dict for JSON.

    Its entry `largest_round` has the maximum over the rounds of each field of `Round`. Entry `training` has the totals
    over all rounds of the device's costs and of the server's core hours. Entry `too_much` lists the maxima that exceed
    their limit in `LIMITS`, the one with the largest ratio to its limit first. For each it has the name of the field
    (`what`), the maximum (`found`), the limit (`most`) and `advice`.
    """
    if not (people >= SMALLEST_FLEET and items >= 1 and math.isfinite(people * items)):
        raise ParameterError(
            f"people must be at least {SMALLEST_FLEET} and items at least 1, got {people:g} people, {items:g} items."
        )
    if not 0 < hours < math.inf:
        raise ParameterError(f"hours must be above 0 and finite, got {hours:g}.")
    people, items = int(people), int(items)
    estimate = find_protocol(protocol).costs
    if estimate is None:
        known = " or ".join(one.name for one in PROTOCOLS.values() if one.costs is not None)
        raise ParameterError(f"protocol must be {known}, whose costs are measured, got {protocol}.")
    made: Training = imported(estimate)(people, items, epsilon=epsilon, hours=hours, item_blocks=item_blocks)
    rounds = made.rounds
    names = [entry.name for entry in fields(Round)]
    worst = {name: max(getattr(one, name) for one in rounds) for name in names}
    training = {name: sum(getattr(one, name) for one in rounds) for name in names if name.startswith("device")}
    training["server_core_hours"] = hours * sum(one.server_cores for one in rounds)
    exceeded = {name: most for name, (most, _) in LIMITS.items() if worst[name] > most}
    return {
        "people": people,
        "items": items,
        "protocol": protocol,
        "rounds": len(rounds),
        "hours_per_round": hours,
        "cohorts": made.cohorts,
        "item_blocks": made.item_blocks,
        "largest_round": worst,
        "training": training,
        "too_much": [
            {"what": name, "found": worst[name], "most": exceeded[name], "advice": LIMITS[name][1]}
            for name in sorted(exceeded, key=lambda name: exceeded[name] / worst[name])
        ],
    }


def in_digits(number: float) -> str:
    """Return a cost as text: three significant digits, or a whole number from 1,000 on."""
    return f"{number:,.0f}" if number >= 1_000 else f"{number:.3g}"
