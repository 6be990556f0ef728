"""A device's predictions, computed offline from its person's ratings and the run's public table."""

from typing import TYPE_CHECKING

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import LocalProtocolError
from hushrec.models.lists import best_items
from hushrec.models.predictor import Arrays

if TYPE_CHECKING:
    from hushrec.device.session import Session


KEPT_ITEMS = 100  # recommendations that are stored at the end of a run, to be shown at the beginning of the next


class Predictions:
    """The predictions for one person. The public table is read from the store once and cached until `forget`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._public: Arrays | None = None

    def forget(self) -> None:
        """Discard the cached public table, so that the store is read again at the next use."""
        self._public = None

    def _stored(self) -> Arrays | None:
        if self._public is None:
            self._public = self._session.store.public()
        return self._public

    def public(self) -> Arrays:
        """Return the arrays of the latest public table by name.

        Raise `LocalProtocolError` if the store has none, or if no round of the run has ended yet.
        """
        public = self._stored()
        if public is None:
            raise LocalProtocolError("this device has no public table to predict from. Join a server and take part.")
        if not self._session.client().side.has_learned(public):
            raise LocalProtocolError("no round of this run has ended yet. Wait for the first round to end.")
        return public

    @property
    def are_possible(self) -> bool:
        """Whether the store has a public table from which this device can predict."""
        public = self._stored()
        return public is not None and self._session.client().side.has_learned(public)

    def scores(self) -> FloatArray:
        """Return the model's predictions for all items, about 1 to 5; some models predict values outside this range."""
        return self._session.client().predict(self.public())

    def recommend(self, count: int) -> tuple[IntArray, FloatArray]:
        """Return the positions of the `count` unrated items that rank highest, and the predictions for all items.

        The best item is first. Predictions are on the person's scale, and not clipped to it.
        """
        scores, session = self.scores(), self._session
        rated = list(session.store.rated_items(len(scores)))  # includes items that the catalogue got during the run
        ranked = session.client().side.rank(self.public(), scores)
        return best_items(ranked, np.array(rated, dtype=np.int64), count), session.budgets.mapping.from_unit(scores)

    def keep_list(self) -> None:
        """Store this run's recommendations, to be shown in the next run; call only inside `Store.change`."""
        if self.are_possible:
            best, scores = self.recommend(KEPT_ITEMS)
            store = self._session.store
            store.put_json("last_list", [(store.item_at(int(n))[0], float(scores[n])) for n in best])
