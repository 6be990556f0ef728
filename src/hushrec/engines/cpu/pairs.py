"""Compiled kernels for one round of pairwise ranking (model `bpr`): like `kernels`, with pairs instead of ratings.

A pair is a rated item and an unrated one, its partner. A user's unrated items are listed once per round, so that the
draw of a partner takes one random word. Sums, noise and the order of the blocks of users are the same as
in `kernels`.
"""

import math

import numpy as np
from numba import njit

from hushrec.engines.cpu.kernels import REORDER, copy_into, draw_selection, finish_report, make_scratch
from hushrec.engines.cpu.normal import open_uniform
from hushrec.engines.cpu.philox import FIRST_BLOCK, fill_words

PARTNER = np.uint8(2)  # mark of an unrated item that is already in a pair of this round


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
    """Fill `partners` with one unrated item for each of the user's rated items, drawn uniformly with replacement.

    `candidates` are the user's unrated items. Each draw takes one random word of the user's `stream`; `words` is
    scratch space for these words.
    """
    fill_words(stream, user, FIRST_BLOCK, words[: (len(partners) + 1) // 2 * 2])
    for place in range(len(partners)):
        partners[place] = candidates[int(open_uniform(words[place]) * len(candidates))]


@njit(cache=True, fastmath=REORDER)
def pair_product(item, other, user_vector, item_vectors):  # type: ignore[no-untyped-def]
    """Return x = u v_jᵀ − u v_j'ᵀ: the score of `item` j minus the score of `other` j', for the user vector u."""
    row, far = item_vectors[item], item_vectors[other]
    product = (row[0] - far[0]) * user_vector[0]
    for k in range(1, len(row)):
        product += (row[k] - far[k]) * user_vector[k]
    return product


@njit(cache=True, fastmath=REORDER)
def own_errors(rated, partners, user_vector, item_vectors, errors, pull):  # type: ignore[no-untyped-def]
    """Fill `errors` with s = 1 / (1 + exp(`pair_product`)) of every pair (j, j'), and `pull` with Σ s (v_j − v_j')."""
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
    """Write all items of the pairs to `selected`, each item once, and their errors to `selected_errors`.

    Return the number of items. `errors` has the error s of each pair. A rated item has the error s of its pair; a
    partner has −s of the first pair that it is in. `is_rated` is changed during the call and restored.
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


@njit(inline="always")
def choose_selected(user, rated, unrated, inputs, scratch):  # type: ignore[no-untyped-def]
    """Draw the items to report and a partner of each; write items and errors to `scratch`; return the number of items.

    A pair of a rated and an unrated item has s = 1 / (1 + exp(score of the rated item − score of the unrated item)).
    The partner of a rated item is unrated, and the item's error is s. The partner of an unrated item is rated, and the
    item's error is −s.
    """
    given, is_rated = inputs.given, scratch.is_rated
    selected, errors, words = scratch.selected, scratch.selected_errors, scratch.words
    is_given = len(given.starts) > 0
    start = given.starts[user] if is_given else 0
    if is_given:
        count = given.starts[user + 1] - start
        copy_into(given.items[start : start + count], selected)
    else:
        count = draw_selection(user, inputs.choices, inputs.streams, scratch)
        fill_words(inputs.streams.selected_pairs, user, FIRST_BLOCK, words[: (count + 1) // 2 * 2])
    for place in range(count):
        item = selected[place]
        candidates = unrated if is_rated[item] else rated
        if is_given:
            other = given.selected_partners[start + place]
        else:
            other = candidates[int(open_uniform(words[place]) * len(candidates))]
        product = pair_product(item, other, inputs.vectors.users[user], inputs.vectors.items)
        errors[place] = 1 / (1 + math.exp(product)) if is_rated[item] else -1 / (1 + math.exp(-product))
    return count


@njit(inline="always")
def fill_report(user, inputs, scratch):  # type: ignore[no-untyped-def]
    """Compute a user's pairs, and write the reported items and errors into `scratch`; return the number of items."""
    begin, end = inputs.profiles.starts[user], inputs.profiles.starts[user + 1]
    rated, errors = inputs.profiles.items[begin:end], scratch.errors[: end - begin]
    is_rated, partners = scratch.is_rated, scratch.partners[: end - begin]
    for place in range(len(rated)):
        is_rated[rated[place]] = 1
    unrated = scratch.unrated[: list_unrated(is_rated, scratch.unrated)]
    if len(inputs.given.starts) > 0:
        copy_into(inputs.given.user_partners[begin:end], partners)
    else:
        draw_partners(inputs.streams.user_pairs, user, unrated, scratch.words, partners)
    own_errors(rated, partners, inputs.vectors.users[user], inputs.vectors.items, errors, scratch.pull)
    if inputs.choices.bits.shape[1] == 0:
        count = choose_both_ends(rated, partners, errors, is_rated, scratch.selected, scratch.selected_errors)
    else:
        count = choose_selected(user, rated, unrated, inputs, scratch)
    for place in range(len(rated)):
        is_rated[rated[place]] = 0
    return count


@njit(cache=True, nogil=True)
def report_block(first_user, stop_user, inputs, outcome, sums, counts):  # type: ignore[no-untyped-def]
    """Compute the reports of one block of users from their pairs, as `kernels.report_block` does from ratings."""
    scratch = make_scratch(first_user, stop_user, inputs)
    sums[:] = 0
    counts[:] = 0
    largest = 0.0
    for user in range(first_user, stop_user):
        if inputs.profiles.takes_part[user]:
            count = fill_report(user, inputs, scratch)
            largest = max(largest, finish_report(user, count, inputs, scratch, outcome, sums, counts))
    return largest


@njit(cache=True)
def report_of(user, inputs):  # type: ignore[no-untyped-def]
    """Return the items that one user reports in this round, in ascending order, and their errors."""
    scratch = make_scratch(user, user + 1, inputs)
    count = fill_report(user, inputs, scratch)
    order = np.argsort(scratch.selected[:count])
    return scratch.selected[:count][order], scratch.selected_errors[:count][order]
