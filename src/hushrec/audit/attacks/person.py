"""Attribute inference: guess gender, age and occupation from reports, trained on people with known attributes."""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation
from hushrec.audit.sample import Table

WEIGHT_OF_PULLS = 0.3  # the choice of items says more about a person than the ratings


class PersonFromReports:
    """An attack that guesses attributes (gender, age, occupation) of people from their last reports.

    It compares people by the items that they probably rated, as estimated in module `sample`, and learns from people
    with known attributes by kernel ridge regression.
    """

    name = "a few reports"
    target = "person"
    claim = "none: what ratings say of their owner is not covered"

    def kernel(self, observation: Observation) -> FloatArray:
        """Return the similarity of all pairs of people of the sample, by which items they rated and how.

        The shape is `(n_sample, n_sample)`. The sample has the people whose attributes are guessed, and the people with
        known attributes.
        """
        seen = observation.sample_estimates
        length = np.sqrt(seen.rated.sum(axis=1, keepdims=True)) + np.float32(1e-9)
        return np.asarray(alike(seen.rated / length) + WEIGHT_OF_PULLS * alike(seen.pulls))


def alike(table: Table) -> FloatArray:
    """Return the similarity of all pairs of people, `(n_people, n_people)`; `table` has one row per person.

    It is the scalar product of their rows after the mean row is subtracted, scaled so that the diagonal has mean 1.
    """
    centered = (table - table.mean(axis=0)).astype(np.float64)
    products = centered @ centered.T
    return np.asarray(products / max(float(np.trace(products)) / len(products), 1e-12))
