"""Compiled kernels for one round of matrix factorization: the computations of all devices and of the server, as loops.

    report_block     computes errors, selections, fake errors and user updates of a block of users, and sums its reports
    move_items       adds up the blocks in order, and adds to every item vector the mean of its gradients

Rows are padded to the width of vector registers. Users are divided into a fixed number of blocks, and the
reports of each block are summed by one thread, so that results are bit-identical for any number of threads.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.engines.cpu.normal import fill_fakes, fill_normal
from hushrec.engines.cpu.philox import FIRST_BLOCK, Stream, fill_words
from hushrec.engines.cpu.randomized_response import SPARSE, TOGETHER, list_items, respond, scratch_words, select_sparse

REORDER = {"reassoc", "contract", "nsz"}  # fast-math flags that let sums be vectorized but keep NaN
Rows = npt.NDArray[np.floating]


class Profiles(NamedTuple):
    """The ratings of all users. User i rated the items `items[starts[i]:starts[i + 1]]`, in ascending order."""

    starts: npt.NDArray[np.int64]  # (n_users + 1,)
    items: npt.NDArray[np.uint32]  # (n_ratings,)
    values: Rows  # (n_ratings,)
    takes_part: npt.NDArray[np.bool_]  # (n_users,); other users send nothing, and their vectors do not change


class Choices(NamedTuple):
    """What all users need to select the items to report: permanent bits, probabilities, and ε_g of the fake errors.

    Arrays have the shape `(n_users,)` unless another is given. They are empty, with `n_words` 0, in protocols that do
    not select items.
    """

    bits: npt.NDArray[np.uint64]  # permanent bits, 64 items in a word, (n_users, n_words)
    prob_zero: npt.NDArray[np.float64]  # p, the probability of selecting an item whose permanent bit is 0
    prob_one: npt.NDArray[np.float64]  # q, the probability of selecting an item whose permanent bit is 1
    epsilon_g: npt.NDArray[np.float64]  # infinite for model `bpr`, which has no fake errors


class Given(NamedTuple):
    """Random draws of all users, given by the caller as flat arrays. If they are empty, the kernels make the draws.

    Model `bpr` compares an item with its *partner*: a rated item with an unrated one, or an unrated with a rated one.
    """

    starts: npt.NDArray[np.int64]  # user i has the entries `starts[i]` … `starts[i + 1]` − 1 of `items`, (n_users + 1,)
    items: npt.NDArray[np.uint32]  # the selected items of all users, (n_selected,)
    fake_errors: npt.NDArray[np.float64]  # of each selected item, (n_selected,); not used where the item is rated
    user_noise: npt.NDArray[np.float64]  # added to the user vectors, (n_users, user_width)
    user_partners: npt.NDArray[np.uint32]  # the partner of each rated item, (n_ratings,); for `bpr` only
    selected_partners: npt.NDArray[np.uint32]  # the partner of each selected item, (n_selected,); for `bpr` only


class Streams(NamedTuple):
    """The random streams of one round, one per purpose."""

    selection: Stream
    fake_errors: Stream
    user_noise: Stream
    item_noise: Stream
    user_pairs: Stream  # partners of rated items, for the step of the user vector and for a report without selections
    selected_pairs: Stream  # partners of selected items, for the report


class Step(NamedTuple):
    """The step size, data weight and regularization of one round."""

    n_factors: int  # the rest of a row is padding with zeros
    size: float  # η_t
    data_weight: float  # N
    user_regularization: Rows  # (width,)
    item_regularization: Rows  # (width,)


class Vectors(NamedTuple):
    """The user vectors and item vectors at the start of a round; rows are padded with zeros."""

    users: Rows  # (n_users, width)
    items: Rows  # (n_items, width)


class Outcome(NamedTuple):
    """The results of a round for each user: the new user vector, and the privacy loss of this round."""

    users: Rows  # (n_users, width)
    rho: npt.NDArray[np.float64]  # (n_users,), the loss of this round's gradient values


class Inputs(NamedTuple):
    """Everything that the kernels of one round read."""

    profiles: Profiles
    choices: Choices
    given: Given
    streams: Streams
    step: Step
    vectors: Vectors


class Scratch(NamedTuple):
    """The working memory of a kernel for one block of users; its contents are overwritten for each user.

    The last three arrays are for model `bpr`, which learns from pairs of a rated item and an unrated one, its partner.
    """

    errors: Rows  # of the user's rated items, (most ratings of a user,)
    error_of_item: Rows  # errors of the user's rated items, NaN elsewhere, (n_items,)
    pull: Rows  # the sum of error times item vector over the user's ratings or pairs, (width,)
    noise: npt.NDArray[np.float64]  # of the user vector, (width,)
    words: npt.NDArray[np.uint64]  # random words, as many as the longest draw needs
    bits: npt.NDArray[np.uint64]  # this round's bits, 64 items in a word, (n_words,)
    selected: npt.NDArray[np.uint32]  # items to report; longer than n_items, because `list_items` writes a surplus
    selected_errors: npt.NDArray[np.float64]  # errors of the items to report, (n_items,)
    partners: npt.NDArray[np.uint32]  # the partner of each rated item, (most ratings of a user,)
    is_rated: npt.NDArray[np.uint8]  # 1 for the user's rated items; set to 0 again before the next user, (n_items,)
    unrated: npt.NDArray[np.uint32]  # the user's unrated items, (n_items,)


@njit(cache=True)
def make_scratch(first_user, stop_user, inputs):  # type: ignore[no-untyped-def]
    """Return working memory for users `first_user` … `stop_user` − 1."""
    like = inputs.vectors.items
    n_items, width = like.shape
    n_words = inputs.choices.bits.shape[1]
    most_rated = 0
    for user in range(first_user, stop_user):
        most_rated = max(most_rated, inputs.profiles.starts[user + 1] - inputs.profiles.starts[user])
    return Scratch(
        errors=np.empty(most_rated, like.dtype),
        error_of_item=np.full(n_items, np.nan, like.dtype),
        pull=np.zeros(width, like.dtype),
        noise=np.zeros(width),
        words=np.empty(max(n_items + 2, width + 2, scratch_words(n_words)), np.uint64),
        bits=np.empty(n_words, np.uint64),
        selected=np.empty(n_items + TOGETHER, np.uint32),
        selected_errors=np.empty(n_items),
        partners=np.empty(most_rated, np.uint32),
        is_rated=np.zeros(n_items, np.uint8),
        unrated=np.empty(n_items, np.uint32),
    )


@njit(cache=True, fastmath=REORDER)
def rated_errors(items, values, user_vector, item_vectors, errors, pull):  # type: ignore[no-untyped-def]
    """Fill `errors` with the error e = r − u vᵀ of each rated item, and `pull` with the sum Σ e v.

    Here r is the rating, u the user vector and v the item vector. Four rows are processed at a time, so that u is read
    once for four products and the sum is written once for four rows; the rows are still in the cache when the second
    loop reads them.
    """
    zero = user_vector.dtype.type(0)
    fours = len(items) // 4 * 4
    for place in range(0, fours, 4):
        a, b = item_vectors[items[place]], item_vectors[items[place + 1]]
        c, d = item_vectors[items[place + 2]], item_vectors[items[place + 3]]
        at_a, at_b, at_c, at_d = zero, zero, zero, zero
        for k in range(len(user_vector)):
            at_a += a[k] * user_vector[k]
            at_b += b[k] * user_vector[k]
            at_c += c[k] * user_vector[k]
            at_d += d[k] * user_vector[k]
        errors[place], errors[place + 1] = values[place] - at_a, values[place + 1] - at_b
        errors[place + 2], errors[place + 3] = values[place + 2] - at_c, values[place + 3] - at_d
    for place in range(fours, len(items)):
        row, product = item_vectors[items[place]], zero
        for k in range(len(user_vector)):
            product += row[k] * user_vector[k]
        errors[place] = values[place] - product
    pull[:] = 0
    for place in range(0, fours, 4):
        a, b = item_vectors[items[place]], item_vectors[items[place + 1]]
        c, d = item_vectors[items[place + 2]], item_vectors[items[place + 3]]
        e0, e1, e2, e3 = errors[place], errors[place + 1], errors[place + 2], errors[place + 3]
        for k in range(len(pull)):
            pull[k] += e0 * a[k] + e1 * b[k] + e2 * c[k] + e3 * d[k]
    for place in range(fours, len(items)):
        row, error = item_vectors[items[place]], errors[place]
        for k in range(len(pull)):
            pull[k] += error * row[k]


@njit(cache=True)
def copy_into(source, target):  # type: ignore[no-untyped-def]
    """Copy `source` to the beginning of `target`. A slice assignment would take seconds to compile."""
    for place in range(len(source)):
        target[place] = source[place]


@njit(cache=True, fastmath=REORDER)
def mean_and_deviation(errors):  # type: ignore[no-untyped-def]
    """Return the mean and the population standard deviation of a user's errors."""
    total = 0.0
    for place in range(len(errors)):
        total += errors[place]
    mean = total / len(errors)
    squares = 0.0
    for place in range(len(errors)):
        squares += (errors[place] - mean) ** 2
    return mean, math.sqrt(squares / len(errors))


