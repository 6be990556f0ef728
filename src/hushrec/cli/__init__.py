"""The command line: parse, call, print. One module per command; each is a thin layer on the Python API."""

from hushrec.cli import recommend, train
from hushrec.cli.app import app, main

__all__ = ["app", "main", "recommend", "train"]
