"""Recommendations learned from ratings that never leave the device.

Start with these:

    import hushrec

    recommender = hushrec.Recommender(epsilon=8).fit(ratings)   # a frame, an array, a file or a data set's name
    recommender.recommend("ann", 10)                            # a frame: item, title, predicted, deviation, ...
    recommender.recommend_for({"Alien": 5, "Heat": 2})          # a person who took no part in training

    measured = hushrec.train(ratings, epsilon=8)                # also measures on held-out ratings
    measured.metrics, measured.budget
    hushrec.grid(ratings, {"epsilon": [1, 4, 8]})               # a frame of metrics, with non-personal baselines

`Recommender` learns, predicts and recommends. `train` holds ratings out and compares a recommender with baselines.
`grid` measures many settings, and `compare` tests two recommenders for a difference. `Device` is a person's device on a
network, to be embedded in an app. `hushrec.data.load` reads ratings with many options, and `hushrec.data` has functions
that split them (`k_fold`, `time_split`, …). Every exception that hushrec raises on purpose is a `HushrecError`. The
command `hushrec` offers the same from a shell; see `hushrec --help`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from hushrec import data
    from hushrec.comparison import Comparison, compare, grid
    from hushrec.device.device import Device
    from hushrec.errors import HushrecError
    from hushrec.recommender import Recommender, train

__all__ = ["Comparison", "Device", "HushrecError", "Recommender", "__version__", "compare", "data", "grid", "train"]

_HOME = {
    "Comparison": "comparison",
    "compare": "comparison",
    "grid": "comparison",
    "Device": "device.device",
    "HushrecError": "errors",
    "Recommender": "recommender",
    "train": "recommender",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import hushrec` stays quick."""
    if name == "__version__":
        from importlib.metadata import version  # imported here because it would double the time of `import hushrec`

        return version("hushrec")
    if name == "data":
        return import_module("hushrec.data")
    if name not in _HOME:
        raise AttributeError(f"module hushrec has no attribute {name!r}")
    return getattr(import_module(f"hushrec.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, so that `help` and completion find them."""
    return sorted(__all__)
