"""A Ray cluster to run on: one that is there, or one on this machine alone, which speaks to nobody.

Ray looks for a cloud when it starts and reports its use unless it is told not to. A cluster that we start listens on
the loopback address, finds a file that says that there is no cloud, and reports nothing; its dashboard starts when it
is asked for.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._private import ray_constants

from hushrec.errors import LocalProtocolError, ParameterError

LOOPBACK = "127.0.0.1"
NO_CLOUD = "provider: {type: local}\n"  # in ~/ray_bootstrap_config.yaml: Ray asks no metadata service
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": f"http://{LOOPBACK}:9/",  # where nobody listens
}


@contextmanager
def cluster(address: str | None = None, workers: int | None = None, *, dashboard: bool = False) -> Iterator[None]:
    """Connect to the cluster at `address`, or start one of so many workers (all cores) on this machine; leave it after.

    Runs inside use it; so does a run inside a program that called `ray.init` itself.
    """
    if workers is not None and workers < 1:
        raise ParameterError(f"workers must be at least 1, got {workers}.")
    if address is not None and (workers is not None or dashboard):
        raise ParameterError("workers and dashboard are those of the cluster at address. Leave them out.")
    if ray.is_initialized():
        raise ParameterError("this program is connected to a Ray cluster already. Leave address and workers out.")
    with tempfile.TemporaryDirectory() as home:  # there until the end: some processes of Ray read it late
        with _environment(QUIET | {"HOME": _without_cloud(home)}):
            if address is not None:
                _join(address)
            else:
                _start(workers, dashboard)
        try:
            yield
        finally:
            ray.shutdown()


def _without_cloud(home: str) -> str:
    """Return a home for Ray's processes, with the file that says that there is no cloud."""
    (Path(home) / "ray_bootstrap_config.yaml").write_text(NO_CLOUD)
    return home


def _join(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise ParameterError(f"address must be that of a Ray cluster, got {address}. Start one: ray start.") from None


def _start(workers: int | None, dashboard: bool) -> None:
    """Start a cluster on the loopback address, as Ray does where it has no clusters; refused where it does not."""
    with _environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}):
        ray_constants.ENABLE_RAY_CLUSTER = False  # which is read when ray is imported, perhaps before
        try:
            ray.init(
                address="local",
                num_cpus=workers or os.cpu_count(),
                num_gpus=0,
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
            )
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = True
    if ray.util.get_node_ip_address() != LOOPBACK:
        ray.shutdown()
        raise LocalProtocolError(f"Ray {ray.__version__} did not start on {LOOPBACK}. Start it yourself, --address.")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment, which processes that are started meanwhile inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
