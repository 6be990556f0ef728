"""The command line: one module per command, which parses the options, calls the Python API and prints the result."""

from hushrec.cli import audit, budget, capacity, data, demo, device, experiment, fleet, recommend, report, serve, train  # noqa: F401
from hushrec.cli.app import app, main

__all__ = ["app", "main"]
