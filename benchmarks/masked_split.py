"""What splitting a cohort after a spoiled sum would cost: test RMSE of 200 people at ε = 8 (decision 0020).

    python benchmarks/masked_split.py [--data ml-100k] [--devices 200] [--seeds 8]

The product does not split. Here a round that is split into k parts loses one part, which has the hostile device. The
devices of the others add so much noise that the honest devices of one part suffice, with c_max corrupt devices in it.
In later rounds the suspects stay away: the devices of the lost part, of which a second split round clears all but one
in k.
"""

import argparse
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from masked_hostile import Run, Setting
from measure import load_data, write_record
from people import choose_people

from hushrec.protocols.masked.encoding import decode_sum
from hushrec.protocols.masked.noise import summed_noise
from hushrec.protocols.masked.protocol import NETWORK_SURVIVORS

ROUNDS = 5
WHOLE = (1.0, 1)  # the fraction of the people in a round's sums, and the number of parts
PLANS = {
    "none": [WHOLE] * ROUNDS,
    "2 parts in rounds 1 to 3": [(1 / 2, 2)] * 3 + [(7 / 8, 1)] * 2,
    "4 parts in rounds 1 and 2": [(3 / 4, 4)] * 2 + [(15 / 16, 1)] * 3,
    "5 parts in round 1": [(4 / 5, 5)] + [(4 / 5, 1)] * 4,
    "8 parts in round 1": [(7 / 8, 8)] + [(7 / 8, 1)] * 4,
    "5 parts in round 3": [WHOLE] * 2 + [(4 / 5, 5)] + [(4 / 5, 1)] * 2,
    "round 1 lost": [(0.0, 1)] + [(4 / 5, 1)] * 4,
}


def rmse(people: Any, seed: int, plan: list[tuple[float, int]]) -> float:
    """Return the test RMSE of a run whose rounds have these fractions of the people in so many parts."""
    run = Run(Setting("gp", 1, NETWORK_SURVIVORS), people, seed, None, None)
    priced = run.problem.terms.priced
    order = np.random.default_rng(seed).permutation(run.hostile)
    smallest, corrupt = priced.cohort.smallest, priced.cohort.most_corrupt
    for number, (fraction, parts) in enumerate(plan, start=1):
        present = np.zeros(run.problem.n_users, dtype=np.bool_)
        present[order[: max(round(fraction * run.hostile), 1)]] = True
        survivors = int(present.sum())
        more_noise = (smallest - corrupt) / (math.ceil(smallest / parts) - corrupt)
        one = priced.plan.rounds[number - 1]
        codes = [
            replace(code, share_variance=math.ceil(more_noise * code.share_variance))
            for code in priced.codes[number - 1]
        ]
        sums = run.engine.sum_integers(one, codes, run.side.learner.table(), present)
        rng = np.random.default_rng([seed, number])
        noisy = {}
        for block, code, own in zip(one.blocks, codes, sums, strict=True):
            noise = summed_noise(code.share_variance, survivors).draw(code.size, rng=rng)
            noisy[block.name] = decode_sum(code, (own + noise).astype(np.uint32), survivors)
        run.side.learner.learn(noisy, survivors)
    predictor = run.problem.protocol(0).make_predictor(run.problem, run.side.public, {})
    return float(run.task.metrics(predictor)["rmse"])


def main() -> None:
    """Measure every plan with the same people and draws, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    ratings = load_data(options.data)
    found: dict[str, list[float]] = {name: [] for name in PLANS}
    for seed in range(options.seeds):
        drawn = np.random.default_rng(seed).permutation(ratings.n_users)[: options.devices]
        people = choose_people(ratings, np.isin(np.arange(ratings.n_users), drawn))
        for name, plan in PLANS.items():
            found[name].append(rmse(people, seed, plan))
    rows = {}
    for name, measured in found.items():
        shifts = np.array(measured) - found["none"]
        error = round(float(shifts.std(ddof=1) / math.sqrt(len(shifts))), 5)
        rows[name] = {
            "rmse": round(float(np.mean(measured)), 5),
            "shift": round(float(shifts.mean()), 5),
            "shift_standard_error": error,
        }
    write_record("masked-split", {"command": "python " + " ".join(sys.argv), **vars(options), "epsilon": 8.0, **rows})


if __name__ == "__main__":
    main()
