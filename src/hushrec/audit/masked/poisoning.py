"""Devices that lie under `masked`: some of them promote one item. Nobody sees a single table, so nobody can tell which.

The clip bounds a device that runs the software as it is, with made-up ratings, and one that writes its own tables and
keeps to the clip. A device that does not keep to it is bounded by the server's checks of the sums alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.findings import Finding
from hushrec.audit.masked.sums import Profile
from hushrec.audit.masked.watched import Watched, without_profiles
from hushrec.audit.statistics import share_interval
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.models.predictor import Predictor
from hushrec.protocols.configured import BoolArray
from hushrec.protocols.masked.encoding import BlockCode, Table, decode_sum, encode_block, is_plausible
from hushrec.protocols.masked.plan import BIAS, COUNTS, FACTORS, Round
from hushrec.simulation.training_problem import AnyProblem

SHARES = (0.01, 0.05)  # of the devices
PEOPLE = 100  # honest ones to whom lists are made
TOP = 10
BISECTIONS = 12
FILLERS = 30  # popular items that a made-up profile rates as everybody does
CLAIM = "none: poisoning is not covered"

Write = Callable[["PoisonedEngine", Round, Any, list[Table]], list[IntArray]]  # what promoters add to the sums


class PoisonedEngine(CpuMaskedEngine):
    """The engine that trains, with promoters' integers in every sum."""

    def __init__(self, problem: AnyProblem, write: Write) -> None:
        super().__init__(problem)
        self._write = write

    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        totals = super().sum_tables(one, table, present)
        return added(totals, self._write(self, one, table, totals))

    @property
    def codes(self) -> tuple[BlockCode, ...]:
        """Those of the round that runs."""
        codes: tuple[BlockCode, ...] = self.priced.codes[self.round_number]
        return codes

    def passes(self, one: Round, totals: list[Table]) -> bool:
        """Whether a server keeps these sums: none is longer than honest tables can make it, or fits no item."""
        devices = self.problem.n_users
        if not all(is_plausible(code, total, devices) for code, total in zip(self.codes, totals, strict=True)):
            return False
        parts = zip(one.blocks, self.codes, totals, strict=True)
        sums = {block.name: decode_sum(code, total, devices) for block, code, total in parts}
        return self.learner.surprise(sums, devices) <= 1


def added(totals: list[Table], more: list[IntArray]) -> list[Table]:
    """Return the sums with what promoters add to them."""
    return [total + own.astype(np.uint32) for total, own in zip(totals, more, strict=True)]


@dataclass(frozen=True, eq=False)
class Promotion:
    """Who lies, for which item, and who is recommended to."""

    run: Watched = field(repr=False)
    liars: IntArray = field(repr=False)
    honest: IntArray = field(repr=False)
    target: int
    counts: bool = True  # whether tables of their own push its count, too: good for lists, bad for its rating

    def train(self, write: Write) -> Predictor:
        """Return what a run learns in which the liars' devices send this."""
        engine = PoisonedEngine(without_profiles(self.run.problem, self.liars), write)
        for _ in range(self.run.problem.terms.max_rounds):
            engine.run_round()
        return engine.predictor()

    def exposed(self, predictor: Predictor) -> int:
        """To how many honest people the item is recommended."""
        scores = predictor.scores(self.honest)
        for row, user in enumerate(self.honest):
            scores[row, self.run.profile(user)[0]] = -np.inf
        return int((scores[:, [self.target]] > np.sort(scores, axis=1)[:, -TOP - 1, None]).sum())

    def stars(self, predictor: Predictor) -> float:
        """What honest people are predicted to give the item, on average."""
        return float(predictor.predict(self.honest, np.full(len(self.honest), self.target)).mean())

    def rate(self, engine: PoisonedEngine, one: Round, table: Any, _: list[Table]) -> list[IntArray]:
        """Made-up ratings, given to the software as it is: the item at its best, popular ones as everybody rates."""
        entries = self.run.seen.learning.entries(one.blocks, table, *made_up_profile(self.run, self.target))
        rng = self.run.draws(24)
        integers = (encode_block(code, *own, rounding=rng) for code, own in zip(engine.codes, entries, strict=True))
        return [len(self.liars) * own for own in integers]

    def clip(self, engine: PoisonedEngine, one: Round, *_: Any) -> list[IntArray]:
        """Tables of one's own, as long as the clip: everything for the item."""
        return self._pushes(engine, one, len(self.liars))

    def exceed(self, engine: PoisonedEngine, one: Round, _: Any, totals: list[Table]) -> list[IntArray]:
        """One table that is as long as the server's checks let pass, by bisection: it knows the sum of the others."""
        passing, failing = 0.0, float(2 * self.run.problem.n_users)  # clips
        for _step in range(BISECTIONS):
            clips = (passing + failing) / 2
            kept = engine.passes(one, added(totals, self._pushes(engine, one, clips)))
            passing, failing = (clips, failing) if kept else (passing, clips)
        return self._pushes(engine, one, passing)

    def _pushes(self, engine: PoisonedEngine, one: Round, clips: float) -> list[IntArray]:
        """Everything for the item, as long as so many clips."""
        return [
            self._push(block.name, code, int(clips * code.clip_units))
            for block, code in zip(one.blocks, engine.codes, strict=True)
        ]

    def _push(self, name: str, code: BlockCode, units: int) -> IntArray:
        """All on the item: its residuals and its count; what is said of its raters stays."""
        found = np.zeros(code.size, np.int64)
        if name == COUNTS and self.counts:
            found[self.target] = units
        if name in (BIAS, FACTORS):
            found.reshape(self.run.problem.n_items, -1)[self.target, -1] = units
        return found


