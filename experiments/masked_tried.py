"""What was tried to make `masked` with model `gp` better: validation RMSE of each change beside the run as it is.

    python experiments/masked_tried.py [--data ml-100k] [--splits 3] [--epsilon 16,8,1] [--people N] [--only NAME]…

A change alters one function or constant of the library for a run, or what is predicted from it. Differences below 0.001
are within chance. Kept as experiments/records/masked-tried.json, by data set and budget; a call replaces what it
measured and leaves the rest. Constants by themselves are in `masked_constants.py`.
"""

import argparse
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from changed import RECORDS, Case, Change, keep, nothing, replanned, scaled_blocks, setting
from correlated_noise import Banded, SameColumns, noise_over_rounds
from learned_similarity import learned_error, own_amplitude_error
from stacking import stacked_error

from hushrec.data.sources import load
from hushrec.models import item_columns
from hushrec.models.gaussian_process import ItemTable
from hushrec.protocols.masked import posteriors
from hushrec.protocols.masked.gp import plan, server
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, FACTORS, Block, curvature_of

RECORD = RECORDS / "masked-tried.json"
USUAL = "as it is"
FEWEST_OF_A_PAIR = 10  # items that have both genres
TAILS = 4.0  # degrees of freedom
BINS, SMOOTH = np.linspace(-5, 5, 101), 0.3  # of log counts around what attributes say, in deviations


def late_bias(one: Block, is_last: bool) -> Block:
    """Nearly all of the budget of biases in the last round that measures them."""
    factor = 1.0 if one.name != BIAS else 2.0 if is_last else 0.2
    return Block(one.name, one.shape, one.clip, one.share * factor)


def clipped(factor: float) -> Change:
    """Clips of all item blocks and their curvature, times a factor."""
    names = (AUDIENCE, BIAS, FACTORS)
    return scaled_blocks((*names, *map(curvature_of, names)), clip=factor)


def graded_directions(power: float) -> Change:
    """Per-column budgets: directions of taste weigh as their share of the ratings' variance to some power."""

    def graded(covariance: Any, noise: float, count: int) -> Any:
        found = posteriors.best_known_directions(covariance, noise, count)
        weights = np.linalg.norm(found, axis=0) ** -power
        return found * weights / np.sqrt(np.mean(weights**2))

    return setting(server, "best_known_directions", graded)


def even_rows(stack: ExitStack) -> None:
    """Rows of learned columns weigh all alike in the spread of their prior."""
    source = inspect.getsource(posteriors._spread_rows.py_func).replace("np.trace(known) / prior", "1.0")
    names = dict(vars(posteriors))
    exec(source.replace("(cache=True)", ""), names)
    setting(posteriors, "_spread_rows", names["_spread_rows"])(stack)


def genre_pairs(where: str) -> Change:
    """A column for every two categories that some items have both of, among columns of taste or among details."""
    usual = item_columns.item_columns

    def with_pairs(n_items: int, titles: Any, attributes: Any) -> item_columns.ItemColumns:
        found = usual(n_items, titles, attributes)
        pairs = [
            own[:, [a]] * own[:, [b]]
            for own in ([] if attributes is None else item_columns._flags(attributes))
            for a in range(own.shape[1])
            for b in range(a)
            if own[:, a] @ own[:, b] >= FEWEST_OF_A_PAIR
        ]
        wider = [getattr(found, where), item_columns._centred(n_items, pairs)]
        return replace(found, **{where: np.concatenate(wider, axis=1)})

    return setting(item_columns, "item_columns", with_pairs)


def without_titles(table: ItemTable) -> ItemTable:
    """Titles say nothing of likeness."""
    return table._replace(title_weights=np.zeros_like(table.title_weights))


def kernel(amplitude: float = 1.0, length: float = 1.0) -> Callable[[ItemTable], ItemTable]:
    """Another similarity of items in the prediction: amplitude and length, times factors."""
    return lambda table: table._replace(kernel=table.kernel * np.array([amplitude, length**2]))


