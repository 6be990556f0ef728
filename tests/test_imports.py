"""Imports point one way, and only the edges touch files, sockets, clocks or the operating system."""

import ast
from pathlib import Path

import hushrec

PACKAGE = Path(hushrec.__file__).parent

_BASE = {"arrays", "errors", "extras", "json_values", "options", "plugins", "randomness", "scale"}
_PARTS = _BASE | {"budget", "mechanisms", "models", "messages"}
_PARTIES = _PARTS | {"protocols", "client", "server"}
_SIMULATION = _PARTIES | {"simulation", "simulation.training_problem", "engines", "data", "evaluate", "files"}

# Which parts of hushrec each part may import. `hushrec` is the package's own __init__. A dotted name is a part of its
# own: engines use the problem that training hands them, and training uses the engines.
ALLOWED: dict[str, set[str]] = {
    "arrays": set(),
    "errors": set(),
    "json_values": set(),
    "options": {"errors"},
    "plugins": set(),
    "extras": set(),
    "randomness": {"arrays", "errors"},
    "scale": {"arrays", "errors"},
    "budget": _BASE,
    "mechanisms": _BASE | {"budget"},
    "models": _BASE,
    "messages": _BASE,
    "wire": _PARTS | {"protocols"},
    "signing": _BASE | {"messages"},
    "pages": set(),
    "open_files": set(),
    "protocols": _PARTS,
    "client": _PARTS | {"protocols"},
    "server": _PARTS | {"protocols"},
    "simulation.training_problem": _PARTS | {"protocols"},
    "engines": _PARTIES | {"simulation.training_problem"},
    "engines.ray": _PARTIES | {"simulation.training_problem", "engines"},
    "data": _BASE,
    "evaluate": _BASE,
    "files": {"errors"},
    "simulation": _SIMULATION - {"simulation"} | {"engines.ray"},
    "audit": _SIMULATION,
    "experiment_records": _BASE | {"files"},
    "report": _BASE | {"budget", "files", "models", "protocols", "experiment_records", "simulation", "evaluate"},
    "demo": _SIMULATION | {"audit", "report"},
    "experiments": _SIMULATION | {"audit", "engines.ray", "experiment_records", "report"},
    "capacity": _PARTS | {"protocols"},
    "offers": _PARTS | {"protocols"},
    "service": _PARTS | {"protocols", "offers", "server", "wire", "signing", "pages", "open_files"},
    "device": _PARTS | {"protocols", "offers", "client", "wire", "signing", "pages", "open_files"},
    "recommender": _SIMULATION,
    "comparison": _SIMULATION | {"recommender"},
    "hushrec": _SIMULATION | {"device", "recommender", "comparison"},
    "cli": _SIMULATION
    | {"audit", "experiment_records", "report", "demo", "experiments", "service", "device", "open_files", "hushrec"}
    | {"capacity", "engines.ray", "recommender"},
    "__main__": {"cli"},
}

# Modules of the standard library (and one outside it) that reach past the process.
_OUTSIDE = {
    "asyncio", "datetime", "ftplib", "glob", "http", "httpx", "io", "logging", "multiprocessing", "os", "pathlib",
    "platform", "random", "resource", "secrets", "select", "shutil", "signal", "socket", "socketserver", "sqlalchemy",
    "sqlite3", "ssl", "subprocess", "sys", "tempfile", "time", "urllib", "uuid",
}  # fmt: skip
_EDGES = {
    "service",
    "device",
    "pages",
    "open_files",
    "experiment_records",
    "files",
    "cli",
    "data",
    "demo",
    "engines.ray",
    "experiments",
    "report",
    "__main__",
}
_EXCEPTIONS = {
    "randomness": {"os"},  # the entropy call
    "recommender": {"logging", "pathlib"},  # remarks; names of folders and files, which `simulation` and `data` open
    "comparison": {"time"},  # times the trainings
    "simulation": {"io", "os", "pathlib", "tempfile", "time"},  # run folders and checkpoints; times the rounds
}


def part_of(module: str) -> str:
    """Return the part that a dotted name inside the package belongs to: budget.events is in budget."""
    two_words = ".".join(module.split(".")[:2])
    if two_words in ALLOWED:
        return two_words
    return module.split(".")[0] or "hushrec"


