"""Gender, age and occupation from the sums, and how many items a person rated from the time that a device takes."""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks.metadata import FinishTiming
from hushrec.audit.attacks.person import PersonFromUploads, alike
from hushrec.audit.findings import Finding
from hushrec.audit.judge import judge_count, judge_people
from hushrec.audit.masked import readings
from hushrec.audit.masked.people import SUMS, truth_of
from hushrec.audit.masked.sums import Profile
from hushrec.audit.masked.watched import Watched
from hushrec.budget.accountants import TableAccountant
from hushrec.protocols.masked.plan import BIAS, COUNTS, MOMENTS, PRIOR
from hushrec.protocols.masked.upload import BlockValues, make_upload
from hushrec.randomness import SeededRandomness

CROWD = 1000
TOLD_BY = (COUNTS, MOMENTS, BIAS, PRIOR)  # blocks: what is rated, by whom such items are, how, and the taste
TIMES = 5  # that each device's run is timed


def attack_attributes(run: Watched) -> list[Finding]:
    """Learn attributes from people whose attributes are known, guess those of others; everybody's ratings are known.

    Of each person there is what their sums leave when everybody else is subtracted, with noise of its own.
    """
    if run.people is None:
        return []
    rng = run.draws(26)
    crowd = np.sort(rng.permutation(np.flatnonzero(run.problem.rated_counts > 0))[:CROWD])
    names = {block.block.name for block in run.seen.blocks}
    places = [readings.place_of(run.seen.blocks, name) for name in TOLD_BY if name in names]
    rows: list[list[FloatArray]] = [[] for _ in places]
    for user in crowd:
        left = readings.left_of(run.seen, run.tables(run.profile(user)), rng=rng)
        for kept, place in zip(rows, places, strict=True):
            kept.append(left[place].astype(np.float32))
    kernel = np.sum([alike(np.array(kept)) for kept in rows], axis=0)
    attributes = {name: labels[crowd] for name, labels in run.people.items()}
    attack = PersonFromUploads(name=SUMS, claim=run.profile_claim)
    return judge_people(attack, run.label, kernel, attributes, rng=rng)


def attack_timing(run: Watched) -> list[Finding]:
    """How long devices of different profiles take for their tables of all rounds, on a machine with nothing else."""
    if run.clock is None:
        return []
    _seconds(run, run.profile(run.victims[0]), 0)  # compiled, and in the cache
    times = [
        [_seconds(run, run.profile(user), number) for number, user in enumerate(run.victims)] for _ in range(TIMES)
    ]
    return judge_count(FinishTiming(), run.label, np.median(times, axis=0), truth_of(run), run.draws(27))


def _seconds(run: Watched, profile: Profile, seed: int) -> float:
    """Return the time from all public tables to the device's integers with noise."""
    assert run.clock is not None
    priced, spent = run.problem.terms.priced, TableAccountant()
    randomness, started = SeededRandomness(seed), run.clock()
    for number, seen in enumerate(run.seen.rounds, start=1):
        entries = run.seen.learning.entries(seen.one.blocks, seen.table, *profile)
        blocks = [BlockValues(*own) for own in entries]
        _, spent = make_upload(priced, number, blocks, spent, randomness=randomness)
    return run.clock() - started
