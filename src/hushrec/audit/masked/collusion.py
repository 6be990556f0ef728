"""Attacks on one round of secure aggregation, by the server alone and in collusion with some devices.

A colluding device (helper) gives the server its table before masking, its noise and its secrets of the attempt. The
server has rebuilt the seed of every survivor, because it needs the seeds for the sum. It can therefore remove two kinds
of masks from a victim's masked table: the victim's own mask, and the masks shared with helpers. The masks shared with
honest devices remain.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.audit.findings import Finding
from hushrec.audit.masked import cohorts
from hushrec.audit.masked.cohorts import SeenCohort, keys_seen_twice, table_scores, uniformity, watch_cohort
from hushrec.audit.masked.pairs import COLLUDING, KEYS_TWICE, NOISE_RATIO, variance_ratio
from hushrec.audit.masked.watched import Watched
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort
from hushrec.protocols.masked.device_table import make_table, stream_number
from hushrec.protocols.masked.encoding import BlockCode, Entries, Table, encode_block
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg.device import pair_key
from hushrec.protocols.masked.secagg.primitives import SELF_LABEL, Keystream, derive, load_private
from hushrec.protocols.masked.secagg.roster import choose_rules
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import Purpose, RandomStream, SeededRandomness


@dataclass(frozen=True, eq=False)
class Scene:
    """One round of secure aggregation: what the server sees, and the tables of all devices before masking."""

    cohort: SeenCohort = field(repr=False)
    codes: Sequence[BlockCode] = field(repr=False)  # encodings of the blocks
    own_tables: Sequence[Table] = field(repr=False)  # with noise, before masking; helpers reveal their own tables
    integers: Sequence[IntArray] = field(repr=False)  # tables before noise; the attacker knows them from the ratings
    coins: BoolArray = field(repr=False)  # True for a device with the victim's profile, False for one that sends zeros
    most_corrupt: int  # number of colluding devices for which the noise is sized


def set_scene(run: Watched) -> tuple[list[SeenCohort], Scene]:
    """Run two attempts of the first round; return both attempts, and the `Scene` of the first.

    Half of the devices, drawn at random, hold the ratings of one victim. The other half sends zeros.
    """
    priced, plan = run.problem.terms.priced, run.problem.terms.priced.plan
    cohort = Cohort(cohorts.COHORT, 1.0, COLLUDING)
    few = price_plan(plan, epsilon=priced.epsilon, delta=priced.delta, cohort=cohort)
    terms = MaskedTerms(few, choose_rules(cohort.devices, cohort.smallest, cohort.most_corrupt))
    first, codes = run.seen.rounds[0], few.codes[0]
    blocks = run.seen.learning.entries(
        first.one.blocks, first.table, *run.problem.profile(run.victims[run.most_visible])
    )
    coins = run.draws(20).permutation(np.arange(cohort.devices) < cohort.devices // 2)
    own_tables, integers = [], []
    for number, coin in enumerate(coins):
        seeded = SeededRandomness(number)
        own, _ = make_table(few, 1, blocks, TableAccountant(), randomness=seeded, sends_zeros=not coin)
        own_tables.append(own)
        integers.append(_integers(codes, blocks, seeded.stream(Purpose.TABLE_ROUNDING, stream_number(1, 1))) * coin)
    attempts = watch_cohort(terms, own_tables, attempts=2, rng=run.draws(21))
    return attempts, Scene(attempts[0], codes, own_tables, integers, coins, cohort.most_corrupt)


def _integers(codes: Sequence[BlockCode], blocks: Sequence[Entries], rounding: RandomStream) -> IntArray:
    """Return the integers of a device before noise, as `make_table` computes them with the same rounding stream."""
    return np.concatenate(
        [encode_block(code, *own, rounding=rounding) for code, own in zip(codes, blocks, strict=True)]
    )


def attack_tables(run: Watched) -> list[Finding]:
    """Run two attempts of a round of secure aggregation, and return the findings of all attacks on them."""
    return attack_round(run, *set_scene(run))


def attack_round(run: Watched, attempts: Sequence[SeenCohort], scene: Scene) -> list[Finding]:
    """Return the findings of attacks on masked tables, with and without collusion, and of a check for repeated keys."""
    tables = scene.cohort.tables
    claim = f"a masked table is uniformly random (chi-square test: p = {uniformity(tables):.2f})"
    keys = run.subject("keys of two attempts", "metadata", "every attempt has new keys")
    return [
        _area(run, "one masked table alone", "auc", tables, scene, claim),
        keys.finding(KEYS_TWICE, keys_seen_twice(attempts), chance=0.0),
        *attack_with_helpers(run, scene),
    ]


def strip_table(cohort: SeenCohort, victim: int, helpers: Collection[int]) -> Table:
    """Return a victim's masked table after removing the masks that the server or a helper (colluding device) knows."""
    table, context = cohort.tables[victim].copy(), cohort.pairings[victim].context
    keystream = Keystream(len(table))
    keystream.subtract(table, derive(cohort.secrets[victim].seed, SELF_LABEL, context, victim))
    for other in cohort.pairings[victim].neighbours.intersection(helpers):
        private = load_private(cohort.secrets[other].mask_private)
        remove = keystream.subtract if victim < other else keystream.add
        remove(table, pair_key(private, cohort.roster, context, other, victim))
    return table


