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
    """Return the result of `most_moved` for the first matrix of the public table that has a row for each item.

    A matrix qualifies if it has at least `n_items` rows and has kept its shape. Without such a matrix, the list is
    empty.
    """
    same = [(name, array) for name, array in before.items() if array.shape == after[name].shape]
    tables = [name for name, array in same if array.ndim == 2 and len(array) >= n_items]
    return most_moved(before[tables[0]][:n_items], after[tables[0]][:n_items]) if tables else []


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
    """Return `title` and `distance` of the items that changed most in the latest closed round, the largest first.

    The distance is the Euclidean distance between an item's rows of the public table before and after the round.
    """
    query = sa.select(history.c.most_moved).order_by(history.c.round.desc()).limit(1)
    found: list[tuple[int, float]] = json.loads(connection.execute(query).scalar() or "[]")
    named = sa.select(items.c.position, items.c.title).where(items.c.position.in_([item for item, _ in found]))
    titles = {row.position: row.title for row in connection.execute(named)}
    return [{"title": titles[item], "distance": distance} for item, distance in found]
