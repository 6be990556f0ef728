"""How many files and connections a process may hold open at once."""

import resource


def allow_open_files() -> None:
    """Raise the limit of open files as far as the system allows: every device has a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
