"""A protocol is one folder: this file is one, with two phases, a message and a unit of its own.

Devices say hello; those who did send how often and how high they rated each item, with noise. The server publishes
item means, the model of `examples/plugin`. Nothing in `src` knows any of it.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from hushrec_example.means import MeanPredictor, Means
from parties import statement_of
from service_kit import OPEN_SOCKETS, ROUND_WAIT, RUN_ID, RawDevice, get, held_port, live_server, wait_for

import hushrec
from hushrec import Device, wire
from hushrec.arrays import FloatArray
from hushrec.budget.accountants import ACCOUNTANTS, Accountant
from hushrec.budget.ledger import Ledger
from hushrec.data.sources import load as load_ratings
from hushrec.device.budgets import allow_run
from hushrec.device.ui import Consent, Joining, Look, NewLevel, Page
from hushrec.errors import BudgetExceeded, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import KINDS, Address, Envelope, Table, crosses
from hushrec.models import MODELS, ModelDeclaration
from hushrec.models.predictor import Arrays
from hushrec.options import Option
from hushrec.protocols import PROTOCOLS
from hushrec.protocols.configured import ConfiguredProtocol, Fleet, LedgerStatement, PrivacyLevel, Spending
from hushrec.protocols.parties import DeviceSide, NextAttempt, Private, Report, RoundOver, ServerSide, State
from hushrec.protocols.protocol import Protocol, ServerKnowledge, Wording
from hushrec.randomness import Randomness
from hushrec.report import write_report
from hushrec.service.settings import Settings as ServiceSettings
from hushrec.simulation.results import load as load_run
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train

pytestmark = OPEN_SOCKETS

HERE = Path(__file__)
LEVELS = {"whisper": 300.0, "shout": 600.0}  # loudness by name
DATA = "synthetic:users=60,items=20,ratings=900,seed=1"


# What it declares ------------------------------------------------------------------------------------------------


def register() -> None:
    """All that makes the toy known: a message, a unit, a model and a protocol."""
    declared = (("toy.terms", Terms), ("toy.question", Question), ("toy.hello", Hello), ("toy.tally", Tally))
    for tag, message in declared:
        crosses(tag, largest=100_000)(message)
    ACCOUNTANTS["loudness"] = LoudnessAccountant
    MODELS["means"] = ModelDeclaration(
        "means", "how items are rated on average", "rating", (), "hushrec_example.means:Means"
    )
    PROTOCOLS["toy"] = Protocol(
        name="toy",
        summary="noisy sums of ratings",
        row_label="toy",
        is_private=True,
        options=(
            Option("loudness", float, "How clearly a device speaks.", 6.0, personal=True),
            Option("rounds", int, "Rounds.", 2),
        ),
        models=("means",),
        implementation=f"{__name__}:Toy",
        messages=__name__,
        terms="toy.terms",
        wording=Wording(
            label=lambda budget: f"toy at {budget['epsilon']:g}",
            protects=lambda budget: f"one rating: loudness {budget['epsilon']:g}",
            numbers=lambda budget: [f"loudness = {budget['epsilon']:g} over {budget['rounds']} rounds"],
        ),
        knowledge=ServerKnowledge(can=("Who says hello.",), cannot=("A rating for certain.",)),
    )


@pytest.fixture
def registered() -> Iterator[None]:
    """The toy, for one test."""
    registries: list[dict[str, Any]] = [KINDS, ACCOUNTANTS, MODELS, PROTOCOLS]
    before = [dict(one) for one in registries]
    register()
    yield
    for one, content in zip(registries, before, strict=True):
        one.clear()
        one.update(content)


# What it sends and what that costs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What the server asks."""

    words: str


@dataclass(frozen=True)
class Hello:
    """A device is there."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums of ratings and their numbers by item, `(n_items, 2)`, with noise."""

    numbers: Annotated[FloatArray, Table] = field(repr=False)


@dataclass(frozen=True)
class Told:
    """A tally was sent, at this loudness."""

    unit: ClassVar[str] = "loudness"
    epsilon: float


@dataclass(slots=True)
class LoudnessAccountant(Accountant):
    """Adds up how loud a device was."""

    unit: ClassVar[str] = "loudness"
    total: float = 0.0

    def compose(self, event: Any) -> None:
        self.total += event.epsilon

    def charged(self) -> float:
        return self.total


# What its two sides do -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """As many rounds as were asked for."""

    max_rounds: int
    n_items: int

    def agrees_with(self, accepted: "Terms") -> bool:
        return self == accepted


