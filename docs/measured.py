"""Numbers in the pages that come from records: `python docs/generate.py numbers` writes them, a test compares them.

In a page, a number stands between two comments, which a reader of the page does not see:

    <!--=service-fleet/seconds_per_round:.1f-->9.1<!--/--> s

The first names a record of `benchmarks/records`, or one of `COMPUTED`, the way to a value in it, and its format. In a
list, `median`, `min` and `max` are names too; `:/1000 .0f` divides first.
"""

import functools
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import rating_tables
from scipy.special import ndtr

from hushrec.budget.gaussian import Cohort, epsilon_of_mu, mu_of_epsilon
from hushrec.experiment_records import Record, read_records
from hushrec.protocols.fleet_size import smallest_that_pays
from hushrec.protocols.gradient.fleet_size import MEASURED
from hushrec.protocols.masked.gp.fleet_size import measured_at
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.protocol import LARGE_COHORT, NETWORK_CORRUPT, NETWORK_SURVIVORS
from hushrec.protocols.masked.secagg.roster import choose_rules
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.report.studies import make_study
from hushrec.simulation.settings import Settings

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!--=(.+?)-->)(.*?)(<!--/-->)", re.DOTALL)
FORMAT = re.compile(r"(.+?)(?::(?:/(\d+) )?([^:/]*))?")
OF_LISTS: Mapping[str, Callable[[list[float]], float]] = {"median": statistics.median, "min": min, "max": max}
SETS = ("ml-100k", "ml-1m", "netflix-10k")
LEVELS = ("4", "1", "0.25", "0.0625")


def with_numbers(page: str) -> str:
    """Return the page with every marked number as the records have it."""
    return MARK.sub(lambda found: found[1] + shown(found[2]) + found[4], page)


def shown(mark: str) -> str:
    """Return the text of one mark."""
    found = FORMAT.fullmatch(mark)
    assert found is not None, mark
    way, divisor, form = found.groups()
    name, *keys = way.split("/")
    value: Any = COMPUTED[name]() if name in COMPUTED else _record(name)
    for key in keys:
        if isinstance(value, list):
            value = OF_LISTS[key](value) if key in OF_LISTS else value[int(key)]
        else:
            value = value[key]
    return format(value / int(divisor) if divisor else value, form or "")


@functools.cache
def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text("utf-8"))
    return record


@functools.cache
def _experiment(name: str) -> list[Record]:
    return read_records(ROOT / "experiments" / "records" / name)


def _by_setting(name: str, measure: str) -> dict[str, np.ndarray]:
    """Return each setting's numbers by split."""
    return {setting.label: np.array(setting.metrics[measure]) for setting in make_study(_experiment(name)).settings}


@functools.cache
def claims() -> dict[str, Any]:
    """Compute what docs/reproduction.md says of the paper's claims, by data set."""
    found: dict[str, Any] = {data: {} for data in SETS}
    influences = []
    for data in SETS:
        rmse, auc, tuned = (
            _by_setting(f"{task}-{data}", measure)
            for task, measure in (("task1", "rmse"), ("task2", "auc"), ("task2-tuned", "auc"))
        )
        cost = rmse["sdcf ε_I=4, ε_g=4"] - rmse["plain, not private"]
        family = {(i, g): rmse[f"sdcf ε_I={i}, ε_g={g}"].mean() for i in LEVELS for g in LEVELS}
        influences += [np.ptp([family[i, g] for i in LEVELS]) for g in LEVELS]
        found[data] = {
            "cost": cost.mean(),
            "deviation": max(cost.std(ddof=1), 0.001),
            "range": np.ptp(list(family.values())),
            "gap": (rmse["isgld ε=2"] - rmse["isgld ε=4"]).mean(),
            "gap clamped": (rmse["isgld ε=2, clamped"] - rmse["isgld ε=4, clamped"]).mean(),
            "loss": (auc["plain, not private"] - auc["sdcf ε_I=4"]).mean(),
            "loss tuned": (tuned["plain, not private"] - tuned["sdcf ε_I=4"]).mean(),
        }
    return found | {"largest influence": max(influences)}


@functools.cache
def budget_groups() -> list[float]:
    """Return the test error of each budget group, in the order of the file."""
    (mixed,) = [setting for setting in make_study(_experiment("mixed-budgets")).settings if setting.groups]
    return [mixed.mean(measure) for measure in mixed.groups.values()]


@functools.cache
def step_of_fm() -> dict[str, Any]:
    """Compare the default step of `fm` with the best one tried, with and without privacy."""
    step, found = Settings(model="fm").options["step"], {}
    for protocol in ("plain", "sdcf"):
        by_step: dict[float, list[float]] = {}
        for record in _experiment("tuning-fm-ml-100k"):
            if record["protocol"] == protocol:
                by_step.setdefault(record["step"], []).append(record["metrics"]["rmse"])
        means = {tried: float(np.mean(values)) for tried, values in by_step.items()}
        worse = [tried for tried in means if tried > step and means[tried] > means[step]]
        found[protocol] = {
            "cost": means[step] - min(means.values()),
            "best": min(means, key=means.__getitem__),
            "factor to worse": min(worse, default=np.inf) / step,
        }
    return found


