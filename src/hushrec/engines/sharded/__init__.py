"""Engines that cut people into parts: each part runs the CPU engine's kernels, and sums are added in a fixed order.

The result is bit for bit that of engine `cpu`, for any number of parts and wherever they run (decision 0017): integers
may be added in any order, and floating-point sums are kept apart by the blocks of users that `cpu` uses as well.
"""

from hushrec.engines import Engine, Remark
from hushrec.engines.sharded.crew import Crew
from hushrec.engines.sharded.masked import MakePart
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.simulation.training_problem import AnyProblem


def sharded_engine(
    problem: AnyProblem, crew: Crew, make_part: MakePart | None = None, *, remark: Remark | None = None
) -> Engine:
    """Return the engine of the problem's protocol whose parts this crew runs."""
    protocol = find_protocol(problem.protocol(0).name)
    if protocol.parts_engine is None:
        raise ParameterError(f"protocol {protocol.name} has no engine for shards: train on the ratings themselves.")
    engine: Engine = imported(protocol.parts_engine)(problem, crew, make_part, remark=remark)
    return engine
