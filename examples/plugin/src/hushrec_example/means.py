"""Model `means` and what it predicts: everybody is predicted the mean of each item."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.predictor import Arrays, Predictor, ProfilePredictions


class Means:
    """The model: it has no options."""

    name = "means"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Means":
        return cls()


@dataclass(frozen=True, eq=False)
class MeanPredictor(Predictor):
    """The items' means, on the scale 1 to 5, for everybody."""

    means: FloatArray = field(repr=False)

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        return self.means[items]

    def scores(self, users: IntArray) -> FloatArray:
        return np.tile(self.means, (len(users), 1))

    def likeness(self, item: int) -> FloatArray:
        return 1 - np.abs(self.means - self.means[item]) / 4

    def of_profile(self, items: IntArray, values: FloatArray) -> ProfilePredictions:
        return ProfilePredictions(scores=self.means, predicted=self.means)

    def arrays(self) -> Arrays:
        return {"means": self.means}
