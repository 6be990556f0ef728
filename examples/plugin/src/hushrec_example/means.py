"""Model `means`, which predicts the mean rating of each item for everybody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.predictor import Arrays, Predictor, ProfilePredictions


class Means:
    """The model, which has no options."""

    name = "means"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Means":
        return cls()


@dataclass(frozen=True, eq=False)
class MeanPredictor(Predictor):
    """The predictor of model `means`, from the mean rating of each item on the scale 1 to 5."""

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
