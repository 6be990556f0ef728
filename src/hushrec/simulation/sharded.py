"""Training on a folder of shards, which need not fit into memory.

The people are divided into parts, which are read one after the other, or by the workers of a cluster. Splits, initial
vectors, rounds and budgets equal those of a run on the same data in memory, bit for bit. Metrics agree up to rounding,
because errors are added up part by part.
"""

import json
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.arrays import IntArray, row_starts
from hushrec.data.shards import Shards
from hushrec.engines import Remark
from hushrec.engines.sharded import sharded_engine
from hushrec.engines.sharded.crew import Crew
from hushrec.errors import ParameterError
from hushrec.files import check_free
from hushrec.json_values import to_json
from hushrec.models.predictor import Arrays
from hushrec.scale import Scale
from hushrec.simulation.out_of_core import DiskCrew
from hushrec.simulation.run import Progress, make_record, timed_round
from hushrec.simulation.settings import Settings, default_model
from hushrec.simulation.shard_parts import HoldOut, Seen, ShardPart, see
from hushrec.simulation.sharded_accuracy import Accuracy
from hushrec.simulation.tasks import Candidates
from hushrec.simulation.training_problem import AnyProblem, TrainingProblem, settle_terms

ENGINES = ("cpu", "ray")
RATINGS_AT_ONCE = 10_000_000  # ratings that engine `cpu` holds in memory at a time
NOBODY: IntArray = np.empty(0, np.int64)


def train_shards(
    folder: str | Path,
    *,
    progress: Progress | None = None,
    remark: Remark | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], Arrays]:
    """Train on a folder of shards; return the record of the run, and the public table after its last round.

    With `out`, both are also written to that folder, as `run.json` and `public.npz`. Neither holds a rating. Engine
    `cpu` holds one part of about `RATINGS_AT_ONCE` ratings in memory at a time. Engine `ray` spreads the parts over its
    cluster, whose workers must find the folder at the same path. `settings` are the arguments of `Settings`.
    `progress` is called after each round with protocol, round number, number of rounds, and NaN instead of a metric.
    `remark` is called with notes for the user.
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
    with _crew(chosen.chosen_engine) as crew:
        run = ShardedRun(shards, chosen, crew, remark)
        run.train(progress)
        record = run.record(time.perf_counter() - started) | {"reading": {"source": str(folder)}}
        public = run.engine.public()
    if out is not None:
        (Path(out) / "run.json").write_text(json.dumps(to_json(record), indent=1) + "\n")
        np.savez(Path(out) / "public.npz", **public)
    return record, public


def _refuse(settings: Settings, scale: Scale | None) -> None:
    if settings.chosen_engine not in ENGINES:
        raise ParameterError(f"engine must be cpu or ray to train on shards, got {settings.chosen_engine}.")
    if settings.patience is not None or settings.options.get("at_least") is not None:
        raise ParameterError("patience and at_least must not be given when training on shards. Leave them out.")
    if scale is None and settings.declared_model.predicts == "rating":
        raise ParameterError("model must rank items, because these shards have no rating values. Use --model audience.")


@contextmanager
def _crew(engine: str) -> Iterator[Crew]:
    if engine == "ray":
        from hushrec.engines.ray.engine import connected_crew

        yield connected_crew()
        return
    with tempfile.TemporaryDirectory(prefix="hushrec-") as scratch:
        yield DiskCrew(Path(scratch), RATINGS_AT_ONCE)


class ShardedRun:
    """A training run on shards. This object holds counts and sums; only the workers of `crew` read ratings."""

    def __init__(self, shards: Shards, settings: Settings, crew: Crew, remark: Remark | None) -> None:
        self.shards, self.settings, self.crew = shards, settings, crew
        self.ratings = settings.among_items(shards.without_ratings())  # items, scale and name, but no ratings
        ranks = settings.declared_model.predicts == "ranking"
        self._scale = None if ranks else self.ratings.scale
        kind = "none" if settings.final else "one" if ranks else "fifth"
        self._hold_out = HoldOut(kind, shards.n_ratings, settings.split_seed)
        self._public: AnyProblem | None = None  # the problem without ratings, once its terms are known
        self.seen = self._see_everything()
        self.seconds = 0.0
        self.engine: Any = sharded_engine(self._problem(), crew, self._part, remark=remark)

    def _part(self, first: int, stop: int) -> ShardPart:
        return ShardPart(self.shards, first, stop, self.ratings.rated_items, self._scale, self._hold_out, self._public)

    def _see_everything(self) -> Seen:
        borders, crew = self.shards.borders, self.crew
        n_parts = min(len(borders) - 1, crew.n_parts(self.shards.n_ratings))
        cuts = borders[np.arange(n_parts + 1) * (len(borders) - 1) // n_parts]
        crew.start(copy, [(self._part(int(a), int(b)),) for a, b in pairwise(cuts)])
        asked = [crew.ask(part, see, self.ratings.n_items) for part in range(n_parts)]
        found = [crew.get(one) for one in asked]
        by_person = np.concatenate([one.by_person for one in found])
        by_item, sums, tested = (
            np.sum([getattr(one, name) for one in found], axis=0) for name in ("by_item", "sums", "tested")
        )
        return Seen(by_person, by_item, sums, tested, sum(one.n_cold for one in found))

    def _problem(self) -> AnyProblem:
        """Return the training problem without ratings: the terms, and how many items each person rated."""
        settings, counts = self.settings, self.seen.by_person
        model, protocols = settings.make_model(self.ratings), [settings.make_protocol()]
        terms = settle_terms(counts, self.ratings.n_items, model, protocols, seed=settings.seed, **settings.options)
        starts = row_starts(counts)
        known = (model, protocols, terms, settings.seed)
        whole: AnyProblem = TrainingProblem(len(counts), self.ratings.n_items, starts, NOBODY, np.empty(0), *known)
        self._public = replace(whole, starts=NOBODY)
        return whole

    def train(self, progress: Progress | None) -> None:
        """Run all rounds; after each, call `progress` with NaN as the metric, because nothing is measured yet."""
        rounds = self.engine.problem.terms.max_rounds
        while self.engine.round_number < rounds:
            self.seconds += timed_round(self.engine)
            if progress is not None:
                progress(self.settings.protocol, self.engine.round_number, rounds, math.nan)

    def record(self, seconds_in_all: float) -> dict[str, Any]:
        """Return the record of the run, with metrics after the last round only.

        The record of `hushrec.train` has metrics of every round, and more entries about the data, such as a checksum.
        """
        settings, engine, seen = self.settings, self.engine, self.seen
        metrics: dict[str, float] = {}
        baselines: dict[str, dict[str, float]] = {}
        if not settings.final:
            among = None if self._scale is not None else Candidates(self.ratings)
            accuracy = Accuracy(self.crew, len(engine.borders) - 1, seen, among)
            metrics, baselines = accuracy.measured(engine.users_of_parts, engine.public())
        data = {
            "users": self.shards.n_people,
            "train": int(seen.by_person.sum()),
            "test": int(seen.tested.sum()),
            "shards": len(self.shards.manifest["shards"]),
            "parts": len(engine.borders) - 1,
            "cold_users": seen.n_cold,
            "cold_items": int(np.count_nonzero((seen.tested > 0) & (seen.by_item == 0))),
        }
        return make_record(
            settings,
            engine,
            self.ratings,
            self._scale,
            data,
            metrics=metrics,
            curve=[{"round": engine.round_number, **metrics}] if metrics else [],
            baselines=baselines,
            seconds=self.seconds,
            seconds_in_all=seconds_in_all,
        )
