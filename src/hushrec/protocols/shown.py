"""A device's own reports as its page shows them to the person, and what attacks recover from them."""

from dataclasses import dataclass, field
from typing import Any

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.parties import State


@dataclass(frozen=True, eq=False, repr=False)
class ShownReport:
    """A report that the device sent, with the arrays that its protocol stored to explain it to the person."""

    round_number: int
    report: Any  # the message, as the protocol declares it
    arrays: State
    n_bytes: int  # size of the encoded report with its envelope, as sent


@dataclass(frozen=True, eq=False)
class Reading:
    """What a server can recover from one device's gradient reports: the user vector's direction and the ratings."""

    direction: FloatArray = field(repr=False)  # the guessed user vector, normalized to length 1
    items: IntArray = field(repr=False)  # all reported items, ascending
    beliefs: FloatArray = field(repr=False)  # for each reported item, the probability that it is rated
    ratings: FloatArray = field(repr=False)  # for each reported item, its most likely rating, from 1 to 5
