"""Recommendations learned from ratings that never leave the device."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from hushrec.device.device import Device
    from hushrec.errors import HushrecError
    from hushrec.simulation.results import Reason, Recommendation, Result, load
    from hushrec.simulation.settings import Settings
    from hushrec.simulation.training import train

__all__ = ["Device", "HushrecError", "Reason", "Recommendation", "Result", "Settings", "load", "train"]

_HOME = {
    "Device": "device.device",
    "HushrecError": "errors",
    "Reason": "simulation.results",
    "Recommendation": "simulation.results",
    "Result": "simulation.results",
    "Settings": "simulation.settings",
    "load": "simulation.results",
    "train": "simulation.training",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import hushrec` stays quick."""
    if name == "__version__":
        return version("hushrec")
    if name not in _HOME:
        raise AttributeError(f"module hushrec has no attribute {name!r}")
    return getattr(import_module(f"hushrec.{_HOME[name]}"), name)
