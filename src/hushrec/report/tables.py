"""The table of a study as rows of text, for a terminal or a page, and sentences that compare with the best baseline."""

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


@dataclass(frozen=True)
class Row:
    """One row of the table of a study: a setting, a baseline or a peer."""

    name: str
    values: list[str]  # one cell per metric
    gap: str  # difference from the best baseline; for errors, a negative gap is better
    protects: str  # what the budget protects
    baseline: bool  # whether the row is a baseline or a peer
    better: bool  # whether a setting beats the best baseline

    @property
    def cells(self) -> list[str]:
        """The cells of the row, below the names in `header`."""
        return [self.name, *self.values, self.gap, self.protects]


def header(study: Study) -> list[str]:
    """Return the column headings of the study's table."""
    return ["", *map(measure_name, measures(study)), "to best baseline", "protects"]


def measures(study: Study) -> list[str]:
    """Return the names of the metrics that all settings of the study have.

    If every setting diverged, return those that all baselines have. Metrics of single budget groups are left out.
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

    At the end come baselines without the study's main metric, then settings with a run that diverged. `shown` names the
    metrics to show, by default all metrics of the study.
    """
    shown = measures(study) if shown is None else shown
    rows = [_setting_row(study, setting, shown) for setting in study.settings]
    rows += [row for setting in study.settings for row in _group_rows(study, setting, shown)]
    for name, numbers in study.baselines.items():
        rows.append(_baseline_row(study, baseline_name(name), numbers, shown, "not a personal model"))
    for name, numbers in study.peers.items():
        rows.append(_baseline_row(study, name, numbers, shown, "nothing: all ratings in one place"))
    ordered = [row for _, row in sorted(rows, key=lambda pair: -pair[0] if study.larger_is_better else pair[0])]
    for name, numbers in study.of_lists.items():
        cells = _cells(numbers, shown)
        ordered.append(Row(baseline_name(name), cells, "", "not a personal model", baseline=True, better=False))
    return ordered + [
        Row(setting.label, ["diverged"] * len(shown), "", setting.protects, baseline=False, better=False)
        for setting in study.diverged
    ]


def _setting_row(study: Study, setting: Setting, shown: list[str]) -> tuple[float, Row]:
    mean, cells, better = setting.mean(study.measure), _cells(setting.metrics, shown), study.beats(setting)
    return mean, Row(setting.label, cells, _gap(study, mean), setting.protects, baseline=False, better=better)


def _baseline_row(
    study: Study, name: str, numbers: dict[str, list[float]], shown: list[str], protects: str
) -> tuple[float, Row]:
    """Return the mean of the study's metric and the row of a baseline or a peer; `numbers` has its metrics by split."""
    mean = fmean(numbers[study.measure])
    return mean, Row(name, _cells(numbers, shown), _gap(study, mean), protects, baseline=True, better=False)


def _group_rows(study: Study, setting: Setting, shown: list[str]) -> list[tuple[float, Row]]:
    """Return the mean metric and the table row of each budget group of a setting; empty without groups."""
    rows = []
    for group, measure in setting.groups.items():
        mean, name = setting.mean(measure), f"{setting.label}: people at {group}"
        cells = _cells({study.measure: setting.metrics[measure]}, shown)
        rows.append((mean, Row(name, cells, _gap(study, mean), setting.protects, baseline=False, better=False)))
    return rows


def _cells(numbers: dict[str, list[float]], shown: list[str]) -> list[str]:
    """Return the mean of each metric, and ± its standard deviation unless that is 0; empty if there is no number."""
    texts = {name: f"{fmean(values):.3f}" for name, values in numbers.items()}
    texts |= {name: f"{texts[name]} ± {spread(values):.3f}" for name, values in numbers.items() if spread(values)}
    return [texts.get(name, "") for name in shown]


def _gap(study: Study, mean: float) -> str:
    """Return the difference from the best baseline with three decimals and its sign, or "0.000" if it rounds to 0."""
    text = f"{mean - study.baseline(study.best_baseline):+.3f}"
    return text if float(text) else "0.000"


def baseline_name(name: str) -> str:
    """Return the name under which a baseline is shown, such as "bias model" for "bias"."""
    return NAMES.get(name, name.replace("_", " "))


def baseline_lines(study: Study) -> dict[str, float]:
    """Return the study's metric of each baseline by the name under which it is shown, in ascending order."""
    return {baseline_name(name): study.baseline(name) for name in sorted(study.baselines, key=study.baseline)}


def verdict(study: Study) -> str:
    """Return sentences that compare the settings with the best baseline."""
    name, best = study.measure.upper(), baseline_name(study.best_baseline)
    strength = f"{name} {study.baseline(study.best_baseline):.3f}"
    said = [f"The best non-personal baseline is the {best}: {strength}."]
    said += [f"{setting.label}: {_against(study, setting)}." for setting in study.settings if not setting.private]
    private = sorted((setting for setting in study.settings if setting.private), key=study.gain)
    if private:
        winners = sum(study.beats(setting) for setting in private)
        if len(private) == 1:
            start, which = f"The private setting {'beats' if winners else 'does not beat'}", "it"
        else:
            beats = "beats" if winners < 2 else "beat"
            start = f"Of {len(private)} private settings {winners or 'none'} {beats}"
            which = f"the best of them, {private[-1].label},"
        said.append(f"{start} the {best}: {which} {_against(study, private[-1])}.")
    return " ".join(said)


def _against(study: Study, setting: Setting) -> str:
    """Return the end of a sentence that compares a setting with the best baseline, such as "wins by 0.008 (0.920)"."""
    gain = study.gain(setting)
    return f"{'wins' if gain > 0 else 'loses'} by {abs(gain):.3f} ({setting.mean(study.measure):.3f})"
