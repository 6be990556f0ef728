"""What sums say of one person when everybody else's tables are subtracted: items, ratings, taste, how much.

`left` is what remains of every block: one person's integers plus noise, drawn for this person alone, because people
who are compared with each other must not share it. Nothing here knows the truth.
"""

import math
from collections.abc import Sequence

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.masked.sums import PersonTables, Profile, SeenBlock, SeenRun
from hushrec.audit.masked.trials import weights_of
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.masked.noise import summed_noise
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS, MOMENTS, PRIOR
from hushrec.randomness import RandomStream

Left = list[FloatArray]  # of every block of a run
LEAST_VARIANCE = 1.0  # of a number, in squared grid units: rounding, where there is no noise
ROWS = (AUDIENCE, BIAS, FACTORS)  # blocks with one row per item


def left_of(run: SeenRun, tables: PersonTables, *, rng: np.random.Generator) -> Left:
    """Return what remains of the sums of a run with this device when everybody else is subtracted."""
    found = []
    for block, places, integers in zip(run.blocks, tables.places, tables.integers, strict=True):
        law = summed_noise(block.code.share_variance, block.survivors)
        one = law.draw(block.code.size, rng=rng).astype(np.float64)
        one[places] += integers
        found.append(one)
    return found


def item_scores(blocks: Sequence[SeenBlock], left: Left, usual_count: float) -> FloatArray:
    """Return for every item how likely it is that the person rated it: a log-likelihood ratio.

    A rated item has min(1, C/√h) in the block of counts. In a row of k numbers it has about C²/(hk) as variance of
    each. h is taken to be the usual one.
    """
    found: FloatArray | float = 0.0
    for block, numbers in zip(blocks, left, strict=True):
        variance = max(block.variance, LEAST_VARIANCE)
        units, clip = block.code.clip_units, block.code.clip
        if block.block.name == COUNTS:
            mean = min(1.0, clip / math.sqrt(usual_count)) * units / clip
            found = found + (numbers * mean - mean**2 / 2) / variance
        elif block.block.name in ROWS:
            rows = numbers.reshape(block.block.shape)
            signal = units**2 / (usual_count * rows.shape[1])
            energy = rows**2 * (signal / (variance * (variance + signal)))
            found = found + (energy - math.log1p(signal / variance)).sum(axis=1) / 2
    return np.asarray(found)


def taste_numbers(blocks: Sequence[SeenBlock]) -> tuple[int, int]:
    """Return which block shows a person's taste most plainly, and how many of its first numbers are that.

    The last prior block of `gp` opens with twice the taste vector, the last moments of `audience` with the description.
    """
    names = {block.block.name for block in blocks}
    place = place_of(blocks, PRIOR if PRIOR in names else MOMENTS)
    return place, int((math.isqrt(9 + 8 * blocks[place].code.size) - 3) // 2)  # L + L(L + 1)/2 numbers


def place_of(blocks: Sequence[SeenBlock], name: str) -> int:
    """Return where the last block of that name is."""
    return max(place for place, block in enumerate(blocks) if block.block.name == name)


def read_count(blocks: Sequence[SeenBlock], left: Left, popularity: FloatArray) -> float:
    """Return a number that rises with how many items the person rated: counts, weighed by how popular items are."""
    return float(left[place_of(blocks, COUNTS)] @ popularity)


def read_rating(blocks: Sequence[SeenBlock], left: Left, levels: Sequence[PersonTables], prior: FloatArray) -> int:
    """Return the likeliest level of one rating, all else known: the person's tables with each level are given.

    The log-likelihood of tables z is ⟨z, left⟩/variance − ‖z‖²/2 variance. Levels are compared with the first one, so
    that what is the same for all of them is left out.
    """
    scores = np.log(prior)
    for level, tables in enumerate(levels):
        difference = tables.minus(levels[0])
        for place, (block, weight) in enumerate(zip(blocks, weights_of(blocks), strict=True)):
            changed, own = difference.places[place], difference.integers[place].astype(float)
            base = levels[0].dense(place, block.code.size)[changed]
            scores[level] += weight * float(own @ (left[place][changed] - base) - own @ own / 2)
    return int(np.argmax(scores))


def level_tables(
    run: SeenRun, profile: Profile, position: int, levels: RatingLevels, *, rng: RandomStream
) -> list[PersonTables]:
    """Return the tables of a profile with every level at one of its ratings."""
    items, values = profile
    found = []
    for level in levels.values:
        changed = values.copy()
        changed[position] = level
        found.append(run.tables((items, changed), rng=rng))
    return found


def level_prior(ratings: FloatArray, levels: RatingLevels) -> FloatArray:
    """Return how likely each level is before any sum: how other people rated the item, and how people rate."""
    counts = np.bincount(levels.places(ratings), minlength=len(levels)) if len(ratings) else np.zeros(len(levels))
    return np.asarray((counts + 2 * levels.shares) / (counts.sum() + 2))


def name_rater(run: SeenRun, left: Left, item: int, candidates: Sequence[Profile], *, rng: RandomStream) -> int:
    """Return who of the candidates rated an item that only one person rated: whose row fits the sums best.

    The row of such an item *is* one device's row and the noise; nobody has to be subtracted. The attacker knows what
    each candidate rated besides. Rows that depend on the rating itself are left out.
    """
    rows = [place for place, block in enumerate(run.blocks) if block.block.name in (COUNTS, AUDIENCE)]
    fits = np.zeros(len(candidates))
    for number, (items, values) in enumerate(candidates):
        at = int(np.searchsorted(items, item))
        tables = run.tables((np.insert(items, at, item), np.insert(values, at, 3.0)), rng=rng)
        for place in rows:
            block = run.blocks[place]
            width = block.block.size // block.block.shape[0]
            own = tables.dense(place, block.block.size)[item * width : (item + 1) * width]
            seen = left[place][item * width : (item + 1) * width]
            fits[number] -= float(((seen - own) ** 2).sum()) / max(block.variance, LEAST_VARIANCE)
    return int(np.argmax(fits))
