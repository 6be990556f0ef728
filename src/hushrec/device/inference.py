"""What a server can read off one upload: the audit's attack, run here on one's own report and held against the truth.

Nothing of it leaves the device. The attack comes from outside (`hushrec.audit` in the command line), so that a
device does not depend on the audit.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hushrec.messages import GradientReport, ItemVectors
from hushrec.randomness import FloatArray

SHOWN = 10
_FAR = 4.0  # times the median amplitude: a made-up number is rarely as large


class Parts(Protocol):
    """One upload taken apart."""

    @property
    def direction(self) -> FloatArray: ...  # of the user vector, length 1

    @property
    def amplitudes(self) -> FloatArray: ...  # errors times the user vector's length

    @property
    def noise(self) -> float: ...  # deviation of an amplitude


Attack = Callable[[ItemVectors, GradientReport, FloatArray | None], Parts]


@dataclass(frozen=True, eq=False, repr=False)
class Inference:
    """What the attack says, and how right it is. Must never leave the device."""

    amplitudes: FloatArray = field(repr=False)  # (n_selected,)
    stands_out: npt.NDArray[np.bool_] = field(repr=False)  # (n_selected,): the server would call it really rated
    is_rated: npt.NDArray[np.bool_] = field(repr=False)  # (n_selected,): it is
    cosine: float  # between the guessed and the true direction of taste
    same_top: int  # of the person's SHOWN best unrated items, how many are among the server's guess


def infer(
    attack: Attack, answered: ItemVectors, report: GradientReport, user_vector: FloatArray, rated: Collection[int]
) -> Inference:
    """Runs the attack as the server could, then compares with what only this device knows."""
    parts = attack(answered, report, None)
    size = np.abs(parts.amplitudes)
    norm = float(np.linalg.norm(user_vector))
    cosine = float(parts.direction @ user_vector) / norm if norm else 0.0
    best = [_best(answered.item_vectors @ direction, rated) for direction in (user_vector, parts.direction)]
    return Inference(
        amplitudes=parts.amplitudes,
        stands_out=size > max(_FAR * float(np.median(size)), 3 * parts.noise),
        is_rated=np.isin(report.items, list(rated)),
        cosine=abs(cosine),
        same_top=len(best[0] & best[1]),
    )


def _best(scores: FloatArray, rated: Collection[int]) -> set[int]:
    scores = scores.copy()
    scores[list(rated)] = -np.inf
    return set(np.argsort(-scores)[:SHOWN].tolist())
