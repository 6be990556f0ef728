"""The options of engine `ray`: which cluster a command runs on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hushrec.errors import ParameterError

Address = Annotated[
    str | None, typer.Option(help="With --engine ray: the cluster to run on.  [default: one on this machine alone]")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="With --engine ray: workers on this machine.  [default: its cores]")
]
Dashboard = Annotated[bool, typer.Option("--dashboard", help="With --engine ray: start Ray's dashboard, on loopback.")]


@contextmanager
def on_cluster(engine: str | None, address: str | None, workers: int | None, dashboard: bool) -> Iterator[None]:
    """Connect to a cluster, or start one, where the engine is `ray`; refuse its options elsewhere."""
    if engine != "ray":
        if address is not None or workers is not None or dashboard:
            raise ParameterError("address, workers and dashboard are for engine ray. Add --engine ray.")
        yield
        return
    from hushrec.engines.ray.cluster import cluster

    with cluster(address, workers, dashboard=dashboard):
        yield
