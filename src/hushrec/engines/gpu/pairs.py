"""A round of pairwise ranking (model `bpr`) in plain PyTorch: sums of errors times vectors, for all users of one run.

In the shapes, n is the number of users, m of items, k of factors and r of training ratings. A pair is a rated item and
an unrated one; each is the partner of the other. There is one pair per training rating, from which the user vectors
learn. In protocol `sdcf`, which selects the items to report, there is also one pair per selected (user, item) cell, and
the reports are made from these pairs. In other protocols they are made from the pairs of the ratings. The sums for
items are a matrix product over all cells, as in `engines.gpu.dense`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hushrec.engines.gpu.dense import ItemSums
from hushrec.engines.gradient import GradientProblem


@dataclass(frozen=True, eq=False)
class Profiles:
    """The training ratings of the users who take part, sorted by user and item.

    The shapes are for n users and r of these ratings.
    """

    n_items: int
    users: Tensor  # (r,)
    items: Tensor  # (r,)
    starts: Tensor  # index of each user's first rating, (n,)
    counts: Tensor  # number of each user's ratings, (n,); 0 for users who do not take part
    keys: Tensor  # user · (n_items + 1) + aᵢ − i of each rating, ascending, (r,); see `unrated_items`

    def unrated_items(self, users: Tensor, uniform: Tensor) -> Tensor:
        """Choose an unrated item of each user in `users`: number ⌊uniform · count⌋ of the user's `count` unrated items.

        `uniform` has a number in [0, 1) for each entry of `users`. If a user's rated items are a₀ < a₁ < …, then aᵢ − i
        unrated items have smaller numbers than aᵢ. So unrated item number t is the item t plus the count of rated items
        with aᵢ − i ≤ t.
        """
        rank = (uniform * (self.n_items - self.counts[users])).long()
        below = torch.searchsorted(self.keys, users * (self.n_items + 1) + rank, right=True) - self.starts[users]
        return rank + below

    def rated_items(self, users: Tensor, uniform: Tensor) -> Tensor:
        """Choose a rated item of each user in `users`: number ⌊uniform · count⌋ of the user's `count` rated items."""
        return self.items[self.starts[users] + (uniform * self.counts[users]).long()]


def place_profiles(problem: GradientProblem, device: torch.device) -> Profiles:
    """Copy the ratings of a problem to tensors on a PyTorch device, without users who do not take part."""
    users = problem.rating_users
    order = np.arange(len(users)) - problem.starts[users]
    keys = users * (problem.n_items + 1) + problem.items - order
    rows = problem.takes_part[users]
    counts = problem.takes_part * problem.rated_counts
    starts = np.cumsum(counts) - counts
    arrays = (users[rows], problem.items[rows], starts, counts, keys[rows])
    return Profiles(problem.n_items, *(torch.as_tensor(array, device=device) for array in arrays))


@dataclass(frozen=True, eq=False)
class Reports:
    """The errors in all reports of a run's round: user `users[i]` reports `errors[i]` for item `items[i]`."""

    users: Tensor
    items: Tensor
    errors: Tensor


def own_pairs(
    profiles: Profiles, partners: Tensor, user_vectors: Tensor, item_vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the error s of each rating's pair, and each user's sum of s (v_j − v_j'), `(n_users, n_factors)`.

    The pair of rating i is the rated item j = `profiles.items[i]` and its partner j' = `partners[i]`, with the item
    vectors v_j and v_j'. Its error is s = 1 / (1 + exp(score of j − score of j')).
    """
    differences = item_vectors[profiles.items] - item_vectors[partners]
    errors = torch.sigmoid(-(user_vectors[profiles.users] * differences).sum(-1))
    pull = torch.zeros_like(user_vectors).index_add_(0, profiles.users, errors[:, None] * differences)
    return errors, pull


def both_ends(profiles: Profiles, partners: Tensor, errors: Tensor) -> Reports:
    """Return the reports of a protocol without selection: the errors of all items of the pairs, each once per user.

    A rated item has the error s of its pair. An unrated item has −s, where s is the error of its first pair.
    """
    cells, order = torch.sort(profiles.users * profiles.n_items + partners, stable=True)
    is_first = torch.ones_like(cells, dtype=torch.bool)
    is_first[1:] = cells[1:] != cells[:-1]
    first = order[is_first]
    return Reports(
        torch.cat([profiles.users, profiles.users[first]]),
        torch.cat([profiles.items, partners[first]]),
        torch.cat([errors, -errors[first]]),
    )


def selected_partners(profiles: Profiles, users: Tensor, is_rated: Tensor, uniform: Tensor) -> Tensor:
    """Choose the partner of each selected item: an unrated item for a rated one, and a rated item for an unrated one.

    Selected item number i belongs to user `users[i]`. `is_rated[i]` says whether the user rated it, and `uniform[i]` in
    [0, 1) chooses the partner.
    """
    return torch.where(is_rated, profiles.unrated_items(users, uniform), profiles.rated_items(users, uniform))


def selected_reports(
    users: Tensor, items: Tensor, partners: Tensor, is_rated: Tensor, user_vectors: Tensor, item_vectors: Tensor
) -> Reports:
    """Return the errors that devices report for selected items in pairwise ranking (model `bpr`).

    Item `items[i]` and item `partners[i]` are a pair of user `users[i]`: a rated item and an unrated one, in either
    order. With the error s of this pair, the report has s if `items[i]` is rated, and −s otherwise.
    """
    product = (user_vectors[users] * (item_vectors[items] - item_vectors[partners])).sum(-1)
    sign = torch.where(is_rated, 1.0, -1.0).to(product.dtype)
    return Reports(users, items, sign * torch.sigmoid(-sign * product))


def item_sums(reports: Reports, user_vectors: Tensor, n_items: int) -> ItemSums:
    """Return the `ItemSums` of one run from its reported errors."""
    errors = user_vectors.new_zeros((len(user_vectors), n_items))
    errors[reports.users, reports.items] = reports.errors
    counts = torch.bincount(reports.items, minlength=n_items)
    return ItemSums(errors.T @ user_vectors, counts, (errors**2).sum(-1))
