"""The attacks of an honest-but-curious server. Each is one small class that sees nothing but an `Observation`.

A new attack declares its name, its target and the claim that it tests, and returns a guess for every victim; `judge`
scores the guesses. These modules may import messages, public formulas and each other, which a test checks.
"""

from typing import Protocol, runtime_checkable

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


@runtime_checkable
class Attack(Protocol):
    """An attack on an observed run, with its name, its target and the claim that it tests.

    A guess has one row per victim. By target, a row holds: for existence, a score per item, higher for rated items; for
    value, a rating per item; for model, a vector parallel to the user vector. For metadata, a row is one number that
    increases with the guessed quantity.
    """

    @property
    def name(self) -> str:
        """The name of the attack in findings."""

    @property
    def target(self) -> str:
        """What the attack tries to recover: existence, value, model or metadata."""

    @property
    def claim(self) -> str:
        """The claim that the attack tests."""

    def applies_to(self, observation: Observation) -> bool:
        """Return whether this attack can attack such a run."""

    def guess(self, observation: Observation) -> FloatArray:
        """Return the guess of this attack."""
