"""What was tried to make `masked` with model `gp` better: validation RMSE of each change beside the run as it is.

    python experiments/masked_tried.py [--data ml-100k] [--splits 5] [--epsilon 16,8,1] [--only NAME]…

A change alters one function or constant of the library for a run. Differences below 0.001 are within chance. Kept as
experiments/records/masked-tried.json, by data set and budget; a call replaces what it measured and leaves the rest.
"""

import argparse
import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from hushrec.data.sources import load
from hushrec.engines import train_all_rounds
from hushrec.models.gaussian_process import GaussianProcessPredictor
from hushrec.protocols.masked import gp_learning, plan, posteriors, server
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, FACTORS, Block, Plan, make_plan
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

RECORD = Path(__file__).parent / "records" / "masked-tried.json"
Change = Callable[[ExitStack], None]


def replanned(change: Callable[[Block, bool], Block], rounds_more: int = 0) -> Change:
    """Another plan: `change` gets each block and whether it is the last of its name; the last round may be repeated."""

    def chosen(*numbers: Any) -> Plan:
        usual = plan.choose_plan(*numbers)
        last = {block.name: number for number, one in enumerate(usual.rounds) for block in one.blocks}
        rounds = [
            [change(block, last[block.name] == number) for block in one.blocks]
            for number, one in enumerate(usual.rounds)
        ]
        return make_plan([*rounds, *[rounds[-1]] * rounds_more])

    return lambda stack: stack.enter_context(patch.object(gp_learning, "choose_plan", chosen))


def clipped(factor: float) -> Change:
    """Clips of all item blocks and their curvature, times a factor."""
    names = (AUDIENCE, BIAS, FACTORS)
    return replanned(
        lambda one, _: Block(one.name, one.shape, one.clip * (factor if one.name.startswith(names) else 1), one.share)
    )


def late_bias(one: Block, is_last: bool) -> Block:
    """Nearly all of the budget of biases in the last round that measures them."""
    factor = 1.0 if one.name != BIAS else 2.0 if is_last else 0.2
    return Block(one.name, one.shape, one.clip, one.share * factor)


def graded_directions(power: float) -> Change:
    """Per-column budgets: directions of taste weigh as their share of the ratings' variance to some power."""

    def graded(covariance: Any, noise: float, count: int) -> Any:
        found = posteriors.best_known_directions(covariance, noise, count)
        weights = np.linalg.norm(found, axis=0) ** -power
        return found * weights / np.sqrt(np.mean(weights**2))

    return lambda stack: stack.enter_context(patch.object(server, "best_known_directions", graded))


def factor_rounds(number: int) -> Change:
    """So many factor rounds with half of the budget together."""
    return lambda stack: stack.enter_context(patch.object(plan, "FACTOR_ROUNDS", number))


def even_rows(stack: ExitStack) -> None:
    """Rows of learned columns weigh all alike in the spread of their prior."""
    source = inspect.getsource(posteriors._spread_rows.py_func).replace("np.trace(known) / prior", "1.0")
    names = dict(vars(posteriors))
    exec(source.replace("(cache=True)", ""), names)
    stack.enter_context(patch.object(posteriors, "_spread_rows", names["_spread_rows"]))


def kernel(amplitude: float = 1.0, length: float = 1.0) -> Callable[[Any], Any]:
    """Another similarity of items in the prediction: amplitude and length, times factors."""
    return lambda table: table._replace(kernel=table.kernel * np.array([amplitude, length**2]))


CHANGES: dict[str, Change] = {
    "as it is": lambda stack: None,
    "adaptive clips: 0.7 C": clipped(0.7),
    "adaptive clips: 1.4 C": clipped(1.4),
    "per-column budgets: power 0.5": graded_directions(0.5),
    "per-column budgets: power 1": graded_directions(1.0),
    "one factor round": factor_rounds(1),
    "three factor rounds": factor_rounds(3),
    "bias budget in its last round": replanned(late_bias),
    "one more prior round at the end": replanned(lambda block, _: block, rounds_more=1),
    "two more prior rounds at the end": replanned(lambda block, _: block, rounds_more=2),
    "even rows in the prior of columns": even_rows,
}
KERNELS = {  # what a learned similarity could choose
    "learned similarity: amplitude 0.67": kernel(amplitude=2 / 3),
    "learned similarity: amplitude 1.5": kernel(amplitude=1.5),
    "learned similarity: length 0.75": kernel(length=0.75),
    "learned similarity: length 1.33": kernel(length=4 / 3),
}


def errors(ratings: Any, epsilon: float, split: int, change: Change, kernels: bool) -> dict[str, float]:
    """Validation RMSE of one run, and of its predictions with other kernels."""
    settings = Settings(protocol="masked", epsilon=epsilon, split_seed=split, seed=split)
    task = settings.make_task(ratings).validation(split)
    with ExitStack() as stack:
        change(stack)
        predictor = train_all_rounds("cpu", task_problem(task, settings)).predictor()
    found = {"": task.metrics(predictor)["rmse"]}
    for name, other in KERNELS.items() if kernels else ():
        table = other(predictor.table)  # type: ignore[attr-defined]
        alike = GaussianProcessPredictor(table, predictor.ratings)  # type: ignore[attr-defined]
        found[name] = task.metrics(alike)["rmse"]
    return found


def main() -> None:
    """Measure every change, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epsilon", default="16,8,1")
    parser.add_argument("--only", action="append", choices=list(CHANGES))
    chosen = parser.parse_args()
    ratings = load(chosen.data)
    for epsilon in map(float, chosen.epsilon.split(",")):
        for name in chosen.only or CHANGES:
            is_plain = name == "as it is"
            runs = [
                errors(ratings, epsilon, split, CHANGES[name], is_plain and not chosen.only)
                for split in range(chosen.splits)
            ]
            found = {key or name: round(float(np.mean([run[key] for run in runs])), 5) for key in runs[0]}
            print(chosen.data, epsilon, found, flush=True)
            record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
            cell = record.setdefault(f"{chosen.data}, epsilon {epsilon:g}", {"splits": chosen.splits, "rmse": {}})
            cell["rmse"] |= found
            RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
