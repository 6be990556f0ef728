"""The tables of model `gp` in `docs/masked-accuracy.md`, from the records of `masked-*`.

`python docs/generate.py ratings` writes them, a test compares them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from one_class import RECORDS, mean, of, one_per_split, peer_results, runs_by_epsilon, splits

from hushrec.budget.accountants import TableAccountant
from hushrec.experiment_records import Record, read_records

START, END = "<!-- gp: made by `make docs` -->", "<!-- end of gp -->"
SETS = {"masked-ml-100k": "MovieLens-100K", "masked-ml-1m": "MovieLens-1M", "masked-netflix-10k": "netflix-10k"}
MEASURES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "precision_at_10": "precision@10",
    "recall_at_10": "recall@10",
    "ndcg_at_10": "NDCG@10",
}
HEADER = ["", "a whole profile, all rounds", "one rating, or a profile replaced", *MEASURES.values()]
BASELINES = {"user_mean": "each person's own mean", "bias": "bias model", "popularity": "most popular"}


def with_ratings(page: str, records: Path = RECORDS) -> str:
    """Return the page with the tables of all sets between the two marks."""
    head, _, rest = page.partition(START)
    tables = "\n\n".join(set_table(shown, read_records(records / name)) for name, shown in SETS.items())
    return f"{head}{START}\n{tables}\n{END}{rest.partition(END)[2]}"


def set_table(shown: str, runs: list[Record]) -> str:
    """Return the table of one set: baselines, peers, then each budget."""
    count = len({run["split_seed"] for run in runs})
    rows = [
        row(label, ("not private", ""), [run["baselines"][name] for run in one_per_split(runs)])
        for name, label in BASELINES.items()
    ]
    rows += [
        row(f"{name}, {splits(len(found))}", ("not private", ""), found)
        for name, found in sorted(peer_results(runs).items())
    ]
    for own in runs_by_epsilon(runs).values():
        rows.append(row("`gp`", budgets(own[0]["budget"]), [run["metrics"] for run in own]))
    deviation = max(np.std(of(own, "rmse"), ddof=1) for own in runs_by_epsilon(runs).values())
    head = f"**{shown}**, {splits(count)}; the standard deviation of RMSE between them is at most {deviation:.3f}."
    lines = [f"| {' | '.join(cells)} |" for cells in [HEADER, ["---"] * len(HEADER), *rows]]
    return "\n".join([head, "", *lines])


def budgets(budget: Mapping[str, object]) -> tuple[str, str]:
    """Return both numbers of a budget.

    Records may be of a time when tables of noise had 128 bits, too few to prove the second number for thousands of
    devices at ε = 16. The noise is the same bit for bit with 256, which prove it: it is computed anew.
    """
    profile, replaced = (float(str(budget[name])) for name in ("epsilon", "item_level"))
    if profile == np.inf:
        return "ε = ∞ (no noise)", "ε = ∞"
    if replaced == np.inf:
        mu, delta = (float(str(budget[name])) for name in ("mu", "delta"))
        replaced = TableAccountant(mu_squared=mu**2).replaced_epsilon(delta)
    return f"ε = {profile:g}", f"ε = {replaced:.3g}"


def row(label: str, budget: tuple[str, str], found: Iterable[Mapping[str, float]]) -> list[str]:
    """Return one row: the mean of every measure that all of them have."""
    each = list(found)
    means = [
        f"{np.mean([one[name] for one in each]):.3f}" if all(name in one for one in each) else "" for name in MEASURES
    ]
    return [label, *budget, *means]


def accuracy(records: Path = RECORDS) -> dict[str, dict[str, float]]:
    """Return mean test RMSE by set, for the table of README."""
    found: dict[str, dict[str, float]] = {}
    for name in SETS:
        runs = read_records(records / name)
        peers = {peer: float(np.mean([one["rmse"] for one in own])) for peer, own in peer_results(runs).items()}
        private = {f"ε={epsilon:g}": mean(own, "rmse") for epsilon, own in runs_by_epsilon(runs).items()}
        bias = float(np.mean([run["baselines"]["bias"]["rmse"] for run in one_per_split(runs)]))
        found[name.removeprefix("masked-")] = {**peers, **private, "bias": bias}
    return found
