"""The training problem, which is the input of every engine: ratings by user, model, protocols and terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray, by_user
from hushrec.errors import ParameterError
from hushrec.protocols.configured import ConfiguredProtocol, Fleet, Spending

ModelT = TypeVar("ModelT")
ProtocolT = TypeVar("ProtocolT", bound=ConfiguredProtocol, covariant=True)
TermsT = TypeVar("TermsT")


@dataclass(frozen=True, eq=False)
class TrainingProblem(Generic[ModelT, ProtocolT, TermsT]):
    """A training problem: ratings by user on the scale 1 to 5, with the model, the protocols and the terms of the run.

    User i rated `items[starts[i]:starts[i + 1]]`, ascending. `protocols` has one entry for all users, or one per user.
    """

    n_users: int
    n_items: int
    starts: IntArray = field(repr=False)  # (n_users + 1,)
    items: IntArray = field(repr=False)  # (n_ratings,)
    values: FloatArray = field(repr=False)  # (n_ratings,)
    model: ModelT
    protocols: Sequence[ProtocolT] = field(repr=False)
    terms: TermsT
    seed: int
    first_user: int = 0  # in a part, the number of its first user in the whole problem: random streams depend on it

    def part(self, first: int, stop: int) -> "TrainingProblem[ModelT, ProtocolT, TermsT]":
        """Return the problem of the users `first` to `stop` − 1, with the terms of the whole problem."""
        begin, end = self.starts[first], self.starts[stop]
        return replace(
            self,
            n_users=stop - first,
            starts=self.starts[first : stop + 1] - begin,
            items=self.items[begin:end],
            values=self.values[begin:end],
            protocols=self.protocols if len(self.protocols) == 1 else self.protocols[first:stop],
            first_user=self.first_user + first,
        )

    def protocol(self, user: int) -> ProtocolT:
        return self.protocols[0] if len(self.protocols) == 1 else self.protocols[user]

    def profile(self, user: int | np.integer[Any]) -> tuple[IntArray, FloatArray]:
        rows = slice(self.starts[user], self.starts[user + 1])
        return self.items[rows], self.values[rows]

    @property
    def rated_counts(self) -> IntArray:
        return np.diff(self.starts)

    @property
    def rating_users(self) -> IntArray:
        """The user of each rating, `(n_ratings,)`."""
        return np.repeat(np.arange(self.n_users), self.rated_counts)

    @property
    def takes_part(self) -> BoolArray:
        """Whether each user's device takes part, according to the user's protocol, `(n_users,)`.

        A device that does not take part keeps its initial state.
        """
        return _takes_part(self.rated_counts, self.n_items, self.model, self.protocols)

    @property
    def active_users(self) -> IntArray:
        """The users whose devices take part, ascending."""
        return np.flatnonzero(self.takes_part)

    def budget(self, rounds: int, losses: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Return the entry "budget" of a run's record: what the first `rounds` rounds cost.

        The entry has ε, δ, the unit (what ε protects, such as a whole profile), and what ε does not cover. `losses` are
        the privacy losses that the engine measured (`Engine.losses`), as arrays with one number per user.
        """
        active = self.active_users
        measured = {name: values[active] for name, values in losses.items()}
        own = active_protocols(self.protocols, active)
        spending = Spending(rounds, self.terms, self.model, own, self.rated_counts[active], measured)
        return self.protocols[0].statement(spending)


AnyProblem: TypeAlias = TrainingProblem[Any, Any, Any]


def make_problem(
    users: IntArray,
    items: IntArray,
    values: FloatArray,
    *,
    n_users: int,
    n_items: int,
    model: ModelT,
    protocols: Sequence[ProtocolT],
    seed: int = 0,
    **options: Any,
) -> TrainingProblem[ModelT, ProtocolT, Any]:
    """Return the training problem: the ratings grouped by user, and the terms for these `options` of the run."""
    if len(users) == 0:
        raise ParameterError(
            "ratings must hold at least one rating for training, got none. Give more data, or lower the option at_least"
            " (--at-least), which leaves out ratings below its value."
        )
    starts, order = by_user(users, items, n_users)
    return TrainingProblem(
        n_users=n_users,
        n_items=n_items,
        starts=starts,
        items=items[order].astype(np.int64),
        values=values[order].astype(np.float64),
        model=model,
        protocols=protocols,
        terms=settle_terms(np.diff(starts), n_items, model, protocols, seed=seed, **options),
        seed=seed,
    )


def settle_terms(
    rated_counts: IntArray,
    n_items: int,
    model: Any,
    protocols: Sequence[ConfiguredProtocol],
    *,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Return the terms of a run, given how many items each user rated. `options` are those of model and protocol.

    Raise `ParameterError` if nobody can take part or an option is out of range, and its subclass `ImpossibleBudget` if
    no selection probabilities meet the budget of a user.
    """
    if len(protocols) not in (1, len(rated_counts)):
        raise ParameterError(
            f"protocols must hold one entry for all users or one for each of the {len(rated_counts)} users, got"
            f" {len(protocols)}."
        )
    active = np.flatnonzero(_takes_part(rated_counts, n_items, model, protocols))
    if len(active) == 0:
        raise ParameterError(
            "ratings must hold at least one user who can take part: one with both rated and unrated items. Give more"
            " data."
        )
    own = active_protocols(protocols, active)
    fleet = Fleet(n_items, int(rated_counts.sum()), rated_counts[active], own, model, seed)
    return protocols[0].make_terms(fleet, options)


def active_protocols(protocols: Sequence[ProtocolT], active: IntArray) -> Sequence[ProtocolT]:
    """Return the protocols of the users in `active`, or the only protocol if all users share it."""
    return protocols if len(protocols) == 1 else [protocols[user] for user in active]


def _takes_part(rated_counts: IntArray, n_items: int, model: Any, protocols: Sequence[ConfiguredProtocol]) -> BoolArray:
    if len(protocols) == 1:
        return protocols[0].can_take_part(rated_counts, n_items, model)
    each = zip(protocols, rated_counts, strict=True)
    return np.array([protocol.can_take_part(count, n_items, model) for protocol, count in each])