class ToyDevice(DeviceSide):
    """Says hello, then tells."""

    def __init__(self, loudness: float, terms: Terms) -> None:
        self.loudness, self.terms = loudness, terms

    def new_state(self, randomness: Randomness) -> State:
        return {"told": np.array(0)}

    def n_items(self, state: State) -> int:
        return self.terms.n_items

    def report(self, private: Private, address: Address, message: Any) -> Report:
        if address.phase == "hello":
            return Report(Hello(), private.state)
        table = np.zeros((self.terms.n_items, 2))
        table[private.items] = np.stack([private.values, np.ones(len(private.items))], axis=1)
        uniform = private.randomness.stream(1000, address.round_number).random(table.shape) - 0.5
        noise = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * 6 / self.loudness
        told = {"told": private.state["told"] + 1}
        return Report(Tally(table + noise), told, (Told(self.loudness / self.terms.max_rounds),), shown={})

    def predict(self, private: Private, public: Arrays) -> FloatArray:
        return np.asarray(public["means"])


class ToyServer(ServerSide):
    """Adds up what those tell who said hello; one who is alone is not listened to."""

    phases = ("hello", "tell")

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._sums = np.zeros((terms.n_items, 2))

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def public(self) -> Arrays:
        means = np.clip(self._sums[:, 0] / np.maximum(self._sums[:, 1], 1), 1, 5)
        return {"sums": self._sums, "means": np.where(self._sums[:, 1] > 1, means, 3.0)}

    def restore(self, public: Arrays) -> None:
        self._sums = np.array(public["sums"])

    def open(self, round_number: int, attempt: int, members: Any) -> Any:
        return dict.fromkeys(members, Question("who is there?"))

    def check(self, address: Address, sender: Any, message: Any) -> None:
        if not isinstance(message, Tally if address.phase == "tell" else Hello):
            raise RemoteProtocolError("a tally is told after a hello.", status_hint=422)

    def close(self, address: Address, reports: Any) -> Any:
        heard = dict(reports)
        if len(heard) < 2:
            return NextAttempt("nobody to hide among", list(heard))
        if address.phase == "hello":
            return dict.fromkeys(heard, Question("tell me"))
        self._sums = self._sums + sum(tally.numbers for tally in heard.values())
        return RoundOver()


@dataclass(frozen=True)
class Toy(ConfiguredProtocol):
    """The protocol at one loudness."""

    name: ClassVar[str] = "toy"
    phases: ClassVar[tuple[str, ...]] = ("hello", "tell")

    loudness: float

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Toy":
        if not options["loudness"] > 0:
            raise ParameterError(f"loudness must be positive, got {options['loudness']}.")
        return cls(options["loudness"])

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Terms:
        return Terms(options["rounds"], fleet.n_items)

    def statement(self, spending: Spending) -> dict[str, Any]:
        spent = self.loudness * spending.rounds / spending.terms.max_rounds
        words = {"unit": "how clearly one rating is heard", "not_covered": ["who says hello"]}
        return {"epsilon": spent, "delta": 0.0, "rounds": spending.rounds, **words}

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> MeanPredictor:
        return MeanPredictor(arrays["means"])

    def make_device(self, terms: Terms, model: Any) -> ToyDevice:
        return ToyDevice(self.loudness, terms)

    def make_server(self, terms: Terms, model: Any, seed: int) -> ToyServer:
        return ToyServer(terms)

    def joining_costs(self, terms: Terms) -> dict[str, float]:
        return {"loudness": self.loudness}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        return {"loudness": epsilon}

    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        return LedgerStatement(
            unit="how clearly one rating was heard",
            spent=ledger["loudness"].charged(),
            limit=ledger.limit("loudness"),
            rounds=None,
            sentences=["Nobody is heard twice."],
            not_covered=["who says hello"],
        )

    def privacy_levels(self, terms: Terms, n_rated: int, own: str | None = None) -> list[PrivacyLevel]:
        return [
            PrivacyLevel(name, level, level, f"{name}?", [f"You {name}."], "Sure?", in_use=level == self.loudness)
            for name, level in LEVELS.items()
        ]

    def options_at(self, level: float, terms: Terms) -> dict[str, Any]:
        if level not in LEVELS.values():
            raise ParameterError(f"loudness must be a level that is offered, got {level:g}.")
        return {"loudness": level}

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> MeanPredictor:
        return MeanPredictor(public["means"])


# What the rest of hushrec makes of it ----------------------------------------------------------------------------


def test_nothing_in_the_package_knows_the_toy():
    """What works below works for a protocol that no module names."""
    package = Path(hushrec.__file__).parent
    assert not [path for path in package.rglob("*.py") if "loudness" in path.read_text("utf-8")]


