"""The Ray cluster to run on: an existing one, or one started on this machine that makes no outside connections.

By default Ray queries cloud metadata services when it starts, and reports usage statistics. A cluster started by this
module listens on the loopback address only, reads a configuration file that disables the metadata queries, and reports
nothing. Its dashboard is off unless requested.
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
NO_CLOUD = "provider: {type: local}\n"  # in ~/ray_bootstrap_config.yaml; makes Ray query no metadata service
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": f"http://{LOOPBACK}:9/",  # a port on which nothing listens
}


@contextmanager
def cluster(address: str | None = None, workers: int | None = None, *, dashboard: bool = False) -> Iterator[None]:
    """Connect to the Ray cluster at `address` or start one on this machine; disconnect when the `with` block ends.

    A new cluster has `workers` workers, by default one per core. With `dashboard` it serves Ray's web page. A program
    that has called `ray.init` itself does not need this context manager.
    """
    if workers is not None and workers < 1:
        raise ParameterError(f"workers must be at least 1, got {workers}.")
    if address is not None and (workers is not None or dashboard):
        raise ParameterError(
            "workers and dashboard must be left out if address is given: the cluster there is running already."
        )
    if ray.is_initialized():
        raise ParameterError(
            "`cluster()` must not be called in a program that is already connected to Ray. Remove this call."
        )
    with tempfile.TemporaryDirectory() as home:  # kept until the end, because some Ray processes read it late
        (Path(home) / "ray_bootstrap_config.yaml").write_text(NO_CLOUD)
        with _environment(QUIET | {"HOME": home}):
            if address is not None:
                _join(address)
            else:
                _start(workers, dashboard)
        try:
            yield
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise ParameterError(
            f"address must lead to a running Ray cluster, got {address}. Start a cluster with `ray start`."
        ) from None


def _start(workers: int | None, dashboard: bool) -> None:
    """Start a cluster, and raise `LocalProtocolError` unless it listens on the loopback address only."""
    with _environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}):
        ray_constants.ENABLE_RAY_CLUSTER = False  # Ray has already read the variable if it was imported before
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
        raise LocalProtocolError(
            f"Ray must listen on {LOOPBACK} only, but version {ray.__version__} does not. Start a cluster with"
            " `ray start` and give its address."
        )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set these environment variables inside the `with` block, for child processes; restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
