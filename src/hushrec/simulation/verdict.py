"""The verdict on a run: whether it beats the best non-personal model, and what to try next."""

from typing import Any

from hushrec.evaluate import LARGER_IS_BETTER, gain
from hushrec.protocols import find_protocol

Record = dict[str, Any]

NAMES = {"bias": "bias model", "popularity": "most popular items", "random": "random order"}
LIST_METRICS = {"precision_at_10": "precision@10", "hr_at_10": "HR@10"}
STILL_LEARNING = 0.001  # relative improvement in the last tenth of the rounds
PAST_ITS_BEST = 0.002  # relative deterioration since the best round
TOO_LARGE_FOR_EQUAL = 0.02  # relative difference above which models are not called equal, even if chance explains it
FEW_TESTS = 100  # with fewer test ratings, no two models are called equal


def verdict(record: Record) -> str:
    """Return a comparison of the run with the best non-personal model, and advice; empty if nothing was measured.

    The record's entry "within_chance" names, for each baseline, the metrics in which chance may explain the difference
    between the run and the baseline.
    """
    measure = next((name for name in LARGER_IS_BETTER if name in record["metrics"]), None)
    if measure is None:
        return ""
    known = {name: metrics[measure] for name, metrics in record["baselines"].items() if measure in metrics}
    best = max(known, key=lambda name: known[name] if LARGER_IS_BETTER[measure] else -known[name])
    own, theirs, name = record["metrics"][measure], known[best], NAMES.get(best, best.replace("_", " "))
    outcome = _outcome(record, best, measure)
    numbers = f"{measure.upper()} ({own:.3f} against {theirs:.3f}){_lists(record)}."
    if outcome == 0 and (_has_few_tests(record) or abs(own - theirs) > TOO_LARGE_FOR_EQUAL * abs(theirs)):
        return (
            f"the test part{_size(record, measure)} is too small to tell {record['protocol']} from the {name} in"
            f" {numbers} Measure with more ratings, or over several splits (--split-seed)."
        )
    if outcome == 0:
        sentence = f"{record['protocol']} is about as accurate as the {name} in {numbers}"
    else:
        how = "beats" if outcome > 0 else "loses to"
        sentence = f"{record['protocol']} {how} the {name} by {abs(own - theirs):.3f} {numbers}"
    return f"{sentence} {_advice(record, measure, loses=outcome < 0, theirs=theirs)}".rstrip()


def _outcome(record: Record, baseline: str, measure: str) -> int:
    """Return 1 if the run is better than a baseline in a metric, −1 if it is worse, and 0 if they are about as good.

    They are about as good if chance explains the difference, or if it is 0 after rounding both to three decimals.
    """
    own, theirs = round(record["metrics"][measure], 3), round(record["baselines"][baseline][measure], 3)
    if own == theirs or measure in record.get("within_chance", {}).get(baseline, []):
        return 0
    return 1 if (own > theirs) == LARGER_IS_BETTER.get(measure, True) else -1


def _has_few_tests(record: Record) -> bool:
    return bool(record.get("data", {}).get("test", FEW_TESTS) < FEW_TESTS)


def _size(record: Record, measure: str) -> str:
    """Return the size of the test part as a phrase; empty if the record has none."""
    count = record.get("data", {}).get("test")
    noun = "rating" if measure == "rmse" else "item"
    return "" if count is None else f" of {count:,} {noun}{'' if count == 1 else 's'}"


def _lists(record: Record) -> str:
    """Return a clause that compares the run's lists of ten items with lists of the most popular items.

    The metric is the precision for a rating model, and the hit rate for a model that ranks. Popularity by exact counts
    is not private. If the run released noisy counts, the clause also compares with popularity by the noisy counts.
    """
    own, baselines = record["metrics"], record["baselines"]
    measure = next((name for name in LIST_METRICS if name in own), "")
    if measure not in baselines.get("popularity", {}):
        return ""
    how = {1: "beat", -1: "lose to", 0: "cannot be told from" if _has_few_tests(record) else "are about as good as"}
    numbers = f"{LIST_METRICS[measure]} {own[measure]:.3f} against {baselines['popularity'][measure]:.3f}"
    clause = f"; its lists {how[_outcome(record, 'popularity', measure)]} the most popular items ({numbers})"
    if measure in baselines.get("private_popularity", {}):
        noisy = f"those by its own noisy counts ({baselines['private_popularity'][measure]:.3f})"
        clause += f" and {how[_outcome(record, 'private_popularity', measure)]} {noisy}"
    return clause


def _advice(record: Record, measure: str, *, loses: bool, theirs: float) -> str:
    """Return advice from the learning curve and the comparisons; empty if there is none.

    `measure` is "rmse" or "auc". `loses` says whether the best non-personal model beats the run in this metric, and
    `theirs` is the metric of that model.
    """
    if measure == "rmse" and theirs == 0:
        return (
            "There is nothing to predict: a model without taste knows every test rating. --model audience learns from"
            " which items were rated."
        )
    values = [point[measure] for point in record["curve"]]
    best = max(values) if LARGER_IS_BETTER[measure] else min(values)
    before = values[-1 - len(values) // 10]
    chooses_rounds = any(option.name == "rounds" for option in find_protocol(record["protocol"]).options)
    if chooses_rounds and record["patience"] is None and abs(values[-1] - best) > PAST_ITS_BEST * abs(best):
        return "It was better in an earlier round: try --patience 10."
    if len(values) >= 10 and gain(values[-1], before, measure) > STILL_LEARNING * abs(before):
        return f"It was still learning: try --rounds {2 * record['rounds']}."
    open_runs = [found for name, found in record["comparisons"].items() if not find_protocol(name).is_private]
    if not loses:
        return ""
    if not open_runs or measure not in open_runs[0]:
        return _advice_on_noise(record)
    reached = open_runs[0][measure]
    if gain(reached, theirs, measure) > 0:
        return f"Without privacy it would win ({reached:.3f}): more people or ratings make privacy cheaper."
    return f"Without privacy it loses too ({reached:.3f}): on this data a personal model needs more ratings."


def _advice_on_noise(record: Record) -> str:
    """Return advice for a run that loses, and that was not compared with a run without privacy.

    The advice says how to find out whether the budget is the cause and, if not, what may help. A run with ε = ∞ may
    have another plan of rounds, too, which also follows from the budget. The advice is empty if `train` can compare
    this protocol with others, or if the budget has no ε.
    """
    epsilon = record.get("budget", {}).get("epsilon")
    if find_protocol(record["protocol"]).compared_with or epsilon is None:
        return ""
    reading = record.get("reading")
    remedy = "more ratings may help"
    if record.get("attributes") == 0:
        remedy = "more ratings, or attributes of the items (--items), may help"
    elif record.get("attributes") and (reading is None or "items" in reading):
        remedy = "try it without --items, or with more ratings"
    if float(epsilon) == float("inf"):
        return f"The run has no noise: {remedy}."
    return (
        "Try --epsilon inf: if that wins, the privacy budget is the cause, and more people or a larger epsilon may"
        f" help. If not, {remedy}."
    )
