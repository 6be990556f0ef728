"""One training run: its problem and engine, the curve so far, its checkpoints, and the record that is kept of it."""

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
from hushrec.models.predictor import Predictor
from hushrec.protocols import protocols_of
from hushrec.simulation.checkpoints import (
    Checkpoint,
    checkpoint_files,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from hushrec.simulation.lists import LIKED
from hushrec.simulation.results import Result, to_json
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import Task
from hushrec.simulation.training_problem import AnyProblem, make_problem
from hushrec.simulation.verdict import verdict

Progress = Callable[[str, int, int, float], None]  # what is trained, round, rounds, test RMSE or AUC so far

CHECKPOINT_EVERY = 10  # rounds
SMALLER = 4.0  # a run that diverged begins again with its step divided by this
MOST_TRIES = 6
LOOKED_AT = 4096  # training ratings whose predictions must be numbers where nothing is held out


@dataclass(frozen=True)
class Keep:
    """Whether, where and how often a run keeps checkpoints, and whether it starts from them."""

    folder: str | Path | None = None
    every: int = CHECKPOINT_EVERY
    resume: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ParameterError(f"checkpoint_every must be at least 1 round, got {self.every}.")
        if self.resume and self.folder is None:
            raise ParameterError("resume needs out, the folder of the run to go on with.")

    @contextmanager
    def folder_for(self, run: "Run") -> Iterator[None]:
        """Reserve the folder: a free one, or, to resume, that of a run with the same data and settings."""
        if self.folder is None:
            yield
            return
        resumes = self.resume and bool(checkpoint_files(self.folder))
        if self.resume and not resumes and (Path(self.folder) / "run.json").is_file():
            raise RunError(f"the run in {self.folder} is finished: there is nothing to resume. Choose another --out.")
        if not resumes:
            check_free(self.folder)
        with reserved(self.folder):
            for path in checkpoint_files(self.folder):
                checkpoint = load_checkpoint(path) if path.suffix == ".npz" else None
                if checkpoint is not None:
                    checkpoint.check(run.asked.as_record(), run.data_checksum)
            if not resumes:
                check_free(self.folder)  # which it may not have been any more
            yield

    def restore(self, run: "Run") -> None:
        """Restore a run from its checkpoint, if there is one and `resume` is set."""
        if self.folder is None or not self.resume:
            return
        path = checkpoint_path(self.folder, run.settings.protocol)
        checkpoint = load_checkpoint(path)
        if checkpoint is None:
            return
        try:
            run.begin_again(checkpoint.tried)
            run.engine.restore(checkpoint.state)
            best = _best_of(run, checkpoint)
        except (KeyError, ValueError, TypeError, HushrecError):
            raise RunError(
                f"checkpoint {path} is damaged: it does not fit this run. Remove it and start again."
            ) from None
        if not 0 < run.engine.round_number == len(checkpoint.curve) <= run.rounds:
            raise RunError(f"checkpoint {path} is damaged: its curve and its rounds differ. Remove it and start again.")
        run.curve, run.seconds, run.best = checkpoint.curve, checkpoint.seconds, best

    def save(self, run: "Run", *, now: bool) -> None:
        """Keep a checkpoint where one is due: after every so many rounds, or `now`."""
        if self.folder is None or (run.engine.round_number % self.every and not now):
            return
        checkpoint = Checkpoint(
            settings=run.asked.as_record(),
            data=run.data_checksum,
            curve=run.curve,
            patience={} if run.best is None else run.best.about(),
            seconds=run.seconds,
            tried=run.tried,
            state=run.engine.state(),
            best={} if run.best is None else run.best.predictor.arrays(),
        )
        save_checkpoint(checkpoint_path(self.folder, run.settings.protocol), checkpoint)

    def forget(self, run: "Run") -> None:
        """Remove the checkpoint of a run that diverged."""
        if self.folder is not None:
            checkpoint_path(self.folder, run.settings.protocol).unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Best:
    """The model of the round that came out best on the validation part, and what it reaches on the test part."""

    round_number: int
    cost: float  # the error on the validation part, or a ranking's score with its sign turned
    metrics: dict[str, float]
    predictor: Predictor = field(repr=False)

    def about(self) -> dict[str, Any]:
        """Return all fields but the predictor."""
        return {"round_number": self.round_number, "cost": self.cost, "metrics": self.metrics}


def _best_of(run: "Run", checkpoint: Checkpoint) -> Best | None:
    """Return the best model that a checkpoint holds; refuse one of another run."""
    if run.validation is None:
        return None
    best = Best(**checkpoint.patience, predictor=run.engine.predictor_from(checkpoint.best))
    if best.round_number > run.engine.round_number:
        raise ValueError("the best model is another's")
    return best


class Run:
    """One training run: the problem, its engine, and the curve so far; `asked` is the run it is compared with."""

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
        self.asked = settings if asked is None else asked
        self.keep = Keep() if keep is None else keep
        self.remark = remark
        self.task = settings.make_task(ratings)
        self.validation = None if settings.patience is None else self.task.validation(settings.split_seed)
        self._step_is_given = "step" in settings.given
        self.tried: list[dict[str, float]] = []  # larger steps at which this run diverged
        self._begin()

    def _begin(self) -> None:
        """Reset the run to before its first round."""
        problem = task_problem(self.task if self.validation is None else self.validation, self.settings)
        self.engine = make_engine(self.settings.chosen_engine, problem, remark=self.remark)
        self.curve: list[dict[str, float]] = []
        self.best: Best | None = None  # where there is a validation part
        self.seconds = 0.0

    def begin_again(self, tried: list[dict[str, float]]) -> None:
        """Reset the run, with the next smaller step than those that were tried."""
        if tried:
            self.tried = tried
            self.settings = self.settings.replace(step=tried[-1]["step"] / SMALLER)
            self._begin()

    @property
    def rounds(self) -> int:
        """How many rounds the terms have: as many as were asked for, or as the protocol's plan has."""
        return int(self.engine.problem.terms.max_rounds)

    def train(self, progress: Progress | None) -> None:
        """Run all rounds, or until patience ends, measuring after each.

        A run that diverges begins again at a smaller step, unless its step was given: then the error is raised.
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
                self._say_diverged(step)
                self.keep.forget(self)
                self.begin_again([*self.tried, {"step": step, "round": self.engine.round_number + 1}])

    def _diverged_at_every(self, step: float) -> Diverged:
        advice = self.engine.problem.protocol(0).divergence_advice or "give more ratings per item"
        return Diverged(
            f"training with {self.settings.protocol} diverged at every step from {self.tried[0]['step']:g} down to"
            f" {step:g}. {advice.capitalize()}."
        )

    def _say_diverged(self, step: float) -> None:
        if self.remark is not None:
            self.remark(
                f"training with {self.settings.protocol} diverged in round {self.engine.round_number + 1} at step"
                f" {step:g}; beginning again at step {step / SMALLER:g}."
            )

    def _run_rounds(self, progress: Progress | None) -> None:
        try:
            while not self.is_over:
                headline = self._play()
                self.keep.save(self, now=self.is_over)
                if progress is not None:
                    progress(self.settings.protocol, self.engine.round_number, self.rounds, headline)
        except KeyboardInterrupt:
            if 0 < len(self.curve) == self.engine.round_number:
                with suppress(LocalProtocolError):  # in the middle of a round there is nothing whole to keep
                    self.keep.save(self, now=True)
            raise

    def _play(self) -> float:
        """Run one round, measure it, and return the headline metric."""
        started = time.perf_counter()
        run_round(self.engine)
        self.seconds += time.perf_counter() - started
        found = measure(self.task, self.engine)
        self._validate(found)
        headline = {name: value for name, value in found.items() if name == self.task.headline}
        self.curve.append({"round": self.engine.round_number, **headline})
        return headline.get(self.task.headline, math.nan)

    @property
    def is_over(self) -> bool:
        """Whether all rounds are played, or the validation part has not improved for too long."""
        if self.settings.patience is None or self.best is None:
            return self.engine.round_number >= self.rounds
        waited = self.engine.round_number - self.best.round_number
        return self.engine.round_number >= self.rounds or waited >= self.settings.patience

    def _validate(self, metrics: dict[str, float]) -> None:
        """Keep the model of the round in which the validation part came out best, with its metrics."""
        if self.validation is None:
            return
        found = measure(self.validation, self.engine)[self.task.headline]
        cost = -found if self.validation.scale is None else found  # a ranking is better when larger
        if self.best is None or cost < self.best.cost:
            self.best = Best(self.engine.round_number, cost, metrics, self.engine.predictor())

    def compare(self, progress: Progress | None) -> dict[str, dict[str, Any]]:
        """Return the same run under the protocols that this one is compared with, on the same split."""
        comparisons: dict[str, dict[str, Any]] = {}
        for protocol in self.settings.declared.compared_with:
            if protocol in protocols_of(self.settings.model):
                beside = self.asked.compared_with(protocol)
                other = Run(self.ratings, beside, keep=self.keep, remark=self.remark, asked=self.asked)
                comparisons[protocol] = self._beside(other, progress)
        return comparisons

    def _beside(self, other: "Run", progress: Progress | None) -> dict[str, Any]:
        """Return the metrics and the budget of another run.

        Where it diverges, empty metrics and the error's sentence.
        """
        try:
            other.train(progress)
            return {**other.metrics(), "step": other.settings.options.get("step"), "budget": other.budget()}
        except Diverged as error:
            return dict.fromkeys(self.metrics()) | {"budget": other.budget(), "diverged": str(error)}

    @property
    def data_checksum(self) -> str:
        """Hash of the ratings and, where the model learns from them, of the items' attributes."""
        attributes = getattr(self.engine.problem.model, "attributes", None)
        if attributes is None:
            return self.ratings.checksum
        return hashlib.sha256(self.ratings.checksum.encode() + attributes.tobytes()).hexdigest()

    def predictor(self) -> Predictor:
        """Return the model that is kept: the best on the validation part, or else the last."""
        return self.engine.predictor() if self.best is None else self.best.predictor

    def metrics(self) -> dict[str, float]:
        """Accuracy of the model that is kept on the test part, and of its lists; nothing where nothing is held out."""
        found = measure(self.task, self.engine) if self.best is None else self.best.metrics
        return found | (self.task.list_metrics(self.predictor()) if found else {})

    def _baselines(self) -> dict[str, dict[str, float]]:
        """Return the non-personal models on the same split, and lists by the popularity that the run released."""
        predictor = self.engine.predictor() if self.best is None else self.best.predictor
        return self.task.baselines() | self.task.released_baselines(predictor.released_support())

    def budget(self) -> dict[str, Any]:
        """Return what all rounds that were played cost, those after the best one too."""
        return spent_budget(self.engine)

    def result(self, comparisons: dict[str, dict[str, Any]], *, interrupted: bool, seconds_in_all: float) -> Result:
        """Return everything that is kept of a run; `seconds_in_all` counts measuring and comparing too."""
        engine, settings, ratings = self.engine, self.settings, self.ratings
        split, scale = self.task.split, self.task.scale
        held_out = 0 if self.validation is None else len(self.validation.split.test)
        cold_users, cold_items = cold_counts(self.task.ratings, split)
        record = {
            "dataset": ratings.name,
            "model": settings.model,
            "protocol": settings.protocol,
            "engine": settings.chosen_engine,
            "seed": settings.seed,
            "split_seed": settings.split_seed,
            "rounds": engine.round_number,
            **{name: settings.options.get(name) for name in ("factors", "step", "at_least", "order")},
            "tried": self.tried,
            "final": settings.final,
            "settings": to_json(settings.chosen()),
            "patience": settings.patience,
            "best_round": None if self.best is None else self.best.round_number,
            "attributes": getattr(engine.problem.model, "n_attributes", None),
            "metrics": self.metrics(),
            "curve": [] if settings.final else self.curve,
            "baselines": {} if settings.final else self._baselines(),
            "comparisons": comparisons,
            "budget": self.budget(),
            "data": {
                "users": ratings.n_users,
                "items": ratings.n_items,
                "candidates": len(ratings.places),
                "unlisted": ratings.n_unlisted,
                "public": 0 if ratings.public is None else len(ratings.public.items),
                "train": len(split.train) - held_out,
                "validation": held_out,
                "test": len(split.test),
                "scale": None if scale is None else [scale.low, scale.high],
                "rating_scale": None if ratings.scale is None else [ratings.scale.low, ratings.scale.high],
                "liked_from": None if scale is None else float(scale.from_unit(LIKED)),
                "cold_users": cold_users,
                "cold_items": cold_items,
                "checksum": ratings.checksum,
            },
            "interrupted": interrupted,
            "seconds": self.seconds,
            "seconds_in_all": seconds_in_all,
            "seconds_per_round": self.seconds / max(engine.round_number, 1),
            "bytes_per_client_round": engine.bytes_per_client_round(),
        }
        return Result({**record, "verdict": verdict(record)}, ratings, self.predictor())


def measure(task: Task, engine: Engine) -> dict[str, float]:
    """Return the accuracy on a task's test part now; raise `Diverged` where it is not finite.

    Empty where nothing is held out; predictions of training ratings must be numbers then.
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


def spent_budget(engine: Engine) -> dict[str, Any]:
    """Return what the rounds so far cost."""
    return engine.problem.budget(engine.round_number, engine.losses())


def task_problem(task: Task, settings: Settings) -> AnyProblem:
    """Return the training part of a task as a problem."""
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