@pytest.mark.usefixtures("registered")
def test_it_trains_on_the_reference_engine_and_says_what_it_cost(tmp_path):
    """Item means are learned: better than one mean for all. Budget, run folder and recommendations are there."""
    ratings = load_ratings(DATA)
    result = train(ratings, protocol="toy", loudness=600, out=tmp_path / "run")
    record = result.record
    assert record["engine"] == "reference"
    assert [point["round"] for point in record["curve"]] == [1, 2]
    assert record["metrics"]["rmse"] < record["baselines"]["global_mean"]["rmse"]
    assert record["budget"] == {
        "unit": "how clearly one rating is heard",
        "epsilon": 600.0,
        "delta": 0.0,
        "rounds": 2,
        "not_covered": ["who says hello"],
    }
    assert record["bytes_per_client_round"] == 4 * 2 * ratings.n_items
    again = load_run(tmp_path / "run")
    assert again.recommend(ratings.user_ids[0], 3) == result.recommend(ratings.user_ids[0], 3)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").page.read_text("utf-8")
    for words in ("toy at 600", "one rating: loudness 600", "who says hello"):
        assert words in page


@pytest.mark.usefixtures("registered")
def test_a_model_that_ranks_needs_no_option_of_ours():
    """Any rating is an action where the model does not declare `at_least`; lists are measured by AUC."""
    MODELS["order"] = ModelDeclaration("order", "an order of items", "ranking", (), "hushrec_example.means:Means")
    PROTOCOLS["toy"] = replace(PROTOCOLS["toy"], models=("means", "order"))
    metrics = train(load_ratings(DATA), protocol="toy", model="order").metrics
    assert "auc" in metrics
    assert "rmse" not in metrics


@pytest.mark.usefixtures("registered")
def test_it_resumes_where_it_was_cut(tmp_path):
    """Checkpoints hold what its server published and what its devices keep."""

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    settings = {"protocol": "toy", "rounds": 3, "seed": 4}
    whole = train(load_ratings(DATA), **settings)
    with pytest.raises(KeyboardInterrupt):
        train(load_ratings(DATA), out=tmp_path / "run", progress=cut, **settings)
    resumed = train(load_ratings(DATA), out=tmp_path / "run", resume=True, **settings)
    assert resumed.record["curve"] == whole.record["curve"]


@pytest.mark.usefixtures("registered")
def test_a_person_who_chooses_no_options_must_allow_the_cost_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """Joining alone is no consent to what the operator chose; a run without known costs is always refused."""
    PROTOCOLS["toy"] = replace(PROTOCOLS["toy"], options=(Option("loudness", float, "Chosen by the operator.", 6.0),))
    terms = Terms(2, 10)
    for limit in (None, 299.0):
        ledger = Ledger(loudness=limit)
        with pytest.raises(BudgetExceeded, match="--protocol toy --raise-to 300`") as refused:
            allow_run(Toy(300.0), terms, ledger, {})
        assert (refused.value.limit, refused.value.needed, ledger.limit("loudness")) == (limit or 0, 300, limit)
    allow_run(Toy(300.0), terms, Ledger(loudness=300.0), {})
    monkeypatch.setattr(Toy, "joining_costs", ConfiguredProtocol.joining_costs)
    with pytest.raises(LocalProtocolError, match="joining_costs"):
        allow_run(Toy(300.0), terms, Ledger(loudness=300.0), {})


@pytest.mark.usefixtures("registered")
def test_its_devices_are_held_to_phases_and_budget():
    """A hello and a tally per round; one tally more than the ledger allows is refused, and nothing is sent."""
    from hushrec.client import Client
    from hushrec.randomness import SystemRandomness
    from hushrec.server import Server, Stage

    protocol, terms = Toy(6.0), Terms(2, 20)
    clients = {
        name: Client(terms, Means(), protocol, randomness=SystemRandomness(), ledger=protocol.make_ledger(terms))
        for name in ("anna", "ben")
    }
    server = Server(protocol.make_server(terms, Means(), 0), clients)
    for _ in range(2):
        server.start_round()
        while server.stage is Stage.OPEN:
            for name, client in clients.items():
                server.receive(name, server.address, client.report(server.address, server.inbox(name)))
            server.close_phase()
    assert statement_of(clients["anna"])["spent"] == 6.0
    hello, tell = (Address(3, 1, phase) for phase in ToyServer.phases)
    with pytest.raises(RemoteProtocolError, match="must come in order"):
        clients["anna"].report(tell, Question("tell me"))
    clients["anna"].report(hello, Question("who is there?"))
    with pytest.raises(BudgetExceeded, match="max_loudness_epsilon"):
        clients["anna"].report(tell, Question("tell me"))


