"""Rating data: readers, named sets, the synthetic generator, and splits."""

from hushrec.data.named import SETS, NamedSet, describe, get
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.sources import load
from hushrec.data.splits import Split, cold_counts, leave_one_out, random_split, validation_split
from hushrec.data.synthetic import Truth, stream, synthetic, synthetic_truth

__all__ = [
    "SETS",
    "NamedSet",
    "Ratings",
    "Scale",
    "Split",
    "Truth",
    "cold_counts",
    "describe",
    "get",
    "leave_one_out",
    "load",
    "random_split",
    "stream",
    "synthetic",
    "synthetic_truth",
    "validation_split",
]
