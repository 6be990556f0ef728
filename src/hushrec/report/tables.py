"""A study as rows of text, for a terminal or a page."""

from dataclasses import dataclass
from statistics import fmean, stdev

from hushrec.report.studies import Setting, Study

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
    """One line of the table. `gap` is to the best baseline: below 0 is better for errors, above for AUC."""

    name: str
    values: list[str]
    gap: str
    protects: str
    baseline: bool
    better: bool


def measures(study: Study) -> list[str]:
    """Return the measures that every setting of the study has, or every baseline where no setting ended well."""
    tables = [setting.metrics for setting in study.settings] or list(study.baselines.values())
    groups = {group.measure for setting in study.settings for group in setting.groups}
    return [name for name in tables[0] if name not in groups and all(name in table for table in tables)]


SHORT = {"precision_at_10": "Prec@10", "recall_at_10": "Recall@10", "ndcg_at_10": "NDCG@10", "hr_at_10": "HR@10"}
ON_A_TERMINAL = ("rmse", "mae", "precision_at_10", "auc", "hr_at_10", "ndcg_at_10")


def measure_name(measure: str) -> str:
    """Return what a measure is called above a column."""
    return SHORT.get(measure, measure.upper())


def terminal_measures(study: Study) -> list[str]:
    """At most three of the measures: what eighty columns hold."""
    return [name for name in measures(study) if name in ON_A_TERMINAL][:3]


def study_rows(study: Study, shown: list[str] | None = None) -> list[Row]:
    """Return the rows of settings and baselines together, best first.

    Settings with a run that diverged come last. `shown` are the measures, all of the study's unless given.
    """
    shown = measures(study) if shown is None else shown
    rows = [(setting.mean(study.measure), _setting_row(study, setting, shown)) for setting in study.settings]
    rows += [row for setting in study.settings for row in _group_rows(study, setting, shown)]
    rows += [(study.baseline(name), _baseline_row(study, name, shown)) for name in study.baselines]
    rows += [(fmean(numbers[study.measure]), _peer_row(study, name, shown)) for name, numbers in study.peers.items()]
    ordered = [row for _, row in sorted(rows, key=lambda pair: -pair[0] if study.larger_is_better else pair[0])]
    ordered += [_numbers_row(study.of_lists[name], name, shown, "") for name in study.of_lists]
    return ordered + [_diverged_row(setting, shown) for setting in study.diverged]


def _setting_row(study: Study, setting: Setting, shown: list[str]) -> Row:
    gap = setting.mean(study.measure) - study.baseline(study.best_baseline)
    values = [with_spread(setting.mean(name), setting.spread(name)) for name in shown]
    return Row(setting.label, values, signed(gap), setting.protects, baseline=False, better=study.beats(setting))


def _diverged_row(setting: Setting, shown: list[str]) -> Row:
    return Row(setting.label, ["diverged"] * len(shown), "", setting.protects, baseline=False, better=False)


def _baseline_row(study: Study, name: str, shown: list[str]) -> Row:
    gap = study.baseline(name) - study.baseline(study.best_baseline)
    return _numbers_row(study.baselines[name], name, shown, signed(gap))


def _numbers_row(numbers: dict[str, list[float]], name: str, shown: list[str], gap: str) -> Row:
    """Return a baseline's row, with a cell for every measure that it has."""
    values = [_mean_with_spread(numbers.get(measure)) for measure in shown]
    return Row(baseline_name(name), values, gap, "not a personal model", baseline=True, better=False)


def _mean_with_spread(numbers: list[float] | None) -> str:
    return "" if numbers is None else with_spread(fmean(numbers), _spread(numbers))


def _peer_row(study: Study, name: str, shown: list[str]) -> Row:
    numbers = study.peers[name]
    values = [_mean_with_spread(numbers.get(measure)) for measure in shown]
    gap = fmean(numbers[study.measure]) - study.baseline(study.best_baseline)
    return Row(name, values, f"{gap:+.3f}", "nothing: all ratings in one place", baseline=True, better=False)


def _group_rows(study: Study, setting: Setting, shown: list[str]) -> list[tuple[float, Row]]:
    """Return the people of each budget, where budgets differ within one training: their own error."""
    rows = []
    for group in setting.groups:
        mean = setting.mean(group.measure)
        own = with_spread(mean, setting.spread(group.measure))
        values = [own if measure == study.measure else "" for measure in shown]
        gap = signed(mean - study.baseline(study.best_baseline))
        name = f"{setting.label}: people at {group.name}"
        rows.append((mean, Row(name, values, gap, setting.protects, baseline=False, better=False)))
    return rows


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def baseline_name(name: str) -> str:
    """Return what a baseline is called in front of people."""
    return NAMES.get(name, name.replace("_", " "))


def signed(gap: float) -> str:
    """Return a difference with its sign, without one where it rounds to 0."""
    text = f"{gap:+.3f}"
    return text if float(text) else "0.000"


def with_spread(mean: float, spread: float) -> str:
    """Return the mean, and where there are several seeds the standard deviation."""
    return f"{mean:.3f} ± {spread:.3f}" if spread else f"{mean:.3f}"


def verdict(study: Study) -> str:
    """Return what the table says: who beats the best model that knows no person's taste, and by how much."""
    name, best = study.measure.upper(), baseline_name(study.best_baseline)
    strength = f"{name} {study.baseline(study.best_baseline):.3f}"
    said = [f"The bar is the {best}, which knows no person's taste: {strength}."]
    said += [f"{setting.label}: {_against(study, setting)}." for setting in study.settings if not setting.private]
    private = sorted((setting for setting in study.settings if setting.private), key=lambda one: _gain(study, one))
    if private:
        winners = sum(study.beats(setting) for setting in private)
        count = (
            "The private setting" if len(private) == 1 else f"Of {len(private)} private settings {winners or 'none'}"
        )
        beats = "does not beat" if len(private) == 1 and not winners else "beats" if winners < 2 else "beat"
        best_one = private[-1]
        which = "it" if len(private) == 1 else f"the best of them, {best_one.label},"
        said.append(f"{count} {beats} the {best}: {which} {_against(study, best_one)}.")
    return " ".join(said)


def _gain(study: Study, setting: Setting) -> float:
    """By how much a setting is better than the best baseline; below 0 where it is worse."""
    difference = setting.mean(study.measure) - study.baseline(study.best_baseline)
    return difference if study.larger_is_better else -difference


def _against(study: Study, setting: Setting) -> str:
    """Return half a sentence, such as "beats it by 0.008 with 0.920"."""
    gain = _gain(study, setting)
    how = "wins" if gain > 0 else "loses"
    return f"{how} by {abs(gain):.3f} ({setting.mean(study.measure):.3f})"
