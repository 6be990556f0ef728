"""The history of rounds, kept after their reports are deleted: totals only, nothing about a single device."""

import json
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.models.predictor import Arrays
from hushrec.service.schema import history, items, reports, rounds

MOST_MOVED = 10
COLUMNS = ("round", "closed_at", "reports", "devices", "bytes", "seconds", "latency_median", "latency_slowest", "moved")


@dataclass(frozen=True)
class ClosedRound:
    """A closed round, as the history records it."""

    number: int
    seconds: float  # duration of the last phase
    asked: int  # number of devices that could have reported in the last attempt
    n_items: int  # items of the round
    latencies: list[float]  # seconds from request to receipt, of the reports that `Monitor` timed


def movement(before: Arrays, after: Arrays) -> float:
    """Return ‖after − before‖ / ‖before‖ (Frobenius norm), over the arrays of the public table with unchanged shape."""
    same = [name for name in before if before[name].shape == after[name].shape]
    moved = math.hypot(*(float(np.linalg.norm(after[name] - before[name])) for name in same))
    length = math.hypot(*(float(np.linalg.norm(before[name])) for name in same))
    return moved / max(length, sys.float_info.min)


def most_moved(before: FloatArray, after: FloatArray, count: int = MOST_MOVED) -> list[tuple[int, float]]:
    """Return (position, Euclidean distance) of the up to `count` items whose rows changed most, the largest first."""
    distances = np.linalg.norm(after - before, axis=1)
    best = np.argsort(-distances, kind="stable")[:count]
    return [(int(item), float(distances[item])) for item in best if distances[item] > 0]


def write_round(connection: sa.Connection, closed: ClosedRound, n_reports: int, before: Arrays, after: Arrays) -> None:
    """Add a round to the history; `before` and `after` are the public tables before and after the round.

    `n_reports` counts the reports of the round's last phase. Call this in the transaction that ends the round, before
    its reports are deleted.
    """
    size = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(reports.c.body)), 0))
    connection.execute(rounds.insert().values(round=closed.number, reports=n_reports, seconds=closed.seconds))
    connection.execute(
        history.insert().values(
            round=closed.number,
            closed_at=time.time(),
            devices=max(closed.asked, n_reports),
            bytes=int(connection.execute(size).scalar_one()),
            latency_median=float(np.median(closed.latencies)) if closed.latencies else None,
            latency_slowest=max(closed.latencies, default=None),
            moved=movement(before, after),
            most_moved=json.dumps(_most_moved_items(closed.n_items, before, after)),
        )
    )


def _most_moved_items(n_items: int, before: Arrays, after: Arrays) -> list[tuple[int, float]]:
    """Return `most_moved` for the first array of the public table with a row per item; empty if there is none."""
    same = [(name, array) for name, array in before.items() if array.shape == after[name].shape]
    tables = [name for name, array in same if array.ndim == 2 and len(array) >= n_items]
    return most_moved(before[tables[0]][:n_items], after[tables[0]][:n_items]) if tables else []


def read_rounds(connection: sa.Connection, after: int) -> dict[str, list[Any]]:
    """Return the closed rounds with a number above `after`, as one list per column of `COLUMNS`.

    Rounds are in ascending order. A value is None where an older version of the server did not store it, and a latency
    also where no report was timed.
    """
    both = rounds.outerjoin(history, history.c.round == rounds.c.round)
    table = {**history.c, **rounds.c}
    query = sa.select(*(table[name] for name in COLUMNS)).select_from(both)
    rows = connection.execute(query.where(rounds.c.round > after).order_by(rounds.c.round)).all()
    return {name: [row[n] for row in rows] for n, name in enumerate(COLUMNS)}


def read_most_moved(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return `title` and `distance` of the items that changed most in the latest closed round, the largest first.

    The distance is the Euclidean distance between an item's rows of the public table before and after the round.
    """
    query = sa.select(history.c.most_moved).order_by(history.c.round.desc()).limit(1)
    found: list[tuple[int, float]] = json.loads(connection.execute(query).scalar() or "[]")
    named = sa.select(items.c.position, items.c.title).where(items.c.position.in_([item for item, _ in found]))
    titles = {row.position: row.title for row in connection.execute(named)}
    return [{"title": titles[item], "distance": distance} for item, distance in found]
