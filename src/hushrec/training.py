"""`hushrec.train`: from a data set and settings to a `Result` with its metrics, baselines and budget."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.data.splits import Split, cold_counts, random_split
from hushrec.engines import make_engine
from hushrec.errors import ParameterError
from hushrec.evaluate import rating_metrics
from hushrec.models import make_model
from hushrec.models.baselines import rating_baselines
from hushrec.problem import Problem, make_problem
from hushrec.protocols import DeviceProtocol, Isgld, Plain, Sdcf
from hushrec.randomness import FloatArray, IntArray
from hushrec.runs import Result, check_free, save
from hushrec.statement import budget_statement

Progress = Callable[[str, int, int, float], None]  # what is trained, round, rounds, test error so far

DEFAULT_EPSILON = 4.0

# The options that belong to one protocol alone.
USED_BY: dict[str, tuple[str, ...]] = {
    "plain": (),
    "isgld": ("epsilon", "clamp"),
    "sdcf": ("epsilon_i", "epsilon_p", "epsilon_g", "profile_cap", "reports_per_client", "epoch_rounds"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that defines a run besides its data. An option that the protocol does not use is refused.

    None means the default of the protocol in force: ε 4 for `isgld`; ε_I 4, ε_P 2 ε_I, ε_g 4 for `sdcf`.
    """

    model: str = "mf"
    protocol: str = "sdcf"
    epsilon: float | None = None
    clamp: bool | None = None
    epsilon_i: float | None = None
    epsilon_p: float | None = None
    epsilon_g: float | None = None
    profile_cap: int | None = None
    reports_per_client: float | None = None
    epoch_rounds: int | None = None
    factors: int = 50
    rounds: int = 100
    step: float = 0.4
    split_seed: int = 0
    seed: int = 0
    engine: str = "reference"

    def __post_init__(self) -> None:
        if self.protocol not in USED_BY:
            raise ParameterError(f"protocol must be one of {', '.join(USED_BY)}, got {self.protocol}.")
        for name in (name for names in USED_BY.values() for name in names):
            if getattr(self, name) is not None and name not in USED_BY[self.protocol]:
                raise ParameterError(f"protocol {self.protocol} does not use {name}. Leave it out.")

    def make_protocol(self) -> DeviceProtocol:
        """The protocol with its budgets, checked."""
        if self.protocol == "plain":
            return Plain()
        if self.protocol == "isgld":
            return Isgld(epsilon=_or(self.epsilon, DEFAULT_EPSILON), clamp=bool(self.clamp))
        epsilon_i = _or(self.epsilon_i, DEFAULT_EPSILON)
        return Sdcf(
            epsilon_i=epsilon_i,
            epsilon_p=_or(self.epsilon_p, 2 * epsilon_i),
            epsilon_g=_or(self.epsilon_g, DEFAULT_EPSILON),
            profile_cap=self.profile_cap,
        )

    def compared_with(self, protocol: str) -> "Settings":
        """The same run under a baseline protocol with its default budget."""
        own = set().union(*USED_BY.values())
        shared = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in own}
        return Settings(**{**shared, "protocol": protocol})


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def train(
    data: str | Path | Ratings,
    *,
    data_dir: str | Path | None = None,
    compare: bool = True,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Trains on a data set's training part and measures on its test part.

    `data` is a name, a path or `Ratings`; `settings` are the fields of `Settings`. With `compare`, a private run is
    set beside the non-private model and `isgld` on the same split. With `out`, the result is kept in that
    folder, after Ctrl-C too.
    """
    try:
        chosen = Settings(**settings)
    except TypeError as error:
        raise ParameterError(f"train does not know this setting: {str(error).split('argument ')[-1]}.") from None
    ratings = data if isinstance(data, Ratings) else load_ratings(data, data_dir=data_dir)
    run = Run(ratings, chosen)
    if out is not None:
        check_free(out)
    try:
        run.train(progress)
        comparisons = run.compare(progress) if compare and chosen.protocol != "plain" else {}
    except KeyboardInterrupt:
        if out is not None and run.engine.round_number:
            save(run.result({}, interrupted=True), out)
        raise
    result = run.result(comparisons, interrupted=False)
    if out is not None:
        save(result, out)
    return result


class Run:
    """One training run: the problem, its engine, and the curve so far."""

    def __init__(self, ratings: Ratings, settings: Settings) -> None:
        if ratings.values is None or ratings.scale is None:
            raise ParameterError("model mf learns from ratings with values; this file has none.")
        self.ratings = ratings
        self.scale = ratings.scale
        self.values = ratings.values
        self.settings = settings
        self.split = random_split(ratings.n_ratings, settings.split_seed)
        self.engine = make_engine(settings.engine, rating_problem(ratings, self.split, settings))
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0

    def train(self, progress: Progress | None) -> None:
        """Runs all rounds, measuring after each."""
        actual = self._test_values()
        for round_number in range(1, self.settings.rounds + 1):
            started = time.perf_counter()
            self.engine.run_round()
            self.seconds += time.perf_counter() - started
            metrics = rating_metrics(self.predict(*self._test_pairs()), actual)
            self.curve.append({"round": round_number, "rmse": metrics["rmse"]})
            if progress is not None:
                progress(self.settings.protocol, round_number, self.settings.rounds, metrics["rmse"])

    def compare(self, progress: Progress | None) -> dict[str, dict[str, Any]]:
        """The same run without privacy, and with the naive protocol, on the same split."""
        comparisons = {}
        for protocol in ("plain", "isgld"):
            if protocol != self.settings.protocol:
                other = Run(self.ratings, self.settings.compared_with(protocol))
                other.train(progress)
                comparisons[protocol] = {**other.metrics(), "budget": other.budget()}
        return comparisons

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        """Predicted ratings on the file's own scale, not clipped."""
        engine = self.engine
        unit = engine.problem.model.predict_pairs(engine.user_vectors, engine.item_vectors, users, items)
        return self.scale.from_unit(unit)

    def metrics(self) -> dict[str, float]:
        return rating_metrics(self.predict(*self._test_pairs()), self._test_values())

    def budget(self) -> dict[str, Any]:
        engine = self.engine
        return budget_statement(engine.problem, engine.round_number, engine.value_rho())

    def result(self, comparisons: dict[str, dict[str, Any]], *, interrupted: bool) -> Result:
        """Everything that is kept of a run."""
        engine, settings, ratings = self.engine, self.settings, self.ratings
        cold_users, cold_items = cold_counts(ratings, self.split)
        record = {
            "dataset": ratings.name,
            "model": settings.model,
            "protocol": settings.protocol,
            "engine": settings.engine,
            "seed": settings.seed,
            "split_seed": settings.split_seed,
            "rounds": engine.round_number,
            "factors": settings.factors,
            "step": settings.step,
            "metrics": self.metrics(),
            "curve": self.curve,
            "baselines": self._baselines(),
            "comparisons": comparisons,
            "budget": self.budget(),
            "data": {
                "users": ratings.n_users,
                "items": ratings.n_items,
                "train": len(self.split.train),
                "test": len(self.split.test),
                "scale": [self.scale.low, self.scale.high],
                "cold_users": cold_users,
                "cold_items": cold_items,
                "checksum": ratings.checksum,
            },
            "interrupted": interrupted,
            "seconds": self.seconds,
            "seconds_per_round": self.seconds / max(engine.round_number, 1),
            "bytes_per_client_round": engine.bytes_per_client_round(),
        }
        problem = engine.problem
        return Result(
            record=record,
            user_ids=ratings.user_ids,
            item_ids=ratings.item_ids,
            titles=ratings.titles,
            user_vectors=engine.user_vectors,
            item_vectors=engine.item_vectors,
            starts=problem.starts,
            rated_items=problem.items,
        )

    def _test_pairs(self) -> tuple[IntArray, IntArray]:
        return self.ratings.users[self.split.test], self.ratings.items[self.split.test]

    def _test_values(self) -> FloatArray:
        return self.values[self.split.test]

    def _baselines(self) -> dict[str, dict[str, float]]:
        ratings, rows = self.ratings, self.split.train
        fitted = rating_baselines(
            ratings.users[rows], ratings.items[rows], self.values[rows], ratings.n_users, ratings.n_items
        )
        pairs, actual = self._test_pairs(), self._test_values()
        return {name: rating_metrics(predict(*pairs), actual) for name, predict in fitted.items()}


def rating_problem(ratings: Ratings, split: Split, settings: Settings) -> Problem:
    """The training part as a problem: ratings mapped to 1 to 5, as every device does."""
    assert ratings.values is not None
    assert ratings.scale is not None
    rows = split.train
    return make_problem(
        ratings.users[rows],
        ratings.items[rows],
        ratings.scale.to_unit(ratings.values[rows]),
        n_users=ratings.n_users,
        n_items=ratings.n_items,
        model=make_model(settings.model, settings.factors),
        protocols=[settings.make_protocol()],
        rounds=settings.rounds,
        step=settings.step,
        reports_per_client=settings.reports_per_client,
        epoch_rounds=settings.epoch_rounds,
        seed=settings.seed,
    )
