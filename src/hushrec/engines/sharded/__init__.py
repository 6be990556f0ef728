"""Engines that divide people into parts: each part sums its people's reports, with the kernels of engine `cpu`.

Results are bit-identical to those of engine `cpu`, for any number of parts and wherever they run (decision 0017).
Sums of integers do not depend on the order. Floating-point sums are computed for each block of users of engine `cpu`,
and added in the order of the blocks.
"""

from hushrec.engines import Engine, Remark
from hushrec.engines.sharded.crew import Crew, InMemory, MakePart
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.simulation.training_problem import AnyProblem


def sharded_engine(
    problem: AnyProblem, crew: Crew, make_part: MakePart | None = None, *, remark: Remark | None = None
) -> Engine:
    """Return an engine that divides people into parts, and runs the parts on the workers of `crew`.

    `make_part(first, stop)` returns the `Part` with the people `first` … `stop` − 1, whose worker loads their ratings.
    Without `make_part`, the ratings of `problem` are sent to the workers. `remark` shows a message to the user.
    """
    protocol = find_protocol(problem.protocol(0).name)
    if protocol.parts_engine is None:
        raise ParameterError(
            f"protocol must be one that can train on parts of the people, got {protocol.name}. Train without shards."
        )
    parts = make_part or (lambda first, stop: InMemory(problem.part(first, stop)))
    engine: Engine = imported(protocol.parts_engine)(problem, crew, parts, remark=remark)
    return engine
