"""Poisoning attacks on `masked`: some devices promote one item, and the server sees no individual table.

Clipping limits the influence of a device that runs the software with made-up ratings, or that writes its own table
within the clip. The influence of a device that exceeds the clip is limited only by the server's checks of the sums.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.audit.findings import Finding
from hushrec.audit.judge import TOP
from hushrec.audit.masked.sums import Profile
from hushrec.audit.masked.watched import Watched, without_profiles
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.models.predictor import Predictor
from hushrec.protocols.masked.encoding import BlockCode, Table, decode_sum, encode_block, is_plausible
from hushrec.protocols.masked.plan import BIAS, COUNTS, FACTORS, Round
from hushrec.simulation.training_problem import AnyProblem

SHARES = (0.01, 0.05)  # fractions of promoters among the devices
PEOPLE = 100  # largest number of honest people whose recommendations are counted
BISECTIONS = 12  # steps of the search for the longest table that passes the checks
FILLERS = 30  # number of popular items in a made-up profile
CLAIM = "none: poisoning is not covered"

# Returns the integers that promoters add to each block's sum; called with the engine, the round, the public table that
# devices received, and the sums of all other devices.
Write = Callable[["PoisonedEngine", Round, Any, list[Table]], list[IntArray]]


class PoisonedEngine(CpuMaskedEngine):
    """The training engine of `masked`, with the integers of promoters (hostile devices) added to every sum."""

    def __init__(self, problem: AnyProblem, write: Write) -> None:
        super().__init__(problem)
        self._write = write

    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        totals = super().sum_tables(one, table, present)
        return added(totals, self._write(self, one, table, totals))

    @property
    def codes(self) -> tuple[BlockCode, ...]:
        codes: tuple[BlockCode, ...] = self.priced.codes[self.round_number]
        return codes

    def passes(self, one: Round, totals: list[Table]) -> bool:
        """Return whether the sums pass the server's checks, which refuse sums that honest tables cannot add up to.

        The checks are on the norm of each block's sum, and on the size of the sums relative to the largest size that is
        plausible after earlier rounds. `totals` holds the sum of each block of round `one`.
        """
        devices = self.problem.n_users
        if not all(is_plausible(code, total, devices) for code, total in zip(self.codes, totals, strict=True)):
            return False
        parts = zip(one.blocks, self.codes, totals, strict=True)
        sums = {block.name: decode_sum(code, total, devices) for block, code, total in parts}
        return self.learner.surprise(sums, devices) <= 1


def added(totals: list[Table], more: list[IntArray]) -> list[Table]:
    """Return the sums of all blocks (`totals`) after adding the promoters' integers (`more`)."""
    return [total + own.astype(np.uint32) for total, own in zip(totals, more, strict=True)]


