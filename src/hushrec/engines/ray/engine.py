"""Engine `ray` of every protocol that has an engine `cpu`: the same bits, computed by all workers of a cluster."""

from contextlib import ExitStack
from typing import ClassVar

import ray

from hushrec.engines import Remark
from hushrec.engines.gradient import GradientProblem
from hushrec.engines.ray.cluster import cluster
from hushrec.engines.ray.crew import RayCrew
from hushrec.engines.sharded.gradient import ShardedGradientEngine
from hushrec.engines.sharded.masked import MakePart, ShardedMaskedEngine
from hushrec.simulation.training_problem import AnyProblem

_own_cluster = ExitStack()  # of a program that did not choose one: there until the program ends


def connected_crew() -> RayCrew:
    """Return a crew on the cluster of `cluster` or `ray.init`, or else on one that is started on this machine."""
    if not ray.is_initialized():
        _own_cluster.enter_context(cluster())
    return RayCrew()


class RayMaskedEngine(ShardedMaskedEngine):
    """The masked protocol on a Ray cluster."""

    name: ClassVar[str] = "ray"

    def __init__(self, problem: AnyProblem, make_part: MakePart | None = None, *, remark: Remark | None = None) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)


class RayGradientEngine(ShardedGradientEngine):
    """A gradient protocol on a Ray cluster."""

    name: ClassVar[str] = "ray"

    def __init__(
        self, problem: GradientProblem, make_part: MakePart | None = None, *, remark: Remark | None = None
    ) -> None:
        super().__init__(problem, connected_crew(), make_part, remark=remark)