@functools.cache
def accuracy() -> dict[str, dict[str, float]]:
    """Compute mean test RMSE by set: of `masked`, its peers and the paper's protocols."""
    found = rating_tables.accuracy()
    for data in SETS:
        for label, numbers in _by_setting(f"task1-{data}", "rmse").items():
            found[data][label] = float(numbers.mean())
    return found


@functools.cache
def masked_audit(name: str = "ml-100k-masked") -> dict[str, Any]:
    """Return what attacks on `masked` reach on ML-100K: budget, attack, measure; `rate` is that at 1 % false alarms.

    `allowed` is the largest AUC that the budget lets an attacker reach who knows nothing else of the person: two normal
    laws of variance 1 and distance d have Φ(d / √2), with d = μ for a profile and nothing, 2 μ for two profiles.
    """
    path = ROOT / "experiments" / "records" / "audit" / f"{name}.json"
    record = json.loads(path.read_text("utf-8"))
    found: dict[str, Any] = {label.removeprefix("masked "): dict(run) for label, run in record["runs"].items()}
    for one in record["attacks"]:
        values = found[one["protocol"].removeprefix("masked ")].setdefault(one["name"], {})
        values[one["metric"]] = one["value"]
        if one["tpr_at_1pct_fpr"] is not None:
            values["rate"] = one["tpr_at_1pct_fpr"]
        if one["metric"] == "auc":
            values["interval"] = one["interval"]
    for label in ("ε=8", "ε=1"):
        distances = {"nothing": found[label]["budget"]["mu"], "two profiles": 2 * found[label]["budget"]["mu"]}
        found[label]["allowed"] = {name: float(ndtr(d / math.sqrt(2))) for name, d in distances.items()}
    return found


@functools.cache
def collusion() -> dict[str, Any]:
    """Compute the ε of runs with the default terms if more devices collude than the noise is sized for."""
    found: dict[str, Any] = {}
    for devices in (5, 20, 100, 1_000):
        corrupt = NETWORK_CORRUPT if devices >= LARGE_COHORT else 0.0
        cohort = Cohort(devices, NETWORK_SURVIVORS, corrupt)
        rules = choose_rules(devices, cohort.smallest, cohort.most_corrupt)
        cohort = replace(cohort, omitted=rules.most_omitted(devices))
        plan = make_plan([[Block("counts", (1_000,), 8.0, 1.0)]])
        priced = price_plan(plan, epsilon=8.0, delta=1e-6, cohort=cohort)
        terms = MaskedTerms(priced, rules)
        honest = {"allowed": cohort.honest, "most": terms.honest_among(terms.most_colluding), "all others": 1}
        found[str(devices)] = {name: priced.epsilon_if(count) for name, count in honest.items()}
        found[str(devices)] |= {"n_min": cohort.smallest, "c_max": cohort.most_corrupt}
        found[str(devices)]["most colluding"] = terms.most_colluding
    return found


def two_runs() -> dict[str, float]:
    """Compute the ε of two runs together, at δ = 10⁻⁶."""
    spent = _record("masked-hostile-gp-ml-100k")["by_cohorts"]["1"]["by_attack"]["none"]["epsilon_spent_median"]
    pairs = {"8 and 8": (8, 8), "8 and 4": (8, 4), "4 and 4": (4, 4), "8 without reserve, and 4": (spent, 4)}
    return {
        name: epsilon_of_mu(math.hypot(*(mu_of_epsilon(epsilon, 1e-6) for epsilon in pair)), 1e-6)
        for name, pair in pairs.items()
    }


COMPUTED: dict[str, Callable[[], Any]] = {
    "two runs": two_runs,
    "collusion": collusion,
    "accuracy": accuracy,
    "claims": claims,
    "masked audit": masked_audit,
    "audience audit": lambda: masked_audit("ml-100k-masked-audience"),
    "budget groups": budget_groups,
    "step of fm": step_of_fm,
    "fleet size": lambda: {"pays from": smallest_that_pays(MEASURED), "measured": [asdict(size) for size in MEASURED]},
    "masked pays from": lambda: (
        {
            f"{kind} {epsilon}": smallest_that_pays(measured_at(epsilon, knows_attributes=kind == "attributes"))
            for kind in ("attributes", "titles")
            for epsilon in (8, 1)
        }
        | {"bias model": smallest_that_pays([replace(size, own_mean=size.bias) for size in measured_at(8)])}
    ),
}
