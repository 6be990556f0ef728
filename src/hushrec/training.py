"""`hushrec.train`: from a data set and settings to a `Result` with its metrics, baselines and budget."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.checkpoints import (
    Checkpoint,
    checkpoint_files,
    checkpoint_path,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from hushrec.data.ratings import Ratings
from hushrec.data.side import side_columns
from hushrec.data.sources import load as load_ratings
from hushrec.data.splits import cold_counts
from hushrec.engines import DEFAULT_ENGINE, Engine, Remark, diverged, make_engine, play_round
from hushrec.errors import HushrecError, LocalProtocolError, ParameterError, RunError
from hushrec.files import check_free, reserved
from hushrec.models import MODELS, Model, make_model
from hushrec.models.fm import FactorizationMachine
from hushrec.problem import Problem, make_problem
from hushrec.protocols import DeviceProtocol, Isgld, Plain, Sdcf
from hushrec.runs import Result, save, to_json
from hushrec.statement import budget_statement
from hushrec.tasks import Task, ranking_task, rating_task

Progress = Callable[[str, int, int, float], None]  # what is trained, round, rounds, test RMSE or AUC so far

DEFAULT_EPSILON = 4.0
CHECKPOINT_EVERY = 10  # rounds

# The options that belong to one protocol alone.
USED_BY: dict[str, tuple[str, ...]] = {
    "plain": (),
    "isgld": ("epsilon", "clamp"),
    "sdcf": ("epsilon_i", "epsilon_p", "epsilon_g", "profile_cap", "reports_per_client", "epoch_rounds"),
}

# The options that belong to some models alone, the protocols of each, and its defaults.
USED_BY_MODEL: dict[str, tuple[str, ...]] = {
    "mf": ("epsilon_g",),
    "bpr": ("at_least",),
    "fm": ("epsilon_g", "order", "attributes"),
}
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {
    "mf": ("plain", "isgld", "sdcf"),
    "bpr": ("plain", "sdcf"),
    "fm": ("plain", "isgld", "sdcf"),
}
DEFAULT_FACTORS = {"mf": 50, "bpr": 10, "fm": 50}
DEFAULT_STEP = {"mf": 0.4, "bpr": 4.0, "fm": 0.2}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that defines a run besides its data. An option that model or protocol does not use is refused.

    None means the default of the protocol in force: ε 4 for `isgld`; ε_I 4, ε_P 2 ε_I, ε_g 4 for `sdcf`; or of the
    model: see `DEFAULT_FACTORS`, `DEFAULT_STEP`. `at_least` is the lowest rating that counts as an
    action (`bpr`); `order` (2 or 3) and `attributes` (names, or "none"; all unless given) shape `fm`. With `patience`
    a fifth of the training part is kept for validation, and training stops when that has not improved for so
    many rounds.
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
    at_least: float | None = None
    order: int | None = None
    attributes: str | None = None
    factors: int | None = None
    rounds: int = 100
    step: float | None = None
    split_seed: int = 0
    seed: int = 0
    patience: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ParameterError(f"patience must be at least 1 round, got {self.patience}.")
        if self.protocol not in USED_BY:
            raise ParameterError(f"protocol must be one of {', '.join(USED_BY)}, got {self.protocol}.")
        if self.model not in MODELS:
            raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {self.model}.")
        if self.protocol not in PROTOCOLS_OF[self.model]:
            allowed = " or ".join(PROTOCOLS_OF[self.model])
            raise ParameterError(f"protocol of model {self.model} must be {allowed}, got {self.protocol}.")
        self._refuse_unused(f"protocol {self.protocol}", USED_BY, self.protocol)
        self._refuse_unused(f"model {self.model}", USED_BY_MODEL, self.model)

    def _refuse_unused(self, who: str, used_by: dict[str, tuple[str, ...]], key: str) -> None:
        for name in (name for names in used_by.values() for name in names):
            if getattr(self, name) is not None and name not in used_by[key]:
                raise ParameterError(f"{who} does not use {name}. Leave it out.")

    @property
    def chosen_factors(self) -> int:
        """Numbers in each vector."""
        return DEFAULT_FACTORS[self.model] if self.factors is None else self.factors

    @property
    def chosen_step(self) -> float:
        """η₀ N."""
        return _or(self.step, DEFAULT_STEP[self.model])

    @property
    def chosen_engine(self) -> str:
        """How the rounds are computed."""
        return DEFAULT_ENGINE if self.engine is None else self.engine

    def make_model(self, ratings: Ratings) -> Model:
        """The model, with the public attributes of the items if it uses them."""
        attributes = side_columns(ratings, self.attributes) if self.model == "fm" else None
        return make_model(self.model, self.chosen_factors, order=self.order, attributes=attributes)

    def make_task(self, ratings: Ratings) -> Task:
        """What the model learns from, split into training and test part."""
        if MODELS[self.model].one_class:
            return ranking_task(ratings, self.split_seed, self.at_least)
        return rating_task(ratings, self.split_seed)

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
            epsilon_g=None if MODELS[self.model].one_class else _or(self.epsilon_g, DEFAULT_EPSILON),
            profile_cap=self.profile_cap,
        )

    def as_record(self) -> dict[str, Any]:
        """Every setting by name, the engine as chosen: what a checkpoint must agree with."""
        return to_json({**asdict(self), "engine": self.chosen_engine})  # type: ignore[no-any-return]

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
    checkpoint_every: int = CHECKPOINT_EVERY,
    resume: bool = False,
    progress: Progress | None = None,
    remark: Remark | None = None,
    **settings: Any,
) -> Result:
    """Trains on a data set's training part and measures on its test part.

    `data` is a name, a path or `Ratings`; `settings` are the fields of `Settings`. With `compare`, a private run is
    set beside the non-private model and `isgld` on the same split. With `out`, the result is kept in that
    folder, and a checkpoint after every `checkpoint_every` rounds until then; `resume` goes on from there, bit for
    bit as if nothing had happened. Ctrl-C keeps a checkpoint of the last whole round, and what was trained.
    `remark` hears what a person should know, such as a wait for the compiler.
    """
    try:
        chosen = Settings(**settings)
    except TypeError as error:
        raise ParameterError(f"train does not know this setting: {str(error).split('argument ')[-1]}.") from None
    ratings = data if isinstance(data, Ratings) else load_ratings(data, data_dir=data_dir)
    keep = Keep(out, checkpoint_every, resume)
    run = Run(ratings, chosen, keep=keep, remark=remark)
    with keep.folder_for(run):
        try:
            run.train(progress)
            comparisons = run.compare(progress) if compare and chosen.protocol != "plain" else {}
        except KeyboardInterrupt:
            if out is not None and checkpoint_files(out):
                save(run.result({}, interrupted=not run.is_over), out, replace=True)
            raise
        result = run.result(comparisons, interrupted=False)
        if out is not None:
            save(result, out, replace=True)
            remove_checkpoints(out)
    return result


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
        """Reserves the folder: a free one, or, to resume, one that a run of the same data and settings left."""
        if self.folder is None:
            yield
            return
        resumes = self.resume and bool(checkpoint_files(self.folder))
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
        """Puts a run where its checkpoint was, if there is one and it is wanted."""
        if self.folder is None or not self.resume:
            return
        path = checkpoint_path(self.folder, run.settings.protocol)
        checkpoint = load_checkpoint(path)
        if checkpoint is None:
            return
        try:
            run.engine.restore(checkpoint.state)
        except (KeyError, ValueError, TypeError, HushrecError):
            raise RunError(f"checkpoint {path} is damaged: it fits no such run. Remove it and start anew.") from None
        if not 0 < run.engine.round_number == len(checkpoint.curve) <= run.settings.rounds:
            raise RunError(f"checkpoint {path} is damaged: its rounds do not add up. Remove it and start anew.")
        run.curve, run.seconds, run.stopping = checkpoint.curve, checkpoint.seconds, checkpoint.patience

    def save(self, run: "Run", *, now: bool) -> None:
        """Keeps a checkpoint where one is due: after every so many rounds, or `now`."""
        if self.folder is None or (run.engine.round_number % self.every and not now):
            return
        checkpoint = Checkpoint(
            settings=run.asked.as_record(),
            data=run.data_checksum,
            curve=run.curve,
            patience=run.stopping,
            seconds=run.seconds,
            state=run.engine.state(),
        )
        save_checkpoint(checkpoint_path(self.folder, run.settings.protocol), checkpoint)


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
        self.ratings = ratings
        self.settings = settings
        self.asked = settings if asked is None else asked
        self.keep = Keep() if keep is None else keep
        self.task = settings.make_task(ratings)
        self.validation = None if settings.patience is None else self.task.validation(settings.split_seed)
        problem = task_problem(self.task if self.validation is None else self.validation, settings)
        self.engine = make_engine(settings.chosen_engine, problem, remark=remark)
        self.curve: list[dict[str, float]] = []
        self.stopping: dict[str, float] = {}  # the best validation result so far, and its round
        self.seconds = 0.0

    def train(self, progress: Progress | None) -> None:
        """Runs all rounds, or until patience ends, measuring after each."""
        self.keep.restore(self)
        try:
            while not self.is_over:
                headline = self._play()
                self.keep.save(self, now=self.is_over)
                if progress is not None:
                    progress(self.settings.protocol, self.engine.round_number, self.settings.rounds, headline)
        except KeyboardInterrupt:
            if 0 < len(self.curve) == self.engine.round_number:
                with suppress(LocalProtocolError):  # in the middle of a round there is nothing whole to keep
                    self.keep.save(self, now=True)
            raise

    def _play(self) -> float:
        """One round, measured; what a checkpoint holds of it is complete when the curve has it."""
        started = time.perf_counter()
        play_round(self.engine)
        self.seconds += time.perf_counter() - started
        headline = self.metrics()[self.task.headline]
        self._validate()
        self.curve.append({"round": self.engine.round_number, self.task.headline: headline})
        return headline

    @property
    def is_over(self) -> bool:
        """Whether all rounds are played, or the validation part has not improved for too long."""
        waited = self.engine.round_number - self.stopping.get("best_round", math.inf)
        patience = math.inf if self.settings.patience is None else self.settings.patience
        return self.engine.round_number >= self.settings.rounds or waited >= patience

    def _validate(self) -> None:
        """Notes the round in which the validation part came out best."""
        if self.validation is None:
            return
        found = measure(self.validation, self.engine)[self.task.headline]
        cost = -found if self.validation.scale is None else found  # a ranking is better when larger
        if cost < self.stopping.get("cost", math.inf):
            self.stopping = {"best_round": self.engine.round_number, "cost": cost}

    def compare(self, progress: Progress | None) -> dict[str, dict[str, Any]]:
        """The same run without privacy, and with the naive protocol, on the same split."""
        comparisons: dict[str, dict[str, Any]] = {}
        for protocol in ("plain", "isgld"):
            if protocol != self.settings.protocol and protocol in PROTOCOLS_OF[self.settings.model]:
                other = Run(self.ratings, self.settings.compared_with(protocol), keep=self.keep, asked=self.settings)
                other.train(progress)
                comparisons[protocol] = {**other.metrics(), "budget": other.budget()}
        return comparisons

    @property
    def data_checksum(self) -> str:
        """Of the ratings and, where the model learns from them, the items' attributes."""
        attributes = getattr(self.engine.problem.model, "attributes", None)
        if attributes is None:
            return self.ratings.checksum
        return hashlib.sha256(self.ratings.checksum.encode() + attributes.tobytes()).hexdigest()

    def metrics(self) -> dict[str, float]:
        """Accuracy on the test part so far."""
        return measure(self.task, self.engine)

    def budget(self) -> dict[str, Any]:
        engine = self.engine
        return budget_statement(engine.problem, engine.round_number, engine.value_rho())

    def result(self, comparisons: dict[str, dict[str, Any]], *, interrupted: bool) -> Result:
        """Everything that is kept of a run."""
        engine, settings, ratings = self.engine, self.settings, self.ratings
        model = engine.problem.model
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
            "factors": settings.chosen_factors,
            "step": settings.chosen_step,
            "patience": settings.patience,
            "best_round": self.stopping.get("best_round"),
            "at_least": settings.at_least,
            "order": model.order if isinstance(model, FactorizationMachine) else None,
            "attributes": model.n_side_rows - 1 if isinstance(model, FactorizationMachine) else None,
            "metrics": self.metrics(),
            "curve": self.curve,
            "baselines": self.task.baselines(),
            "comparisons": comparisons,
            "budget": self.budget(),
            "data": {
                "users": ratings.n_users,
                "items": ratings.n_items,
                "train": len(split.train) - held_out,
                "validation": held_out,
                "test": len(split.test),
                "scale": None if scale is None else [scale.low, scale.high],
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
            attributes=model.attributes if isinstance(model, FactorizationMachine) else None,
            rated_values=problem.values,
        )


def measure(task: Task, engine: Engine) -> dict[str, float]:
    """Accuracy on a task's test part as the engine stands; refused where that is no number any more."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = task.metrics(engine.problem.model, engine.user_vectors, engine.item_vectors)
    if not math.isfinite(found[task.headline]):
        raise diverged(engine.problem, engine.round_number)
    return found


def task_problem(task: Task, settings: Settings) -> Problem:
    """The training part of a task as a problem."""
    users, items, values = task.training()
    return make_problem(
        users,
        items,
        values,
        n_users=task.ratings.n_users,
        n_items=task.ratings.n_items,
        model=settings.make_model(task.ratings),
        protocols=[settings.make_protocol()],
        rounds=settings.rounds,
        step=settings.chosen_step,
        reports_per_client=settings.reports_per_client,
        epoch_rounds=settings.epoch_rounds,
        seed=settings.seed,
    )
