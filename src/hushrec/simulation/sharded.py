"""`train` on a folder of shards: parts of the people read their own ratings, here one after the other or on a cluster.

Splits, starts, rounds and budgets are those of the same data in memory, bit for bit; metrics agree to rounding, since
errors are added up part by part.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.data.ratings import BoolArray, Scale
from hushrec.data.shards import Shards
from hushrec.data.splits import random_split
from hushrec.engines import Remark, run_round
from hushrec.engines.sharded import sharded_engine
from hushrec.engines.sharded.crew import Crew
from hushrec.engines.sharded.gradient import ShardedGradientEngine
from hushrec.errors import ParameterError
from hushrec.evaluate import held_out_ranks, metrics_of_ranks
from hushrec.files import check_free
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.gradient.prediction import Predictions
from hushrec.simulation.out_of_core import DiskCrew
from hushrec.simulation.results import to_json
from hushrec.simulation.settings import Settings, default_model
from hushrec.simulation.tasks import Candidates
from hushrec.simulation.training_problem import AnyProblem, TrainingProblem, settle_terms
from hushrec.simulation.verdict import verdict

Progress = Callable[[str, int, int, float], None]
ENGINES = ("cpu", "ray")
NOBODY: IntArray = np.empty(0, np.int64)


class HoldOut(NamedTuple):
    """Which ratings are kept for testing: none, a fifth of the file's rows, or one of each person."""

    kind: str  # none, fifth, one
    n_ratings: int
    seed: int


@lru_cache(maxsize=1)
def _fifth(n_ratings: int, seed: int) -> BoolArray:
    held = np.zeros(n_ratings, np.bool_)
    held[random_split(n_ratings, seed).test] = True
    return held


@lru_cache(maxsize=1)
def _places(n_ratings: int, seed: int) -> IntArray:
    """Where each row comes in the order in which `leave_one_out` looks for the first of every person."""
    places = np.empty(n_ratings, np.int64)
    places[np.random.default_rng(seed).permutation(n_ratings)] = np.arange(n_ratings)
    return places


@dataclass(frozen=True)
class ShardPart:
    """Some consecutive people of a folder of shards; each worker reads its own."""

    shards: Shards
    first: int
    stop: int
    places: IntArray  # of the rated items among the items of the run
    scale: Scale | None  # None: who met what
    hold_out: HoldOut
    public: AnyProblem | None = None  # the problem without anybody's ratings

    def read(self) -> tuple[IntArray, IntArray, FloatArray, BoolArray]:
        """Return users from 0, items, values on the file's scale (ones without a scale), and what is held out."""
        own = self.shards.read(self.first, self.stop)
        users = np.repeat(np.arange(self.stop - self.first), np.diff(own.starts))
        items = self.places[own.items]
        order = np.lexsort((items, users))
        values = np.ones(len(users)) if self.scale is None or own.values is None else own.values
        return users, items[order], values[order], self._held_out(users, own.rows)[order]

    def _held_out(self, users: IntArray, rows: IntArray) -> BoolArray:
        kind, n_ratings, seed = self.hold_out
        if kind == "fifth":
            return _fifth(n_ratings, seed)[rows]
        held = np.zeros(len(rows), np.bool_)
        if kind == "one" and len(rows):
            order = np.lexsort((_places(n_ratings, seed)[rows], users))
            _, first, counts = np.unique(users[order], return_index=True, return_counts=True)
            held[order[first[counts >= 2]]] = True
        return held

    def load(self) -> AnyProblem:
        assert self.public is not None
        users, items, values, held = self.read()
        counts = np.bincount(users[~held], minlength=self.stop - self.first)
        unit = values[~held] if self.scale is None else self.scale.to_unit(values[~held])
        return replace(
            self.public,
            n_users=self.stop - self.first,
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            items=items[~held],
            values=unit,
            first_user=self.first,
        )


class Seen(NamedTuple):
    """What one pass over a part's training ratings tells: how many, by person and by item, and sums of values."""

    by_person: IntArray
    by_item: IntArray
    sums: FloatArray  # of values, by item
    tested: IntArray  # test ratings, by item
    n_cold: int  # people with test ratings alone


def see(part: ShardPart, n_items: int) -> Seen:
    """Count a part."""
    users, items, values, held = part.read()
    n_people = part.stop - part.first
    counts = np.bincount(users[~held], minlength=n_people)
    n_cold = np.count_nonzero((np.bincount(users[held], minlength=n_people) > 0) & (counts == 0))
    by_item, tested = (np.bincount(items[rows], minlength=n_items) for rows in (~held, held))
    sums = np.bincount(items[~held], values[~held], n_items).astype(np.float64)
    return Seen(counts, by_item, sums, tested, int(n_cold))


