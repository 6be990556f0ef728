"""Models and protocols are declared once; everybody else asks the declaration, and none knows a class."""

import ast
from pathlib import Path

import pytest

import hushrec
from hushrec.errors import ParameterError
from hushrec.models import MODELS
from hushrec.options import Option
from hushrec.protocols import PROTOCOLS, find_protocol, protocols_of
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf
from hushrec.simulation.settings import Settings

PACKAGE = Path(hushrec.__file__).parent
FOLDERS = tuple(f"hushrec.protocols.{path.name}" for path in (PACKAGE / "protocols").iterdir() if path.is_dir())


# The modules outside `protocols` that may know one protocol's classes: `audit` attacks each kind of message, engines
# and costs are named by import path in a declaration, and the command `budget` explains the budgets of `sdcf`.
OF_ONE_PROTOCOL = ("audit.", "engines.cpu", "engines.gpu", "engines.ray", "engines.sharded", "engines.gradient")
OF_ONE_PROTOCOL += ("capacity", "cli.budget")


def shared_modules() -> dict[str, str]:
    """Sources of the modules that serve every protocol, by dotted name."""
    paths = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {
        name: path.read_text("utf-8")
        for name, path in paths.items()
        if not name.startswith(("protocols.", *OF_ONE_PROTOCOL))
    }


def protocol_classes() -> set[str]:
    """Names of all classes that are defined in the folder of one protocol."""
    trees = [ast.parse(path.read_text("utf-8")) for path in (PACKAGE / "protocols").glob("*/**/*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def knows_a_protocol(source: str, classes: set[str], names: set[str]) -> list[str]:
    """Imports from a protocol's folder, also by import path, tests of its classes, and comparisons with its name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            found += [f"{node.lineno}: {one}" for one in modules if one.startswith(FOLDERS)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(FOLDERS):
            found.append(f"{node.lineno}: {node.value}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            tested = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)} & classes
            if node.func.id in ("isinstance", "issubclass") and tested:
                found.append(f"{node.lineno}: {tested}")
        elif isinstance(node, ast.Compare | ast.MatchValue):
            values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            found += [f"{node.lineno}: {value}" for value in values if value in names]
    return found


def test_no_shared_module_knows_a_protocol():
    """What a module needs to know about a protocol, it asks the declaration or the configured protocol."""
    classes, names = protocol_classes() | {"ConfiguredProtocol"}, set(PROTOCOLS)
    assert {"Sdcf", "Masked", "ItemVectors", "MaskedTable", "GradientDevice"} <= classes
    found = {module: knows_a_protocol(source, classes, names) for module, source in shared_modules().items()}
    assert not {module: lines for module, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(asked, ItemVectors | int)",
        "from hushrec.protocols.gradient.messages import GradientReport",
        "def lazily():\n    import hushrec.protocols.masked",
        "masked = settings.protocol == 'masked'",
        "if 'sdcf' in protocols: pass",
        "match name:\n    case 'plain': pass",
        "TABLE = {'gradient': 'hushrec.protocols.gradient.messages'}",
    ],
)
def test_whatever_knows_a_protocol_is_found(source):
    """Each of the ways in which a module could."""
    assert knows_a_protocol(source, protocol_classes(), set(PROTOCOLS))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_declaration_names_what_exists(name):
    """Its class and its models; its name is its key, and its class can be configured with nothing given."""
    protocol = PROTOCOLS[name]
    assert protocol.name == name
    assert set(protocol.models) <= set(MODELS)
    assert set(protocol.compared_with) <= set(PROTOCOLS)
    for model in protocol.models:
        made = protocol.configure({}, model)
        assert isinstance(made, ConfiguredProtocol)
        assert made.name == name
        assert Settings(protocol=name, model=model).make_protocol() == made


def test_a_protocol_is_configured_from_plain_options():
    """ε_P is 2 ε_I unless given; a model that learns from pairs has no fakes; others' options are not looked at."""
    run = {"model": "mf", "epsilon": 4.0, "clamp": True, "epsilon_i": 4.0, "epsilon_g": 1.0, "seed": 3}
    made = [find_protocol(name).configure(run, "mf") for name in ("plain", "isgld", "sdcf")]
    assert made == [Plain(), Isgld(4.0, clamp=True), Sdcf(4.0, 1.0, 8.0)]
    assert find_protocol("sdcf").configure(run, "bpr") == Sdcf(4.0, None, 8.0)
    assert protocols_of("bpr") == ["plain", "sdcf"]
    with pytest.raises(ParameterError, match="protocol"):
        find_protocol("abacus")


@pytest.mark.parametrize(
    ("option", "given", "held"),
    [
        (Option("a", float, ""), 4, 4.0),
        (Option("a", int, ""), 4.0, 4),
        (Option("a", bool, ""), True, True),
        (Option("a", str, ""), "x", "x"),
    ],
)
def test_numbers_are_coerced_to_the_kind_of_their_option(option, given, held):
    """4 and 4.0 are the same, whichever is typed."""
    assert option.checked(given) == held
    assert type(option.checked(given)) is type(held)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(float, "4"), (float, True), (float, float("nan")), (int, 4.5), (int, None), (bool, 1), (str, 1)],
)
def test_a_value_of_another_kind_is_refused_by_its_name(kind, given):
    """Never guessed."""
    with pytest.raises(ParameterError, match=r"^width must be"):
        Option("width", kind, "").checked(given)


def test_a_run_under_another_protocol_keeps_what_both_declare_alike():
    """Rounds, seeds and the model's options go along; budgets do not."""
    other = Settings(protocol="sdcf", epsilon_i=1.0, rounds=7, factors=3, seed=2).compared_with("isgld")
    assert other == Settings(protocol="isgld", rounds=7, factors=3, seed=2)
    assert other != Settings(protocol="isgld", rounds=8, factors=3, seed=2)
