"""Checkpoints of a training run: one file in the run folder for each protocol that the run trains.

A new checkpoint is written to a temporary file, which then replaces the previous checkpoint, so that there is always a
complete one. A file begins with its format and the SHA-256 hash of its content, which detects damage. The content is an
NPZ archive without pickle. A checkpoint holds user vectors, and is as private as the run folder.
"""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushrec.errors import RunError
from hushrec.files import replacing
from hushrec.protocols import PROTOCOLS

FORMAT = b"hushrec checkpoint 4"  # changes with the random draws too, so that no run continues with different draws

Arrays = dict[str, npt.NDArray[Any]]
ARRAYS = ("state", "best")  # fields of a checkpoint that hold arrays
LISTS = ("curve", "tried")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run between two rounds: its settings, its measurements so far, and the state of its engine.

    `best` holds the predictor of the best round so far on the validation part, and `patience` the other fields of its
    `run.Best`. Both are empty without the option `patience`.
    """

    settings: dict[str, Any]  # of the folder's main run; the checkpoints of its comparisons have the same
    data: str  # checksum of all ratings, and of the items' attributes if the model uses them
    curve: list[dict[str, float]] = field(repr=False)  # round number and main metric (RMSE or AUC) of each round
    patience: dict[str, Any] = field(repr=False)
    seconds: float  # spent in rounds
    tried: list[dict[str, float]]  # larger step sizes with which the run diverged ("step"), and when ("round")
    state: Arrays = field(repr=False)  # of the engine
    best: Arrays = field(repr=False)

    def check(self, settings: dict[str, Any], data: str) -> None:
        """Raise `RunError` if the data or a setting differs from those of the run that wrote this checkpoint."""
        if self.data != data:
            raise RunError("data must be that of the interrupted run, but differs. Resume with the same data.")
        names = settings.keys() | self.settings.keys()
        for name in sorted(names, key=lambda name: (name not in ("model", "protocol"), name)):  # these two come first
            was, now = self.settings.get(name), settings.get(name)
            if was != now:
                raise RunError(
                    f"{name} must be {was} as in the interrupted run, got {now}. Resume with the same settings."
                )


def checkpoint_path(folder: str | Path, protocol: str) -> Path:
    """Return the path of a protocol's checkpoint in a run folder."""
    return Path(folder) / f"checkpoint-{protocol}.npz"


def checkpoint_files(folder: str | Path) -> list[Path]:
    """Return the checkpoint files that exist in a run folder, including incomplete ones (suffix `.part`)."""
    paths = [checkpoint_path(folder, protocol) for protocol in PROTOCOLS]
    return [path for path in (*paths, *(path.with_suffix(".part") for path in paths)) if path.exists()]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a temporary file, then replace the file at `path` with it."""
    about = {name: value for name, value in vars(checkpoint).items() if name not in ARRAYS}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        f"{kind}_{name}": array for kind in ARRAYS for name, array in getattr(checkpoint, kind).items()
    }
    np.savez(buffer, about=np.array(json.dumps(about)), **arrays)
    content = buffer.getvalue()
    with replacing(path) as file:
        file.write(FORMAT + b" " + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint stored at `path`, or None if there is no file; raise `RunError` if the file is damaged."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"checkpoint {path} must be readable ({type(error).__name__}). Check its permissions.") from None
    if not header.startswith(FORMAT + b" "):
        raise RunError(
            f"checkpoint {path} is damaged or was written by another version of hushrec. Remove it and start again."
        )
    if header.split()[-1] != hashlib.sha256(content).hexdigest().encode():
        raise RunError(f"checkpoint {path} is damaged: its checksum does not match. Remove it and start again.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            state, best = (
                {name.removeprefix(f"{kind}_"): arrays[name] for name in arrays.files if name.startswith(f"{kind}_")}
                for kind in ARRAYS
            )
        if not (isinstance(about["settings"], dict) and all(isinstance(about[name], list) for name in LISTS)):
            raise TypeError
        return Checkpoint(**about, state=state, best=best)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"checkpoint {path} is damaged ({type(error).__name__}). Remove it and start again.") from None


def remove_checkpoints(folder: str | Path) -> None:
    """Remove all checkpoint files from a run folder."""
    for path in checkpoint_files(folder):
        path.unlink()
