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
    """One row of the table of a study: a setting, a baseline or a peer.

    `values` holds one cell per metric. `gap` is the difference from the best baseline; for errors, a negative gap is
    better. `protects` says what the budget protects, `baseline` whether the row is a baseline or a peer, and `better`
    whether a setting beats the best baseline.
    """

    name: str
    values: list[str]
    gap: str
    protects: str
    baseline: bool
    better: bool


def measures(study: Study) -> list[str]:
    """Return the names of the metrics that all settings of the study have.

    If every setting diverged, return those that all baselines have. Metrics of single budget groups are left out.
    """
    tables = [setting.metrics for setting in study.settings] or list(study.baselines.values())
    groups = {group.measure for setting in study.settings for group in setting.groups}
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
    """Return the row of a baseline; the cell of a metric that the baseline does not have is empty.

    `numbers` holds the metrics by name, with one number per split, and `shown` the names of the metrics to show.
    """
    values = [_mean_with_spread(numbers.get(measure)) for measure in shown]
    return Row(baseline_name(name), values, gap, "not a personal model", baseline=True, better=False)


def _mean_with_spread(numbers: list[float] | None) -> str:
    return "" if numbers is None else with_spread(fmean(numbers), spread(numbers))


def _peer_row(study: Study, name: str, shown: list[str]) -> Row:
    numbers = study.peers[name]
    values = [_mean_with_spread(numbers.get(measure)) for measure in shown]
    gap = fmean(numbers[study.measure]) - study.baseline(study.best_baseline)
    return Row(name, values, f"{gap:+.3f}", "nothing: all ratings in one place", baseline=True, better=False)


def _group_rows(study: Study, setting: Setting, shown: list[str]) -> list[tuple[float, Row]]:
    """Return the error and the row of each budget group of a setting; empty without groups."""
    rows = []
    for group in setting.groups:
        mean = setting.mean(group.measure)
        own = with_spread(mean, setting.spread(group.measure))
        values = [own if measure == study.measure else "" for measure in shown]
        gap = signed(mean - study.baseline(study.best_baseline))
        name = f"{setting.label}: people at {group.name}"
        rows.append((mean, Row(name, values, gap, setting.protects, baseline=False, better=False)))
    return rows


def baseline_name(name: str) -> str:
    """Return the name under which a baseline is shown, such as "bias model" for "bias"."""
    return NAMES.get(name, name.replace("_", " "))


def signed(gap: float) -> str:
    """Return a difference with three decimals and its sign, or "0.000" if it rounds to 0."""
    text = f"{gap:+.3f}"
    return text if float(text) else "0.000"


def with_spread(mean: float, spread: float) -> str:
    """Return the mean with three decimals, followed by ± and the standard deviation unless that is 0."""
    return f"{mean:.3f} ± {spread:.3f}" if spread else f"{mean:.3f}"


def verdict(study: Study) -> str:
    """Return sentences that compare the settings with the best baseline."""
    name, best = study.measure.upper(), baseline_name(study.best_baseline)
    strength = f"{name} {study.baseline(study.best_baseline):.3f}"
    said = [f"The best non-personal baseline is the {best}: {strength}."]
    said += [f"{setting.label}: {_against(study, setting)}." for setting in study.settings if not setting.private]
    private = sorted((setting for setting in study.settings if setting.private), key=study.gain)
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


def _against(study: Study, setting: Setting) -> str:
    """Return the end of a sentence that compares a setting with the best baseline, such as "wins by 0.008 (0.920)"."""
    gain = study.gain(setting)
    return f"{'wins' if gain > 0 else 'loses'} by {abs(gain):.3f} ({setting.mean(study.measure):.3f})"
