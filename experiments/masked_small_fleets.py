"""Lists of small fleets beside popularity with and without privacy, by the share of the budget that counts have.

    python experiments/masked_small_fleets.py [--data ml-100k] [--draws 5] [--epsilon 8]

50, 100 and 200 people are drawn at random and train by themselves, with the attributes of the items and without an
items file. NDCG@10 and RMSE of validation parts, cut from the training parts; test parts are not used. Beside the lists
of model `gp` are lists of the most popular items: by exact counts, which are not private, and by the noisy counts of a
run that spends the whole ε on them. Kept as experiments/records/masked-small-fleets.json, with every draw.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from changed import RECORDS, Case, Change, replanned

from hushrec.budget.gaussian import run_mu
from hushrec.data.sources import load
from hushrec.protocols.masked.gp import plan

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from people import choose_people

RECORD = RECORDS / "masked-small-fleets.json"
SIZES, SHARES = (50, 100, 200), (0.29, 0.5, 0.7)
WHOLE = 0.999  # of the budget; every other block of a plan must have some of it


def with_counts_share(devices: int, epsilon: float, share: float) -> Change:
    """Counts have this share of the budget; the other blocks keep their proportions."""
    chosen = plan.choose_plan(devices, 1, 1, run_mu(epsilon, 1e-6))
    usual = next(block.share for block in chosen.blocks if block.name == plan.COUNTS)

    def changed(block: plan.Block, _: bool) -> plan.Block:
        weight = share if block.name == plan.COUNTS else block.share * (1 - share) / (1 - usual)
        return plan.Block(block.name, block.shape, block.clip, weight)

    return replanned(changed)


def measured(case: Case) -> dict[str, float]:
    """NDCG@10 of the lists of one draw, by what they are sorted by, and RMSE by the share of counts."""
    devices = case.ratings.n_users
    found = {"popular, exact counts": case.task().baselines()["popularity"]["ndcg_at_10"]}
    task, predictor = case.run(with_counts_share(devices, case.epsilon, WHOLE))
    released = task.released_baselines(predictor.released_support())
    found["popular, the whole ε for counts"] = released["private_popularity"].metrics["ndcg_at_10"]
    for share in SHARES:
        task, predictor = case.run(with_counts_share(devices, case.epsilon, share))
        found[f"gp, {share:g}"] = task.list_metrics(predictor)["ndcg_at_10"]
        found[f"rmse, {share:g}"] = task.metrics(predictor)["rmse"]
    return found


def main() -> None:
    """Measure one set, and keep what was found beside the other sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=8.0)
    chosen = parser.parse_args()
    whole = load(chosen.data)
    catalogues = {"attributes": whole, "ids": replace(whole, titles=None, attributes=None, catalogue=None)}
    for kind, ratings in catalogues.items():
        for size in SIZES:
            drawn = [
                np.random.default_rng(100 + draw).permutation(whole.n_users)[:size] for draw in range(chosen.draws)
            ]
            people = [choose_people(ratings, np.isin(np.arange(whole.n_users), one)) for one in drawn]
            runs = [measured(Case(one, chosen.epsilon, draw)) for draw, one in enumerate(people)]
            found: dict[str, Any] = {name: [round(run[name], 4) for run in runs] for name in runs[0]}
            print(
                chosen.data,
                kind,
                size,
                {name: round(float(np.mean(one)), 4) for name, one in found.items()},
                flush=True,
            )
            record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
            record[f"{chosen.data}, {kind}, {size} devices, epsilon {chosen.epsilon:g}"] = found
            RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
