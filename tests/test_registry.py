"""Models and protocols are declared once; everybody else asks the declaration, and none knows a class."""

import ast
from pathlib import Path

import pytest

import hushrec
from hushrec.errors import ParameterError
from hushrec.models import MODELS
from hushrec.options import Option, imported
from hushrec.protocols import PROTOCOLS, find_protocol, protocols_of
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf
from hushrec.simulation.settings import Settings

PACKAGE = Path(hushrec.__file__).parent


def class_tests(source: str, names: set[str]) -> list[int]:
    """Lines of `isinstance` or `issubclass` calls whose second argument names one of the classes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) == 2]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "issubclass")
        if names & {part.id for part in ast.walk(call.args[1]) if isinstance(part, ast.Name)}
    ]


def test_no_module_outside_protocols_tests_the_class_of_a_protocol():
    """What a module needs to know about a protocol, it asks the protocol."""
    names = {imported(protocol.implementation).__name__ for protocol in PROTOCOLS.values()}
    names |= {"ConfiguredProtocol", "GradientProtocol"}
    assert class_tests("x = isinstance(y, Sdcf | int)", names) == [1]
    found = {
        str(path.relative_to(PACKAGE)): class_tests(path.read_text("utf-8"), names)
        for path in PACKAGE.rglob("*.py")
        if "protocols" not in path.relative_to(PACKAGE).parts
    }
    assert not {name: lines for name, lines in found.items() if lines}


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
