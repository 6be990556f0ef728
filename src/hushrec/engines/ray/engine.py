"""Engine `ray` of the masked and the gradient protocols: the results of engine `cpu`, computed on a Ray cluster."""

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
    """Return a crew on the cluster that this program is connected to, or else on one started on this machine."""
    if not ray.is_initialized():
        _own_cluster.enter_context(cluster())
    return RayCrew()


class RayMaskedEngine(ShardedMaskedEngine):
    """The engine of the masked protocol on a Ray cluster."""

    name: ClassVar[str] = "ray"

    def __init__(self, problem: AnyProblem, make_part: MakePart | None = None, *, remark: Remark | None = None) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)


class RayGradientEngine(ShardedGradientEngine):
    """The engine of gradient protocols on a Ray cluster."""

    name: ClassVar[str] = "ray"

    def __init__(
        self, problem: GradientProblem, make_part: MakePart | None = None, *, remark: Remark | None = None
    ) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)
