"""Run folders and their files: readable by their owner only, written atomically, and used by one run at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

from hushrec.errors import RunError


def check_free(folder: str | Path) -> None:
    """Create a folder with mode 0700; raise if it is not empty or cannot be created."""
    path = Path(folder)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} must be a new or empty folder. Choose another --out, or remove {path} first.")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise RunError(
            f"{path} must be a folder that can be created ({type(error).__name__}). Choose another --out."
        ) from None


def stamp() -> dict[str, str]:
    """Return today's date and the version of hushrec, to be written into a file."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "hushrec": version("hushrec")}


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends; if writing fails, `path` does not change."""
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
    """Lock a run folder for this process; the operating system releases the lock when the process ends."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"{folder} must not be in use by another run. Choose another --out.") from None
    finally:
        os.close(handle)
