"""Comparison of recommenders: `grid` trains many settings on the same splits, `compare` tests two for a difference."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import polars as pl

from hushrec.arrays import FloatArray, IntArray
from hushrec.data.frames import is_pandas
from hushrec.data.ratings import Ratings
from hushrec.data.splits import Split, random_split
from hushrec.engines import Remark
from hushrec.errors import ParameterError
from hushrec.protocols import find_protocol
from hushrec.recommender import LOGGER, Frame, Recommender, Source, as_output, read_ratings
from hushrec.simulation.held_out import non_personal_metrics
from hushrec.simulation.settings import ModelSettings, flat, nested

CELLS = 1 << 22  # random numbers in memory at once
RESAMPLES = 10_000


def grid(
    data: Source,
    settings: Mapping[str, Sequence[Any]],
    *,
    splits: Iterable[Split] | None = None,
    **fixed: Unpack[ModelSettings],
) -> Frame:
    """Train a recommender with every combination of settings on every split; return the metrics as one tidy frame.

    `settings` maps names of settings to lists of values; `fixed` holds the settings that all combinations share.
    `splits` are made by functions of `hushrec.data` (`random_split`, `k_fold`, `time_split`, `leave_one_out`, …); by
    default one random fifth of the ratings, with seed 0, is held out.

    The frame has one row per combination and split, with the settings, a label, the metrics of `Recommender.measure`,
    what the protocol protects, and the training time in seconds; and one row per non-personal baseline and split, with
    null settings. If you choose settings by this frame, measure them again on other ratings, which none of the splits
    contains.
    """
    if not isinstance(settings, Mapping):
        raise ParameterError(
            f"settings must map names of settings to lists of values, got a {type(settings).__name__}. Write it as"
            ' {"epsilon": [1, 8]}.'
        )
    ratings, said = read_ratings(data), set[str]()
    cuts = [random_split(ratings.n_ratings, 0)] if splits is None else list(splits)
    for name, values in settings.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ParameterError(f"settings must hold a list of values for {name}, got a {type(values).__name__}.")
    combinations = [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]
    if not combinations:
        raise ParameterError("settings must hold at least one value for each name, got an empty list.")
    if not cuts:
        raise ParameterError("splits must hold at least one split, got none.")
    recommenders = [Recommender(**nested({**flat(fixed), **chosen})) for chosen in combinations]

    def remark(text: str) -> None:
        if text not in said:
            LOGGER.warning(text)
        said.add(text)

    rows: list[dict[str, Any]] = []
    for number, split in enumerate(cuts):
        train, test = ratings.rows(split.train), ratings.rows(split.test)
        for chosen, recommender in zip(combinations, recommenders, strict=True):
            rows.append(_row(recommender, chosen, number, train, test, remark))
        ranks = not any(recommender._fitted.predicts_ratings for recommender in recommenders)
        for name, metrics in non_personal_metrics(train, test, ranks=ranks).items():
            rows.append({"split": number, "label": name, "protects": "not personal", **metrics})
    order = [*settings, "split", "label"]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return as_output(frame.select(*order, pl.exclude(*order)), pandas=is_pandas(data))


def _row(
    recommender: Recommender, chosen: dict[str, Any], split: int, train: Ratings, test: Ratings, remark: Remark
) -> dict[str, Any]:
    started = time.perf_counter()
    fitted = recommender.fit(train, remark=remark)
    seconds = time.perf_counter() - started
    wording = find_protocol(fitted.record["protocol"]).wording
    return {
        **chosen,
        "split": split,
        "label": wording.label(fitted.budget),
        **fitted.measure(test),
        "protects": wording.protects(fitted.budget),
        "seconds": seconds,
    }


@dataclass(frozen=True)
class Comparison:
    """The difference between two recommenders on the same held-out ratings, with a 95 % interval and a p-value."""

    metric: str  # "rmse" or "auc"
    first: float  # the metric of the first recommender
    second: float
    difference: float  # `first` − `second`
    low: float  # lower end of the difference's 95 % interval, from bootstrap samples of people
    high: float  # its upper end
    p_value: float  # of a paired permutation test, which flips the signs of people's differences at random
    people: int  # number of people with a rating that both recommenders can be measured on

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.first:.4f} against {self.second:.4f}: {self.difference:+.4f}"
            f" [{self.low:+.4f}, {self.high:+.4f}] at 95 %, p = {self.p_value:.2g}, paired over {self.people} people"
        )


def compare(
    first: Recommender,
    second: Recommender,
    ratings: Source,
    y: npt.ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Test whether two fitted recommenders differ in accuracy on held-out ratings, paired by person; return the result.

    The metric is the RMSE, or the AUC for models that rank. People are resampled rather than ratings, because the
    ratings of one person are not independent; `seed` is that of the resampling. The result holds only for these two
    fitted models and these ratings: fitting them with another split or seed may give another result.
    """
    if first._fitted.predicts_ratings != second._fitted.predicts_ratings:
        raise ParameterError(
            "first and second must both be models that predict ratings, or both be models that rank, got one of each."
        )
    test = first._test_part(ratings, y)
    losses = np.stack([one._losses(test) for one in (first, second)])
    known = np.isfinite(losses).all(axis=0)
    people, who = np.unique(test.users[known], return_inverse=True)
    if len(people) < 2:
        raise ParameterError(
            f"ratings must hold at least 2 people for whom both recommenders can be measured, got {len(people)}."
        )
    sums = np.array([np.bincount(who, loss) for loss in losses[:, known]], dtype=np.float64)  # (2, n_people)
    counts = np.bincount(who).astype(np.float64)
    return _tested(sums, counts, first._fitted.predicts_ratings, resamples, np.random.default_rng(seed))


def _tested(
    sums: FloatArray, counts: FloatArray, is_error: bool, resamples: int, rng: np.random.Generator
) -> Comparison:
    """Return the result of a paired bootstrap and a paired permutation test.

    `sums` has the sum of losses of every person under both recommenders, `(2, n_people)`, and `counts` the number of
    ratings of every person. If `is_error`, losses are squared errors and the metric is the RMSE; otherwise losses are
    1 − AUC and the metric is the AUC. scipy.stats is not used, because for 6,000 people its `bootstrap` and
    `permutation_test` took three times as long.
    """

    def metric(total: FloatArray, number: FloatArray | float) -> FloatArray:
        return np.sqrt(total / number) if is_error else 1 - total / number

    gaps = sums[0] - sums[1]
    as_extreme, spread = 0, []
    block = max(1, CELLS // len(counts))
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        signs = rng.integers(0, 2, (size, len(counts))) * 2 - 1
        as_extreme += int(np.count_nonzero(np.abs(signs @ gaps) >= abs(gaps.sum()) * (1 - 1e-12)))
        drawn = _multiplicities(rng, size, len(counts))
        spread.append(metric(drawn @ sums[0], drawn @ counts) - metric(drawn @ sums[1], drawn @ counts))
    low, high = np.quantile(np.concatenate(spread), [0.025, 0.975])
    one, two = (float(metric(total, counts.sum())) for total in sums.sum(axis=1))
    p_value = (1 + as_extreme) / (1 + resamples)
    return Comparison("rmse" if is_error else "auc", one, two, one - two, float(low), float(high), p_value, len(counts))


def _multiplicities(rng: np.random.Generator, size: int, people: int) -> IntArray:
    """Return how often each person is drawn in each bootstrap sample, `(size, people)`."""
    drawn = rng.integers(0, people, (size, people)) + people * np.arange(size)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * people).reshape(size, people).astype(np.int64)
