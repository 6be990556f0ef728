"""Guesses about one person from the sums of a run, after everybody else's tables are subtracted.

The argument `left` is what remains of every block: the person's integers plus noise. The noise is drawn anew for each
person, because people who are compared with each other must not have the same noise. No function of this module sees
the person's true ratings.
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

Left = list[FloatArray]  # one array for every block of a run
LEAST_VARIANCE = 1.0  # variance of a number because of rounding, in squared grid units, for runs without noise
ROWS = (AUDIENCE, BIAS, FACTORS)  # blocks with one row per item


def left_of(run: SeenRun, tables: PersonTables, *, rng: np.random.Generator) -> Left:
    """Return what remains of a run's sums after subtracting everybody else's tables: `tables` plus new noise."""
    found = []
    for block, positions, integers in zip(run.blocks, tables.positions, tables.integers, strict=True):
        law = summed_noise(block.code.share_variance, block.survivors)
        one = law.draw(block.code.size, rng=rng).astype(np.float64)
        one[positions] += integers
        found.append(one)
    return found


def item_scores(blocks: Sequence[SeenBlock], left: Left, usual_count: float) -> FloatArray:
    """Return, for every item of the catalogue, the log-likelihood ratio of "this person rated it" to "did not".

    Let C be the clip of a block and h = `usual_count`, in place of the person's number of ratings, which the attacker
    does not know. The likelihood assumes for an unrated item that its entries are only noise. For a rated item, it
    assumes the entry min(1, C/√h) in the block of counts. In other item blocks, whose rows have k entries, it assumes
    entries with mean 0 and variance C²/(hk). Noise is added to both.
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
    """Return the index of the block that reveals a person's taste best, and how many of its first entries do so.

    Under model `gp`, it is the last block named "prior", which begins with twice the taste vector. Under `audience`, it
    is the last block named "moments", which begins with the vector that describes the person.
    """
    names = {block.block.name for block in blocks}
    place = index_of(blocks, PRIOR if PRIOR in names else MOMENTS)
    return place, int((math.isqrt(9 + 8 * blocks[place].code.size) - 3) // 2)  # L + L(L + 1)/2 numbers


def index_of(blocks: Sequence[SeenBlock], name: str) -> int:
    """Return the index of the last block with this name."""
    return max(place for place, block in enumerate(blocks) if block.block.name == name)


def read_count(blocks: Sequence[SeenBlock], left: Left, popularity: FloatArray) -> float:
    """Return a noisy number that is higher for people with more ratings.

    It is the scalar product of the person's block of counts, as `left` has it, and `popularity`, a number per item.
    """
    return float(left[index_of(blocks, COUNTS)] @ popularity)


def read_rating(blocks: Sequence[SeenBlock], left: Left, levels: Sequence[PersonTables], prior: FloatArray) -> int:
    """Return the index of the most likely value of one rating of a person.

    `levels` holds the person's tables for each value that the rating can have, and `prior` the probability of each
    value. The log-likelihood of tables z is ⟨z, left⟩/variance − ‖z‖²/(2 variance). Each value is compared with the
    first one, so that only entries that differ are computed.
    """
    scores = np.log(prior)
    for level, tables in enumerate(levels):
        difference = tables.minus(levels[0])
        for place, (block, weight) in enumerate(zip(blocks, weights_of(blocks), strict=True)):
            changed, own = difference.positions[place], difference.integers[place].astype(float)
            base = levels[0].dense(place, block.code.size)[changed]
            scores[level] += weight * float(own @ (left[place][changed] - base) - own @ own / 2)
    return int(np.argmax(scores))


def level_tables(
    run: SeenRun, profile: Profile, position: int, levels: RatingLevels, *, rng: RandomStream
) -> list[PersonTables]:
    """Return a device's tables for every value in `levels` that the rating at `position` of the profile can have."""
    items, values = profile
    is_asked = np.arange(len(values)) == position
    return [run.tables((items, np.where(is_asked, level, values)), rng=rng) for level in levels.values]


def level_prior(ratings: FloatArray, levels: RatingLevels) -> FloatArray:
    """Return the prior probability of each value in `levels` for a rating of one item, from other people's `ratings`.

    The probabilities are the frequencies in `ratings`, smoothed by two pseudo-ratings with the frequencies
    `levels.shares`.
    """
    counts = np.bincount(levels.indices(ratings), minlength=len(levels)) if len(ratings) else np.zeros(len(levels))
    return np.asarray((counts + 2 * levels.shares) / (counts.sum() + 2))


def name_rater(run: SeenRun, left: Left, item: int, candidates: Sequence[Profile], *, rng: RandomStream) -> int:
    """Return the index of the candidate who most likely rated an item that only one person rated.

    In the sums, the row of such an item is one device's row plus noise; `left` holds this row. `candidates` holds each
    candidate's profile without the item, which the attacker knows. Blocks that depend on the value of the rating are
    not used.
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
