"""Attack the simulated protocols of the paper's Table 1 on ML-100K; write `records/audit/ml-100k-rivals.json`.

python experiments/rivals.py [--data-dir DIR]
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rival_protocols import RIVALS, Scene, attack_rival

from hushrec.data.sources import load
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

OUT = Path(__file__).parent / "records" / "audit" / "ml-100k-rivals.json"
PEOPLE = 100


def make_scene(ratings, n_victims: int = PEOPLE, seed: int = 0) -> Scene:
    """Return the training part of split 0, the people to attack, and the popularity of items among all others."""
    settings = Settings(protocol="masked", model="gp", epsilon=float("inf"), seed=seed)
    task = settings.make_task(ratings)
    problem = task_problem(task, settings)
    rng = np.random.default_rng([seed, 11])
    chosen = rng.permutation(np.flatnonzero(problem.rated_counts > 1))
    victims, others = np.sort(chosen[:n_victims]), chosen[n_victims:]
    kept = np.isin(problem.rating_users, others)
    popularity = np.bincount(problem.items[kept], minlength=problem.n_items) / len(others)
    return Scene(task, problem, victims, popularity, rng)


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=None)
    ratings = load("ml-100k", data_dir=parser.parse_args().data_dir)
    scene = make_scene(ratings)
    record = {
        "dataset": "ml-100k",
        "users": PEOPLE,
        "made_by": "python experiments/rivals.py",
        "rivals": [attack_rival(rival, scene) for rival in RIVALS],
    }
    OUT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
