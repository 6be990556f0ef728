"""The limit on open files and connections of a process."""

import resource


def allow_open_files() -> None:
    """Raise the limit on open files as far as the system allows, because every device has a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
