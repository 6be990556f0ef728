"""What every benchmark shares: clocks, training, the machine, and a record in benchmarks/records."""

import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall seconds, and processor seconds of all threads together: the second hardly minds other programs."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def best(turns: list[dict[str, float]]) -> dict[str, float]:
    """The smallest of each clock: what the machine can do when it is left alone."""
    return {clock: min(turn[clock] for turn in turns) for clock in turns[0]}


def load_data(name: str) -> Any:
    """A data set's ratings; where it is not to be found, one sentence and exit code 1."""
    from hushrec.data import load
    from hushrec.errors import HushrecError

    try:
        return load(name)
    except HushrecError as error:
        raise SystemExit(str(error)) from None


def train_all_rounds(task: Any, settings: Any) -> Any:
    """Train on a task's training part without measuring, and return the engine after its last round."""
    from hushrec.engines import make_engine, run_round
    from hushrec.simulation.run import task_problem

    engine = make_engine(settings.chosen_engine, task_problem(task, settings))
    while engine.round_number < engine.problem.terms.max_rounds:
        run_round(engine)
    return engine


def machine() -> dict[str, Any]:
    """The processor, its cores, how busy it was, and the versions that matter."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0].split(":")[1].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "llvmlite")},
    }


def write_record(name: str, result: dict[str, Any]) -> None:
    """Keeps a result with its machine, and prints both."""
    record = {"benchmark": name, "machine": machine(), **result}
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
