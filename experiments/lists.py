"""How strongly lists are drawn toward a person's own mean where few ratings support a prediction: strengths compared.

    python experiments/lists.py

On a validation part of the training data of the first split, never on its test part; `mf` at its defaults. Prints the
table of docs/decisions/0014-support-of-lists.md and keeps it as experiments/records/lists.json.
"""

import json
from pathlib import Path

import numpy as np
from changed import train_all_rounds

from hushrec.data.sources import load
from hushrec.simulation.settings import Settings

SETS = {"ml-100k": "ml-100k", "synthetic, sparse": "synthetic:users=610,items=9724,ratings=100836"}
STRENGTHS = (0.0, 5.0, 20.0, 50.0, 100.0, 200.0, 500.0)
RECORD = Path(__file__).parent / "records" / "lists.json"


def compare(data: str, protocol: str) -> dict[str, float]:
    """Precision at 10 by strength, and of the most popular items."""
    settings = Settings(protocol=protocol)
    task = settings.make_task(load(data)).validation(settings.split_seed)
    engine = train_all_rounds(task, settings)
    predictor, own = engine.predictor(), task.profiles
    found = {
        f"{strength:g}": task.measure_lists(
            lambda users, strength=strength: own.list_scores(predictor, users, strength)
        )["precision_at_10"]
        for strength in STRENGTHS
    }
    popular = task.measure_lists(lambda users: np.tile(own.support, (len(users), 1)))
    return found | {"most popular": popular["precision_at_10"]}


def main() -> None:
    """Compare all, print the table and keep it."""
    record = {
        f"{name}, {protocol}": compare(data, protocol) for name, data in SETS.items() for protocol in ("plain", "sdcf")
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    header = ["strength", *next(iter(record.values()))]
    rows = [[name, *(f"{value:.3f}" for value in row.values())] for name, row in record.items()]
    print("\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)))


if __name__ == "__main__":
    main()
