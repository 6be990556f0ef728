"""A masked run with ε = inf on the network: joined by people who allow it by name, and by nobody else."""

import json
import math
from contextlib import ExitStack
from pathlib import Path

import pytest
from command import run
from masked_kit import N_ITEMS, catalogue, masked_settings, new_people, take_part
from service_kit import OPEN_SOCKETS, get, live_server
from test_dashboard import first_events
from test_device_ui import client_of

from hushrec import Device
from hushrec.budget.events import BlockSent, TableSent
from hushrec.budget.ledger import Ledger
from hushrec.errors import BudgetExceeded, LedgerError, ParameterError, RemoteProtocolError

pytestmark = OPEN_SOCKETS

EXACT = {"epsilon": math.inf, "survivors": 1.0}


def test_three_people_who_allow_it_take_part_and_their_ledgers_say_infinity(tmp_path: Path) -> None:
    """From the shell; statement, pages and a store that is opened again say so. Whoever allows 8 is refused."""
    stores = [("--store", tmp_path / name) for name in ("ann", "bob", "cem")]
    with live_server(tmp_path, masked_settings(3, terms=EXACT), items=catalogue()) as live, ExitStack() as stack:
        for number, store in enumerate(stores):
            rated = [f"--rate=item-{item}={1 + (item + number) % 5}" for item in range(number, N_ITEMS, 2)]
            assert run("device", "init", "--epsilon", "inf", *store, *rated).code == 0
            said = run("device", "join", live.url, "--rounds", "0", *store)
            assert (said.code, "No privacy budget (ε = inf)" in said.err) == (0, True), said.err
        careful = new_people(tmp_path, 1)[0]
        stack.callback(careful.close)
        with pytest.raises(RemoteProtocolError, match=r"own_epsilon must be inf or 0 .* got 8"):
            careful.join(live.url)
        assert (live.rounds.registry.count_active(), careful.has_joined) == (3, False)
        devices = [stack.enter_context(Device(store[1])) for store in stores]
        take_part(devices, lambda: False)
        assert live.rounds.is_over
        told = first_events(live.url, 2)[0][1]  # "Infinity" is not JSON, and no browser would read it
        assert "Infinity" not in json.dumps(told)
        assert get(f"{live.url}/dashboard/rounds").json()["rounds"]["reports"] == [3] * live.rounds.round_number
        assert len(devices[0].recommend(3)) == 3
        page = client_of(devices[0])
        state = page.get("/api/state").json()
        assert (state["ledger"]["spent"], state["ledger"]["limit"]) == ("inf", "inf")
        assert "adds no noise" in page.get("/api/sent").json()["table"][-1]
        assert [level["in_use"] for level in page.get("/api/levels").json()["levels"]] == [True]
    shown = run("device", "budget", *stores[0]).out
    assert "spent epsilon inf of inf (delta 1e-06)" in shown
    statement = json.loads(run("device", "budget", "--json", *stores[0]).out)
    assert {statement[name] for name in ("spent", "limit", "own_epsilon", "item_level")} == {"inf"}


def test_a_person_may_send_zeros_only_or_allow_it_later(tmp_path: Path) -> None:
    """With ε = 0 the device joins and pays nothing; `device budget --epsilon inf` lets its ratings count."""
    with live_server(tmp_path, masked_settings(3, terms=EXACT), items=catalogue()) as live, ExitStack() as stack:
        people = new_people(tmp_path, 3)
        for device in people:
            stack.callback(device.close)
            device.choose(epsilon=0)
            device.join(live.url)
        take_part(people, lambda: live.rounds.round_number == 2)
        assert [device.budget()["spent"] for device in people] == [0, 0, 0]
        people[0].choose(epsilon=math.inf)
        take_part(people, lambda: live.rounds.round_number == 3)
        assert [device.budget()["spent"] for device in people] == [math.inf, 0, 0]
        with pytest.raises(ParameterError, match="own_epsilon"):
            people[0].choose(epsilon=4)


def test_the_page_joins_at_the_level_that_the_person_chose(tmp_path: Path) -> None:
    """Its JSON spells infinity, and what it sends back is read as infinity; after a restart the store has it too."""
    with live_server(tmp_path, masked_settings(3, terms=EXACT), items=catalogue()) as live:
        with new_people(tmp_path, 1)[0] as device:
            page = client_of(device)
            assert "own_epsilon" in page.post("/api/look", json={"server": live.url}).json()["detail"]
            device.choose(epsilon=0)
            found = page.post("/api/look", json={"server": live.url}).json()["levels"]
            assert [(level["level"], level["epsilon"], level["in_use"]) for level in found] == [
                (0, 0, True),
                ("inf", "inf", False),
            ]
            assert page.post("/api/join", json={"server": live.url, "level": found[1]["level"]}).status_code == 204
        with Device(tmp_path / "device-0") as device:
            assert device.budgets.options == {"masked": {"own_epsilon": math.inf}}
            assert device.budget()["own_epsilon"] == math.inf


def test_earlier_runs_need_consent_to_an_infinite_limit(tmp_path: Path) -> None:
    """As for any next run: the limit of all runs is raised by name."""
    with new_people(tmp_path, 1)[0] as device:
        ledger = Ledger(table=5.0)
        ledger.charge([TableSent((BlockSent(100, 1000, 3, 0.0),))])
        with device._store.change():
            device._store.put_json("ledger", ledger.to_record())
        device.choose(epsilon=math.inf)
        with live_server(tmp_path, masked_settings(3, terms=EXACT), items=catalogue()) as live:
            with pytest.raises(BudgetExceeded, match="--raise-to inf") as refused:
                device.join(live.url)
            assert refused.value.needed == math.inf
            device.raise_budget(math.inf)
            device.join(live.url)
            assert device.budget()["limit"] == math.inf


def test_an_infinite_cost_survives_the_store_and_a_damaged_record_does_not() -> None:
    """JSON has no infinity, so the record spells it."""
    ledger = Ledger(table=math.inf)
    ledger.charge([TableSent((BlockSent(100, 0, 3, 0.0),))])
    record = json.loads(json.dumps(ledger.to_record(), allow_nan=False))
    assert Ledger.from_record(record)["table"].charged() == math.inf
    assert Ledger.from_record(record).limit("table") == math.inf
    record["totals"]["table"]["tables"] = "inf"
    with pytest.raises(LedgerError):
        Ledger.from_record(record)
