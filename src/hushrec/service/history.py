"""What is kept of every round after its reports are gone: sums and counts, nothing about one device."""

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.service.schema import history, items, reports, rounds

MOST_MOVED = 10
COLUMNS = ("round", "closed_at", "answers", "devices", "bytes", "seconds", "latency_median", "latency_slowest", "moved")


@dataclass(frozen=True)
class Latency:
    """Seconds from a request to its acknowledgement, over the answers of one round; None where none was timed."""

    median: float | None = None
    slowest: float | None = None

    @classmethod
    def of(cls, seconds: list[float]) -> "Latency":
        return cls(float(np.median(seconds)), max(seconds)) if seconds else cls()


def movement(before: FloatArray, after: FloatArray) -> float:
    """How far all item vectors moved, as a share of their length: ‖V' − V‖ / ‖V‖ (Frobenius)."""
    return float(np.linalg.norm(after - before) / max(np.linalg.norm(before), np.finfo(float).tiny))


def most_moved(before: FloatArray, after: FloatArray, count: int = MOST_MOVED) -> list[tuple[int, float]]:
    """Positions of the items whose vectors moved furthest, and how far (Euclidean), the furthest first."""
    distances = np.linalg.norm(after - before, axis=1)
    best = np.argsort(-distances, kind="stable")[:count]
    return [(int(item), float(distances[item])) for item in best if distances[item] > 0]


def write_round(
    connection: sa.Connection,
    round_number: int,
    before: FloatArray,
    after: FloatArray,
    *,
    devices: int,
    latency: Latency,
) -> None:
    """Adds a round to the history, in the transaction that publishes it and before its reports are deleted."""
    size = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(reports.c.body)), 0))
    connection.execute(
        history.insert().values(
            round=round_number,
            closed_at=time.time(),
            devices=devices,
            bytes=int(connection.execute(size).scalar_one()),
            latency_median=latency.median,
            latency_slowest=latency.slowest,
            moved=movement(before, after),
            most_moved=json.dumps(most_moved(before, after)),
        )
    )


def read_rounds(connection: sa.Connection, after: int) -> dict[str, list[Any]]:
    """The closed rounds above `after`, one list per column. Rounds of an older server have gaps."""
    both = rounds.outerjoin(history, history.c.round == rounds.c.round)
    table = {**history.c, **rounds.c}
    query = sa.select(*(table[name] for name in COLUMNS)).select_from(both)
    rows = connection.execute(query.where(rounds.c.round > after).order_by(rounds.c.round)).all()
    return {name: [row[n] for row in rows] for n, name in enumerate(COLUMNS)}


def read_most_moved(connection: sa.Connection) -> list[dict[str, Any]]:
    """The items that moved furthest in the last round, with their titles."""
    query = sa.select(history.c.most_moved).order_by(history.c.round.desc()).limit(1)
    found: list[tuple[int, float]] = json.loads(connection.execute(query).scalar() or "[]")
    named = sa.select(items.c.position, items.c.title).where(items.c.position.in_([item for item, _ in found]))
    titles = {row.position: row.title for row in connection.execute(named)}
    return [{"title": titles[item], "distance": distance} for item, distance in found]