@njit(inline="always")
def draw_selection(user, choices, streams, scratch):  # type: ignore[no-untyped-def]
    """Draw the items that one user reports in this round into `scratch.selected`; return the number of items."""
    n_items = len(scratch.error_of_item)
    bits = choices.bits[user]
    zero, one = choices.prob_zero[user], choices.prob_one[user]
    if max(zero, one) < SPARSE:
        return select_sparse(streams.selection, user, bits, n_items, zero, one, scratch.words, scratch.selected)
    respond(streams.selection, user, bits, zero, one, scratch.words, scratch.bits)
    return list_items(scratch.bits, n_items, scratch.selected)


@njit(inline="always")
def choose(user, rated, errors, choices, given, streams, scratch):  # type: ignore[no-untyped-def]
    """Write the items that a user reports, and their real or fake errors, into `scratch`; return how many there are."""
    if choices.bits.shape[1] == 0:
        copy_into(rated, scratch.selected)
        copy_into(errors, scratch.selected_errors)
        return len(rated)
    selected, selected_errors = scratch.selected, scratch.selected_errors
    if len(given.starts) > 0:
        start, stop = given.starts[user], given.starts[user + 1]
        count = stop - start
        copy_into(given.items[start:stop], selected)
        copy_into(given.fake_errors[start:stop], selected_errors)
    else:
        count = draw_selection(user, choices, streams, scratch)
        fill_words(streams.fake_errors, user, FIRST_BLOCK, scratch.words[: (count + 1) // 2 * 2])
        mean, deviation = mean_and_deviation(errors)
        fill_fakes(mean, deviation, choices.epsilon_g[user], scratch.words, selected_errors[:count])
    _put_real_errors(rated, errors, selected[:count], selected_errors, scratch.error_of_item)
    return count


@njit(cache=True)
def _put_real_errors(rated, errors, selected, selected_errors, error_of_item):  # type: ignore[no-untyped-def]
    """Replace the fake errors of selected rated items by real errors; `error_of_item` is all NaN before and after."""
    for place in range(len(rated)):
        error_of_item[rated[place]] = errors[place]
    for place in range(len(selected)):
        error = error_of_item[selected[place]]
        if not math.isnan(error):
            selected_errors[place] = error
    for place in range(len(rated)):
        error_of_item[rated[place]] = np.nan


@njit(cache=True, fastmath=REORDER)
def add_reports(selected, errors, user_vector, sums, counts):  # type: ignore[no-untyped-def]
    """Add error × user vector of each selected item to `sums`, and 1 to `counts`; return Σ error² and max |error|."""
    squares, largest = 0.0, 0.0
    for place in range(len(selected)):
        error = user_vector.dtype.type(errors[place])
        row = sums[selected[place]]
        for k in range(len(row)):
            row[k] += error * user_vector[k]
        counts[selected[place]] += 1
        squares += errors[place] ** 2
        largest = max(largest, abs(errors[place]))
    return squares, largest


@njit(cache=True, fastmath=REORDER)
def update_user(user, user_vector, n_rated, step, given, streams, scratch, updated):  # type: ignore[no-untyped-def]
    """Fill `updated` with the user vector u after its step: u + η (N mean(e v) − u Λ_u) + noise.

    η is the step size, N the data weight, e and v are the error and the vector of each of the h rated items, and Λ_u is
    the user regularization. The noise is normal with variance η / h.
    """
    noise = scratch.noise
    if len(given.starts) > 0:
        copy_into(given.user_noise[user], noise)
        spread = 1.0
    else:
        fill_normal(streams.user_noise, user, scratch.words, noise[: step.n_factors])
        spread = math.sqrt(step.size / n_rated)
    pull_weight = step.size * step.data_weight / n_rated
    for k in range(step.user_regularization.shape[0]):
        prior = step.size * user_vector[k] * step.user_regularization[k]
        updated[k] = user_vector[k] + pull_weight * scratch.pull[k] - prior + spread * noise[k]


@njit(inline="always")
def finish_report(user, count, inputs, scratch, outcome, sums, counts):  # type: ignore[no-untyped-def]
    """Add the report in `scratch` to `sums` and `counts`, and fill a user's row of `outcome`; return max |e| ‖u‖.

    The report has `count` items. An item adds e u to its row of `sums`, where e is its error and u the user vector.
    The result is infinite if the errors or u are not finite.
    """
    step, user_vector = inputs.step, inputs.vectors.users[user]
    squares, peak = add_reports(scratch.selected[:count], scratch.selected_errors[:count], user_vector, sums, counts)
    norm = squared_norm(user_vector)
    outcome.rho[user] = 0.5 * step.size * step.data_weight**2 * squares * norm
    n_rated = inputs.profiles.starts[user + 1] - inputs.profiles.starts[user]
    update_user(user, user_vector, n_rated, step, inputs.given, inputs.streams, scratch, outcome.users[user])
    return peak * math.sqrt(norm) if math.isfinite(squares * norm) else math.inf


@njit(inline="always")  # a call would copy the whole record of inputs
def fill_report(user, inputs, scratch):  # type: ignore[no-untyped-def]
    """Write the items that a user reports, and their errors, into `scratch`; return the number of items."""
    begin, end = inputs.profiles.starts[user], inputs.profiles.starts[user + 1]
    rated, values = inputs.profiles.items[begin:end], inputs.profiles.values[begin:end]
    errors = scratch.errors[: end - begin]
    rated_errors(rated, values, inputs.vectors.users[user], inputs.vectors.items, errors, scratch.pull)
    return choose(user, rated, errors, inputs.choices, inputs.given, inputs.streams, scratch)


@njit(cache=True, nogil=True)
def report_block(first_user, stop_user, inputs, outcome, sums, counts):  # type: ignore[no-untyped-def]
    """Compute the reports of users `first_user` … `stop_user` − 1; return the largest norm |e| ‖u‖.

    The gradient of a reported item contains e u, its error times the user vector. `sums` `(n_items, width)` and
    `counts` `(n_items,)` are overwritten with the sums of e u and the numbers of gradients of each item, over the users
    of this block. `outcome` gets the new user vectors and privacy losses.
    """
    scratch = make_scratch(first_user, stop_user, inputs)
    sums[:] = 0
    counts[:] = 0
    largest = 0.0
    for user in range(first_user, stop_user):
        if inputs.profiles.takes_part[user]:
            count = fill_report(user, inputs, scratch)
            largest = max(largest, finish_report(user, count, inputs, scratch, outcome, sums, counts))
    return largest


@njit(cache=True, fastmath=REORDER)
def squared_norm(vector):  # type: ignore[no-untyped-def]
    """Return the squared Euclidean norm of a vector, computed in float64."""
    total = 0.0
    for k in range(len(vector)):
        total += np.float64(vector[k]) ** 2
    return total


@njit(cache=True, nogil=True)
def move_items(  # type: ignore[no-untyped-def]
    first_item, stop_item, sums, counts, step, stream, known_noise, known_counts, item_vectors, moved
):
    """Fill `moved` with the vectors of some items after a round; return the number of gradients of these items.

    The items are `first_item` … `stop_item` − 1. An item vector v with c gradients changes by their mean,
    η (N Σ e u / c − v Λ_v) + noise / c. Here η is the step size, N the data weight, Λ_v the item regularization, e an
    error and u a user vector. `sums` and `counts` hold Σ e u and the number of gradients for each block of users; the
    blocks are added up in order. An item without gradients does not change. Each gradient has normal noise of
    variance η, so that the noise of c gradients is one draw of variance c η. For `known_counts` of an item's gradients
    the noise has been drawn already, and `known_noise` is its sum.
    """
    n_blocks, _, width = sums.shape
    words, noise = np.empty(width + 2, np.uint64), np.zeros(width)
    n_reports = 0
    for item in range(first_item, stop_item):
        total, count = sums[0, item], counts[0, item]
        for block in range(1, n_blocks):
            count += counts[block, item]
            for k in range(width):
                total[k] += sums[block, item, k]
        n_reports += count
        copy_into(item_vectors[item], moved[item])
        if count == 0:
            continue
        fill_normal(stream, item, words, noise[: step.n_factors])
        unknown = count - known_counts[item]
        spread, weight = math.sqrt(step.size * unknown) / count, step.size * step.data_weight / count
        for k in range(width):
            prior = step.size * item_vectors[item, k] * step.item_regularization[k]
            moved[item, k] += weight * total[k] - prior + spread * noise[k]
        for k in range(width):
            moved[item, k] += known_noise[item, k] / count
    return n_reports


@njit(cache=True)
def item_normals(stream, n_items, width):  # type: ignore[no-untyped-def]
    """Return the standard normal draws that `move_items` makes for each item, `(n_items, width)`."""
    words, noise = np.empty(width + 2, np.uint64), np.empty((n_items, width))
    for item in range(n_items):
        fill_normal(stream, item, words, noise[item])
    return noise


@njit(cache=True)
def report_of(user, inputs):  # type: ignore[no-untyped-def]
    """Return the items that one user reports in this round, and their errors: what `report_block` adds up."""
    scratch = make_scratch(user, user + 1, inputs)
    count = fill_report(user, inputs, scratch)
    return scratch.selected[:count], scratch.selected_errors[:count]
