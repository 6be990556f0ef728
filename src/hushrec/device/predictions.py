"""What a device predicts, offline: from its person's ratings and what the rounds have published."""

from typing import TYPE_CHECKING

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import LocalProtocolError
from hushrec.models.predictor import Arrays

if TYPE_CHECKING:
    from hushrec.device.session import Session


KEPT_ITEMS = 100  # of the list of one run, for the beginning of the next


class Predictions:
    """Predicts for one person; what the store holds is read once, until `forget`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._public: Arrays | None = None

    def forget(self) -> None:
        """Read the store again at the next use."""
        self._public = None

    def public(self) -> Arrays:
        """Return what the last round, or the server when all were over, has published."""
        if self._public is None:
            self._public = self._session.kept.public()
        if self._public is None:
            raise LocalProtocolError("this device has no public table yet. Join a server and take part in a round.")
        if not self._session.client().has_learned(self._public):
            raise LocalProtocolError("no round of this run has ended yet: there is nothing to recommend from.")
        return self._public

    @property
    def are_possible(self) -> bool:
        """Whether the rounds so far have published anything that predictions can be made of."""
        if self._public is None:
            self._public = self._session.kept.public()
        return self._public is not None and self._session.client().has_learned(self._public)

    def item_vectors(self) -> FloatArray | None:
        """Return one vector per item, `(n_items, n_factors)`; None where the protocol publishes no table of them."""
        table, offer = self.public().get("item_vectors"), self._session.offer
        if table is None or offer is None:
            return None
        return np.asarray(table[: offer.terms.n_items], dtype=np.float64)

    def _scores(self) -> FloatArray:
        """Return the raw predictions for all items, on the scale 1 to 5 but not bound to it."""
        return self._session.client().predict(self.public())

    def predict(self) -> FloatArray:
        """Return the predictions for all items on this person's scale, not bound to it."""
        return self._session.budgets.from_unit(self._scores())

    def recommend(self, count: int) -> tuple[IntArray, FloatArray]:
        """Return the unrated items that rank highest, the best first; and the predictions for all items."""
        scores, client, store = self._scores(), self._session.client(), self._session.store
        ranked = np.array(client.rank(self.public(), scores))
        ranked[list(store.rated_positions(len(ranked)))] = -np.inf  # items that joined after the run was made, too
        return client.recommend(ranked, count), self._session.budgets.from_unit(scores)

    def keep_list(self) -> None:
        """Keep the best items for the time until a next run has learned something; inside `Store.change` only."""
        if self.are_possible:
            best, scores = self.recommend(KEPT_ITEMS)
            store = self._session.store
            store.put_json("last_list", [(store.item_at(int(n))[0], float(scores[n])) for n in best])

    def last_list(self) -> list[tuple[str, float]]:
        """Return ids and predictions of the best items that the run before had for this person; the best first."""
        rated = self._session.store.ratings()
        return [(item, score) for item, score in self._session.store.get_json("last_list") or [] if item not in rated]

    def popular(self) -> IntArray:
        """Return all items, first those that most people like, as far as that is public."""
        liked = self._session.client().popularity(self.public())
        return np.arange(self._session.store.count_items()) if liked is None else np.argsort(-liked, kind="stable")
