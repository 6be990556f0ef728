"""Functions for run folders: readable by their owner only, written atomically, and used by one process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

from hushrec.errors import RunError


def check_free(folder: str | Path) -> None:
    """Create a folder, or accept an empty one, and set its mode to 0700.

    Raise `RunError` if the folder has files or cannot be created.
    """
    path = Path(folder)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} must be a new or empty folder. Choose another folder, or remove {path} first.")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise RunError(
            f"{path} must be a folder that can be created or read ({type(error).__name__}). Choose another folder."
        ) from None


def stamp() -> dict[str, str]:
    """Return today's date and the version of hushrec, to be written into a file."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "hushrec": version("hushrec")}


@contextmanager
def written(path: str | Path, option: str) -> Iterator[None]:
    """Return a context manager that turns an `OSError` of its block, which writes to `path`, into a `RunError`.

    The error message ends with "Choose another {option}."; `option` is, for example, "--out" or "folder for plots".
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} must be writable, but is not ({error.strerror or error}). Choose another {option}."
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Return a context manager that opens a temporary file to write, and at the end replaces `path` by this file.

    If the block raises an exception, `path` stays unchanged.
    """
    temporary = path.with_suffix(".part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise RunError(f"{path} cannot be written ({reason}). The earlier file is unchanged.") from None


@contextmanager
def reserved(folder: str | Path) -> Iterator[None]:
    """Return a context manager that locks a run folder; raise `RunError` if another process has locked the folder.

    The operating system releases the lock if the process ends early.
    """
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"{folder} must not be in use by another run. Choose another folder.") from None
    finally:
        os.close(handle)
