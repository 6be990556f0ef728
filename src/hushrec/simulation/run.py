"""One training run: its training problem and engine, its learning curve, its checkpoints, and its record."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.data.ratings import Ratings
from hushrec.data.splits import cold_counts
from hushrec.engines import Engine, Remark, make_engine, run_round
from hushrec.errors import Diverged, HushrecError, LocalProtocolError, ParameterError, RunError
from hushrec.files import check_free, reserved
from hushrec.json_values import to_json
from hushrec.models.predictor import Predictor
from hushrec.protocols import protocols_of
from hushrec.scale import Scale
from hushrec.simulation.checkpoints import (
    Checkpoint,
    checkpoint_files,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from hushrec.simulation.results import Result
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import LIKED, Measured, Task
from hushrec.simulation.training_problem import AnyProblem, make_problem
from hushrec.simulation.verdict import verdict

Progress = Callable[[str, int, int, float], None]  # protocol, round, rounds, test RMSE or AUC so far

CHECKPOINT_EVERY = 10  # rounds
SMALLER = 4.0  # a run that diverged starts again with its step divided by this
MOST_TRIES = 6
LOOKED_AT = 4096  # training ratings whose predictions must be finite if nothing is held out


@dataclass(frozen=True)
class Keep:
    """Where and how often a run writes checkpoints, and whether it continues from one."""

    folder: str | Path | None = None  # where checkpoints are written; None writes none
    every: int = CHECKPOINT_EVERY  # rounds between two checkpoints
    resume: bool = False  # whether to continue from the checkpoints in the folder

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ParameterError(f"checkpoint_every must be at least 1 round, got {self.every}.")
        if self.resume and self.folder is None:
            raise ParameterError("`resume` needs `out`, the folder of the run to resume, got none. Give --out.")

    @contextmanager
    def folder_for(self, run: "Run") -> Iterator[None]:
        """Reserve the folder while the run trains; raise `RunError` if it cannot be used.

        The folder must be new or empty or, to resume, belong to an unfinished run with the same data and settings.
        """
        if self.folder is None:
            yield
            return
        resumes = self.resume and bool(checkpoint_files(self.folder))
        if self.resume and not resumes and (Path(self.folder) / "run.json").is_file():
            raise RunError(
                f"the run in {self.folder} must be unfinished to be resumed, but is finished. Choose another folder."
            )
        if not resumes:
            check_free(self.folder)
        with reserved(self.folder):
            for path in checkpoint_files(self.folder):
                checkpoint = load_checkpoint(path) if path.suffix == ".npz" else None
                if checkpoint is not None:
                    checkpoint.check(run.asked.as_record(), run.data_checksum)
            if not resumes:
                check_free(self.folder)  # another process may have used it since the first check
            yield

    def restore(self, run: "Run") -> None:
        """Restore a run from its checkpoint, if `resume` is set and a checkpoint exists."""
        if self.folder is None or not self.resume:
            return
        path = checkpoint_path(self.folder, run.settings.protocol)
        checkpoint = load_checkpoint(path)
        if checkpoint is None:
            return
        try:
            run.begin_again(checkpoint.tried)
            run.engine.restore(checkpoint.state)
            best_round, rounds = 0, run.engine.round_number
            if run.validation is not None:
                run.best = Best(**checkpoint.patience, predictor=run.engine.predictor_from(checkpoint.best))
                best_round = run.best.round_number
            if not 0 < rounds == len(checkpoint.curve) <= run.rounds or best_round > rounds:
                raise ValueError
        except (KeyError, ValueError, TypeError, HushrecError):
            raise RunError(
                f"checkpoint {path} must hold arrays and round numbers that fit this run, but does not. Remove it and"
                " start again."
            ) from None
        run.curve, run.seconds = checkpoint.curve, checkpoint.seconds

    def save(self, run: "Run", *, now: bool) -> None:
        """Write a checkpoint if the round number is a multiple of `every`, or if `now` is True."""
        if self.folder is None or (run.engine.round_number % self.every and not now):
            return
        best = {} if run.best is None else vars(run.best)
        checkpoint = Checkpoint(
            settings=run.asked.as_record(),
            data=run.data_checksum,
            curve=run.curve,
            patience={name: value for name, value in best.items() if name != "predictor"},
            seconds=run.seconds,
            tried=run.tried,
            state=run.engine.state(),
            best={} if run.best is None else run.best.predictor.arrays(),
        )
        save_checkpoint(checkpoint_path(self.folder, run.settings.protocol), checkpoint)

    def forget(self, run: "Run") -> None:
        if self.folder is not None:
            checkpoint_path(self.folder, run.settings.protocol).unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Best:
    """The model after the round with the best validation metric, and its metrics on the test part."""

    round_number: int
    cost: float  # the RMSE on the validation part, or the negated AUC of a ranking
    metrics: dict[str, float]
    predictor: Predictor = field(repr=False)


class Run:
    """A training run: its task, its engine, and its learning curve."""

    def __init__(
        self,
        ratings: Ratings,
        settings: Settings,
        *,
        keep: Keep | None = None,
        remark: Remark | None = None,
        asked: Settings | None = None,
    ) -> None:
        self.ratings = settings.among_items(ratings)
        self.settings = settings
        self.asked = settings if asked is None else asked  # of a comparison: the settings of the main run
        self.keep = Keep() if keep is None else keep
        self.remark = remark
        self.task = settings.make_task(ratings)
        self.validation = None if settings.patience is None else self.task.validation(settings.split_seed)
        self._step_is_given = "step" in settings.given
        self.tried: list[dict[str, float]] = []  # larger steps at which this run diverged
        self._begin()

    def _begin(self) -> None:
        problem = task_problem(self.validation or self.task, self.settings)
        self.engine = make_engine(self.settings.chosen_engine, problem, remark=self.remark)
        self.curve: list[dict[str, float]] = []
        self.best: Best | None = None  # set if there is a validation part
        self.seconds = 0.0

    def begin_again(self, tried: list[dict[str, float]]) -> None:
        """Restart the run with a smaller step size than the last one in `tried`; do nothing if `tried` is empty.

        Each entry of `tried` has a step size with which the run diverged ("step"), and in which round ("round").
        """
        if tried:
            self.tried = tried
            self.settings = self.settings.replace(step=tried[-1]["step"] / SMALLER)
            self._begin()

    @property
    def rounds(self) -> int:
        """The planned number of rounds: the option `rounds` or, under `masked`, the length of the plan."""
        return int(self.engine.problem.terms.max_rounds)

    def train(self, progress: Progress | None) -> None:
        """Run all rounds, or until early stopping, and measure after each round.

        A run that diverges starts again with a smaller step size, at most `MOST_TRIES` times. `Diverged` is raised if
        it still diverges. It is raised at once if the user has set `step`, or if the model has no such option.
        """
        self.keep.restore(self)
        while True:
            try:
                self._run_rounds(progress)
                return
            except Diverged:
                step = self.settings.options.get("step")
                if step is None or self._step_is_given:
                    raise
                if len(self.tried) == MOST_TRIES:
                    raise self._diverged_at_every(step) from None
                if self.remark is not None:
                    self.remark(
                        f"training with {self.settings.protocol} diverged in round {self.engine.round_number + 1} at"
                        f" step {step:g}; beginning again at step {step / SMALLER:g}."
                    )
                self.keep.forget(self)
                self.begin_again([*self.tried, {"step": step, "round": self.engine.round_number + 1}])

    def _diverged_at_every(self, step: float) -> Diverged:
        advice = self.engine.problem.protocol(0).divergence_advice or "give more ratings per item"
        return Diverged(
            f"training with {self.settings.protocol} diverged at every step from {self.tried[0]['step']:g} down to"
            f" {step:g}. {advice.capitalize()}."
        )

    def _run_rounds(self, progress: Progress | None) -> None:
        try:
            while not self.is_over:
                headline = self._run_one_round()
                self.keep.save(self, now=self.is_over)
                if progress is not None:
                    progress(self.settings.protocol, self.engine.round_number, self.rounds, headline)
        except KeyboardInterrupt:
            if 0 < len(self.curve) == self.engine.round_number:
                with suppress(LocalProtocolError):  # the engine is in the middle of a round, and has no complete state
                    self.keep.save(self, now=True)
            raise

    def _run_one_round(self) -> float:
        """Run one round, measure the model, and return the main metric: RMSE or AUC, or NaN if nothing is held out.

        With a validation part, the model is kept if it is the best so far on that part.
        """
        self.seconds += timed_round(self.engine)
        name, found = self.task.headline, measure(self.task, self.engine)
        if self.validation is not None:
            reached = measure(self.validation, self.engine)[name]
            cost = -reached if self.validation.scale is None else reached  # a larger AUC is better
            if self.best is None or cost < self.best.cost:
                self.best = Best(self.engine.round_number, cost, found, self.engine.predictor())
        self.curve.append({"round": self.engine.round_number} | ({name: found[name]} if name in found else {}))
        return found.get(name, math.nan)

    @property
    def is_over(self) -> bool:
        """Whether all rounds have run, or the validation metric has not improved for `patience` rounds."""
        waited = 0 if self.best is None else self.engine.round_number - self.best.round_number
        patience = math.inf if self.settings.patience is None else self.settings.patience
        return self.engine.round_number >= self.rounds or waited >= patience

    def compare(self, progress: Progress | None) -> dict[str, dict[str, Any]]:
        """Train the protocols that this run is compared with, on the same split.

        Return metrics, "step" (the step size) and "budget" of each, by protocol. If one of them diverges, all its
        metrics are None, and its entry "diverged" has the error message.
        """
        comparisons: dict[str, dict[str, Any]] = {}
        for protocol in self.settings.declared.compared_with:
            if protocol not in protocols_of(self.settings.model):
                continue
            beside = self.asked.compared_with(protocol)
            other = Run(self.ratings, beside, keep=self.keep, remark=self.remark, asked=self.asked)
            try:
                other.train(progress)
                found = {**other.metrics(), "step": other.settings.options.get("step"), "budget": other.budget()}
            except Diverged as error:
                found = dict.fromkeys(self.metrics()) | {"budget": other.budget(), "diverged": str(error)}
            comparisons[protocol] = found
        return comparisons

    @property
    def data_checksum(self) -> str:
        """A hash of the ratings and, if the model uses them, of the items' attributes."""
        attributes = getattr(self.engine.problem.model, "attributes", None)
        if attributes is None:
            return self.ratings.checksum
        return hashlib.sha256(self.ratings.checksum.encode() + attributes.tobytes()).hexdigest()

    def predictor(self) -> Predictor:
        """Return the predictor of the best round on the validation part or, without that part, of the last round."""
        return self.engine.predictor() if self.best is None else self.best.predictor

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the trained model on the test part; empty if nothing is held out.

        For a rating model they are the errors of its predictions, and precision, recall and NDCG of its lists.
        """
        found = measure(self.task, self.engine) if self.best is None else self.best.metrics
        return found | (self.task.list_metrics(self.predictor()) if found else {})

    def budget(self) -> dict[str, Any]:
        """Return the privacy budget spent by all rounds so far, including those after the best round."""
        return self.engine.problem.budget(self.engine.round_number, self.engine.losses())

    def result(self, comparisons: dict[str, dict[str, Any]], *, interrupted: bool, seconds_in_all: float) -> Result:
        """Return the run's result.

        `comparisons` is what `compare` returned. `interrupted` says whether the user stopped the training early.
        `seconds_in_all` includes the time of measurements and comparisons.
        """
        engine, settings, ratings, predictor = self.engine, self.settings, self.ratings, self.predictor()
        split, scale = self.task.split, self.task.scale
        held_out = 0 if self.validation is None else len(self.validation.split.test)
        cold_users, cold_items = cold_counts(self.task.ratings, split)
        metrics: dict[str, float] = {}
        baselines: dict[str, Measured] = {}
        within_chance: dict[str, list[str]] = {}
        if not settings.final:
            own = self.task.measured(predictor)
            baselines = self.task.measured_baselines() | self.task.released_baselines(predictor.released_support())
            within_chance = {name: own.within_chance(other) for name, other in baselines.items()}
            metrics = own.metrics
        data = {
            "users": ratings.n_users,
            "unlisted": ratings.n_unlisted,
            "public": 0 if ratings.public is None else len(ratings.public.items),
            "train": len(split.train) - held_out,
            "validation": held_out,
            "test": len(split.test),
            "rating_scale": None if ratings.scale is None else [ratings.scale.low, ratings.scale.high],
            "liked_from": None if scale is None else float(scale.from_unit(LIKED)),
            "cold_users": cold_users,
            "cold_items": cold_items,
            "checksum": ratings.checksum,
        }
        record = make_record(
            settings,
            engine,
            ratings,
            scale,
            data,
            tried=self.tried,
            best_round=None if self.best is None else self.best.round_number,
            attributes=getattr(engine.problem.model, "n_attributes", None),
            metrics=metrics,
            curve=[] if settings.final else self.curve,
            baselines={name: other.metrics for name, other in baselines.items()},
            within_chance=within_chance,
            comparisons=comparisons,
            interrupted=interrupted,
            seconds=self.seconds,
            seconds_in_all=seconds_in_all,
        )
        return Result(record, ratings, predictor)


def make_record(
    settings: Settings, engine: Engine, ratings: Ratings, scale: Scale | None, data: dict[str, Any], **measured: Any
) -> dict[str, Any]:
    """Return the record of a run, with its verdict. The run's ratings may be in memory or on shards.

    `scale` is the scale of the predicted ratings, None for a model that ranks. The entries of `data` are added to the
    record's entry "data", those of `measured` to the record. `measured` must have at least "metrics", "curve",
    "baselines" and "seconds".
    """
    record = {
        "dataset": ratings.name,
        "reading": ratings.reading,
        "model": settings.model,
        "protocol": settings.protocol,
        "engine": settings.chosen_engine,
        "seed": settings.seed,
        "split_seed": settings.split_seed,
        "rounds": engine.round_number,
        **{name: settings.options.get(name) for name in ("factors", "step", "at_least", "order")},
        "tried": [],
        "final": settings.final,
        "settings": to_json(settings.chosen()),
        "patience": settings.patience,
        "best_round": None,
        "comparisons": {},
        "budget": engine.problem.budget(engine.round_number, engine.losses()),
        "data": {
            "items": ratings.n_items,
            "candidates": len(ratings.rated_items),
            "validation": 0,
            "scale": None if scale is None else [scale.low, scale.high],
            **data,
        },
        "interrupted": False,
        "seconds_per_round": measured["seconds"] / max(engine.round_number, 1),
        "bytes_per_client_round": engine.bytes_per_client_round(),
        **measured,
    }
    return {**record, "verdict": verdict(record)}


def timed_round(engine: Engine) -> float:
    """Run one round of the engine, and return how many seconds it took."""
    started = time.perf_counter()
    run_round(engine)
    return time.perf_counter() - started


def measure(task: Task, engine: Engine) -> dict[str, float]:
    """Return the engine's current metrics on a task's test part; raise `Diverged` if RMSE or AUC is not finite.

    If nothing is held out, the result is empty, and `Diverged` is raised if the predictions of the first `LOOKED_AT`
    training ratings are not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if len(task.split.test) == 0:
            users, items, _ = task.training()
            found = {}
            level = float(np.mean(engine.predictor().predict(users[:LOOKED_AT], items[:LOOKED_AT])))
        else:
            found = task.metrics(engine.predictor())
            level = found[task.headline]
    if not math.isfinite(level):
        raise engine.failure(engine.round_number)
    return found


def task_problem(task: Task, settings: Settings) -> AnyProblem:
    """Return the training problem for the training part of a task."""
    users, items, values = task.training()
    return make_problem(
        users,
        items,
        values,
        n_users=task.ratings.n_users,
        n_items=task.ratings.n_items,
        model=settings.make_model(task.ratings),
        protocols=[settings.make_protocol()],
        seed=settings.seed,
        **settings.options,
    )
