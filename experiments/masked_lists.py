"""What lists of model `gp` are sorted by: weights of an item's quality and of a person's taste, compared.

    python experiments/masked_lists.py

A list is sorted by log n_j + q o_j + t (p_j − o_j): released popularity, the item's offset, the person's prediction.
Measured at ε = 8 on validation parts of the training data, never on a test part, for up to `MOST_PEOPLE` people of each
set. Prints the tables of docs/decisions/0012-lists-of-gp.md and keeps them as experiments/records/masked-lists.json.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from changed import train_all_rounds

from hushrec.arrays import by_user
from hushrec.data.sources import load
from hushrec.evaluate import list_metrics
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import LIKED, Candidates

SPLITS = {"ml-100k": 3, "ml-1m": 1, "netflix-10k": 1}
QUALITIES, TASTES = (0.0, 0.5, 1.0), (1.0, 1.5, 2.0)
MOST_PEOPLE = 1000
RECORD = Path(__file__).parent / "records" / "masked-lists.json"


def compare(data: str, split: int) -> dict[str, dict[str, float]]:
    """Metrics at 10 of every pair of weights, and of the most popular items by exact counts."""
    settings = Settings(protocol="masked", epsilon=8.0, split_seed=split)
    task = settings.make_task(load(data)).validation(split)
    engine = train_all_rounds(task, settings)
    predictor, own, among = engine.predictor(), task.profiles, Candidates(task.ratings)
    people = np.sort(np.random.default_rng(split).permutation(task.ratings.n_users)[:MOST_PEOPLE])
    row_of = {int(user): row for row, user in enumerate(people)}
    popularity, offsets = predictor.table.log_counts[among.items], predictor.table.offsets[among.items]
    taste_of = np.concatenate(
        [predictor.predict_items(part)[:, among.items] - offsets for part in np.array_split(people, 10)]
    )

    def measured(score: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        users, items, actual = (
            column[task.split.test] for column in (task.ratings.users, task.ratings.items, task.values)
        )
        liked = (task.scale.to_unit(actual) >= LIKED - 1e-9) & np.isin(users, people)
        starts, order = by_user(users[liked], items[liked], task.ratings.n_users)
        return list_metrics(score, starts, among.ranks[items[liked][order]], own.starts, among.ranks[own.items])

    found = {"most popular": measured(lambda who: np.tile(own.support[among.items], (len(who), 1)))}
    for quality, taste in itertools.product(QUALITIES, TASTES):
        found[f"q {quality:g}, t {taste:g}"] = measured(
            lambda who, q=quality, t=taste: popularity + q * offsets + t * taste_of[[row_of[int(user)] for user in who]]
        )
    return found


def main() -> None:
    """Compare all, print the tables and keep them."""
    record = {}
    for data, splits in SPLITS.items():
        runs = [compare(data, split) for split in range(splits)]
        record[data] = {
            name: {metric: float(np.mean([run[name][metric] for run in runs])) for metric in metrics}
            for name, metrics in runs[0].items()
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(f"| {data} | precision@10 | recall@10 | NDCG@10 |\n|---|---|---|---|")
        for name, metrics in record[data].items():
            print(f"| {name} | {' | '.join(f'{value:.4f}' for value in metrics.values())} |", flush=True)


if __name__ == "__main__":
    main()
