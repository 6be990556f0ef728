"""Which kernel predicts where items have no attributes: validation RMSE of the parts of the kernel of model `gp`.

    python experiments/masked_alike.py [--data ml-100k] [--splits 3] [--epsilon 8,1] [--people N]

The kernel of two items (`models/gp.py`) is the product of their rows, plus the similarity of their titles, plus a
function of the distance between their rows, their *nearness*. Without attributes and learned columns a row has quality,
popularity and 1 alone, so that nearness means: as good and as popular. Attributes are taken away from every set; then
titles too, so that ids are left. Validation parts are cut from the training parts; test parts are not used. Each run is
trained once and predicts with each kernel. Kept as experiments/records/masked-alike.json, by data set, catalogue and
budget, with the RMSE of every split.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from changed import RECORDS, Case, nothing

from hushrec.data.sources import load
from hushrec.models.gaussian_process import GaussianProcessPredictor, ItemTable
from hushrec.protocols.masked.gp.constants import CONSTANTS

RECORD = RECORDS / "masked-alike.json"
NEARLY_ZERO = 1e-9  # an amplitude of nearness; exactly 0 would leave titles out as well
KERNELS = {  # by catalogue, what the kernel can have besides the product of rows
    "titles": ("rows", "rows, titles", "rows, titles, nearness"),
    "ids": ("rows", "rows, nearness"),
}


def catalogues(ratings: Any) -> Iterator[tuple[str, Any]]:
    """The set without attributes, and without titles as well."""
    yield "titles", replace(ratings, attributes=None, catalogue=replace(ratings.catalogue, attributes=None))
    yield "ids", replace(ratings, titles=None, attributes=None, catalogue=None)


def with_kernel(table: ItemTable, kernel: str) -> ItemTable:
    """The public table of a run, with another kernel."""
    amplitude = CONSTANTS.kernel_amplitude if "nearness" in kernel else NEARLY_ZERO if "titles" in kernel else 0.0
    return table._replace(kernel=np.array([amplitude, table.kernel[1]]))


def errors(case: Case, kernels: tuple[str, ...]) -> dict[str, float]:
    """Validation RMSE of one split, by kernel."""
    task, trained = case.run(nothing)
    tables = {name: with_kernel(trained.table, name) for name in kernels}
    return {
        name: task.metrics(GaussianProcessPredictor(table, trained.ratings))["rmse"] for name, table in tables.items()
    }


def main() -> None:
    """Measure one set, and keep what was found beside the other sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epsilon", default="8,1")
    parser.add_argument("--people", type=int, help="measure the validation ratings of so many people; all take part")
    chosen = parser.parse_args()
    for kind, ratings in catalogues(load(chosen.data)):
        for epsilon in map(float, chosen.epsilon.split(",")):
            cases = [Case(ratings, epsilon, split, chosen.people) for split in range(chosen.splits)]
            runs = [errors(case, KERNELS[kind]) for case in cases]
            about = cases[0].about(chosen.splits) | {"learned_columns": cases[0].has_columns()}
            found = about | {"rmse": {name: [round(run[name], 5) for run in runs] for name in KERNELS[kind]}}
            print(chosen.data, kind, epsilon, found, flush=True)
            record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
            record[f"{chosen.data}, {kind}, epsilon {epsilon:g}"] = found
            RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
