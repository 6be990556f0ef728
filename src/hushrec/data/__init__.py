"""Rating data: readers of files and tables, named data sets, the synthetic generator, and train/test splits."""

from hushrec.data.named import SETS, NamedSet, describe, get
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load
from hushrec.data.splits import (
    Split,
    cold_counts,
    k_core,
    k_fold,
    leave_last_out,
    leave_one_out,
    random_split,
    time_split,
    validation_split,
)
from hushrec.data.synthetic import Truth, stream, synthetic, synthetic_truth
from hushrec.scale import Scale

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
    "k_core",
    "k_fold",
    "leave_last_out",
    "leave_one_out",
    "load",
    "random_split",
    "stream",
    "synthetic",
    "synthetic_truth",
    "time_split",
    "validation_split",
]
