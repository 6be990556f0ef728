"""Gender, age, occupation: learned from people whose attributes the attacker knows, guessed for the others."""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.crowd import Table
from hushrec.audit.observation import Observation

WEIGHT_OF_PULLS = 0.3  # what people rated says more of them than how


@dataclass(frozen=True)
class PersonFromUploads:
    """Kernel ridge regression on what the last few uploads of each person show: the items rated, and how."""

    name: str = "a few uploads"
    target: str = "person"
    claim: str = "none: what ratings say of their owner is not covered"

    def kernel(self, observation: Observation) -> FloatArray:
        """How alike people of the crowd are, `(n_crowd, n_crowd)`: in the items that seem rated, and in their pulls."""
        seen = observation.glance
        length = np.sqrt(seen.rated.sum(axis=1, keepdims=True)) + np.float32(1e-9)
        return np.asarray(alike(seen.rated / length) + WEIGHT_OF_PULLS * alike(seen.pulls))


def alike(table: Table) -> FloatArray:
    """Return the products of centered rows, scaled so that a row times itself is 1 on average."""
    centered = (table - table.mean(axis=0)).astype(np.float64)
    products = centered @ centered.T
    return np.asarray(products / max(float(np.trace(products)) / len(products), 1e-12))