def train_shards(
    folder: str | Path,
    *,
    ratings_at_once: int | None = None,
    progress: Progress | None = None,
    remark: Remark | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], Arrays]:
    """Train on a folder of shards; return the record of the run, and what its server published last.

    With `out`, both are kept in that folder: `run.json` and `public.npz`, which hold nobody's ratings.

    Engine `cpu` has one part in memory at a time; engine `ray` spreads the parts over its cluster, whose workers must
    see the folder at the same path. `settings` are the fields of `Settings`.
    """
    started = time.perf_counter()
    shards = Shards(Path(folder).absolute())
    about = shards.without_ratings()
    if settings.get("model") is None:
        settings["model"] = default_model(settings.get("protocol"), has_values=about.scale is not None)
    chosen = Settings(**settings)
    _refuse(chosen, about.scale)
    if out is not None:
        check_free(out)
    with _crew(chosen.chosen_engine, ratings_at_once) as crew:
        run = ShardedRun(shards, chosen, crew, remark)
        run.train(progress)
        record, public = run.record(time.perf_counter() - started), run.public()
    if out is not None:
        (Path(out) / "run.json").write_text(json.dumps(to_json(record), indent=1) + "\n")
        np.savez(Path(out) / "public.npz", **public)  # type: ignore[arg-type]
    return record, public


def _refuse(settings: Settings, scale: Scale | None) -> None:
    if settings.chosen_engine not in ENGINES:
        raise ParameterError(f"engine of a run on shards must be cpu or ray, got {settings.chosen_engine}.")
    if settings.patience is not None or settings.options.get("at_least") is not None:
        raise ParameterError("a run on shards uses neither patience nor at_least. Leave them out.")
    if scale is None and settings.declared_model.predicts == "rating":
        raise ParameterError("model must rank: these shards have no values. Use --model audience.")


@contextmanager
def _crew(engine: str, ratings_at_once: int | None) -> Iterator[Crew]:
    if engine == "ray":
        from hushrec.engines.ray.engine import connected_crew

        yield connected_crew()
        return
    with tempfile.TemporaryDirectory(prefix="hushrec-") as scratch:
        own = {} if ratings_at_once is None else {"ratings_at_once": ratings_at_once}
        yield DiskCrew(Path(scratch), **own)