def attack_with_helpers(run: Watched, scene: Scene) -> list[Finding]:
    """Return findings of attacks by a server that colludes with `scene.most_corrupt` devices, or with all but one."""
    everybody, most_corrupt = range(len(scene.own_tables)), scene.most_corrupt
    helpers, honest = everybody[:most_corrupt], everybody[most_corrupt:]
    few = [strip_table(scene.cohort, victim, helpers) for victim in honest]
    all_but_one = [strip_table(scene.cohort, victim, set(everybody) - {victim}) for victim in everybody]
    name = f"collusion with c_max = {most_corrupt} of {len(everybody)} real devices"
    claim = f"masks shared with honest devices stay on (uniform by the chi-square test: p = {uniformity(few):.2f})"
    stripped = int(sum(np.array_equal(own, one) for own, one in zip(all_but_one, scene.own_tables, strict=True)))
    alone = f"not covered: {stripped} of {len(everybody)} tables bare but for one share of noise"
    return [
        _area(run, f"{name}: one table", "auc", few, scene, claim),
        *_noise_left(run, name, scene, helpers),
        _area(run, "collusion with all real devices but one: its table", "auc_not_covered", all_but_one, scene, alone),
    ]


def _area(run: Watched, name: str, metric: str, tables: Sequence[Table], scene: Scene, claim: str) -> Finding:
    """Return a finding on how well `tables` reveal which devices hold the victim's ratings and which send zeros.

    `tables` holds the masked tables of the last `len(tables)` devices of the scene, as sent or after `strip_table`.
    """
    coins, expected = scene.coins[-len(tables) :], scene.integers[int(np.argmax(scene.coins))].astype(np.float64)
    scores = table_scores(tables, expected)
    return run.subject(name, "metadata", claim).area(scores, coins, metric, rng=run.draws(22))


def _noise_left(run: Watched, name: str, scene: Scene, helpers: Sequence[int]) -> list[Finding]:
    """Return a finding with the ratio of measured to claimed variance of the honest devices' noise in the sum.

    `helpers` are the colluding devices, and all others are honest. The list is empty if there is no noise.
    """
    honest = [device for device in range(len(scene.own_tables)) if device not in helpers]
    known = np.zeros(len(scene.cohort.total), np.uint32)
    for device in helpers:
        known += scene.own_tables[device]
    for device in honest:
        known += scene.integers[device].astype(np.uint32)
    left = (scene.cohort.total - known).view(np.int32).astype(np.float64)
    variances = np.repeat([len(honest) * code.share_variance for code in scene.codes], [c.size for c in scene.codes])
    if not variances.all():
        return []
    ratio, interval = variance_ratio(float((left**2 / variances).sum()), len(left))
    claim = "the noise of the honest devices is what the budget is computed from"
    subject = run.subject(f"{name}: noise left in the sum", "epsilon", claim)
    return [subject.finding(NOISE_RATIO, ratio, interval=interval)]