@dataclass(frozen=True, eq=False)
class Promotion:
    """An attack by promoters (hostile devices) that push one item, measured on recommendations to honest people.

    With `counts`, promoters who write their own tables also raise the item's count. The count affects the item's rank
    in recommendations, but not its predicted rating.
    """

    run: Watched = field(repr=False)
    liars: IntArray = field(repr=False)  # the promoters
    honest: IntArray = field(repr=False)  # the people for whom the recommendations are measured
    target: int  # the promoted item
    counts: bool = True

    def train(self, write: Write) -> Predictor:
        """Train with promoters, for whom `write` computes the integers to add in every round; return the predictor."""
        engine = PoisonedEngine(without_profiles(self.run.problem, self.liars), write)
        for _ in range(self.run.problem.terms.max_rounds):
            engine.run_round()
        return engine.predictor()

    def exposed(self, predictor: Predictor) -> int:
        """Return the number of honest people who get the promoted item recommended in their top ten."""
        scores = predictor.scores(self.honest)
        for row, user in enumerate(self.honest):
            scores[row, self.run.problem.profile(user)[0]] = -np.inf
        return int((scores[:, [self.target]] > np.sort(scores, axis=1)[:, -TOP - 1, None]).sum())

    def stars(self, predictor: Predictor) -> float:
        """Return the promoted item's predicted rating, averaged over honest people."""
        return float(predictor.predict(self.honest, np.full(len(self.honest), self.target)).mean())

    def rate(self, engine: PoisonedEngine, one: Round, table: Any, _: list[Table]) -> list[IntArray]:
        """Return the integers that promoters add to the sums if they run the real software with a made-up profile."""
        entries = self.run.seen.learning.entries(one.blocks, table, *made_up_profile(self.run, self.target))
        rng = self.run.draws(24)
        integers = (encode_block(code, *own, rounding=rng) for code, own in zip(engine.codes, entries, strict=True))
        return [len(self.liars) * own for own in integers]

    def clip(self, engine: PoisonedEngine, one: Round, *_: Any) -> list[IntArray]:
        """Return the integers that promoters add to the sums if each sends the largest entries that the clip allows."""
        return self._pushes(engine, one, len(self.liars))

    def exceed(self, engine: PoisonedEngine, one: Round, _: Any, totals: list[Table]) -> list[IntArray]:
        """Return the largest integers that one promoter can add to the sums without failing the server's checks.

        The promoter is assumed to know `totals`, the sums of all other devices.
        """
        passing, failing = 0.0, float(2 * self.run.problem.n_users)  # clips
        for _step in range(BISECTIONS):
            clips = (passing + failing) / 2
            passes = engine.passes(one, added(totals, self._pushes(engine, one, clips)))
            passing, failing = (clips, failing) if passes else (passing, clips)
        return self._pushes(engine, one, passing)

    def _pushes(self, engine: PoisonedEngine, one: Round, clips: float) -> list[IntArray]:
        """Return integers that promote the item: one array per block, with at most one entry that is not zero.

        In a bias or factor block, the last entry of the item's row is `clips` times the clip. In the counts block, the
        item's entry is `clips` times the clip if `counts` is set.
        """
        pushes = []
        for block, code in zip(one.blocks, engine.codes, strict=True):
            push, units = np.zeros(code.size, np.int64), int(clips * code.clip_units)
            if block.name == COUNTS and self.counts:
                push[self.target] = units
            if block.name in (BIAS, FACTORS):
                push.reshape(self.run.problem.n_items, -1)[self.target, -1] = units
            pushes.append(push)
        return pushes


def made_up_profile(run: Watched, target: int) -> Profile:
    """Return a made-up profile: five stars for the promoted item, and rounded mean ratings for popular items."""
    counts = np.bincount(run.problem.items, minlength=run.problem.n_items)
    popular = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    items = np.sort([target, *popular[popular != target][:FILLERS]])
    ratings = [run.problem.values[run.problem.items == item] for item in items]
    return items, np.array([5.0 if j == target else np.rint(own.mean()) for j, own in zip(items, ratings, strict=True)])


def attack_integrity(run: Watched) -> list[Finding]:
    """Return findings on the exposure of a promoted item, and on how much each promoter raises its predicted rating.

    The item is the one that people like least. Its exposure is the fraction of honest people with the item in their top
    ten. A model that does not predict ratings has only findings on the exposure.
    """
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
    """Return the variants of an attack, each with a suffix for its name.

    The first variant raises only the item's predicted rating, the second also its count. A model that does not predict
    ratings has only the second variant.
    """
    if not group.run.predicts_values:
        return [(group, "")]
    return [(replace(group, counts=False), ""), (group, ", counts too")]


def _judge(group: Promotion, name: str, before: Predictor, after: Predictor) -> list[Finding]:
    subject, n_honest = group.run.subject(name, "integrity", CLAIM), len(group.honest)
    chance = group.exposed(before) / n_honest
    findings = [subject.share("exposure_at_10", group.exposed(after), n_honest, chance=chance)]
    if group.run.predicts_values:
        pushed = (group.stars(after) - group.stars(before)) / len(group.liars)
        findings.append(subject.finding("stars_pushed_per_device", pushed, chance=0.0))
    return findings