@pytest.mark.usefixtures("registered")
def test_its_message_crosses_the_boundary():
    """The wire knows what was declared."""
    sent = Tally(np.arange(6.0).reshape(3, 2))
    back = wire.decode(wire.encode(sent), Tally)
    np.testing.assert_array_equal(back.numbers, sent.numbers)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("settings", "name"), [({"epsilon_i": 4.0}, "epsilon_i"), ({"model": "mf"}, "model"), ({"loudness": 0}, "loudness")]
)
def test_settings_hold_it_to_what_it_declares(settings, name):
    """Options of others, models that it does not speak and impossible values are refused by their names."""
    with pytest.raises(ParameterError, match=name):
        Settings(protocol="toy", **settings).make_protocol()


@pytest.mark.usefixtures("registered")
def test_the_command_line_prints_its_budget():
    """In its own words, with its unit and what is not covered."""
    from command import run  # here: the commands read the registry when they are imported

    shown = run("train", DATA, "--protocol", "toy", columns=300).out
    for words in ("one rating: loudness 6", "loudness = 6 over 2 rounds", "not covered: who says hello"):
        assert words in shown


def test_the_command_line_offers_it(tmp_path):
    """`train --help` lists it with its option, and a person chooses the option with `device init` and `budget`."""
    words = in_shell("train", "--help")
    assert "toy (noisy sums of ratings)" in words
    assert "toy: how clearly a device speaks. [default: 6]" in words
    store = ("--store", str(tmp_path / "store"))
    in_shell("device", "init", "--loudness", "3", *store)
    assert "toy: loudness 3" in in_shell("device", "budget", *store)
    assert "toy: loudness 4" in in_shell("device", "budget", "--protocol", "toy", "--loudness", "4", *store)


def in_shell(*arguments: str) -> str:
    """What a command prints where the toy is installed, with single spaces."""
    script = "import test_toy_protocol as toy; toy.register(); from hushrec.cli import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join([str(HERE.parent), *sys.path]), "COLUMNS": "300"},
    ).stdout
    return " ".join(shown.split())


# Over HTTP -------------------------------------------------------------------------------------------------------


def network_settings(**rounds: Any) -> ServiceSettings:
    """A server of the toy, which waits for both devices."""
    terms = {"protocol": "toy", "rounds": 2}
    return ServiceSettings.model_validate(
        {"open_enrolment": True, "terms": terms, "rounds": {"min_devices": 2, "early_fraction": 1.0, **rounds}}
    )


def new_toy(folder: Path, name: str, **ratings: float) -> Device:
    """A device whose person chose how clearly it speaks, and allows that once."""
    device = Device.create(folder / name, loudness=600)
    device.add_ratings({f"item-{item.removeprefix('i')}": value for item, value in ratings.items()})
    return device


@pytest.mark.usefixtures("registered")
def test_it_runs_over_http_with_a_real_store_phase_by_phase(tmp_path):
    """Each device finds its inbox, and reports once in each phase; the server publishes means; the ledger is charged.

    The server is stopped between the two phases of the second round, and goes on where it stood.
    """
    anna, ben = new_toy(tmp_path, "anna", i0=5, i1=1), new_toy(tmp_path, "ben", i0=4, i2=2)
    places = [Address(number, 1, phase) for number in (1, 2) for phase in ("hello", "tell")]
    with held_port() as port, closing(anna), closing(ben):
        for part in (places[:3], places[3:]):
            with live_server(tmp_path, network_settings(), n_items=5, port=port) as live:
                for device in (anna, ben):
                    if not device.has_joined:
                        device.join(live.url)
                for place in part:
                    wait_for(lambda place=place: live.rounds.is_open and live.rounds.server.address == place)
                    assert [device.step(ROUND_WAIT) for device in (anna, ben)] == ["reported", "reported"]
                if part[-1] == places[-1]:
                    assert [device.step(ROUND_WAIT) for device in (anna, ben)] == ["run over", "run over"]
                    shown = get(f"{live.url}/dashboard/rounds").json()["rounds"]
                    assert (shown["round"], shown["reports"]) == ([1, 2], [2, 2])
                    assert live.rounds.public["sums"].shape == (5, 2)
    assert [device.budget()["spent"] for device in reopened(tmp_path, "anna", "ben")] == [600.0] * 2


