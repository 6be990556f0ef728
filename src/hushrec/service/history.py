"""The history of rounds, kept after their reports are deleted: totals only, nothing about a single device."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.messages import Address
from hushrec.models.predictor import Arrays
from hushrec.protocols.parties import ServerSide
from hushrec.service.schema import history, items, reports, rounds, run

MOST_MOVED = 10
COLUMNS = (
    *("round", "closed_at", "reports", "devices", "bytes", "seconds", "latency_median", "latency_slowest", "moved"),
    *("attempts", "phases", "counts", "failures"),
)


def movement(before: Arrays, after: Arrays) -> float:
    """Return how much a round changed the public table: ‖after − before‖ / ‖before‖ (Frobenius norm).

    `before` and `after` are the arrays of the public table before and after the round. The norms are over the arrays
    that have kept their shape. Single numbers, such as the number of rounds, are left out.
    """
    same = [name for name in before if before[name].ndim and before[name].shape == after[name].shape]
    moved = math.hypot(*(float(np.linalg.norm(after[name] - before[name])) for name in same))
    length = math.hypot(*(float(np.linalg.norm(before[name])) for name in same))
    return moved / max(length, sys.float_info.min)


def most_moved(before: FloatArray, after: FloatArray) -> list[tuple[int, float]]:
    """Return (position, distance) of the items that a round moved most, the largest distance first.

    `before` and `after` have one row per item, from before and after the round. The distance is the Euclidean distance
    between an item's two rows. Items that did not move are left out, and the result has at most `MOST_MOVED` items.
    """
    distances = np.linalg.norm(after - before, axis=1)
    best = np.argsort(-distances, kind="stable")[:MOST_MOVED]
    return [(int(item), float(distances[item])) for item in best if distances[item] > 0]


def write_round(
    connection: sa.Connection,
    side: ServerSide,
    last_phase: Address,
    now: float,
    *,
    before: Arrays,
    asked: int,
    latencies: list[float],
    failures: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Add a round to the history, and return the facts for its entry in the event log, such as its duration.

    `last_phase` is the address of the round's last phase, and `now` the time at which the round ends. `before` is the
    public table before the round; `side.public` is the public table after it. `asked` is the number of present devices
    that the last attempt asked for reports. `latencies` has, for each report of the round, the seconds from its request
    to the server's receipt. Call this in the transaction that ends the round, before its reports are deleted.
    """
    size = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(reports.c.body)), 0))
    counted = sa.select(reports.c.phase, sa.func.count()).group_by(reports.c.phase)
    by_phase = {row[0]: row[1] for row in connection.execute(counted)}
    phases = {phase: by_phase.get(phase, 0) for phase in side.phases}
    opened_at = connection.execute(sa.select(sa.func.coalesce(run.c.round_opened_at, run.c.opened_at))).scalar_one()
    n_reports, seconds, after = phases[last_phase.phase], max(0.0, now - opened_at), side.public
    connection.execute(rounds.insert().values(round=last_phase.round_number, reports=n_reports, seconds=seconds))
    connection.execute(
        history.insert().values(
            round=last_phase.round_number,
            closed_at=now,
            devices=max(asked, n_reports),
            bytes=int(connection.execute(size).scalar_one()),
            latency_median=float(np.median(latencies)) if latencies else None,
            latency_slowest=max(latencies, default=None),
            moved=movement(before, after),
            most_moved=json.dumps(_most_moved_items(side.terms.n_items, before, after)),
            attempts=last_phase.attempt,
            phases=json.dumps(phases),
            counts=json.dumps(side.round_counts),
            failures=json.dumps(failures),
        )
    )
    facts = {"attempts": last_phase.attempt, "phases": phases, "counts": side.round_counts}
    return {"reports": n_reports, "seconds": round(seconds, 3), **facts}


def _most_moved_items(n_items: int, before: Arrays, after: Arrays) -> list[tuple[int, float]]:
    """Return the result of `most_moved` for the first array of the public table in which the rows of items changed.

    An array qualifies if it has at least `n_items` rows and has kept their number. Matrices that have kept their shape
    come first, then other matrices, then vectors. A column that a matrix has gained counts as 0 before the round. If no
    row changed, the list is empty.
    """
    arrays = [(before[name], array) for name, array in after.items() if array.ndim in (1, 2) and len(array) >= n_items]
    pairs = [(old, new) for old, new in arrays if len(old) == len(new)]
    for pair in sorted(pairs, key=lambda pair: (-pair[1].ndim, pair[0].shape != pair[1].shape)):
        old, new = (array.reshape(len(array), -1)[:n_items] for array in pair)
        width = max(old.shape[1], new.shape[1])
        padded = [np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in (old, new)]
        if found := most_moved(*padded):
            return found
    return []


def read_rounds(connection: sa.Connection, after: int) -> dict[str, list[Any]]:
    """Return the closed rounds with a number above `after`, in ascending order, as a table.

    The table maps each name in `COLUMNS` to a list with one value per round. A value is None if an older version of the
    server did not store it. A latency is None if no report was timed.
    """
    both = rounds.outerjoin(history, history.c.round == rounds.c.round)
    seconds = sa.case((history.c.attempts.is_not(None), rounds.c.seconds))  # an older version stored another duration
    table = {**history.c, **rounds.c, "seconds": seconds}
    query = sa.select(*(table[name] for name in COLUMNS)).select_from(both)
    rows = connection.execute(query.where(rounds.c.round > after).order_by(rounds.c.round)).all()
    columns: dict[str, list[Any]] = {name: [row[n] for row in rows] for n, name in enumerate(COLUMNS)}
    parsed = {name: [text and json.loads(text) for text in columns[name]] for name in ("phases", "counts", "failures")}
    return columns | parsed


def read_most_moved(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return `title` and `distance` of the items that changed most in the last round that changed the public table.

    The distance is the Euclidean distance between an item's rows of the public table before and after the round. The
    largest distance comes first.
    """
    query = sa.select(history.c.most_moved).where(history.c.moved > 0).order_by(history.c.round.desc()).limit(1)
    found: list[tuple[int, float]] = json.loads(connection.execute(query).scalar() or "[]")
    named = sa.select(items.c.position, items.c.title).where(items.c.position.in_([item for item, _ in found]))
    titles = {row.position: row.title for row in connection.execute(named)}
    return [{"title": titles[item], "distance": distance} for item, distance in found]
