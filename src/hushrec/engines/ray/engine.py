"""The engine `ray`: it computes the results of engine `cpu` on a Ray cluster, for masked and gradient protocols."""

from contextlib import ExitStack
from typing import ClassVar

import ray

from hushrec.engines import Remark
from hushrec.engines.gradient import GradientProblem
from hushrec.engines.ray.cluster import cluster
from hushrec.engines.ray.crew import RayCrew
from hushrec.engines.sharded.crew import MakePart
from hushrec.engines.sharded.gradient import ShardedGradientEngine
from hushrec.engines.sharded.masked import ShardedMaskedEngine
from hushrec.simulation.training_problem import AnyProblem

_own_cluster = ExitStack()  # cluster of a program that did not choose one; it lives until the program ends


def connected_crew() -> RayCrew:
    """Return workers on the Ray cluster that this program is connected to; start a local cluster if there is none."""
    if not ray.is_initialized():
        _own_cluster.enter_context(cluster())
    return RayCrew()


class RayMaskedEngine(ShardedMaskedEngine):
    """The engine `ray` for the masked protocol."""

    name: ClassVar[str] = "ray"

    def __init__(self, problem: AnyProblem, make_part: MakePart | None = None, *, remark: Remark | None = None) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)


class RayGradientEngine(ShardedGradientEngine):
    """The engine `ray` for gradient protocols."""

    name: ClassVar[str] = "ray"

    def __init__(
        self, problem: GradientProblem, make_part: MakePart | None = None, *, remark: Remark | None = None
    ) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)