def count_prior(density: Callable[[Any], Any], learns: bool = False) -> Change:
    """Another prior of log counts around what attributes say: a density of deviations, or one that is learned."""

    def change(stack: ExitStack) -> None:
        prior = {"density": density(BINS)}

        def moments(sums: Any, deviations: Any, grid: Any, centre: Any, spread: float) -> tuple[Any, Any, Any]:
            counts, away = np.exp(grid), (grid - centre[:, None]) / np.sqrt(spread)
            known = np.interp(away, BINS, prior["density"]) if learns else density(away)
            logs = np.log(np.maximum(known, 1e-12)) - 0.5 * ((sums[:, None] - counts) / deviations[:, None]) ** 2
            weights = np.exp(logs - logs.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            prior["density"] = smoothed(away, weights)
            log_mean = weights @ grid
            return weights @ counts, log_mean, weights @ grid**2 - log_mean**2

        setting(posteriors, "_grid_moments", moments)(stack)

    return change


def smoothed(away: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The density of deviations, at `BINS`."""
    half = (BINS[1] - BINS[0]) / 2
    found, _ = np.histogram(away, np.append(BINS - half, BINS[-1] + half), weights=weights)
    return np.exp(-0.5 * ((BINS[:, None] - BINS) / SMOOTH) ** 2) @ found / max(found.sum(), 1e-9)


def normal(away: Any) -> Any:
    """The density of log counts as it is."""
    return np.exp(-0.5 * away**2)


def heavy_tails(away: Any) -> Any:
    """Student's."""
    return (1 + away**2 / TAILS) ** (-(TAILS + 1) / 2)


CHANGES: dict[str, Change] = {
    USUAL: nothing,
    "genre pairs: columns of taste": genre_pairs("taste"),
    "genre pairs: details": genre_pairs("details"),
    "counts: heavy tails": count_prior(heavy_tails),
    "counts: a prior of any shape": count_prior(normal, learns=True),
    "adaptive clips: 0.7 C": clipped(0.7),
    "adaptive clips: 1.4 C": clipped(1.4),
    "per-column budgets: power 0.5": graded_directions(0.5),
    "per-column budgets: power 1": graded_directions(1.0),
    "one factor round": setting(plan, "FACTOR_ROUNDS", 1),
    "three factor rounds": setting(plan, "FACTOR_ROUNDS", 3),
    "matrix mechanism: λ = 0.5": noise_over_rounds(Banded, 0.5),
    "matrix mechanism, same columns: λ = 0": noise_over_rounds(SameColumns, 0.0),
    "matrix mechanism, same columns: λ = 0.5": noise_over_rounds(SameColumns, 0.5),
    "matrix mechanism, same columns: λ = 1": noise_over_rounds(SameColumns, 1.0),
    "bias budget in its last round": replanned(late_bias),
    "one more prior round at the end": replanned(lambda block, _: block, rounds_more=1),
    "two more prior rounds at the end": replanned(lambda block, _: block, rounds_more=2),
    "even rows in the prior of columns": even_rows,
}
TABLES: dict[str, Callable[[ItemTable], ItemTable]] = {  # of the run as it is
    "no title words, no series": without_titles,
    "similarity: amplitude 0.67": kernel(amplitude=2 / 3),
    "similarity: amplitude 1.5": kernel(amplitude=1.5),
    "similarity: length 0.75": kernel(length=0.75),
    "similarity: length 1.33": kernel(length=4 / 3),
}
PREDICTED: dict[str, Callable[[Case], float]] = {
    "learned similarity: weights of six kernels": learned_error,
    "learned similarity: amplitude by each person": own_amplitude_error,
    "stacking, before its noise": stacked_error,
}
NEEDS_COLUMNS = ("per-column", "one factor", "three factor", "matrix", "even rows")  # nothing to change without factors


def errors(name: str, case: Case) -> dict[str, float]:
    """Validation RMSE of one change, by name; of the run as it is also with other tables."""
    if name in PREDICTED:
        return {name: PREDICTED[name](case)}
    task, predictor = case.run(CHANGES[name])
    found = {name: task.metrics(predictor)["rmse"]}
    for other, table in TABLES.items() if name == USUAL else ():
        found[other] = task.metrics(replace(predictor, table=table(predictor.table)))["rmse"]
    return found


def main() -> None:
    """Measure every change, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epsilon", default="16,8,1")
    parser.add_argument("--people", type=int, help="measure the validation ratings of so many people")
    parser.add_argument("--only", action="append", choices=[*CHANGES, *PREDICTED])
    chosen = parser.parse_args()
    ratings = load(chosen.data)
    for epsilon in map(float, chosen.epsilon.split(",")):
        cases = [Case(ratings, epsilon, split, chosen.people) for split in range(chosen.splits)]
        about, has_columns = cases[0].about(chosen.splits), cases[0].has_columns()
        for name in chosen.only or [*CHANGES, *PREDICTED]:
            if name.startswith(NEEDS_COLUMNS) and not has_columns:
                continue
            runs = [errors(name, case) for case in cases]
            found = {key: round(float(np.mean([run[key] for run in runs])), 5) for key in runs[0]}
            print(chosen.data, epsilon, found, flush=True)
            keep(RECORD, f"{chosen.data}, epsilon {epsilon:g}", about, found)


if __name__ == "__main__":
    main()
