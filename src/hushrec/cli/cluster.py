"""The command-line options of engine `ray`, which choose the Ray cluster on which a command runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from typer import Option

from hushrec.errors import ParameterError

Address = Annotated[
    str | None, Option(help="With --engine ray: address of the cluster.  [default: start one on this machine]")
]
Workers = Annotated[
    int | None,
    Option(min=1, help="With --engine ray: number of workers on this machine.  [default: one per core]"),
]
Dashboard = Annotated[
    bool, Option("--dashboard", help="With --engine ray: start Ray's dashboard on a loopback address.")
]


@contextmanager
def on_cluster(engine: str | None, address: str | None, workers: int | None, dashboard: bool) -> Iterator[None]:
    """Run the `with` block on a Ray cluster if `engine` is "ray": the one at `address`, or a new one on this machine.

    Raise `ParameterError` if `engine` is not "ray" and another argument is given.
    """
    if engine != "ray":
        if address is not None or workers is not None or dashboard:
            raise ParameterError(
                f"--address, --workers and --dashboard need --engine ray, got {engine or 'no engine'}. Add --engine"
                " ray, or leave them out."
            )
        yield
        return
    from hushrec.engines.ray.cluster import cluster

    with cluster(address, workers, dashboard=dashboard):
        yield