def made_up_profile(run: Watched, target: int) -> Profile:
    """Return the item with the best rating, and popular items with the ratings that most people give them."""
    counts = np.bincount(run.problem.items, minlength=run.problem.n_items)
    popular = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    items = np.sort([target, *popular[popular != target][:FILLERS]])
    values = np.array([5.0 if item == target else _usual(run, int(item)) for item in items])
    return items, values


def _usual(run: Watched, item: int) -> float:
    return float(np.rint(run.problem.values[run.problem.items == item].mean()))


def attack_integrity(run: Watched) -> list[Finding]:
    """Exposure of the item that people like least, and how many stars one device pushes it."""
    people = run.draws(25).permutation(np.flatnonzero(run.problem.rated_counts > 0))
    honest = np.sort(people[-min(PEOPLE, len(people) // 2) :])
    first = Promotion(run, people[:0], honest, 0)
    before = first.train(first.clip)
    target = int(np.argmin(before.scores(honest).mean(axis=0)))
    findings = []
    for share in SHARES:
        group = Promotion(run, people[: max(1, round(share * len(people)))], honest, target)
        name = f"promotion by {share:.0%} of devices"
        findings += _judge(group, f"{name}, made-up ratings", before, group.train(group.rate))
        for own, words in _by_aim(group):
            findings += _judge(own, f"{name}, tables at the clip{words}", before, own.train(own.clip))
    name = "promotion by one device, as far as the checks let pass"
    for own, words in _by_aim(Promotion(run, people[:1], honest, target)):
        findings += _judge(own, name + words, before, own.train(own.exceed))
    return findings


def _by_aim(group: Promotion) -> list[tuple[Promotion, str]]:
    """The group that writes tables for the item's rating, where there are ratings, and for its place in lists."""
    if not group.run.predicts_values:
        return [(group, "")]
    return [(replace(group, counts=False), ""), (group, ", counts too")]


def _judge(group: Promotion, name: str, before: Predictor, after: Predictor) -> list[Finding]:
    run, n_honest = group.run, len(group.honest)
    without, shown = group.exposed(before), group.exposed(after)
    findings = [
        run.finding(
            name, "integrity", "exposure_at_10", shown / n_honest, CLAIM,
            interval=share_interval(shown, n_honest), chance=without / n_honest,
        )
    ]  # fmt: skip
    if run.predicts_values:
        pushed = (group.stars(after) - group.stars(before)) / len(group.liars)
        findings.append(run.finding(name, "integrity", "stars_pushed_per_device", pushed, CLAIM, chance=0.0))
    return findings
