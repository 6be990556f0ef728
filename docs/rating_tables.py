"""The tables of model `gp` in `docs/masked-accuracy.md`, from the records of `masked-*` and `task1-*`.

These are accuracy at every budget beside baselines, peers and the paper's protocols; what was aimed at; what constants
were chosen from; and what was tried. `python docs/generate.py ratings` writes them, a test compares them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from one_class import RECORDS, mean, of, one_per_split, peer_results, runs_by_epsilon, splits

from hushrec.budget.accountants import TableAccountant
from hushrec.experiment_records import Record, read_records

START, END = "<!-- {}: made by `make docs` -->", "<!-- end of {} -->"
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


PAPER = [  # the paper's task on the same splits: `mf` without privacy, then its protocols at its budgets
    "plain, not private",
    "isgld ε=4",
    "isgld ε=2",
    "sdcf ε_I=4, ε_g=4",
    "sdcf ε_I=1, ε_g=1",
    "sdcf ε_I=0.25, ε_g=0.25",
    "sdcf ε_I=0.0625, ε_g=0.0625",
]
TARGETS = {  # test RMSE that `gp` was to reach, by ε
    "masked-ml-1m": {16.0: 0.843, 8.0: 0.849, 4.0: 0.861, 1.0: 0.885, np.inf: 0.840},
    "masked-ml-100k": {16.0: 0.905, 8.0: 0.910, 4.0: 0.920, 1.0: 0.955, np.inf: 0.890},
}
AS_IT_IS = "as it is"
CLEARLY = 0.0005  # RMSE: what a value must gain on every set to be called better


def with_tables(page: str, tables: Mapping[str, Callable[[Path], str]], records: Path = RECORDS) -> str:
    """Return the page with each of the tables between its two marks."""
    for name, made in tables.items():
        start, end = START.format(name), END.format(name)
        head, _, rest = page.partition(start)
        page = f"{head}{start}\n{made(records)}\n{end}{rest.partition(end)[2]}"
    return page


def gp_tables(records: Path) -> str:
    """Return accuracy at every budget, one table per set."""
    return "\n\n".join(
        set_table(shown, read_records(records / name), read_records(records / name.replace("masked", "task1")))
        for name, shown in SETS.items()
    )


def markdown(rows: Iterable[Iterable[str]]) -> str:
    """Return rows, the header first, as a table."""
    head, *rest = (list(row) for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rest])


def set_table(shown: str, runs: list[Record], paper: list[Record]) -> str:
    """Return the table of one set: baselines, peers, the paper's protocols, then each budget."""
    count = len({run["split_seed"] for run in runs})
    rows = [
        row(label, ("not private", ""), [run["baselines"][name] for run in one_per_split(runs)])
        for name, label in BASELINES.items()
    ]
    rows += [
        row(f"{name}, {splits(len(found))}", ("not private", ""), found)
        for name, found in sorted(peer_results(runs).items())
    ]
    rows += paper_rows(paper, {run["split_seed"] for run in runs})
    for own in runs_by_epsilon(runs).values():
        rows.append(row("`gp`", budgets(own[0]["budget"]), [run["metrics"] for run in own]))
    deviation = max(np.std(of(own, "rmse"), ddof=1) for own in runs_by_epsilon(runs).values())
    head = f"**{shown}**, {splits(count)}; the standard deviation of RMSE between them is at most {deviation:.3f}."
    return f"{head}\n\n{markdown([HEADER, *rows])}"


def paper_rows(runs: list[Record], seeds: set[int]) -> list[list[str]]:
    """Return the paper's protocols on the splits of these seeds; their ε is of another unit, which is named."""
    rows = []
    for label in PAPER:
        own = [run for run in runs if run["label"] == label and run["split_seed"] in seeds]
        protocol, _, setting = label.removesuffix(", not private").partition(" ")
        name = f"the paper's `{protocol}`{setting and ', '}{setting.replace('=', ' = ')}"
        rows.append(row(name, (other_unit(own[0]["budget"]), ""), [run["metrics"] for run in own]))
    return rows


