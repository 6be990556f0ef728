"""Functions that make the arguments of the CPU kernels: blocks of users, padded rows, random draws and streams."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray, row_starts
from hushrec.engines.cpu.kernels import Given, Rows, Step, Streams
from hushrec.engines.cpu.philox import Stream, make_stream
from hushrec.engines.gradient import GradientProblem
from hushrec.errors import ParameterError
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.device import Draws
from hushrec.randomness import Purpose

REGISTER_BYTES = 64
MOST_BLOCKS, FEWEST_BLOCKS = 64, 8
REPORTS_PER_SUM = 32  # least mean number of reports of an item in a block: fewer blocks take less time to add up


def block_borders(problem: GradientProblem) -> IntArray:
    """Divide the users into blocks with about equal work.

    Return the first user of each block, and at the end the number of users. How many blocks there are depends on the
    problem, never on the machine, so that results are reproducible. It is a power of two, so that most machines can
    give each core the same number of blocks.
    """
    z = problem.terms.reports_per_client
    counts = problem.rated_counts
    work = np.cumsum(counts if z is None else np.where(counts > 0, counts + z, 0))
    n_reports = int(problem.starts[-1]) if z is None else len(problem.active_users) * z
    wanted = np.clip(n_reports / (REPORTS_PER_SUM * problem.n_items), FEWEST_BLOCKS, MOST_BLOCKS)
    n_blocks = 2 ** int(np.log2(wanted))
    cuts = np.searchsorted(work, work[-1] * np.arange(1, n_blocks) / n_blocks)
    return np.concatenate([[0], cuts, [problem.n_users]]).astype(np.int64)


def given_draws(problem: GradientProblem, draws: Mapping[int, Draws] | None) -> Given:
    """Return everybody's random draws of one round as flat arrays for the kernels; empty arrays if `draws` is None."""
    width, none = problem.model.user_width, np.empty(0, np.uint32)
    if draws is None:
        return Given(np.empty(0, np.int64), none, np.empty(0), np.empty((0, width)), none, none)
    active = problem.active_users.tolist()
    if set(draws) != set(active):
        missing, others = len(set(active) - set(draws)), len(set(draws) - set(active))
        raise ParameterError(
            f"draws must have an entry for each user who takes part, and no others, but {missing} entries are missing"
            f" and {others} are of users who take no part. Give the draws of a run of the same problem."
        )
    counts = np.zeros(problem.n_users, np.int64)
    user_noise = np.zeros((problem.n_users, width))
    user_partners = np.zeros(len(problem.items), np.uint32)
    errors = []
    for user in active:
        own, rows = draws[user], slice(problem.starts[user], problem.starts[user + 1])
        fakes = np.zeros(len(own.selected))
        if problem.model.learns_from_pairs:
            user_partners[rows] = own.user_partners
        else:
            fakes[~np.isin(own.selected, problem.items[rows])] = own.fake_errors
        counts[user], user_noise[user] = len(own.selected), own.user_noise
        errors.append(fakes)
    items = np.concatenate([draws[user].selected for user in active]).astype(np.uint32)
    partners = np.concatenate([draws[user].selected_partners for user in active]).astype(np.uint32)
    return Given(row_starts(counts), items, np.concatenate(errors), user_noise, user_partners, partners)


def padded(problem: GradientProblem, rows: FloatArray, dtype: npt.DTypeLike) -> Rows:
    """Return the rows padded with zeros to a width that fills whole vector registers of the processor.

    The width is the same for all vectors of a problem, whatever their length, and depends on `dtype`.
    """
    kind = np.dtype(dtype)
    per_register = REGISTER_BYTES // kind.itemsize
    n_numbers = problem.model.item_width + isinstance(problem.model, FactorizationMachine)
    width = -(-n_numbers // per_register) * per_register
    found = np.zeros((len(rows), width), kind)
    found[:, : rows.shape[1]] = rows
    return found


def make_step(problem: GradientProblem, round_number: int, dtype: npt.DTypeLike) -> Step:
    """Return the step size, data weight and regularization of one round."""
    terms = problem.terms
    return Step(
        n_factors=problem.model.item_width,
        size=terms.step_size(round_number),
        data_weight=terms.data_weight,
        user_regularization=padded(problem, terms.user_regularization[None, :], dtype)[0],
        item_regularization=padded(problem, terms.item_regularization[None, :], dtype)[0],
    )


def make_streams(problem: GradientProblem, round_number: int) -> Streams:
    """Return the random streams of one round. The stream of item noise is keyed by item, the other streams by user."""
    return Streams(
        selection=user_stream(problem, Purpose.SELECTION, round_number),
        fake_errors=user_stream(problem, Purpose.FAKE_ERRORS, round_number),
        user_noise=user_stream(problem, Purpose.USER_NOISE, round_number),
        item_noise=make_stream(problem.seed, Purpose.SUMMED_NOISE, round_number),
        user_pairs=user_stream(problem, Purpose.USER_PAIRS, round_number),
        selected_pairs=user_stream(problem, Purpose.SELECTED_PAIRS, round_number),
    )


def user_stream(problem: GradientProblem, purpose: Purpose, round_number: int) -> Stream:
    """Return the key from which kernels derive every user's random stream for one purpose and round.

    If the problem holds only a part of the users, each user has the same stream as in the whole run.
    """
    return make_stream(problem.seed, purpose, round_number, problem.first_user)
