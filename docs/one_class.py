"""The tables of model `audience` in `docs/one-class-and-fm.md`, from whatever records of `one-class-*` there are.

`python docs/generate.py one-class` writes them, a test compares them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from hushrec.experiment_records import Record, is_experiment, read_records

RECORDS = Path(__file__).parents[1] / "experiments" / "records"
START, END = "<!-- audience: made by `make docs` -->", "<!-- end of audience -->"
SETS = {
    "one-class-ml-100k": "MovieLens-100K",
    "one-class-ml-1m": "MovieLens-1M",
    "one-class-netflix-10k": "netflix-10k",
}
MEASURES = {"auc": "AUC", "hr_at_10": "HR@10", "ndcg_at_10": "NDCG@10", "recall_at_10": "Recall@10"}
HEADER = ["", "budget", *MEASURES.values()]
RELEASED = "private_popularity_"
BASELINES = {"random": "random order", "popularity": "most popular, exact counts"}
HEADLINE = 8.0  # the default ε


def with_audience(page: str, records: Path = RECORDS) -> str:
    """Return the page with the tables of all sets between the two marks."""
    head, _, rest = page.partition(START)
    return f"{head}{START}\n{audience_tables(records)}\n{END}{rest.partition(END)[2]}"


def audience_tables(records: Path) -> str:
    """Return one table per set that has records; a sentence where none has."""
    found = {shown: read_records(records / name) for name, shown in SETS.items() if is_experiment(records / name)}
    if not found:
        return "No record yet: `hushrec experiment experiments/one-class-ml-100k.toml` makes one."
    return "\n\n".join(f"{summary(shown, runs)}\n\n{set_table(runs)}" for shown, runs in found.items())


def summary(shown: str, runs: list[Record]) -> str:
    """Return what a table shows, in two sentences: its splits, and the default budget against what it must beat."""
    by_epsilon = runs_by_epsilon(runs)
    deviations = [np.std(of(own, "auc"), ddof=1) for own in by_epsilon.values() if len(own) > 1]
    spread = f", standard deviation of AUC between them at most {max(deviations):.3f}" if deviations else ""
    text = f"**{shown}**, {splits(len({run['split_seed'] for run in runs}))}{spread}."
    if HEADLINE not in by_epsilon:
        return text
    reached, popular = (
        mean(by_epsilon[HEADLINE], "auc"),
        np.mean([run["baselines"]["popularity"]["auc"] for run in runs]),
    )
    peers = {name: np.mean([own["auc"] for own in each]) for name, each in peer_results(runs).items()}
    best = max(peers, key=peers.__getitem__, default=None)
    against = "" if best is None else f", and {best}, which is not private, {peers[best]:.3f}"
    return f"{text} At ε = {HEADLINE:g} AUC is {reached:.3f}; the most popular items have {popular:.3f}{against}."


def set_table(runs: list[Record]) -> str:
    """Return the table of one set: baselines, peers, then each budget with what its own released counts are worth."""
    rows = [
        cells(label, "not private", [run["baselines"][name] for run in one_per_split(runs)])
        for name, label in BASELINES.items()
    ]
    rows += [
        cells(f"{name}, {splits(len(found))}", "not private", found)
        for name, found in sorted(peer_results(runs).items())
    ]
    for epsilon, own in runs_by_epsilon(runs).items():
        budget = "ε = ∞ (no noise)" if epsilon == np.inf else f"ε = {epsilon:g}"
        released = [{name: run["metrics"][RELEASED + name] for name in MEASURES} for run in own]
        rows += [cells("`audience`", budget, [run["metrics"] for run in own])]
        rows += [cells("most popular by its released counts", budget, released)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [HEADER, ["---"] * len(HEADER), *rows])


def cells(label: str, budget: str, found: Iterable[Mapping[str, float]]) -> list[str]:
    """Return one row: the mean of every measure."""
    each = list(found)
    return [label, budget, *(f"{np.mean([one[name] for one in each]):.3f}" for name in MEASURES)]


def runs_by_epsilon(runs: list[Record]) -> dict[float, list[Record]]:
    """Return the runs of each budget, the largest first."""
    found: dict[float, list[Record]] = {}
    for run in runs:
        found.setdefault(float(run["budget"]["epsilon"]), []).append(run)
    return dict(sorted(found.items(), reverse=True))


def one_per_split(runs: list[Record]) -> list[Record]:
    """Return one run of every split: baselines and peers belong to splits."""
    return list({run["split_seed"]: run for run in runs}.values())


def peer_results(runs: list[Record]) -> dict[str, list[Mapping[str, float]]]:
    """Return what other libraries' models reach on each split that they were run on."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for run in one_per_split(runs):
        for name, metrics in run["peers"].items():
            found.setdefault(name, []).append(metrics)
    return found


def of(runs: list[Record], measure: str) -> list[float]:
    """Return a measure of all runs."""
    return [run["metrics"][measure] for run in runs]


def mean(runs: list[Record], measure: str) -> float:
    """Return the mean of a measure."""
    return float(np.mean(of(runs, measure)))


def splits(count: int) -> str:
    """Return how many splits a mean is of."""
    return "one split" if count == 1 else f"mean of {count} splits"
