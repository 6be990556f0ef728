"""Attacks on model `fm`, a factorization machine, from what `audit.machines` recovers from each victim's reports."""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack, OnRuns
from hushrec.audit.attacks.combined import WithPopularity
from hushrec.audit.attacks.existence import Popularity
from hushrec.audit.observation import Observation

SURE = 20.0  # log odds of the item with the largest error of a person


class OnMachines(OnRuns):
    """The base class of attacks on model `fm`, where the first entry of an item's gradient is the error of the item."""

    models = ("fm",)
    name = "first entries of gradients"


class ItemsOfMachines(OnMachines):
    """An attack on model `fm` that scores an item by its mean |error|: fake errors are smaller than real ones.

    If devices report every rated item and no other, reported items have higher scores than all others.
    """

    target = "existence"
    claim = "which items are rated stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        all_are_rated = observation.protocol.selection is None
        found = observation.machine_readings
        sizes = np.array([np.where(np.isnan(one.ratings), one.sizes, one.sizes + all_are_rated) for one in found])
        return np.asarray(SURE * sizes / np.maximum(sizes.max(axis=1, keepdims=True), 1e-12))


class RatingsOfMachines(OnMachines):
    """An attack on model `fm` that computes a rating as the model's prediction plus the error.

    The errors are the first entries of the gradients. For the prediction, the attack recovers the person's taste from
    the gradients, and estimates the person's bias.
    """

    target = "value"
    claim = "a rating's value stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([one.ratings for one in observation.machine_readings])


class TasteOfMachines(OnMachines):
    """An attack on model `fm` that recovers (1, u) with the taste u: all gradients of a person are parallel to it."""

    target = "model"
    claim = "the user vector stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([one.direction for one in observation.machine_readings])


MACHINES: tuple[Attack, ...] = (
    Popularity(),
    ItemsOfMachines(),
    WithPopularity(ItemsOfMachines()),
    RatingsOfMachines(),
    TasteOfMachines(),
)
