"""The attacks of an honest-but-curious server. Each attack is one small class that sees only an `Observation`.

A new attack declares its name, its target and the claim that it tests, and returns a guess for every victim. `judge`
scores the guesses. A test checks that these modules import only messages, public formulas and each other.
"""

from typing import Protocol, runtime_checkable

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


class Described(Protocol):
    """Anything that has an attack's name, target and claim."""

    @property
    def name(self) -> str:
        """The name of the attack in the audit's findings."""

    @property
    def target(self) -> str:
        """What the attack tries to recover, one of `findings.TARGETS`."""

    @property
    def claim(self) -> str:
        """The privacy claim that the attack tests, in words."""


@runtime_checkable
class Attack(Described, Protocol):
    """An attack on a recorded run, with its name, its target and the privacy claim that it tests.

    `guess` returns an array with one row per victim. The content of a row depends on the target:

    - existence (which items are rated): a score per item, higher for items that are more likely rated
    - value: a rating per item
    - model: a vector parallel to the person's user vector
    - metadata: one number that increases with the guessed quantity, such as the number of ratings
    """

    def applies_to(self, observation: Observation) -> bool:
        """Return whether the attack works on the protocol and model of this observation."""

    def guess(self, observation: Observation) -> FloatArray:
        """Return the attack's guess, with one row per victim; the class docstring says what a row holds."""
