"""Where a run stands, kept on disk while it trains: one file per trained protocol in the run folder.

A checkpoint is written beside the last one, then takes its place: there is always a whole one. It opens with its
format and a SHA-256 of the rest, an NPZ without pickle, so that a damaged one is refused and never guessed from.
It holds what the run folder holds, user vectors too, and is as private.
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

FORMAT = b"hushrec checkpoint 4"  # a change of draws changes it too: what was begun with others cannot go on

Arrays = dict[str, npt.NDArray[Any]]
ARRAYS = ("state", "best")  # what of a checkpoint is arrays
LISTS = ("curve", "tried")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run between two rounds: what was asked for, what was measured, and its engine's state."""

    settings: dict[str, Any]  # of the run that the folder is for, which this may be a comparison with
    data: str  # checksum of what it learns from
    curve: list[dict[str, float]] = field(repr=False)
    patience: dict[str, Any] = field(repr=False)  # the best round on the validation part; nothing where there is none
    seconds: float
    tried: list[dict[str, float]]  # larger steps at which this run diverged
    state: Arrays = field(repr=False)
    best: Arrays = field(repr=False)  # the predictor of that round

    def check(self, settings: dict[str, Any], data: str) -> None:
        """Refuse to go on with other data or another setting than the run began with."""
        if self.data != data:
            raise RunError("the checkpoint is of a run on other data. Resume with what it began with.")
        names = settings.keys() | self.settings.keys()
        for name in sorted(names, key=lambda name: (name not in ("model", "protocol"), name)):  # these decide others
            was, now = self.settings.get(name), settings.get(name)
            if was != now:
                raise RunError(
                    f"the checkpoint is of a run with {name} {was}, got {now}. Resume with the same settings."
                )


def checkpoint_path(folder: str | Path, protocol: str) -> Path:
    """Return where the checkpoint of one protocol lies in a run folder."""
    return Path(folder) / f"checkpoint-{protocol}.npz"


def checkpoint_files(folder: str | Path) -> list[Path]:
    """Return what a run that is not over left there: the file of each protocol, and one that was being written."""
    paths = [checkpoint_path(folder, protocol) for protocol in PROTOCOLS]
    return [path for path in (*paths, *(path.with_suffix(".part") for path in paths)) if path.exists()]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the whole file beside the last one, then replace that one with it."""
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
    """Read a checkpoint back; None if there is none, refused by name if it is damaged."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"checkpoint {path} cannot be read ({type(error).__name__}).") from None
    if not header.startswith(FORMAT + b" "):
        raise RunError(f"checkpoint {path} is damaged, or of another version of hushrec. Remove it and start anew.")
    if header.split()[-1] != hashlib.sha256(content).hexdigest().encode():
        raise RunError(f"checkpoint {path} is damaged: its checksum does not match. Remove it and start anew.")
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
        raise RunError(f"checkpoint {path} is damaged ({type(error).__name__}). Remove it and start anew.") from None


def remove_checkpoints(folder: str | Path) -> None:
    """Remove the checkpoints of a finished run."""
    for path in checkpoint_files(folder):
        path.unlink()
