"""Synthetic ratings with a known ground truth, similar to MovieLens.

    rating = round(mean + user bias + item bias + user vector · item vector + noise), clipped to 1..5

Genres influence the item vectors, so that attributes are informative about taste. The number of ratings per person has
a long tail and is at least 20, if there are enough ratings. Popularity is skewed and correlated with quality, and
people are more likely to rate what they like.

Every person has a random stream, keyed by (seed, user), so that the ratings do not depend on the size of the blocks in
which they are generated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.data.ratings import Catalogue, Ratings
from hushrec.errors import DataError, ParameterError
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.scale import Scale

MEAN = 3.4
N_FACTORS = 4
USER_BIAS, ITEM_BIAS, TASTE, NOISE = 0.4, 0.4, 0.8, 0.6  # standard deviations, in stars
GENRE_SHARE = 0.6  # share of an item vector's variance that its genres explain
FEWEST_PER_USER = 20
MOST_OF_ITEMS = 0.6
ACTIVITY_SPREAD, POPULARITY_SPREAD = 1.1, 1.1  # of log-normal weights
QUALITY_PULL, TASTE_PULL = 0.8, 0.5  # influence of an item's quality, and of the person's taste, on the choice

GENRES = ("Action", "Comedy", "Crime", "Documentary", "Drama", "Family", "Horror", "Mystery", "Romance", "Sci-Fi")
_FIRST = (
    "Silent Crimson Hidden Golden Broken Distant Frozen Wandering Paper Electric Midnight Hollow Burning Gentle "
    "Forgotten Velvet Restless Emerald Borrowed Last Second Lonely Iron Secret Quiet Wild Painted Savage Northern "
    "Invisible Scarlet Falling Impossible Crooked"
)
_SECOND = (
    "Harbour Orchard Station Letters River Winter Garden Empire Mirror Highway Summer Lighthouse Engine Horizon Clock "
    "Dancer Island Museum Promise Signal Carnival Bridge Detective Voyage Kingdom Planet Neighbour Wedding Shadow "
    "Telegram Mountain Comet Stranger Symphony Hotel"
)
FIRST_WORDS, SECOND_WORDS = _FIRST.split(), _SECOND.split()
SHAPES = ("The {0} {1}", "{0} {1}", "A {0} {1}", "The {1}", "Return to the {0} {1}", "{1} of the {0}")


@dataclass(frozen=True, eq=False)
class Block:
    """The ratings of consecutive users, sorted by user. Each array has one entry per rating."""

    users: IntArray  # indices, from 0
    items: IntArray  # indices, from 0
    values: FloatArray  # 1, 2, … 5


@dataclass(frozen=True, eq=False)
class Truth:
    """The ground truth behind synthetic ratings: biases and vectors of users and items."""

    mean: float
    user_biases: FloatArray  # (n_users,)
    item_biases: FloatArray  # (n_items,)
    user_vectors: FloatArray  # (n_users, N_FACTORS)
    item_vectors: FloatArray  # (n_items, N_FACTORS)

    def expected(self, users: IntArray, items: IntArray) -> FloatArray:
        """Return the expected rating of each (user, item) pair: before noise and rounding, clipped to 1..5."""
        taste = np.einsum("rk,rk->r", self.user_vectors[users], self.item_vectors[items])
        return np.asarray(np.clip(self.mean + self.user_biases[users] + self.item_biases[items] + taste, 1, 5))


@dataclass(frozen=True, eq=False)
class _World:
    """The random draws before the first rating: the films, and how many ratings each user has."""

    seed: int
    activity: IntArray  # (n_users,): the number of ratings of each user
    log_popularity: FloatArray  # (n_items,)
    item_biases: FloatArray  # (n_items,)
    item_vectors: FloatArray  # (n_items, N_FACTORS)
    genres: BoolArray  # (n_items, len(GENRES)): whether a film has a genre
    years: FloatArray  # (n_items,)
    titles: list[str]


def synthetic(n_users: int = 300, n_items: int = 400, n_ratings: int = 18_000, seed: int = 0) -> Ratings:
    """Return synthetic ratings of films with titles, genres and years; ids are numbers from 1."""
    world = _make_world(n_users, n_items, n_ratings, seed)
    (block,) = _stream(world, users_per_block=n_users)
    item_ids = [str(item + 1) for item in range(n_items)]
    flags = [pl.Series(f"genre={genre}", world.genres[:, column]) for column, genre in enumerate(GENRES)]
    attributes = pl.DataFrame([pl.Series("year", world.years), *flags])
    return Ratings(
        name="synthetic",
        user_ids=[str(user + 1) for user in range(n_users)],
        item_ids=item_ids,
        users=block.users,
        items=block.items,
        values=block.values,
        scale=Scale(1, 5),
        titles=world.titles,
        attributes=attributes,
        catalogue=Catalogue(item_ids, world.titles, attributes, rated_items=np.arange(n_items), n_unlisted=0),
    )


def stream(
    n_users: int = 300, n_items: int = 400, n_ratings: int = 18_000, seed: int = 0, *, users_per_block: int = 256
) -> Iterator[Block]:
    """Yield the ratings of `synthetic` in blocks of `users_per_block` users, with only one block in memory."""
    if users_per_block < 1:
        raise ParameterError(f"users_per_block must be at least 1, got {users_per_block}.")
    return _stream(_make_world(n_users, n_items, n_ratings, seed), users_per_block)


def synthetic_truth(n_users: int = 300, n_items: int = 400, n_ratings: int = 18_000, seed: int = 0) -> Truth:
    """Return the ground truth behind `synthetic` with the same arguments."""
    world = _make_world(n_users, n_items, n_ratings, seed)
    people = [_person(seed, user)[:2] for user in range(n_users)]
    biases = np.array([bias for bias, _ in people])
    return Truth(MEAN, biases, world.item_biases, np.array([vector for _, vector in people]), world.item_vectors)


def from_name(name: str) -> Ratings:
    """Return the synthetic ratings that a name describes, such as `synthetic:users=6000,items=4000,seed=3`.

    Without `ratings`, the mean number of ratings per user is 60, or 30 % of the items if that is less.
    """
    settings: dict[str, int] = {}
    names = {"users": "n_users", "items": "n_items", "ratings": "n_ratings", "seed": "seed"}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, number = part.partition("=")
        if key not in names or names[key] in settings or not (number.isascii() and number.isdigit()):
            raise DataError(
                f"{name!r}: expected synthetic:users=N,items=N,ratings=N,seed=N, each at most once, in whole numbers."
            )
        settings[names[key]] = int(number)
    if "n_ratings" not in settings:
        n_users, n_items = settings.get("n_users", 300), settings.get("n_items", 400)
        settings["n_ratings"] = n_users * max(1, min(60, int(0.3 * n_items)))
    try:
        return synthetic(**settings)
    except ParameterError as error:
        raise DataError(f"{name!r}: {error}") from None


def _make_world(n_users: int, n_items: int, n_ratings: int, seed: int) -> _World:
    if n_users < 1 or n_items < 1:
        raise ParameterError(f"users and items must be at least 1, got {n_users} and {n_items}.")
    if not n_users <= n_ratings <= n_users * n_items:
        raise ParameterError(
            f"ratings must be from {n_users} (one per user) to {n_users * n_items} (users × items), got {n_ratings}."
        )
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be in [0, 2^64), got {seed}.")
    rng = SeededRandomness(seed).stream(Purpose.SYNTHETIC)
    genres = rng.random((n_items, len(GENRES))) < 0.08  # besides one certain genre per film
    genres[np.arange(n_items), rng.integers(0, len(GENRES), n_items)] = True
    genre_vectors = rng.standard_normal((len(GENRES), N_FACTORS))
    from_genres = genres @ genre_vectors / np.sqrt(genres.sum(axis=1, keepdims=True))
    own = rng.standard_normal((n_items, N_FACTORS))
    item_vectors = np.sqrt(GENRE_SHARE) * from_genres + np.sqrt(1 - GENRE_SHARE) * own
    item_biases = ITEM_BIAS * rng.standard_normal(n_items)
    log_popularity = POPULARITY_SPREAD * rng.standard_normal(n_items) + QUALITY_PULL * item_biases / ITEM_BIAS
    years = np.maximum(1930, 2005 - np.floor(rng.standard_exponential(n_items) * 14))
    return _World(
        seed=seed,
        activity=_draw_activity(rng, n_users, n_items, n_ratings),
        log_popularity=log_popularity,
        item_biases=item_biases,
        item_vectors=item_vectors * TASTE / np.sqrt(N_FACTORS),
        genres=genres,
        years=years,
        titles=_draw_titles(rng, years),
    )


def _draw_activity(rng: np.random.Generator, n_users: int, n_items: int, n_ratings: int) -> IntArray:
    """Return the number of ratings of each user.

    Every user gets the same minimum. All other ratings are divided in proportion to log-normal weights, up to a
    maximum per user.
    """
    most = max(int(MOST_OF_ITEMS * n_items), -(-n_ratings // n_users))
    fewest = min(FEWEST_PER_USER, n_ratings // n_users)
    weights = np.exp(ACTIVITY_SPREAD * rng.standard_normal(n_users))
    activity = np.full(n_users, fewest, dtype=np.int64)
    while (left := n_ratings - int(activity.sum())) > 0:
        open_weights = np.where(activity < most, weights, 0.0)
        edges = np.floor(np.cumsum(open_weights) / open_weights.sum() * left + 0.5).astype(np.int64)
        activity = np.minimum(activity + np.diff(edges, prepend=0), most)
    return activity


def _draw_titles(rng: np.random.Generator, years: FloatArray) -> list[str]:
    """Return distinct titles with years; a title that is drawn again gets the number 2, 3, … as in "Iron Bridge 2"."""
    taken: dict[str, int] = {}
    titles = []
    choices = rng.integers(0, len(SHAPES) * len(FIRST_WORDS) * len(SECOND_WORDS), len(years))
    for choice, year in zip(choices.tolist(), years.tolist(), strict=True):
        choice, shape = divmod(choice, len(SHAPES))
        second, first = divmod(choice, len(FIRST_WORDS))
        title = SHAPES[shape].format(FIRST_WORDS[first], SECOND_WORDS[second])
        taken[title] = part = taken.get(title, 0) + 1
        titles.append(f"{title}{f' {part}' if part > 1 else ''} ({year:.0f})")
    return titles


def _person(seed: int, user: int) -> tuple[float, FloatArray, np.random.Generator]:
    """Return a person's bias, user vector, and the random stream from which the person's ratings are drawn."""
    rng = SeededRandomness(seed, user).stream(Purpose.SYNTHETIC, round_number=1)
    draws = rng.standard_normal(1 + N_FACTORS)
    return float(USER_BIAS * draws[0]), draws[1:], rng


def _stream(world: _World, users_per_block: int) -> Iterator[Block]:
    n_users = len(world.activity)
    for first in range(0, n_users, users_per_block):
        users = range(first, min(first + users_per_block, n_users))
        rated = [_rate(world, user) for user in users]
        yield Block(
            users=np.repeat(np.arange(users.start, users.stop), world.activity[users.start : users.stop]),
            items=np.concatenate([items for items, _ in rated]),
            values=np.concatenate([values for _, values in rated]),
        )


def _rate(world: _World, user: int) -> tuple[IntArray, FloatArray]:
    """Return the items that a person rated, ascending, and the ratings.

    Items are drawn without replacement. The weight w of an item grows with its popularity and with the person's taste
    for it; the items with the smallest Exp(1) / w are drawn.
    """
    bias, vector, rng = _person(world.seed, user)
    count = int(world.activity[user])
    taste = world.item_vectors @ vector
    waiting = rng.standard_exponential(len(taste)) * np.exp(-world.log_popularity - TASTE_PULL * taste)
    items = np.sort(np.argpartition(waiting, count - 1)[:count])
    stars = MEAN + bias + world.item_biases[items] + taste[items] + NOISE * rng.standard_normal(count)
    return items, np.clip(np.rint(stars), 1, 5)