def reopened(folder: Path, *names: str) -> Iterator[Device]:
    """The stores as they are on the disk."""
    for name in names:
        with Device(folder / name) as device:
            assert device.predict()[0] == pytest.approx(4.5, abs=0.2)
            assert Page(device, attack=None).sent()["table"] == ["Round 2: one report of protocol toy."]
            yield device


@pytest.mark.usefixtures("registered")
def test_over_http_messages_of_another_phase_are_refused_and_a_lone_device_is_asked_again(tmp_path):
    """A tally where a hello is due is refused; a phase that hears one device alone begins a second attempt."""
    settings = network_settings(deadline_seconds=1)
    with live_server(tmp_path, settings, n_items=5) as live, RawDevice(live) as one, RawDevice(live):
        wait_for(lambda: live.rounds.is_open)
        tally = Tally(np.zeros((5, 2)))
        for phase, message, status in (("hello", tally, 422), ("tell", tally, 409), ("hello", Hello(), 200)):
            body = wire.encode(Envelope(RUN_ID, 1, 1, phase, message))
            assert one.report(body).status_code == status
        wait_for(lambda: live.rounds.server.address == Address(1, 2, "hello"))
        assert set(live.rounds.server.asked) == {one.name}
        asked = wire.decode(one.send("GET", "/v1/inbox").content, Envelope)
        assert (asked.address, asked.message) == (Address(1, 2, "hello"), Question("who is there?"))


@pytest.mark.usefixtures("registered")
def test_a_person_sees_and_sets_its_levels_on_the_page_and_its_budget_in_the_shell(tmp_path):
    """What the page and `hushrec device budget` show and change is the toy's, before joining and after."""
    from command import run  # here: the commands read the registry when they are imported

    store = ("--store", str(tmp_path / "anna"))
    with live_server(tmp_path, network_settings(), n_items=5) as live:
        with new_toy(tmp_path, "anna", i0=5, i1=1) as device:
            page = Page(device, attack=None)
            told = page.look(Look(server=live.url))
            assert [(level["name"], level["in_use"]) for level in told["levels"]] == [
                ("whisper", False),
                ("shout", True),
            ]
            assert (told["can"], told["takes_own"]) == (("Who says hello.",), False)
            page.join(Joining(server=live.url, level=300))
            state = page.state()["ledger"]
            assert (state["spent"], state["limit"], state["sentences"]) == (0.0, 300.0, ["Nobody is heard twice."])
            with pytest.raises(ParameterError, match="loudness"):
                page.change_level(NewLevel(level=4.0))
            page.change_level(NewLevel(level=600))
            assert [level["name"] for level in page.levels()["levels"] if level["in_use"]] == ["shout"]
            assert device.budgets.options == {"toy": {"loudness": 600.0}}  # and nobody else's
            page.allow(Consent(raise_to=700))
            page.participation.stop()
        shown = run("device", "budget", "--raise-to", "800", *store).out
        assert "spent epsilon 0 of 800" in shown
        for words in ("covers: how clearly one rating was heard", "does not cover: who says hello", "heard twice"):
            assert words in shown


@pytest.mark.usefixtures("registered")
def test_a_store_of_an_earlier_version_is_read(tmp_path):
    """There the options of all protocols stood side by side; each goes to its own, and limits stay."""
    old = {"epsilon": 2.0, "least_cohort": 5, "epsilon_i": 1.0, "epsilon_p": 2.0, "epsilon_g": 0.0}
    old |= {"max_value_rho": 3.0, "scale": [0.5, 5], "options": {"loudness": 9}, "limits": {"loudness": 8.0}}
    with new_toy(tmp_path, "anna") as device, device._store.change():
        device._store.put_json("budgets", old)
    with Device(tmp_path / "anna") as device:
        budgets = device.budgets
    assert budgets.options == {
        "masked": {"own_epsilon": 2.0, "least_cohort": 5},
        "sdcf": {"epsilon_i": 1.0, "epsilon_p": 2.0, "epsilon_g": 0.0},
        "toy": {"loudness": 9.0},
    }
    assert (budgets.limits, budgets.scale) == ({"loudness": 8.0, "value": 3.0}, (0.5, 5.0))


@pytest.mark.usefixtures("registered")
def test_a_device_whose_person_chose_nothing_does_not_join_it(tmp_path):
    """What a protocol asks a person to choose is not chosen for them."""
    with live_server(tmp_path, network_settings(), n_items=5) as live, Device.create(tmp_path / "device") as device:
        with pytest.raises(RemoteProtocolError, match="loudness"):
            device.join(live.url)
        assert not device.has_joined
