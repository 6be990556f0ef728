"""Per-user arrays for engine `gpu` (probabilities, training values, capped profiles), and how many runs fit a GPU."""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.gradient import GradientProblem, profile_caps, selection_probabilities, user_epsilon_g
from hushrec.errors import ParameterError
from hushrec.randomness import Purpose, SeededRandomness

RESERVE = 0.8  # share of the free memory that a batch may use


def selection_choices(problem: GradientProblem) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return every user's flip probability, `prob_send_zero`, `prob_send_one` and ε_g, `(n_users,)` each.

    The permanent bit of an item is 1 if the item is rated, and 0 otherwise; it is flipped with the flip probability. In
    a protocol without selection the three probabilities are 0, 0 and 1, so that exactly the rated items are reported,
    and ε_g is 0. For users who take no part, all three probabilities are 0.
    """
    found = selection_probabilities(problem)
    if found is None:
        none = np.zeros(problem.n_users)
        return none, none, problem.takes_part.astype(np.float64), none
    return found.prob_randomize / 2, found.prob_send_zero, found.prob_send_one, user_epsilon_g(problem)


def training_key(problem: GradientProblem) -> tuple[object, ...]:
    """Return a key that identifies the training values of a problem, including noise on the ratings.

    Two problems with equal keys train on the same values. The key has the identities of the arrays of ratings, so that
    copies of equal arrays have other keys.
    """
    noisy = tuple(protocol for protocol in problem.protocols if protocol.rating_epsilon is not None)
    return id(problem.items), id(problem.values), noisy, problem.seed if noisy else None


def training_values(problem: GradientProblem) -> FloatArray:
    """Return the ratings that devices train on, in the order of `problem.items`, with Laplace noise in `isgld`."""
    rng = SeededRandomness(problem.seed).stream(Purpose.RATING_NOISE)
    if len(problem.protocols) == 1:
        return problem.protocols[0].training_values(problem.values, rng=rng)
    own = [
        problem.protocols[user].training_values(problem.profile(user)[1], rng=rng) for user in range(problem.n_users)
    ]
    return np.concatenate(own)


def kept_under_caps(problem: GradientProblem, *, rng: np.random.Generator) -> IntArray | None:
    """Return the indices of at most `profile_cap` random ratings of each user; None if no user has more ratings."""
    caps, owners = profile_caps(problem), problem.rating_users
    if np.all(problem.rated_counts <= caps):
        return None
    order = np.lexsort((rng.random(len(owners)), owners))
    rank = np.arange(len(owners)) - problem.starts[owners[order]]
    return np.sort(order[rank < caps[owners[order]]])


def check_supported(problem: GradientProblem, first: GradientProblem) -> None:
    """Raise `ParameterError` if engine `gpu` cannot run the problem, or cannot run it in one batch with `first`."""
    if problem.model.name not in ("mf", "bpr"):
        raise ParameterError(f"model must be mf or bpr for engine gpu, got {problem.model.name}. Use engine cpu.")
    shapes = [(entry.model.name, entry.n_users, entry.n_items, entry.model.n_factors) for entry in (problem, first)]
    if shapes[0] != shapes[1]:
        raise ParameterError(
            f"runs of one batch must have the same model, users, items and factors, got {shapes[0]} and {shapes[1]}."
        )


def runs_at_once(
    n_users: int, n_items: int, n_factors: int, free_bytes: int, runs_per_set: float = 1, n_pairs: int = 0
) -> int:
    """Return the number of runs that fit into `free_bytes` of GPU memory; raise `ParameterError` if no run fits.

    A fifth of `free_bytes` stays unused. Every run needs permanent bits, vectors and temporary arrays; `runs_per_set`
    runs share one copy of the training values. Kernels `dense` compute one run at a time, and need further memory for
    this run: about eight numbers per (user, item) cell, and for each of `n_pairs` pairs (model `bpr`) eight vectors and
    sixteen numbers of 8 bytes. This memory is reserved for kernels `fused` too.
    """
    cells = n_users * n_items
    one_run = cells * (1 + 4 / runs_per_set) + 4 * 8 * n_factors * (n_users + n_items)
    temporary = 8 * 4 * cells + (8 * 4 * n_factors + 16 * 8) * n_pairs
    fitting = int((RESERVE * free_bytes - temporary) / one_run)
    if fitting < 1:
        raise ParameterError(
            f"free GPU memory must be at least {(one_run + temporary) / RESERVE / 1e9:.3g} GB for a run of {n_users}"
            f" users and {n_items} items, got {free_bytes / 1e9:.3g} GB. Use engine cpu."
        )
    return fitting
