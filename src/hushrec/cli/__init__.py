"""The command line: parse, call, print. One module per command; each is a thin layer on the Python API."""

from hushrec.cli import data, recommend, train
from hushrec.cli.app import app, main

__all__ = ["app", "data", "main", "recommend", "train"]
