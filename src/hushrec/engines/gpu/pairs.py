"""Sum one round of pairwise ranking in plain PyTorch, one run at a time: `engines.cpu.pairs` for all users at once.

Shapes: n users, m items, k factors, r training actions. Pairs are lists, as long as there are actions or selected
cells; what the server adds up is a matrix product over all (user, item) cells, as in `engines.gpu.dense`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from hushrec.engines.gpu.dense import ItemSums
from hushrec.engines.gradient import GradientProblem


@dataclass(frozen=True, eq=False)
class Profiles:
    """Who met what: the actions of the users who take part, sorted by user and item."""

    n_items: int
    users: torch.Tensor  # (r,)
    items: torch.Tensor  # (r,)
    starts: torch.Tensor  # of each user's actions, (n,)
    counts: torch.Tensor  # h, (n,); 0 of who takes no part
    places: torch.Tensor  # (r,), rising: user · (m + 1) + unrated items below the action

    def unrated_items(self, users: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return an item that each user did not rate: the ⌊(m − h) · uniform⌋-th, as `Client` counts them.

        `items[i] − i` unrated items lie below the user's rated item i, so that the k-th has k plus as many rated ones
        below it as there are i with items[i] − i ≤ k.
        """
        rank = (uniform * (self.n_items - self.counts[users])).long()
        below = torch.searchsorted(self.places, users * (self.n_items + 1) + rank, right=True) - self.starts[users]
        return rank + below

    def rated_items(self, users: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return an item that each user rated: the ⌊h · uniform⌋-th."""
        return self.items[self.starts[users] + (uniform * self.counts[users]).long()]


def place_profiles(problem: GradientProblem, device: torch.device) -> Profiles:
    """Return the profiles of a problem on the device, without those of people who have no pairs."""
    takes_part = np.isin(np.arange(problem.n_users), problem.active_users)
    users = np.repeat(np.arange(problem.n_users), problem.rated_counts)
    order = np.arange(len(users)) - problem.starts[users]
    places = users * (problem.n_items + 1) + problem.items - order
    rows = takes_part[users]
    counts = np.where(takes_part, problem.rated_counts, 0)
    starts = np.cumsum(counts) - counts
    arrays = (users[rows], problem.items[rows], starts, counts, places[rows])
    return Profiles(problem.n_items, *(torch.as_tensor(array, device=device) for array in arrays))


@dataclass(frozen=True, eq=False)
class Reports:
    """What the server receives in a round, without prior and noise: an error for each (user, item)."""

    users: torch.Tensor
    items: torch.Tensor
    errors: torch.Tensor


def own_pairs(
    profiles: Profiles, partners: torch.Tensor, user_vectors: torch.Tensor, item_vectors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return s = 1 / (1 + exp(x)) of every action's pair `(r,)`, and Σ s (v_j − v_j') of every user `(n, k)`."""
    differences = item_vectors[profiles.items] - item_vectors[partners]
    errors = torch.sigmoid(-(user_vectors[profiles.users] * differences).sum(-1))
    pull = torch.zeros_like(user_vectors).index_add_(0, profiles.users, errors[:, None] * differences)
    return errors, pull


def both_ends(profiles: Profiles, partners: torch.Tensor, errors: torch.Tensor) -> Reports:
    """Return every rated item with the error of its pair, every distinct partner with minus that of its first pair."""
    cells, order = torch.sort(profiles.users * profiles.n_items + partners, stable=True)
    is_first = torch.ones_like(cells, dtype=torch.bool)
    is_first[1:] = cells[1:] != cells[:-1]
    first = order[is_first]
    return Reports(
        torch.cat([profiles.users, profiles.users[first]]),
        torch.cat([profiles.items, partners[first]]),
        torch.cat([errors, -errors[first]]),
    )


def selected_partners(
    profiles: Profiles, users: torch.Tensor, is_rated: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Return a random unrated partner for each selected item that is rated, a random rated one for each that is not."""
    return torch.where(is_rated, profiles.unrated_items(users, uniform), profiles.rated_items(users, uniform))


def selected_reports(
    users: torch.Tensor,
    items: torch.Tensor,
    partners: torch.Tensor,
    is_rated: torch.Tensor,
    user_vectors: torch.Tensor,
    item_vectors: torch.Tensor,
) -> Reports:
    """Return the selected items with the errors of their own pairs: +s for the rated end, −s for the other."""
    product = (user_vectors[users] * (item_vectors[items] - item_vectors[partners])).sum(-1)
    sign = torch.where(is_rated, 1.0, -1.0).to(product.dtype)
    return Reports(users, items, sign * torch.sigmoid(-sign * product))


def item_sums(reports: Reports, user_vectors: torch.Tensor, n_items: int) -> ItemSums:
    """Add up all reports; no (user, item) is reported twice."""
    errors = user_vectors.new_zeros((len(user_vectors), n_items))
    errors[reports.users, reports.items] = reports.errors
    counts = torch.bincount(reports.items, minlength=n_items)
    return ItemSums(errors.T @ user_vectors, counts, (errors**2).sum(-1))
