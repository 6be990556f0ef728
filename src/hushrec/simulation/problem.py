"""One training problem, the same for every engine: who rated what, the model, the protocol, the terms."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import calibrate_selection
from hushrec.errors import ParameterError
from hushrec.messages import Terms
from hushrec.models import Model
from hushrec.protocols.gradient import DeviceProtocol, Sdcf
from hushrec.randomness import Purpose, SeededRandomness

DECAY = 0.6  # γ of [SDCF], section 4.1


@dataclass(frozen=True, eq=False)
class Problem:
    """Training ratings by user, on the scale 1 to 5, and all that a run needs besides.

    User i rated `items[starts[i]:starts[i + 1]]`, rising. `protocols` has one entry for all users, or one each.
    """

    n_users: int
    n_items: int
    starts: IntArray = field(repr=False)  # (n_users + 1,)
    items: IntArray = field(repr=False)  # (n_ratings,)
    values: FloatArray = field(repr=False)  # (n_ratings,)
    model: Model
    protocols: Sequence[DeviceProtocol] = field(repr=False)
    terms: Terms
    seed: int

    def protocol(self, user: int) -> DeviceProtocol:
        """The protocol that this user's device speaks, with this user's budgets."""
        return self.protocols[0] if len(self.protocols) == 1 else self.protocols[user]

    @property
    def rated_counts(self) -> IntArray:
        """h_i, `(n_users,)`."""
        return np.diff(self.starts)

    @property
    def active_users(self) -> IntArray:
        """Users who take part, as `Client.takes_part` says; the others are predicted from their start."""
        return _active(self.rated_counts, self.n_items, self.model, self.protocols)

    def initial_item_vectors(self) -> FloatArray:
        """The public table before the first round, `(n_items + n_side_rows, item_width)`."""
        return self.model.initial_items(self.n_items, rng=SeededRandomness(self.seed).stream(Purpose.ITEM_VECTORS))

    def initial_user_vectors(self) -> FloatArray:
        """U before the first round, `(n_users, user_width)`: each user's own draw."""
        rows = [
            self.model.initial_vectors(1, rng=SeededRandomness(self.seed, user).stream(Purpose.USER_VECTOR))
            for user in range(self.n_users)
        ]
        return np.concatenate(rows)


def make_problem(
    users: IntArray,
    items: IntArray,
    values: FloatArray,
    *,
    n_users: int,
    n_items: int,
    model: Model,
    protocols: Sequence[DeviceProtocol],
    rounds: int,
    step: float,
    reports_per_client: float | None = None,
    epoch_rounds: int | None = None,
    seed: int = 0,
) -> Problem:
    """Groups the training ratings by user and settles the terms.

    z is |R| / n unless given, both counting those who take part alone: who rated everything has nothing to hide among,
    and would bring z to the number of items. With selection, N = n z stands for |R|, which the server must not know;
    without, N = |R|.
    """
    if rounds < 1:
        raise ParameterError(f"rounds must be at least 1, got {rounds}.")
    if not 0 < step < np.inf:
        raise ParameterError(f"step must be positive and finite, got {step}.")
    if len(users) == 0:
        raise ParameterError("there must be at least one training rating.")
    if len(protocols) not in (1, n_users):
        raise ParameterError(f"protocols must be one for all or one for each of the {n_users} users.")
    order = np.lexsort((items, users))
    counts = np.bincount(users, minlength=n_users)
    active = _active(counts, n_items, model, protocols)
    n_active = len(active)
    if n_active == 0:
        raise ParameterError("there must be at least one user with both rated and unrated items in the training part.")
    data_weight = float(len(users))
    if protocols[0].selects:
        mean_count = float(counts[active].sum() / n_active)
        reports_per_client = mean_count if reports_per_client is None else reports_per_client
        if not 0 < reports_per_client < n_items:
            raise ParameterError(
                f"reports_per_client must be above 0 and below the number of items, {n_items},"
                f" got {reports_per_client:g}."
            )
        data_weight = n_active * reports_per_client
        _refuse_impossible_budgets(protocols, active, counts, n_items, reports_per_client)
    elif reports_per_client is not None:
        raise ParameterError(f"protocol {protocols[0].name} sends its rated items; reports_per_client is not for it.")
    rng = SeededRandomness(seed).stream(Purpose.REGULARIZATION)
    terms = Terms(
        model=model.name,
        n_factors=model.n_factors,
        n_items=n_items,
        n_side_rows=model.n_side_rows,
        reports_per_client=reports_per_client,
        data_weight=data_weight,
        step=step,
        decay=DECAY,
        max_rounds=rounds,
        epoch_rounds=epoch_rounds,
        user_regularization=model.draw_regularization(rng=rng),
        item_regularization=model.draw_regularization(rng=rng),
    )
    return Problem(
        n_users=n_users,
        n_items=n_items,
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        items=items[order].astype(np.int64),
        values=values[order].astype(np.float64),
        model=model,
        protocols=protocols,
        terms=terms,
        seed=seed,
    )


def _active(rated_counts: IntArray, n_items: int, model: Model, protocols: Sequence[DeviceProtocol]) -> IntArray:
    """Users with ratings and, where the model learns from pairs or the protocol hides among them, unrated items."""
    needs_unrated = np.array([model.one_class or protocol.needs_unrated for protocol in protocols])
    return np.flatnonzero((rated_counts > 0) & (rated_counts < n_items + ~needs_unrated))


def _refuse_impossible_budgets(
    protocols: Sequence[DeviceProtocol], active: IntArray, counts: IntArray, n_items: int, reports_per_client: float
) -> None:
    """Calibrates everybody once, so that a refusal comes before the first round and names what works for all."""
    own = [protocols[0] if len(protocols) == 1 else protocols[user] for user in active]
    chosen = [protocol for protocol in own if isinstance(protocol, Sdcf)]
    if len(chosen) != len(own):
        raise ParameterError("all users of a run must speak the same protocol; budgets may differ.")
    for protocol in set(chosen):
        if protocol.profile_cap is not None and protocol.profile_cap >= n_items:
            raise ParameterError(
                f"profile_cap must be below the number of items, {n_items}, got {protocol.profile_cap}."
            )
    calibrate_selection(
        np.array(
            [
                counts[user] if protocol.profile_cap is None else protocol.profile_cap
                for user, protocol in zip(active, chosen, strict=True)
            ]
        ),
        n_items,
        reports_per_client,
        np.array([protocol.epsilon_i for protocol in chosen]),
        np.array([protocol.epsilon_p for protocol in chosen]),
    )
