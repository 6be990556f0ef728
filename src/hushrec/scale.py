"""Rating scales. For training, the ratings of every file and person are mapped to the scale 1 to 5, the *unit* scale.

On a scale such as 0 to 100, training with the step size of [SDCF] would diverge.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushrec.arrays import BoolArray, FloatArray
from hushrec.errors import DataError, NoUsualScale

LOWEST, HIGHEST = 1.0, 5.0
MOST_STARS = 10  # largest number of values that a rating form offers


@dataclass(frozen=True)
class Scale:
    """A rating scale: the lowest and the highest rating that a person can give."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DataError(f"scale must be two finite numbers, low < high, got {self}. Write it as --scale 1,5.")

    def __str__(self) -> str:
        return f"{self.low:g}-{self.high:g}"

    @classmethod
    def parse(cls, given: str | Iterable[float]) -> "Scale":
        """Return the scale that is given as text `MIN,MAX` or as two numbers; raise `DataError` for anything else."""
        try:
            low, high = (float(part) for part in (given.split(",") if isinstance(given, str) else given))
        except (TypeError, ValueError):
            raise DataError(f"scale must be written MIN,MAX, such as 1,5, or be two numbers; got {given!r}.") from None
        return cls(low, high)

    @classmethod
    def guess(cls, values: npt.ArrayLike) -> "Scale":
        """Return the first usual scale, such as 1-5, that contains every value; raise `NoUsualScale` if none does."""
        array = np.asarray(values, dtype=np.float64)
        for scale in USUAL_SCALES:
            if scale.holds(array).all():
                return scale
        low, high = float(array.min()), float(array.max())
        hints = ""
        if low >= 0 and low.is_integer() and high.is_integer():
            hints += (
                " If they are counts, such as plays or purchases, pass --implicit (in Python: implicit=True), which"
                " reads only who chose what."
            )
        if low < 0:
            hints += " If the lowest rating means no rating, pass it with --missing (in Python: missing)."
        raise NoUsualScale(
            f"ratings must lie on one of the usual scales ({', '.join(map(str, USUAL_SCALES))}), but do not. Pass"
            f" --scale MIN,MAX (in Python: hushrec.data.load(..., scale=(MIN, MAX))).{hints}",
            low=low,
            high=high,
        )

    def doubt(self, values: npt.ArrayLike) -> str:
        """Return why this scale, guessed from `values`, may be wrong, and what to pass; "" if nothing suggests it.

        It is doubted if the ratings use at most half of it, or if the lowest rating looks like a sign for "no
        rating" (`_seems_missing`).
        """
        array = np.asarray(values, dtype=np.float64)
        lowest, highest = float(array.min()), float(array.max())
        share = (highest - lowest) / (self.high - self.low)
        sentences = []
        if 0 < share <= 0.5:
            sentences.append(
                f"The ratings use only {share:.0%} of the guessed scale {self}, and a scale that is too wide can make"
                " predictions less accurate. Pass --scale MIN,MAX (in Python: hushrec.data.load(..., scale=(MIN,"
                " MAX))) with the lowest and the highest rating that people could give."
            )
        if _seems_missing(array, lowest):
            sentences.append(
                f"The lowest rating, {lowest:g}, is far from the others. If it means no rating, pass --missing"
                f" {lowest:g} (in Python: hushrec.data.load(..., missing={lowest:g}))."
            )
        return " ".join(sentences)

    def holds(self, values: npt.ArrayLike) -> BoolArray:
        """Return whether each value is between `low` and `high`; False for NaN."""
        array = np.asarray(values, dtype=np.float64)
        return np.asarray((array >= self.low) & (array <= self.high))

    def to_unit(self, values: npt.ArrayLike) -> FloatArray:
        """Map ratings linearly from this scale to the scale 1 to 5."""
        share = (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)
        return np.asarray(LOWEST + share * (HIGHEST - LOWEST))

    def from_unit(self, values: npt.ArrayLike) -> FloatArray:
        """Map ratings linearly from the scale 1 to 5 to this scale."""
        share = (np.asarray(values, dtype=np.float64) - LOWEST) / (HIGHEST - LOWEST)
        return np.asarray(self.low + share * (self.high - self.low))

    def form_values(self) -> FloatArray:
        """Return the ratings among which a person can choose in an input form, from the lowest to the highest.

        They are evenly spaced. The step is 1 if this divides the scale into whole steps and gives at most ten values,
        else ½ if ½ does so. If neither does so, the result has five values.
        """
        width = float(self.high - self.low)
        steps = next((n for n in (width, 2 * width) if n.is_integer() and n < MOST_STARS), 4)
        return np.linspace(self.low, self.high, int(steps) + 1)

    def levels(self, values: npt.ArrayLike = ()) -> int:
        """Return the number of ratings that can be given on this scale, at most `MOST_STARS`.

        It is the number of `form_values`. If one of `values` lies between these, it is `MOST_STARS`.
        """
        form = self.form_values()
        return len(form) if np.isin(np.asarray(values, dtype=np.float64), form).all() else MOST_STARS


def _seems_missing(values: FloatArray, lowest: float) -> bool:
    """Return whether `lowest`, the smallest of `values`, looks like a sign for "no rating".

    It does if it is 0 or negative, all other values are positive, and its distance from them is at least twice the
    largest distance between neighbours among them.
    """
    if lowest > 0:
        return False
    distinct = np.unique(values)
    gaps = np.diff(distinct)
    return bool(len(gaps) > 1 and distinct[1] > 0 and gaps[0] >= 2 * gaps[1:].max())


USUAL_SCALES = (
    Scale(1, 5),
    Scale(0, 1),
    Scale(0.5, 5),
    Scale(0, 5),
    Scale(1, 10),
    Scale(0, 10),
    Scale(-10, 10),
    Scale(0, 100),
)
