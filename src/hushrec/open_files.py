"""The limit on the number of files and connections that a process may have open."""

import resource


def allow_open_files() -> None:
    """Raise this process's limit on open files to the system's maximum, because every device needs a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