def other_unit(budget: Mapping[str, object]) -> str:
    """Return a budget that is not one of a whole profile, with its unit."""
    if float(str(budget["epsilon"])) == np.inf:
        return "not private"
    unit = str(budget["unit"]).removeprefix("profile-level: ")
    return f"none; ε = {budget['epsilon']:g} is of another unit ({unit})"


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


def targets_table(records: Path) -> str:
    """Return what was aimed at beside what the records have."""
    rows = [["set", "ε", "target", "reached", "gap"]]
    for name, targets in TARGETS.items():
        found = runs_by_epsilon(read_records(records / name))
        for epsilon, target in targets.items():
            reached = mean(found[epsilon], "rmse")
            shown = "∞" if epsilon == np.inf else f"{epsilon:g}"
            rows.append([SETS[name], shown, f"{target:.3f}", f"{reached:.4f}", signed(reached - target)])
    return markdown(rows)


def constants_table(records: Path) -> str:
    """Return what other values of each constant do to validation RMSE, and which are better everywhere."""
    record = json.loads((records / "masked-constants.json").read_text("utf-8"))
    rows = [["constant", "is", "tried", *measured_on(record)], usual_row(record, blanks=2)]
    better = []
    for name in dict.fromkeys(name for cell in record.values() for name in cell["rmse"] if name != AS_IT_IS):
        cells = {key: cell["rmse"][name] for key, cell in record.items() if name in cell["rmse"]}
        one = next(iter(cells.values()))
        more = {
            value: {key: cell["tried"][value] - record[key]["rmse"][AS_IT_IS] for key, cell in cells.items()}
            for value in one["tried"]
        }
        shown = (" / ".join(signed(each[key]) for each in more.values()) if key in cells else "" for key in record)
        rows.append([name, one["chosen"], " / ".join(more), *shown])
        better += [f"{name} {value}" for value, each in more.items() if max(each.values()) < -CLEARLY]
    return f"{markdown(rows)}\n\nBetter by more than {CLEARLY} wherever it was tried: {', '.join(better) or 'none'}."


def counts_table(records: Path) -> str:
    """Return NDCG@10 and RMSE of few devices by the share of the budget that counts have."""
    cells = json.loads((records / "masked-plan.json").read_text("utf-8"))["counts"]
    shares = [key for key in next(iter(cells.values())) if key[0].isdigit()]
    rows = [
        ["set, devices, ε", "devices · μ", "most popular", *(f"{float(share):.0%} of the budget" for share in shares)]
    ]
    for key, cell in cells.items():
        data, devices, epsilon = key.split(", ")
        found = (f"{cell[share]['ndcg']:.3f}, {cell[share]['rmse']:.3f}" for share in shares)
        shown = f"{SETS['masked-' + data]}, {devices.split()[0]}, {epsilon.split()[1]}"
        rows.append([shown, f"{cell['devices · μ']:.0f}", f"{cell['most popular']:.3f}", *found])
    return markdown(rows)


def small_fleets_table(records: Path) -> str:
    """Return NDCG@10 of lists of small fleets beside popularity, and what larger shares of counts change."""
    cells = json.loads((records / "masked-small-fleets.json").read_text("utf-8"))
    first, *others = (key.removeprefix("gp, ") for key in next(iter(cells.values())) if key.startswith("gp, "))
    heads = [f"{what}, counts {float(share):.0%}" for what in ("`gp`", "RMSE") for share in (first, *others)]
    rows = [["set, catalogue, devices", "popular, exact counts", "popular, the whole ε for counts", *heads]]
    for key, cell in cells.items():
        data, kind, devices, _ = key.split(", ")
        row = [f"{SETS['masked-' + data]}, {kind}, {devices.split()[0]}"]
        row += [f"{np.mean(cell[name]):.3f}" for name in cell if name.startswith("popular")]
        for what, digits in (("gp", 3), ("rmse", 4)):
            usual = cell[f"{what}, {first}"]
            row += [f"{np.mean(usual):.3f}", *(changed(usual, cell[f"{what}, {share}"], digits) for share in others)]
        rows.append(row)
    sentences = [
        _ahead(cells, f"gp, {first}", name, words)
        for name, words in (
            ("popular, exact counts", "the most popular items by exact counts"),
            ("popular, the whole ε for counts", "popularity at the same ε"),
        )
    ]
    sentences += [_clear_changes(cells, first, share) for share in others]
    return f"{markdown(rows)}\n\n{' '.join(sentences)}"


