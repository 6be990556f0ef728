"""Guesses about one person from the sums of a run, after everybody else's tables are subtracted.

The argument `left` is what remains of every block: the person's integers plus noise. The noise is drawn anew for each
person, because people who are compared with each other must not have the same noise. Only `left_of`, which makes
`left`, uses the true ratings that the other functions guess.
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
    for block, own in zip(run.blocks, tables, strict=True):
        law = summed_noise(block.code.share_variance, block.survivors)
        numbers = law.draw(block.code.size, rng=rng).astype(np.float64)
        numbers[own.indices] += own.data
        found.append(numbers)
    return found


def item_scores(blocks: Sequence[SeenBlock], left: Left, usual_count: float) -> FloatArray:
    """Return, for every item of the catalogue, the log-likelihood ratio of "this person rated it" to "did not".

    `left` holds, for each block, the person's entries plus noise. The entries of an unrated item are assumed to be 0
    before noise. For a rated item, two assumptions are made about the entries before noise. In the block of counts, the
    entry is min(1, C/√h). In other item blocks, the k entries of the item's row are normal with mean 0 and variance
    C²/(hk). Here C is the clip of the block. The attacker does not know the person's number of ratings; h =
    `usual_count` is a typical one.
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
    """Return the index of the block that begins with a person's taste, and the length of the taste vector.

    Under model `gp`, it is the last block named "prior", which begins with twice the taste vector. Under `audience`, it
    is the last block named "moments", which begins with the person's description, the vector that summarizes the items.
    """
    names = {block.block.name for block in blocks}
    place = index_of(blocks, PRIOR if PRIOR in names else MOMENTS)
    return place, (math.isqrt(9 + 8 * blocks[place].code.size) - 3) // 2  # L of the L + L(L + 1)/2 entries


def index_of(blocks: Sequence[SeenBlock], name: str) -> int:
    """Return the index of the last block with this name."""
    return max(place for place, block in enumerate(blocks) if block.block.name == name)


def read_rating(blocks: Sequence[SeenBlock], left: Left, levels: Sequence[PersonTables], prior: FloatArray) -> int:
    """Return the index of the most likely value of one rating of a person.

    `left` holds, for each block, the person's entries plus noise. `levels` holds the person's tables for each value
    that the rating can have, and `prior` the probability of each value. The log-likelihood of tables z is
    ⟨z, left⟩/variance − ‖z‖²/(2 variance). Each value is compared with the first one, so that only entries that differ
    are computed.
    """
    scores = np.log(prior)
    for level, tables in enumerate(levels):
        for weight, numbers, first, own in zip(weights_of(blocks), left, levels[0], tables, strict=True):
            difference = own - first
            changed, moves = difference.indices, difference.data.astype(float)
            scores[level] += weight * float(moves @ (numbers - first)[changed] - moves @ moves / 2)
    return int(np.argmax(scores))


def level_prior(ratings: FloatArray, levels: RatingLevels) -> FloatArray:
    """Return the prior probability of each value in `levels` for a rating of one item.

    The probabilities are the frequencies in other people's `ratings` of the item, smoothed by two pseudo-ratings with
    the frequencies `levels.shares`.
    """
    counts = np.bincount(levels.indices(ratings), minlength=len(levels)) if len(ratings) else np.zeros(len(levels))
    return np.asarray((counts + 2 * levels.shares) / (counts.sum() + 2))


def name_rater(run: SeenRun, left: Left, item: int, candidates: Sequence[Profile], *, rng: RandomStream) -> int:
    """Return the index of the candidate who most likely rated an item that only one person rated.

    In the sums, the row of an item with a single rater is the row of one device plus noise; `left` holds this row of
    each item block. `candidates` holds each candidate's profile without the item, which the attacker knows. Blocks that
    depend on the value of the rating are not used.
    """
    rows = [place for place, block in enumerate(run.blocks) if block.block.name in (COUNTS, AUDIENCE)]
    fits = np.zeros(len(candidates))
    for number, (items, values) in enumerate(candidates):
        at = int(np.searchsorted(items, item))
        tables = run.tables((np.insert(items, at, item), np.insert(values, at, 3.0)), rng=rng)
        for place in rows:
            block = run.blocks[place]
            width = block.block.size // block.block.shape[0]
            own = tables[place].toarray()[item * width : (item + 1) * width]
            seen = left[place][item * width : (item + 1) * width]
            fits[number] -= float(((seen - own) ** 2).sum()) / max(block.variance, LEAST_VARIANCE)
    return int(np.argmax(fits))
