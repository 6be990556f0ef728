"""What a problem means for arrays over all users at once: probabilities, noisy values, capped profiles."""

import numpy as np

from hushrec.budget.calibrate import calibrate_selection
from hushrec.problem import Problem
from hushrec.protocols import DeviceProtocol, Isgld, Sdcf
from hushrec.randomness import FloatArray, IntArray, Purpose, SeededRandomness


def selection_choices(problem: Problem) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """f/2, p, q and ε_g of every user, `(n_users,)` each; who sends just the rated items has f = 0, p = 0, q = 1."""
    n = problem.n_users
    flip, zero, one, epsilon_g = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for protocol, users in users_by_protocol(problem).items():
        if not isinstance(protocol, Sdcf):
            one[users] = 1.0
            continue
        assert problem.terms.reports_per_client is not None
        h = problem.rated_counts[users] if protocol.profile_cap is None else np.full(len(users), protocol.profile_cap)
        found = calibrate_selection(
            h, problem.n_items, problem.terms.reports_per_client, protocol.epsilon_i, protocol.epsilon_p
        )
        flip[users], zero[users], one[users] = found.prob_randomize / 2, found.prob_send_zero, found.prob_send_one
        epsilon_g[users] = protocol.epsilon_g or 0.0  # `bpr` has no fakes
    return flip, zero, one, epsilon_g


def users_by_protocol(problem: Problem) -> dict[DeviceProtocol, IntArray]:
    """Active users of each distinct protocol."""
    active = problem.active_users
    if len(problem.protocols) == 1:
        return {problem.protocols[0]: active}
    groups: dict[DeviceProtocol, list[int]] = {}
    for user in active.tolist():
        groups.setdefault(problem.protocol(user), []).append(user)
    return {protocol: np.array(users, dtype=np.int64) for protocol, users in groups.items()}


def training_key(problem: Problem) -> tuple[object, ...]:
    """Equal for problems that train on the same values: the same arrays, and no noise or the same noise on them."""
    noisy = tuple(protocol for protocol in problem.protocols if isinstance(protocol, Isgld))
    return id(problem.items), id(problem.values), noisy, problem.seed if noisy else None


def training_values(problem: Problem) -> FloatArray:
    """The values that each device trains on, in the order of `problem.items`; noise is drawn for all users at once."""
    rng = SeededRandomness(problem.seed).stream(Purpose.RATING_NOISE)
    if len(problem.protocols) == 1:
        return problem.protocols[0].training_values(problem.values, rng=rng)
    values = problem.values.copy()
    owners = np.repeat(np.arange(problem.n_users), problem.rated_counts)
    for protocol, users in users_by_protocol(problem).items():
        rows = np.isin(owners, users)
        values[rows] = protocol.training_values(values[rows], rng=rng)
    return values


def kept_under_caps(problem: Problem, *, rng: np.random.Generator) -> IntArray | None:
    """Row numbers of the ratings that count towards B: at most `profile_cap` random ones each; None if no cap bites."""
    caps = np.full(problem.n_users, np.iinfo(np.int64).max)
    for protocol, users in users_by_protocol(problem).items():
        if isinstance(protocol, Sdcf) and protocol.profile_cap is not None:
            caps[users] = protocol.profile_cap
    counts = problem.rated_counts
    if np.all(counts <= caps):
        return None
    owners = np.repeat(np.arange(problem.n_users), counts)
    order = np.lexsort((rng.random(len(owners)), owners))
    rank = np.arange(len(owners)) - problem.starts[owners[order]]
    return np.sort(order[rank < caps[owners[order]]])
