"""The table of a study as rows of text, for a terminal or a page, and sentences that compare with the best baseline."""

import math
from dataclasses import dataclass
from statistics import fmean

from hushrec.evaluate import HEADINGS
from hushrec.report.studies import Setting, Study, spread

NAMES = {
    "global_mean": "global mean",
    "user_mean": "user mean",
    "item_mean": "item mean",
    "bias": "bias model",
    "popularity": "most popular",
    "private_popularity": "most popular, by the released counts",
    "random": "random order",
}
NOT_PERSONAL = "not a personal model"


@dataclass(frozen=True)
class Row:
    """One row of the table of a study: a setting, a baseline or a peer."""

    name: str
    values: list[str]  # one cell per metric
    gap: str  # difference from the best baseline; for errors, a negative gap is better
    protects: str  # what the budget protects
    kind: str = "setting"  # "better" if the setting beats the best baseline; "baseline" for a baseline or a peer
    mean: float = math.nan  # of the study's main metric; NaN if the row has none

    @property
    def cells(self) -> list[str]:
        """The cells of the row, one for each heading of `header`."""
        return [self.name, *self.values, self.gap, self.protects]


def header(study: Study) -> list[str]:
    """Return the column headings of the study's table."""
    return ["", *map(measure_name, measures(study)), "to best baseline", "protects"]


def measures(study: Study) -> list[str]:
    """Return the names of the metrics in the study's table: the metrics that all settings have.

    Settings with a run that diverged do not count. If there are no other settings, the metrics are those that all
    baselines have. Metrics of a group of people (`Setting.groups`) are left out.
    """
    tables = [setting.metrics for setting in study.settings] or list(study.baselines.values())
    groups = {measure for setting in study.settings for measure in setting.groups.values()}
    return [name for name in tables[0] if name not in groups and all(name in table for table in tables)]


ON_A_TERMINAL = ("rmse", "mae", "precision_at_10", "auc", "hr_at_10", "ndcg_at_10")


def measure_name(measure: str) -> str:
    """Return the column heading of a metric, such as "NDCG@10"."""
    return HEADINGS.get(measure, measure.upper())


def terminal_measures(study: Study) -> list[str]:
    """Return the names of up to three metrics, which fit on a terminal of 80 columns."""
    return [name for name in measures(study) if name in ON_A_TERMINAL][:3]


def study_rows(study: Study, shown: list[str] | None = None) -> list[Row]:
    """Return the rows of settings, baselines and peers (models of other libraries) together, the best first.

    A setting in which people have different budgets has an additional row for each group with the same budget. At the
    end come baselines without the study's main metric, then settings with a run that diverged. `shown` names the
    metrics to show, by default those of `measures`.
    """
    shown = measures(study) if shown is None else shown
    rows = []
    for setting in study.settings:
        kind = "better" if study.beats(setting) else "setting"
        rows.append(_row(study, shown, setting.label, setting.metrics, setting.protects, kind))
        for group, measure in setting.groups.items():
            own = {study.measure: setting.metrics[measure]}
            rows.append(_row(study, shown, f"{setting.label}: people at {group}", own, setting.protects, "setting"))
    for name, numbers in study.baselines.items():
        rows.append(_row(study, shown, baseline_name(name), numbers, NOT_PERSONAL, "baseline"))
    for name, numbers in study.peers.items():
        rows.append(_row(study, shown, name, numbers, "nothing: all ratings in one place", "baseline"))
    rows.sort(key=lambda row: -row.mean if study.larger_is_better else row.mean)
    for name, numbers in study.of_lists.items():
        rows.append(_row(study, shown, baseline_name(name), numbers, NOT_PERSONAL, "baseline"))
    return rows + [Row(one.label, ["diverged"] * len(shown), "", one.protects) for one in study.diverged]


def _row(study: Study, shown: list[str], name: str, numbers: dict[str, list[float]], protects: str, kind: str) -> Row:
    """Return one row of the table of a study.

    `numbers` has one number per split for each metric, and `shown` names the metrics that get a cell. `protects` and
    `kind` are fields of the row.
    """
    mean = fmean(numbers[study.measure]) if study.measure in numbers else math.nan
    gap = _gap(study, mean) if study.measure in numbers else ""
    return Row(name, _cells(numbers, shown), gap, protects, kind, mean)


def _cells(numbers: dict[str, list[float]], shown: list[str]) -> list[str]:
    """Return one cell for each metric in `shown`: the mean, and ± the standard deviation unless that is 0.

    The cell of a metric without numbers is empty.
    """
    texts = {name: f"{fmean(values):.3f}" for name, values in numbers.items()}
    texts |= {name: f"{texts[name]} ± {spread(values):.3f}" for name, values in numbers.items() if spread(values)}
    return [texts.get(name, "") for name in shown]


def _gap(study: Study, mean: float) -> str:
    """Return `mean` minus the main metric of the best baseline, as text with a sign and three decimals.

    A difference that rounds to 0 is "0.000", without a sign.
    """
    text = f"{mean - study.baseline(study.best_baseline):+.3f}"
    return text if float(text) else "0.000"


def baseline_name(name: str) -> str:
    """Return the name under which a baseline is shown, such as "bias model" for "bias"."""
    return NAMES.get(name, name.replace("_", " "))


def baseline_lines(study: Study) -> dict[str, float]:
    """Return the mean of the study's main metric for each baseline, by its `baseline_name`; the lowest mean first."""
    return {baseline_name(name): study.baseline(name) for name in sorted(study.baselines, key=study.baseline)}


def verdict(study: Study) -> str:
    """Return sentences that compare the settings with the best baseline."""
    name, best = study.measure.upper(), baseline_name(study.best_baseline)
    strength = f"{name} {study.baseline(study.best_baseline):.3f}"
    sentences = [f"The best non-personal baseline is the {best}: {strength}."]
    sentences += [f"{setting.label}: {_against(study, setting)}." for setting in study.settings if not setting.private]
    private = sorted((setting for setting in study.settings if setting.private), key=study.gain)
    if private:
        winners = sum(study.beats(setting) for setting in private)
        if len(private) == 1:
            start, which = f"The private setting {'beats' if winners else 'does not beat'}", "it"
        else:
            beats = "beats" if winners < 2 else "beat"
            start = f"Of {len(private)} private settings {winners or 'none'} {beats}"
            which = f"the best of them, {private[-1].label},"
        sentences.append(f"{start} the {best}: {which} {_against(study, private[-1])}.")
    return " ".join(sentences)


def _against(study: Study, setting: Setting) -> str:
    """Return a setting's gain over the best baseline and its main metric, such as "wins by 0.008 (0.920)"."""
    gain = study.gain(setting)
    return f"{'wins' if gain > 0 else 'loses'} by {abs(gain):.3f} ({setting.mean(study.measure):.3f})"
