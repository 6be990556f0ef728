"""The verdict on a run: whether it beats the best non-personal model, and what to try next."""

from typing import Any

from hushrec.protocols import find_protocol

Record = dict[str, Any]

HEADLINES = {"rmse": False, "auc": True}  # whether larger is better
NAMES = {"bias": "bias model", "popularity": "most popular items"}
STILL_LEARNING = 0.001  # relative improvement in the last tenth of the rounds
PAST_ITS_BEST = 0.002  # relative deterioration since the best round


def verdict(record: Record) -> str:
    """Return a comparison of the run with the best non-personal model, and advice; empty if nothing was measured."""
    measure = next((name for name in HEADLINES if name in record["metrics"]), None)
    if measure is None:
        return ""
    known = {name: metrics[measure] for name, metrics in record["baselines"].items() if measure in metrics}
    best = max(known, key=lambda name: known[name] if HEADLINES[measure] else -known[name])
    own, theirs, name = record["metrics"][measure], known[best], NAMES.get(best, best.replace("_", " "))
    wins = _gain(own, theirs, measure) > 0
    numbers = f"{measure.upper()} ({own:.3f} against {theirs:.3f}){_lists(record)}."
    if own == theirs:
        sentence = f"{record['protocol']} is as good as the {name} in {numbers}"
    else:
        how = "beats" if wins else "loses to"
        sentence = f"{record['protocol']} {how} the {name} by {abs(own - theirs):.3f} {numbers}"
    return f"{sentence} {_advice(record, measure, wins=wins, theirs=theirs)}".rstrip()


def _gain(own: float, theirs: float, measure: str) -> float:
    return own - theirs if HEADLINES[measure] else theirs - own


def _lists(record: Record) -> str:
    """Return a clause that compares the lists of a rating model with lists of the most popular items.

    Popularity by exact counts is not private. If the run released noisy counts, the clause also compares with
    popularity by the noisy counts.
    """
    own = record["metrics"].get("precision_at_10")
    exact, noisy = (
        record["baselines"].get(name, {}).get("precision_at_10") for name in ("popularity", "private_popularity")
    )
    if own is None or exact is None:
        return ""
    first = f"{_compared(own, exact)} the most popular items (precision@10 {own:.3f} against {exact:.3f})"
    second = "" if noisy is None else f" and {_compared(own, noisy)} those by its own noisy counts ({noisy:.3f})"
    return f"; its lists {first}{second}"


def _compared(own: float, theirs: float) -> str:
    """Return "beat", "lose to" or "are as good as" for two precisions, compared after rounding to three decimals."""
    difference = round(own, 3) - round(theirs, 3)
    return "beat" if difference > 0 else "lose to" if difference < 0 else "are as good as"


def _advice(record: Record, measure: str, *, wins: bool, theirs: float) -> str:
    """Return advice from the learning curve and the comparisons; empty if there is none.

    `measure` is "rmse" or "auc". `wins` says whether the run beats the best non-personal model in this metric, and
    `theirs` is the metric of that model.
    """
    if measure == "rmse" and theirs == 0:
        return (
            "There is nothing to predict: a model without taste knows every test rating. --model audience learns from"
            " which items were rated."
        )
    values = [point[measure] for point in record["curve"]]
    best = max(values) if HEADLINES[measure] else min(values)
    before = values[-1 - len(values) // 10]
    chooses_rounds = any(option.name == "rounds" for option in find_protocol(record["protocol"]).options)
    if chooses_rounds and record["patience"] is None and abs(values[-1] - best) > PAST_ITS_BEST * abs(best):
        return "It was better in an earlier round: try --patience 10."
    if len(values) >= 10 and _gain(values[-1], before, measure) > STILL_LEARNING * abs(before):
        return f"It was still learning: try --rounds {2 * record['rounds']}."
    open_runs = [found for name, found in record["comparisons"].items() if not find_protocol(name).is_private]
    if wins:
        return ""
    if not open_runs or measure not in open_runs[0]:
        return _advice_on_noise(record)
    reached = open_runs[0][measure]
    if _gain(reached, theirs, measure) > 0:
        return f"Without privacy it would win ({reached:.3f}): more people or ratings make privacy cheaper."
    return f"Without privacy it loses too ({reached:.3f}): on this data a personal model needs more ratings."


def _advice_on_noise(record: Record) -> str:
    """Return advice for a losing run without a non-private comparison: how to find out whether noise is the cause."""
    epsilon = record.get("budget", {}).get("epsilon")
    if find_protocol(record["protocol"]).compared_with or epsilon is None:
        return ""
    if float(epsilon) == float("inf"):
        return "The run has no noise: on this data a personal model needs more ratings, or attributes of the items."
    return (
        "Try --epsilon inf. If that wins, noise is the cause, and more people reduce its effect. If not, a personal"
        " model needs more ratings, or attributes of the items."
    )