def _ahead(cells: Mapping[str, Any], own: str, other: str, words: str) -> str:
    """Return in how many rows of each size lists are at least as good as others."""
    sizes: dict[str, list[bool]] = {}
    for key, cell in cells.items():
        sizes.setdefault(key.split(", ")[2], []).append(np.mean(cell[own]) >= np.mean(cell[other]))
    counts = ", ".join(f"{sum(found)} of {len(found)} rows with {size}" for size, found in sizes.items())
    return f"Lists are not below {words} in {counts}."


def _clear_changes(cells: Mapping[str, Any], first: str, share: str) -> str:
    """Return in how many rows another share of counts changes lists and errors by more than the standard error."""
    found = []
    for what, better in (("gp", 1), ("rmse", -1)):
        gains = [better * np.subtract(cell[f"{what}, {share}"], cell[f"{what}, {first}"]) for cell in cells.values()]
        clear = [gain.mean() / (gain.std(ddof=1) / np.sqrt(len(gain))) for gain in gains]
        found.append(f"better in {sum(one > 1 for one in clear)} rows and worse in {sum(one < -1 for one in clear)}")
    return (
        f"With {float(share):.0%} for counts, lists are {found[0]} of {len(cells)} by more than a standard error;"
        f" RMSE is {found[1]}."
    )


def alike_table(records: Path) -> str:
    """Return the validation RMSE of each kernel of catalogues without attributes, and which is the best on average."""
    cells = json.loads((records / "masked-alike.json").read_text("utf-8"))
    kinds: dict[str, list[dict[str, list[float]]]] = {}
    rows = [["set, catalogue, ε", "product of rows", "and titles", "and nearness", "nearness adds"]]
    for key, cell in cells.items():
        data, kind, epsilon = key.split(", ")
        found = cell["rmse"]
        kinds.setdefault(kind, []).append(found)
        values = [f"{np.mean(found[name]):.4f}" if name in found else "" for name in ("rows", "rows, titles")]
        *_, before, last = found
        shown = f"{SETS['masked-' + data]}, {kind}, {epsilon.split()[1]}"
        rows.append([shown, *values, f"{np.mean(found[last]):.4f}", changed(found[before], found[last], 4)])
    means = [
        f"{name} {np.mean([np.mean(cell[name]) for cell in own]):.4f} ({kind})"
        for kind, own in kinds.items() for name in own[0]
    ]  # fmt: skip
    return f"{markdown(rows)}\n\nMeans over the rows: {'; '.join(means)}."


