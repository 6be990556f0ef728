"""The engine `ray`: it computes the results of engine `cpu` on a Ray cluster, for masked and gradient protocols."""

from contextlib import ExitStack

import ray

from hushrec.engines import Engine, Remark
from hushrec.engines.ray.cluster import cluster
from hushrec.engines.ray.crew import RayCrew
from hushrec.engines.sharded import sharded_engine
from hushrec.simulation.training_problem import AnyProblem

_own_cluster = ExitStack()  # cluster of a program that did not choose one; it lives until the program ends


def connected_crew() -> RayCrew:
    """Return a pool of workers on the connected Ray cluster; start a cluster on this machine if none is connected."""
    if not ray.is_initialized():
        _own_cluster.enter_context(cluster())
    return RayCrew()


def ray_engine(problem: AnyProblem, *, remark: Remark | None = None) -> Engine:
    """Return the engine `ray` for a problem, on the workers of `connected_crew`. `remark` shows the user a message."""
    return sharded_engine(problem, connected_crew(), remark=remark)
