"""The attacks of a curious server. Each is one small class that sees an `Observation` and nothing else.

A new attack states its name, target and the claim it tests, and returns a guess for every victim; `judge` scores it.
These modules may import messages, public formulas and each other; a test holds them to it.
"""

from typing import Protocol, runtime_checkable

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


@runtime_checkable
class Attack(Protocol):
    """What every attack says of itself, and its guess.

    The guess has one row per victim. Existence: a score per item, higher for rated. Value: a rating per item. Model:
    a vector parallel to the user vector. Metadata: one number, rising with what is to be told.
    """

    @property
    def name(self) -> str:
        """The name of the attack in findings."""

    @property
    def target(self) -> str:
        """What it is after: existence, value, model or metadata."""

    @property
    def claim(self) -> str:
        """The claim that it tests."""

    def applies_to(self, observation: Observation) -> bool:
        """Return whether this attack can use such a run."""

    def guess(self, observation: Observation) -> FloatArray:
        """Return the guess of this attack."""