def read_modules() -> dict[str, str]:
    """Source of every module of the package by its dotted name below `hushrec`, which is "" for the package itself."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        ".".join(part for part in name if part != "__init__"): path.read_text("utf-8") for path, name in names.items()
    }


SOURCES = read_modules()


def imported_names(source: str) -> set[str]:
    """Dotted names that a source imports anywhere, lazily or for types too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside hushrec are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_parts(source: str) -> set[str]:
    """Parts of hushrec that a source imports; a name of the package's own __init__ counts as `hushrec`."""
    inside = [name.partition(".")[2] for name in imported_names(source) if name.split(".")[0] == "hushrec"]
    return {part_of(name) if part_of(name) in ALLOWED else "hushrec" for name in inside}


def wrong_imports(module: str, source: str) -> set[str]:
    """Parts that the module imports and may not; a part may always import itself."""
    return imported_parts(source) - ALLOWED[part_of(module)] - {part_of(module)}


def outside_imports(module: str, source: str) -> set[str]:
    """Modules that the source imports and that only an edge may import."""
    part = part_of(module)
    if part in _EDGES:
        return set()
    return ({name.split(".")[0] for name in imported_names(source)} & _OUTSIDE) - _EXCEPTIONS.get(part, set())


def reachable(part: str) -> set[str]:
    """Everything that a part may pull in, through any number of steps."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        new = ALLOWED[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_every_part_has_a_place_in_the_table() -> None:
    """A new module fails here until it is placed among the layers."""
    unknown = {part_of(module) for module in SOURCES} - ALLOWED.keys()
    assert not unknown, f"say in ALLOWED (tests/test_imports.py) what {sorted(unknown)} may import"


def test_a_module_imports_only_what_its_layer_may() -> None:
    """No module imports a part that the table does not grant it."""
    wrong = {module: wrong_imports(module, source) for module, source in SOURCES.items()}
    assert not {module: parts for module, parts in wrong.items() if parts}


def test_only_edges_reach_past_the_process() -> None:
    """Files, sockets, clocks and the operating system belong to the edges; a deadline arrives as a message."""
    wrong = {module: outside_imports(module, source) for module, source in SOURCES.items()}
    assert not {module: names for module, names in wrong.items() if names}


def test_budget_events_stand_on_nothing_else_of_the_budget() -> None:
    """What was released is described without knowing what it costs."""
    names = imported_names(SOURCES.get("budget.events", ""))
    assert not {name for name in names if name.startswith("hushrec.budget")}


def test_the_table_has_no_circle() -> None:
    """No part may reach itself through others."""
    assert not [part for part in ALLOWED if part in reachable(part)]


def test_the_table_keeps_its_promises() -> None:
    """The rules that may not be edited away."""
    parties = {"client", "server", "engines"}
    assert "mechanisms" not in reachable("budget")
    assert not parties & (
        reachable("models") | reachable("mechanisms") | reachable("messages") | reachable("protocols")
    )
    assert "server" not in reachable("client") | reachable("device")
    assert "client" not in reachable("server") | reachable("service")
    assert {part for part in ALLOWED if "audit" in ALLOWED[part]} == {"cli", "demo", "experiments"}


def test_a_forbidden_import_is_found_wherever_it_hides() -> None:
    """Plain, from, lazy and type-only imports are all seen."""
    assert wrong_imports("budget.events", "import hushrec.mechanisms.langevin") == {"mechanisms"}
    assert wrong_imports("models.mf", "from hushrec import client") == {"client"}
    assert wrong_imports("server", "def close():\n    from hushrec.client import Client") == {"client"}
    assert wrong_imports("messages", "if TYPE_CHECKING:\n    from hushrec import train") == {"hushrec"}
    assert wrong_imports("budget.ledger", "from hushrec.budget import events\nimport hushrecord") == set()
    assert outside_imports("client", "def now():\n    import time") == {"time"}
    assert outside_imports("randomness", "import os, socket") == {"socket"}
    assert outside_imports("files", "from pathlib import Path") == set()