class ShardedRun:
    """One training run on shards: the driver knows counts and sums, never a rating."""

    def __init__(self, shards: Shards, settings: Settings, crew: Crew, remark: Remark | None) -> None:
        self.shards, self.settings, self.crew = shards, settings, crew
        self.ratings = settings.among_items(shards.without_ratings())  # nobody's: items, scale and name
        ranks = settings.declared_model.predicts == "ranking"
        self._scale = None if ranks else self.ratings.scale
        kind = "none" if settings.final else "one" if ranks else "fifth"
        self._hold_out = HoldOut(kind, shards.n_ratings, settings.split_seed)
        self._public: AnyProblem | None = None  # the problem without anybody's ratings, once its terms are known
        self.seen = self._see_everything()
        self.seconds = 0.0
        self.engine: Any = sharded_engine(self._problem(), crew, self._part, remark=remark)

    def _part(self, first: int, stop: int) -> ShardPart:
        return ShardPart(self.shards, first, stop, self.ratings.places, self._scale, self._hold_out, self._public)

    def _see_everything(self) -> Seen:
        """Ask every part what it holds; a part here is some consecutive shards."""
        borders, crew = self.shards.borders, self.crew
        n_parts = min(len(borders) - 1, crew.n_parts(self.shards.n_ratings))
        cuts = borders[np.arange(n_parts + 1) * (len(borders) - 1) // n_parts]
        crew.start(_as_it_is, [(self._part(int(a), int(b)),) for a, b in pairwise(cuts)])
        asked = [crew.ask(part, see, self.ratings.n_items) for part in range(n_parts)]
        found = [crew.get(one) for one in asked]
        by_person = np.concatenate([one.by_person for one in found])
        by_item, sums, tested = (
            np.sum([getattr(one, name) for one in found], axis=0) for name in ("by_item", "sums", "tested")
        )
        return Seen(by_person, by_item, sums, tested, sum(one.n_cold for one in found))

    def _problem(self) -> AnyProblem:
        """Return the problem as the driver knows it: terms and counts."""
        settings, counts = self.settings, self.seen.by_person
        model, protocols = settings.make_model(self.ratings), [settings.make_protocol()]
        terms = settle_terms(counts, self.ratings.n_items, model, protocols, seed=settings.seed, **settings.options)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        known = (model, protocols, terms, settings.seed)
        whole: AnyProblem = TrainingProblem(len(counts), self.ratings.n_items, starts, NOBODY, np.empty(0), *known)
        self._public = replace(whole, starts=NOBODY)
        return whole

    def train(self, progress: Progress | None) -> None:
        """Run all rounds."""
        rounds = self.engine.problem.terms.max_rounds
        while self.engine.round_number < rounds:
            started = time.perf_counter()
            run_round(self.engine)
            self.seconds += time.perf_counter() - started
            if progress is not None:
                progress(self.settings.protocol, self.engine.round_number, rounds, math.nan)

    def record(self, seconds_in_all: float) -> dict[str, Any]:
        """Return what `train` keeps of a run, as far as shards know it."""
        settings, engine, seen = self.settings, self.engine, self.seen
        metrics, baselines = ({}, {}) if settings.final else self._measured()
        record = {
            "dataset": self.ratings.name,
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
            "patience": None,
            "best_round": None,
            "metrics": metrics,
            "curve": [{"round": engine.round_number, **metrics}] if metrics else [],
            "baselines": baselines,
            "comparisons": {},
            "budget": engine.problem.budget(engine.round_number, engine.losses()),
            "data": {
                "users": self.shards.n_people,
                "items": self.ratings.n_items,
                "candidates": len(self.ratings.places),
                "train": int(seen.by_person.sum()),
                "validation": 0,
                "test": int(seen.tested.sum()),
                "scale": None if self._scale is None else [self._scale.low, self._scale.high],
                "shards": len(self.shards.manifest["shards"]),
                "parts": len(engine.borders) - 1,
                "cold_users": seen.n_cold,
                "cold_items": int(np.count_nonzero((seen.tested > 0) & (seen.by_item == 0))),
            },
            "interrupted": False,
            "seconds": self.seconds,
            "seconds_in_all": seconds_in_all,
            "seconds_per_round": self.seconds / max(engine.round_number, 1),
            "bytes_per_client_round": engine.bytes_per_client_round(),
        }
        return {**record, "verdict": verdict(record)}

    # Accuracy --------------------------------------------------------------------------------------------------

    def _measured(self) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Return the accuracy of the model and of the non-personal ones on the test part, from every part's own."""
        among = None if self._scale is not None else Candidates(self.ratings)
        crew, engine = self.crew, self.engine
        public = crew.share(self.public())
        users = engine.users_of_parts if isinstance(engine, ShardedGradientEngine) else [None] * len(engine.borders)
        asked = [
            crew.ask(part, measure, users[part], public, self.seen._replace(by_person=NOBODY), among)
            for part in range(len(engine.borders) - 1)
        ]
        found = [crew.get(one) for one in asked]
        combine = _errors if among is None else _ranks
        named = {name: combine([one[name] for one in found]) for name in found[0]}
        return named.pop("model"), named

    def public(self) -> Arrays:
        """Return what the server published last."""
        engine = self.engine
        if isinstance(engine, ShardedGradientEngine):
            return {"item_vectors": engine.item_vectors}
        return {**vars(engine.learner.table()), "round_number": np.array(engine.round_number)}


def _as_it_is(part: ShardPart) -> ShardPart:
    return part


def measure(worker: Any, users: Any, public: Arrays, seen: Seen, among: Candidates | None) -> dict[str, Any]:
    """Return, by model, what the metrics of one part's test ratings are made of."""
    part: ShardPart = worker.part
    problem, (who, items, values, held) = part.load(), part.read()
    predictor = _predictor(problem, users, public)
    test = who[held], items[held]
    if among is None:
        return _rating_errors(part, problem, predictor, test, values[held], seen)
    support = seen.by_item.astype(np.float64)
    scorers = {
        "model": predictor.scores,
        "popularity": lambda people: np.tile(support, (len(people), 1)),
        "random": lambda people: np.zeros((len(people), problem.n_items)),
    }
    rated = among.ranks[problem.items]
    return {
        name: held_out_ranks(among.scorer(score), test[0], among.ranks[test[1]], problem.starts, rated)
        for name, score in scorers.items()
    }


def _predictor(problem: AnyProblem, users: Any, public: Arrays) -> Predictor:
    if users is None:
        made: Predictor = problem.protocol(0).make_predictor(problem, public, {})
        return made
    own = np.asarray(users[:, : problem.model.user_width], np.float64)
    return Predictions(problem).predictor(own, public["item_vectors"])


def _rating_errors(
    part: ShardPart,
    problem: AnyProblem,
    predictor: Predictor,
    test: tuple[IntArray, IntArray],
    actual: FloatArray,
    seen: Seen,
) -> dict[str, FloatArray]:
    """Return Σ e², Σ |e| and the number of test ratings of the model and of the non-personal models."""
    assert part.scale is not None
    users, items = test
    mean = float(seen.sums.sum() / seen.by_item.sum())
    own = np.bincount(np.repeat(np.arange(problem.n_users), problem.rated_counts), problem.values, problem.n_users)
    with np.errstate(invalid="ignore", divide="ignore"):
        user_means = part.scale.from_unit(own / problem.rated_counts)
        item_means = seen.sums / seen.by_item
    guesses = {
        "model": part.scale.from_unit(predictor.predict(users, items)),
        "global_mean": np.full(len(users), mean),
        "user_mean": np.nan_to_num(user_means, nan=mean)[users],
        "item_mean": np.nan_to_num(item_means, nan=mean)[items],
    }
    errors = {name: guess - actual for name, guess in guesses.items()}
    return {name: np.array([e @ e, np.abs(e).sum(), len(e)]) for name, e in errors.items()}


def _errors(parts: list[FloatArray]) -> dict[str, float]:
    squares, absolute, count = np.sum(parts, axis=0)
    return {"rmse": math.sqrt(squares / count), "mae": float(absolute / count)}


def _ranks(parts: list[tuple[IntArray, IntArray, IntArray]]) -> dict[str, float]:
    above, tied, others = (np.concatenate(own) for own in zip(*parts, strict=True))
    return metrics_of_ranks(above, tied, others)