def changed(before: list[float], after: list[float], digits: int) -> str:
    """Return the mean of paired differences with its standard error."""
    differences = np.array(after) - np.array(before)
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{np.mean(differences):+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def factors_table(records: Path) -> str:
    """Return the validation RMSE of a large fleet by the number of columns that each factor round learns."""
    cells = json.loads((records / "masked-plan.json").read_text("utf-8"))["factor columns"]
    numbers = [key for key in next(iter(cells.values())) if key.isdigit()]
    rows = [["set, ε", *(f"{number} columns" for number in numbers)]]
    rows += [[cell_name(key).replace("inf", "∞"), *(f"{cell[n]:.4f}" for n in numbers)] for key, cell in cells.items()]
    return markdown(rows)


def plans_table(records: Path) -> str:
    """Return the validation RMSE of both plans of `gp` beside that of the bias model, by what chooses the plan."""
    cells = json.loads((records / "masked-plan.json").read_text("utf-8"))["plans"]
    rows = [["set, ε", "devices · μ²", "devices · μ per item", "small plan", "large plan", "bias model"]]
    for key, cell in cells.items():
        data, _, epsilon = key.rpartition(", epsilon ")
        name = SETS.get(f"masked-{data}") or data.removeprefix("synthetic:").replace(",", ", ").replace("=", " ")
        errors = (f"{cell[plan]:.4f}" for plan in ("small", "large", "bias"))
        rows.append([f"{name}; {epsilon}", f"{cell['strength']:,}", f"{cell['devices · μ per item']:g}", *errors])
    return markdown(rows)


def short_profiles_table(records: Path) -> str:
    """Return the validation RMSE of both plans where people have few ratings, with the usual and with lowered clips."""
    cells = json.loads((records / "masked-plan.json").read_text("utf-8"))["short profiles"]
    columns = {
        "small": "small plan",
        "small, lowered": "lower clips",
        "large": "large plan",
        "large, lowered": "lower clips",
        "bias": "bias model",
    }
    rows = [["set; ratings per person; ε", "devices · μ²", "ratings · μ per item", *columns.values()]]
    for key, cell in cells.items():
        data, _, about = key.partition(", ")
        mean, _, epsilon = about.rpartition(", epsilon ")
        name = f"{SETS[f'masked-{data}']}; {mean.replace(' ratings', '')}; {epsilon}"
        rows.append(
            [
                name,
                f"{cell['strength']:,}",
                f"{cell['ratings · μ per item']:g}",
                *(f"{cell[column]:.4f}" for column in columns),
            ]
        )
    return markdown(rows)


def deviations_table(records: Path) -> str:
    """Return how often held-out ratings are within the deviations of their predictions."""
    rows = [["data", "ε", "RMSE", "deviation", "within 1", "within 2"]]
    for key, numbers in json.loads((records / "deviations.json").read_text("utf-8")).items():
        name, _, epsilon = key.rpartition("; ")
        rows.append([name, epsilon.replace("inf", "∞"), *(f"{number:.2f}" for number in numbers)])
    return markdown(rows)


def scatter_table(records: Path) -> str:
    """Return −log density and the share within one deviation, by `USUAL_SCATTER`; means over ε and profile lengths."""
    cells = json.loads((records / "masked-generated.json").read_text("utf-8"))["deviations"]
    weights = list(next(iter(cells.values())))
    groups: dict[str, list[dict[str, list[float]]]] = {}
    for key, cell in cells.items():
        groups.setdefault(key.rpartition(", epsilon ")[0].partition(", 12 ")[0].partition(", 40 ")[0], []).append(cell)
    rows = [["data", *(weight.replace("inf", "∞") for weight in weights)]]
    for name, own in groups.items():
        means = [np.mean([cell[weight] for cell in own], axis=0) for weight in weights]
        rows.append([SETS.get(f"masked-{name}", name), *(f"{density:.3f} ({share:.2f})" for density, share in means)])
    return markdown(rows)


def levels_table(records: Path) -> str:
    """Return the validation RMSE on scales of few levels, by residual variance; means over the generated sets."""
    cells = json.loads((records / "masked-generated.json").read_text("utf-8"))["levels"]
    factors = [name for name in next(iter(cells.values())) if name != "bias"]
    rows = [["levels, ε", *(f"× {factor}" for factor in factors), "bias model"]]
    groups: dict[str, list[dict[str, float]]] = {}
    for key, cell in cells.items():
        groups.setdefault(f"{key.partition(' ')[0]}; {key.rpartition(', epsilon ')[2]}", []).append(cell)
    for name, own in groups.items():
        means = [float(np.mean([cell[column] for cell in own])) for column in (*factors, "bias")]
        rows.append([name.replace("inf", "∞"), *(f"{value:.4f}" for value in means)])
    return markdown(rows)


def catalogues_table(records: Path) -> str:
    """Return the validation AUC of both plans of model `audience` on long catalogues, by devices · μ per item."""
    cells = json.loads((records / "masked-generated.json").read_text("utf-8"))["long catalogues"]
    names = list(next(iter(cells.values())))
    rows = [["set; ε", *names]]
    for key, cell in sorted(cells.items(), key=lambda entry: entry[1][names[0]]):
        set_name, _, epsilon = key.rpartition(", epsilon ")
        rows.append([f"{set_name}; {epsilon}", *(f"{cell[name]:.3f}" for name in names)])
    return markdown(rows)


def columns_table(records: Path) -> str:
    """Return the validation RMSE with many item columns, by the bound on their variance; means over generated sets.

    Sets on which the bound changes nothing are left out.
    """
    cells = json.loads((records / "masked-generated.json").read_text("utf-8"))["columns"]
    names = list(next(iter(cells.values())))
    shown = {"inf": "none", "bias": "bias model", "user_mean": "own mean"}
    groups: dict[str, list[dict[str, float]]] = {}
    for key, cell in cells.items():
        if cell[names[0]] == cell["inf"]:
            continue
        kinds, _, rest = key.rpartition(" people, ")
        name = f"{kinds.rpartition(', ')[0]}; {rest.rpartition(' ')[2].replace('inf', '∞')}"
        groups.setdefault(name, []).append(cell)
    rows = [["columns; ε", *(shown.get(name, name) for name in names)]]
    rows += [[group, *(f"{np.mean([cell[n] for cell in own]):.4f}" for n in names)] for group, own in groups.items()]
    return markdown(rows)


def tried_table(records: Path) -> str:
    """Return what each change does to validation RMSE, and the largest gain of all of them."""
    record = json.loads((records / "masked-tried.json").read_text("utf-8"))
    rows = [["change", *measured_on(record)], usual_row(record)]
    gains: dict[str, float] = {}
    for name in dict.fromkeys(name for cell in record.values() for name in cell["rmse"] if name != AS_IT_IS):
        errors = {key: cell["rmse"] for key, cell in record.items() if name in cell["rmse"]}
        more = {key: each[name] - each[AS_IT_IS] for key, each in errors.items()}
        rows.append([name, *(signed(more[key]) if key in more else "" for key in record)])
        gains |= {f"{name}; {cell_name(key)}": -value for key, value in more.items()}
    best = max(gains, key=gains.__getitem__)
    return f"{markdown(rows)}\n\nThe largest gain is {gains[best]:.4f} ({best})."


def cell_name(key: str) -> str:
    """Return the set and the budget of a cell of a record."""
    return f"{SETS['masked-' + key.partition(',')[0]]}, ε = {key.split()[-1]}"


def measured_on(record: Mapping[str, Any]) -> list[str]:
    """Return the heads of the columns: on what each cell of a record was measured."""
    return [
        f"{cell_name(key)}, {splits(cell['splits'])}, {cell['people']:,} people"
        + (f" of {cell['devices']:,}" if cell.get("devices", 0) > cell["people"] else "")
        for key, cell in record.items()
    ]


def usual_row(record: Mapping[str, Any], blanks: int = 0) -> list[str]:
    """Return the row of the run as it is."""
    return [AS_IT_IS, *[""] * blanks, *(f"{cell['rmse'][AS_IT_IS]:.4f}" for cell in record.values())]


def signed(difference: float) -> str:
    """Return a difference with its sign."""
    return f"{round(difference, 4) + 0.0:+.4f}".replace("-", "−")


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


TABLES = {
    "gp": gp_tables,
    "targets": targets_table,
    "counts": counts_table,
    "small fleets": small_fleets_table,
    "alike": alike_table,
    "factors": factors_table,
    "plans": plans_table,
    "short profiles": short_profiles_table,
    "levels": levels_table,
    "columns": columns_table,
    "scatter": scatter_table,
    "constants": constants_table,
    "tried": tried_table,
}
PAGES = {
    "masked-accuracy.md": TABLES,
    "evaluate.md": {"deviations": deviations_table},
    "one-class-and-fm.md": {"long catalogues": catalogues_table},
}
