"""Two attacks: guess gender, age and occupation from the sums, and the number of ratings from computing times."""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks.metadata import FinishTiming
from hushrec.audit.attacks.person import alike
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.judge import judge_count, judge_people
from hushrec.audit.masked import readings
from hushrec.audit.masked.people import SUMS, truth_of
from hushrec.audit.masked.sums import Profile
from hushrec.audit.masked.watched import Watched
from hushrec.audit.run import SAMPLE
from hushrec.budget.accountants import TableAccountant
from hushrec.protocols.masked.device_table import make_table
from hushrec.protocols.masked.plan import BIAS, COUNTS, MOMENTS, PRIOR
from hushrec.randomness import SeededRandomness

BLOCKS = (COUNTS, MOMENTS, BIAS, PRIOR)  # blocks that depend on a person's items, ratings and taste
TIMES = 5  # number of times that each device is timed


def attack_attributes(run: Watched) -> list[Finding]:
    """Return findings on how well people's attributes are guessed from the sums; empty if `run.people` is None.

    For each person, everybody else's tables are subtracted from the sums, which leaves the person's table plus noise.
    """
    if run.people is None:
        return []
    rng = run.draws(26)
    sample = np.sort(rng.permutation(np.flatnonzero(run.problem.rated_counts > 0))[:SAMPLE])
    names = {block.block.name for block in run.seen.blocks}
    places = [readings.index_of(run.seen.blocks, name) for name in BLOCKS if name in names]
    rows: list[list[FloatArray]] = [[] for _ in places]
    for user in sample:
        left = readings.left_of(run.seen, run.tables(run.problem.profile(user)), rng=rng)
        for of_block, place in zip(rows, places, strict=True):
            of_block.append(left[place].astype(np.float32))
    kernel = np.sum([alike(np.array(of_block)) for of_block in rows], axis=0)
    attributes = {name: labels[sample] for name, labels in run.people.items()}
    return judge_people(run.subject(SUMS, "person", run.profile_claim), kernel, attributes, rng=rng)


def attack_timing(run: Watched) -> list[Finding]:
    """Return findings on how well a device's computing time reveals its number of ratings; none without `run.clock`."""
    if run.clock is None:
        return []
    _seconds_for_tables(run, run.problem.profile(run.victims[0]), 0)  # compiles the code and fills the cache
    times = [
        [_seconds_for_tables(run, run.problem.profile(user), number) for number, user in enumerate(run.victims)]
        for _ in range(TIMES)
    ]
    subject = Subject.of(FinishTiming(), run.label)
    return judge_count(subject, np.median(times, axis=0), truth_of(run), run.draws(27))


def _seconds_for_tables(run: Watched, profile: Profile, seed: int) -> float:
    assert run.clock is not None
    priced, spent = run.problem.terms.priced, TableAccountant()
    randomness, started = SeededRandomness(seed), run.clock()
    for number, seen in enumerate(run.seen.rounds, start=1):
        blocks = run.seen.learning.entries(seen.one.blocks, seen.table, *profile)
        _, spent = make_table(priced, number, blocks, spent, randomness=randomness)
    return run.clock() - started
