"""Compiled kernels for one round of pairwise ranking (model `bpr`): like `kernels`, with pairs instead of ratings.

A pair is a rated item and an unrated one, its partner. A user's unrated items are listed once per round, so that the
draw of a partner takes one random word. Sums, noise and the order of blocks are the same as in `kernels`.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.engines.cpu.kernels import (
    REORDER,
    add_reports,
    copy_into,
    draw_selection,
    make_scratch,
    reach,
    squared_norm,
    update_user,
)
from hushrec.engines.cpu.normal import open_uniform
from hushrec.engines.cpu.philox import FIRST_BLOCK, Stream, fill_words

PARTNER = np.uint8(2)  # mark of an unrated item that is already in a pair of this round


class Pairing(NamedTuple):
    """The source of the items' partners in pairs: two random streams or, if not empty, arrays of given partners.

    `user_pairs` or `user_partners` give each rated item a partner, for the step of the user vector and, in a protocol
    without selections, for the report. `selected_pairs` or `selected_partners` give one to each selected item, for the
    report.
    """

    user_pairs: Stream
    selected_pairs: Stream
    user_partners: npt.NDArray[np.uint32]  # (n_ratings,)
    selected_partners: npt.NDArray[np.uint32]  # at the places of the given selection


class PairScratch(NamedTuple):
    """The working memory of a kernel for one block of users, in addition to `Scratch`."""

    partners: npt.NDArray[np.uint32]  # (most ratings of a user,)
    is_rated: npt.NDArray[np.uint8]  # (n_items,), zeros between users
    unrated: npt.NDArray[np.uint32]  # (n_items,)


@njit(cache=True)
def make_pair_scratch(n_items, most_rated):  # type: ignore[no-untyped-def]
    """Return new working memory for one block of users.

    `most_rated` is the largest number of ratings of one user.
    """
    return PairScratch(
        partners=np.empty(most_rated, np.uint32),
        is_rated=np.zeros(n_items, np.uint8),
        unrated=np.empty(n_items, np.uint32),
    )


@njit(cache=True)
def list_unrated(is_rated, unrated):  # type: ignore[no-untyped-def]
    """Write the items with `is_rated` 0 into `unrated` in ascending order; return their number."""
    count = 0
    for item in range(len(is_rated)):
        unrated[count] = item
        count += is_rated[item] == 0
    return count


@njit(cache=True)
def draw_partners(stream, user, candidates, words, partners):  # type: ignore[no-untyped-def]
    """Fill `partners` with uniform draws from `candidates`, using one random word for each."""
    fill_words(stream, user, FIRST_BLOCK, words[: (len(partners) + 1) // 2 * 2])
    for place in range(len(partners)):
        partners[place] = candidates[int(open_uniform(words[place]) * len(candidates))]


@njit(cache=True, fastmath=REORDER)
def pair_product(item, other, user_vector, item_vectors):  # type: ignore[no-untyped-def]
    """Return x = u v_jᵀ − u v_j'ᵀ, the score of `item` j minus that of `other` j', for the user vector u."""
    row, far = item_vectors[item], item_vectors[other]
    product = (row[0] - far[0]) * user_vector[0]
    for k in range(1, len(row)):
        product += (row[k] - far[k]) * user_vector[k]
    return product


@njit(cache=True, fastmath=REORDER)
def own_errors(rated, partners, user_vector, item_vectors, errors, pull):  # type: ignore[no-untyped-def]
    """Fill `errors` with s = 1 / (1 + exp(x)) of every pair of the user, and `pull` with the sum Σ s (v_j − v_j').

    x is the `pair_product` of a rated item j and its partner j', whose item vectors are v_j and v_j'.
    """
    pull[:] = 0
    for place in range(len(rated)):
        error = 1 / (1 + math.exp(pair_product(rated[place], partners[place], user_vector, item_vectors)))
        errors[place] = error
        row, far = item_vectors[rated[place]], item_vectors[partners[place]]
        weight = errors[place]
        for k in range(len(row)):
            pull[k] += weight * (row[k] - far[k])


@njit(cache=True)
def choose_both_ends(rated, partners, errors, is_rated, selected, selected_errors):  # type: ignore[no-untyped-def]
    """Write a user's rated items and distinct partners to `selected`, and their errors; return the number of items.

    A rated item has the error of its pair; a partner has minus the error of its first pair.
    """
    count = len(rated)
    copy_into(rated, selected)
    copy_into(errors, selected_errors)
    for place in range(len(rated)):
        partner = partners[place]
        if is_rated[partner] != PARTNER:
            is_rated[partner] = PARTNER
            selected[count] = partner
            selected_errors[count] = -errors[place]
            count += 1
    for place in range(len(rated)):
        is_rated[partners[place]] = 0
    return count


@njit(cache=True)
def choose_selected(  # type: ignore[no-untyped-def]
    user, rated, unrated, choices, given, pairing, streams, user_vector, item_vectors, scratch, is_rated
):
    """Write a user's selection, given or drawn, and its errors into `scratch`; return the number of items.

    Each selected item gets a new partner: an unrated one if the item is rated, a rated one otherwise.
    """
    selected, errors, words = scratch.selected, scratch.selected_errors, scratch.words
    is_given = len(given.starts) > 0
    start = given.starts[user] if is_given else 0
    if is_given:
        count = given.starts[user + 1] - start
        copy_into(given.items[start : start + count], selected)
    else:
        count = draw_selection(user, choices, streams, scratch)
        fill_words(pairing.selected_pairs, user, FIRST_BLOCK, words[: (count + 1) // 2 * 2])
    for place in range(count):
        item = selected[place]
        candidates = unrated if is_rated[item] else rated
        if is_given:
            other = pairing.selected_partners[start + place]
        else:
            other = candidates[int(open_uniform(words[place]) * len(candidates))]
        product = pair_product(item, other, user_vector, item_vectors)
        errors[place] = 1 / (1 + math.exp(product)) if is_rated[item] else -1 / (1 + math.exp(-product))
    return count


@njit(cache=True)
def answer_pairs(  # type: ignore[no-untyped-def]
    user, begin, rated, choices, given, pairing, streams, user_vector, item_vectors, scratch, pair_scratch
):
    """Compute a user's pairs, and write the reported items and their errors into `scratch`; return the items' number.

    `begin` is the position of the user's first rating among all ratings.
    """
    is_rated, partners = pair_scratch.is_rated, pair_scratch.partners[: len(rated)]
    for place in range(len(rated)):
        is_rated[rated[place]] = 1
    unrated = pair_scratch.unrated[: list_unrated(is_rated, pair_scratch.unrated)]
    if len(given.starts) > 0:
        copy_into(pairing.user_partners[begin : begin + len(rated)], partners)
    else:
        draw_partners(pairing.user_pairs, user, unrated, scratch.words, partners)
    errors = scratch.errors[: len(rated)]
    own_errors(rated, partners, user_vector, item_vectors, errors, scratch.pull)
    if choices.bits.shape[1] == 0:
        count = choose_both_ends(rated, partners, errors, is_rated, scratch.selected, scratch.selected_errors)
    else:
        count = choose_selected(
            user, rated, unrated, choices, given, pairing, streams, user_vector, item_vectors, scratch, is_rated
        )
    for place in range(len(rated)):
        is_rated[rated[place]] = 0
    return count


@njit(cache=True, nogil=True)
def report_block(  # type: ignore[no-untyped-def]
    first_user, stop_user, profiles, choices, given, pairing, streams, step, vectors, outcome, sums, counts
):
    """Compute the reports of one block of users from their pairs; return the largest norm |e| ‖u‖.

    Here e is a reported error, and u the user vector. `pairing` is the source of the pairs' partners;
    `kernels.report_block` explains the other arguments.
    """
    n_items, width = vectors.items.shape
    most_rated = 0
    for user in range(first_user, stop_user):
        most_rated = max(most_rated, profiles.starts[user + 1] - profiles.starts[user])
    scratch = make_scratch(n_items, width, most_rated, choices.bits.shape[1], vectors.items)
    pair_scratch = make_pair_scratch(n_items, most_rated)
    sums[:] = 0
    counts[:] = 0
    largest = 0.0
    for user in range(first_user, stop_user):
        begin, end = profiles.starts[user], profiles.starts[user + 1]
        if not profiles.takes_part[user]:
            continue
        user_vector = vectors.users[user]
        count = answer_pairs(
            user,
            begin,
            profiles.items[begin:end],
            choices,
            given,
            pairing,
            streams,
            user_vector,
            vectors.items,
            scratch,
            pair_scratch,
        )
        squares, peak = add_reports(
            scratch.selected[:count], scratch.selected_errors[:count], user_vector, sums, counts
        )
        norm = squared_norm(user_vector)
        outcome.rho[user] = 0.5 * step.size * step.data_weight**2 * squares * norm
        largest = max(largest, reach(peak, squares, norm))
        update_user(user, user_vector, end - begin, step, given, streams, scratch, outcome.users[user])
    return largest


@njit(cache=True)
def answer_one(  # type: ignore[no-untyped-def]
    user, begin, rated, choices, given, pairing, streams, user_vector, item_vectors
):
    """Return the items that one user reports in this round, ascending, and their errors, as in `report_block`.

    `begin` is the position of the user's first rating among all ratings.
    """
    n_items, width = item_vectors.shape
    scratch = make_scratch(n_items, width, len(rated), choices.bits.shape[1], item_vectors)
    pair_scratch = make_pair_scratch(n_items, len(rated))
    count = answer_pairs(
        user, begin, rated, choices, given, pairing, streams, user_vector, item_vectors, scratch, pair_scratch
    )
    order = np.argsort(scratch.selected[:count])
    return scratch.selected[:count][order], scratch.selected_errors[:count][order]
