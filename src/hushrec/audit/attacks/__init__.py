"""The attacks of an honest-but-curious server. Each attack is one small class that sees only an `Observation`.

A new attack declares its name, its target and the claim that it tests, and returns a guess for every victim. `judge`
scores the guesses. A test checks that these modules import no clients, training problems, engines, rating data or
`Truth`.
"""

from typing import ClassVar, Protocol, runtime_checkable

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


@runtime_checkable
class Attack(Protocol):
    """An attack on a recorded run, with its name, its target and the privacy claim that it tests.

    `guess` returns an array with one row per victim. The content of a row depends on the target:

    - existence (which items are rated): a score per item, higher for items that are more likely rated
    - value: a rating per item
    - model: a vector parallel to the person's user vector; under `fm`, to (1, u) with the taste u
    - metadata: one number that increases with the guessed quantity, such as the number of ratings

    Attacks on attributes and linkage attacks are scored in other ways, and have other methods than `guess`.
    """

    @property
    def name(self) -> str:
        """The name of the attack in the audit's findings."""

    @property
    def target(self) -> str:
        """What the attack tries to recover, one of `findings.TARGETS`."""

    @property
    def claim(self) -> str:
        """The privacy claim that the attack tests, in words."""

    def applies_to(self, observation: Observation) -> bool:
        """Return whether the attack works on the protocol and model of this observation."""

    def guess(self, observation: Observation) -> FloatArray:
        """Return the attack's guess, with one row per victim; the class docstring says what a row holds."""


class OnRuns:
    """The base class of attacks that apply only to some models and protocols; by default, an attack applies to all.

    `selects` says which protocols: True for those that select the reported items at random, False for the others.
    """

    models: ClassVar[tuple[str, ...]] = ()  # the models that the attack applies to; empty for all
    selects: ClassVar[bool | None] = None  # None: the attack applies to every protocol

    def applies_to(self, observation: Observation) -> bool:
        selects = observation.protocol.selection is not None
        return (not self.models or observation.terms.model in self.models) and self.selects in (None, selects)
