"""The command line: parse, call, print. One module per command; each is a thin layer on the Python API."""

from hushrec.cli import audit, budget, capacity, data, demo, device, experiment, fleet, recommend, report, serve, train
from hushrec.cli.app import app, main

__all__ = [
    "app",
    "audit",
    "budget",
    "capacity",
    "data",
    "demo",
    "device",
    "experiment",
    "fleet",
    "main",
    "recommend",
    "report",
    "serve",
    "train",
]
