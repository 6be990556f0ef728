"""How many files and connections a process may hold open at once."""

import resource


def allow_open_files() -> None:
    """As many as the system lets this process have: every device has a connection, and strangers try."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
