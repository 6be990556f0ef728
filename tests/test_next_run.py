"""What comes after a run, and after a restore: a next run that devices follow with consent, and ledgers that add up."""

import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from command import run
from service_kit import OPEN_SOCKETS, RawDevice, held_port, live_server, new_device, play, small_settings, wait_for
from test_device_ui import client_of
from test_masked_service import PHASES, catalogue, masked_settings, new_people, play_round, report, tables_of
from test_service_security import kind

from hushrec import Device, wire
from hushrec.device import joining
from hushrec.errors import BudgetExceeded, ConsentNeeded, CopiedStore, ParameterError, RemoteProtocolError
from hushrec.messages import Enrolment
from hushrec.service.setup import Items, prepare_run, stored_number
from hushrec.service.storage import Storage

pytestmark = OPEN_SOCKETS

PEOPLE = 3


def three(**changes: object) -> dict[str, object]:
    """Return settings of a masked run that needs all of its three devices."""
    return {"terms": {"survivors": 1.0, **changes}}


def back_up(folder: Path) -> None:
    """Back up the database as deploy/README.md does."""
    with closing(sqlite3.connect(folder / "server.sqlite")) as connection:
        connection.execute(f"VACUUM INTO '{folder / 'backup'}'")


def restore(folder: Path) -> None:
    """Put a backup in place of the database of a stopped server."""
    for leftover in folder.glob("server.sqlite*"):
        leftover.unlink()
    shutil.copy(folder / "backup", folder / "server.sqlite")


def test_devices_follow_a_masked_server_into_its_next_run(tmp_path: Path) -> None:
    """Only after the person agrees, and if the ledger allows both runs together; key and id stay the same."""
    with held_port() as port, ExitStack() as stack:
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        with live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            play_round(live, devices)
            report(live, devices, PHASES[0], 2)  # each has read what round 1 has learned
            names = set(live.rounds.registry._devices)
            one = devices[0].budget()
        with live_server(tmp_path, masked_settings(PEOPLE, **three(run=2)), items=catalogue(), port=port) as live:
            assert (live.rounds.number, live.rounds.round_number, live.rounds.registry.count_active()) == (2, 0, 0)
            with RawDevice(live, enrol=False) as stranger:
                body = wire.encode(Enrolment(stranger.key.public_key))
                assert kind(stranger.send("POST", "/v1/devices", body, device=min(names))) == "bad-signature"
            assert live.rounds.registry.count_active() == 0  # nobody agrees in the name of another
            with pytest.raises(ConsentNeeded, match="--next") as consent:
                devices[0].step()
            assert consent.value.code == "next"
            with pytest.raises(BudgetExceeded, match="--raise-to") as refusal:
                devices[0].follow()
            assert (devices[0].has_joined, len(devices[0].recommend(2))) == (True, 2)  # nothing has changed
            offer, needed = devices[0].look_next()
            assert offer.run_id == live.rounds.offer.run_id
            assert needed == refusal.value.needed > one["limit"]
            before = [item.item for item in devices[0].recommend(5)]
            for device in devices:
                device.raise_budget(needed)
                device.follow()
            assert [item.item for item in devices[0].recommend(5)] == before  # until the next run has learned something
            shown = client_of(devices[0]).get("/api/recommendations").json()
            assert len(shown["items"]) > 0
            assert "previous run" in shown["no_reasons"]
            assert set(live.rounds.registry._devices) == names
            assert live.rounds.registry.count_active() == PEOPLE
            play_round(live, devices)
            assert tables_of(devices) == [2] * PEOPLE
            two = devices[0].budget()
            assert not any("in two runs" in sentence for sentence in two["not_covered"])  # the ledger adds them up
            assert one["spent"] < two["spent"] < two["limit"] == pytest.approx(needed, abs=0.01)
            with pytest.raises(RemoteProtocolError) as nothing:
                devices[0].look_next()
            assert nothing.value.code == "nothing-next"
            assert "already takes part" in str(nothing.value)
            assert "`hushrec device join`" in str(nothing.value)


def test_a_masked_server_restored_to_an_earlier_round_says_so_and_begins_a_next_run(tmp_path: Path) -> None:
    """Devices repeat no round and say why; the dashboard says what to do; devices can join the next run."""
    with held_port() as port, ExitStack() as stack:
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        settings = masked_settings(PEOPLE, **three())
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            wait_for(lambda: live.rounds.is_open)
            back_up(tmp_path)
            play_round(live, devices)
            report(live, devices, PHASES[0], 2)
        restore(tmp_path)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            assert live.rounds.concern is None
            with pytest.raises(RemoteProtocolError, match=r"older backup.*--next") as behind:
                devices[0].step(wait=5)
            assert behind.value.code == "server-behind"
            assert "1 of 3 devices" in str(live.rounds.concern)
            assert "--run 2" in str(live.rounds.concern)
            assert tables_of(devices) == [1] * PEOPLE
        with live_server(tmp_path, masked_settings(PEOPLE, **three(run=2)), items=catalogue(), port=port) as live:
            page = client_of(devices[0])
            told = page.get("/api/next").json()
            assert (told["is_next_run"], told["raise_to"] > 8) == (True, True)
            assert page.post("/api/next", json={"raise_to": told["raise_to"]}).status_code == 204
            assert live.rounds.registry.count_active() == 1
            page.post("/api/part", json={"on": False})


def test_a_masked_server_restored_within_a_round_repeats_it_as_another_attempt(tmp_path: Path) -> None:
    """Devices report in no attempt twice: they wait for the next one, which opens at the deadline, and pay for it."""
    settings = masked_settings(PEOPLE, **three(), rounds={"deadline_seconds": 0.3})
    with held_port() as port, ExitStack() as stack:
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        with live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            wait_for(lambda: live.rounds.is_open)
            back_up(tmp_path)
            for phase in PHASES[:3]:
                report(live, devices, phase)
        restore(tmp_path)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            assert [device.step() for device in devices] == ["no round"] * PEOPLE
            live.rounds._wake.set()
            wait_for(lambda: live.rounds.server.address.attempt == 2)
            assert live.rounds.concern is None
            assert [device.step(wait=5) for device in devices] == ["reported"] * PEOPLE
            assert tables_of(devices) == [1] * PEOPLE


@pytest.mark.parametrize("epsilon", [0, 1])
def test_a_restored_masked_store_pays_for_its_copy_whatever_its_budget_is_now(tmp_path: Path, epsilon: float) -> None:
    """A budget that is lowered after the restore does not lower what the copy could spend."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue()))
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        for device in devices:
            device.join(live.url)
        shutil.copytree(tmp_path / "device-0", tmp_path / "backup")
        play_round(live, devices)
        restored = stack.enter_context(Device(tmp_path / "backup"))
        restored.choose(epsilon=epsilon)
        restored.join(again=True)
        assert restored.budget()["spent"] == pytest.approx(8.0)


def test_a_restored_masked_store_enrols_again_and_pays_for_its_copy(tmp_path: Path) -> None:
    """What the run still allowed is charged before the old key leaves, also without a step before, and after a kill."""

    def restored(name: str) -> Device:
        shutil.copytree(tmp_path / "backup", tmp_path / name)
        return stack.enter_context(Device(tmp_path / name))

    def spends_all(device: Device) -> bool:
        return device.budget()["spent"] == pytest.approx(device.budget()["limit"])

    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue()))
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        for device in devices:
            device.join(live.url)
        shutil.copytree(tmp_path / "device-0", tmp_path / "backup")
        play_round(live, devices)
        killed = restored("killed")
        driver, job = killed._driver(), joining.rejoin(killed._session)
        call = next(job)
        while call.request.method != "DELETE":
            call = job.send(driver._make(call))
        job.close()
        killed.close()
        killed = stack.enter_context(Device(tmp_path / "killed"))
        assert spends_all(killed)
        changed = restored("changed")
        devices[0].rotate_key()
        changed.join(again=True)  # its key says nothing any more
        assert spends_all(changed)
        devices[0].leave()
        killed.join(again=True)
        assert spends_all(killed)
        assert killed.step() == "no round"  # a newcomer waits for the next one


@pytest.mark.parametrize("way", ["leave", "leave silently", "follow"])
def test_a_store_that_was_found_to_be_a_copy_pays_before_it_leaves(tmp_path: Path, way: str) -> None:
    """What the other copy may have spent of the run stays in the ledger, and counts in the next run."""
    with held_port() as port, ExitStack() as stack:
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        with live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            shutil.copytree(tmp_path / "device-0", tmp_path / "copy")
            play_round(live, devices)
            copy = stack.enter_context(Device(tmp_path / "copy"))
            with pytest.raises(CopiedStore):
                copy.step()
            assert copy.budget()["spent"] == 0
            if way != "follow":
                copy.leave(tell=way == "leave")
        if way == "follow":
            with live_server(tmp_path, masked_settings(PEOPLE, **three(run=2)), items=catalogue(), port=port):
                with pytest.raises(BudgetExceeded, match="--raise-to"):
                    copy.follow()
                copy.raise_budget(20)
                copy.follow()
        assert copy.budget()["spent"] == pytest.approx(8.0)


def test_a_masked_store_restored_after_its_key_was_retired_pays_as_well(tmp_path: Path) -> None:
    """The server names the last report of a key that has left; no round waits for the old key."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue()))
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        for device in devices:
            device.join(live.url)
        for name in ("first", "second"):
            shutil.copytree(tmp_path / "device-0", tmp_path / name)
        play_round(live, devices)
        for name in ("first", "second"):
            copy = stack.enter_context(Device(tmp_path / name))
            copy.join(again=True)
            assert copy.budget()["spent"] == pytest.approx(copy.budget()["limit"])
        registry = live.rounds.registry
        assert (registry.count_active(), len(registry._devices)) == (PEOPLE + 1, PEOPLE + 2)
        with pytest.raises(RemoteProtocolError) as retired:
            devices[0].step()
        assert retired.value.code == "not-active"


@pytest.mark.parametrize("is_over", [False, True])
def test_a_masked_store_restored_to_an_earlier_phase_of_its_last_round_is_found_out(
    tmp_path: Path, is_over: bool
) -> None:
    """It lacks the table that was sent after the backup, also if its own attempt has ended meanwhile."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue()))
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        for device in devices:
            device.join(live.url)
        report(live, devices, "keys")
        report(live, devices, "shares")
        shutil.copytree(tmp_path / "device-0", tmp_path / "backup")
        for phase in PHASES[2:]:
            report(live, devices, phase)
        backup = stack.enter_context(Device(tmp_path / "backup"))
        assert tables_of([devices[0], backup]) == [1, 0]
        if is_over:
            backup.drop_out()
        with pytest.raises(CopiedStore, match="--again"):
            backup.step()
        backup.join(again=True)
        assert backup.budget()["spent"] == pytest.approx(backup.budget()["limit"])


def test_a_second_masked_run_does_not_raise_the_limit_by_itself(tmp_path: Path) -> None:
    """Neither do leaving and joining, nor --epsilon; `device budget --raise-to` does, in the ε of all runs together."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, masked_settings(PEOPLE, **three()), items=catalogue()))
        devices = [stack.enter_context(device) for device in new_people(tmp_path, PEOPLE)]
        for device in devices:
            device.join(live.url)
        play_round(live, devices)
        first = devices[0]
        before = first.budget()
        first.leave()
        assert first.budget()["spent"] == before["spent"] > 0  # in the words of what was spent
        with pytest.raises(BudgetExceeded, match="--raise-to") as refusal:
            first.join(live.url)
        assert (first.has_joined, first.budget()["limit"]) == (False, before["limit"])
        assert live.rounds.registry.count_active() == PEOPLE - 1  # it was refused before the server heard of it
        first.choose(epsilon=1)  # this much is left
        first.join(live.url)
        assert first.budget()["limit"] == before["limit"]
        with pytest.raises(BudgetExceeded, match="--raise-to"):
            first.choose(epsilon=8)
        with pytest.raises(ParameterError, match="only be raised"):
            first.raise_budget(1)
        assert first.budgets.options["masked"]["own_epsilon"] == 1
        first.close()
        folder = ("--store", tmp_path / "device-0")
        assert run("device", "budget", "--raise-to", refusal.value.needed, *folder).code == 0
        assert run("device", "budget", "--epsilon", 8, *folder).code == 0


def test_a_next_run_of_sdcf_draws_new_bits_with_consent(tmp_path: Path) -> None:
    """Devices join it as under masked, without an invitation, and with other items than before."""
    folder = ("--store", tmp_path / "device")
    terms = {"rounds": 1}
    with held_port() as port:
        with (
            live_server(tmp_path, small_settings(terms=terms, rounds={"min_devices": 1}), port=port) as live,
            new_device(tmp_path / "device") as device,
        ):
            device.join(live.url)
            device.rotate_key()  # it keeps the name of its first key
            assert play([device]) == [1]
        settings = small_settings(terms={**terms, "run": 2}, rounds={"min_devices": 1}, open_enrolment=False)
        with live_server(tmp_path, settings, n_items=40, port=port) as live:
            assert "--next" in run("device", "join", *folder).err
            refused = run("device", "join", "--next", *folder)
            assert (refused.code, "--raise-to 16`" in refused.err) == (1, True)
            assert run("device", "budget", "--raise-to", 16, *folder).code == 0
            agreed = run("device", "join", "--next", *folder)
            assert (agreed.code, "1 round reported; the run is over" in agreed.err) == (0, True), agreed.err
            assert "\nUp to 1 round" in agreed.err  # the terms of the run that was agreed to
            with Device(tmp_path / "device") as device:
                assert (device.status().n_items, device.budget()["permanent_draws"]) == (40, 2)
                left = device._session.store.offer()
                assert left is not None
                earlier = replace(left, run_id=device._store.get_json("past_runs")[0])
                assert not joining._is_next(device._session, earlier, left)  # no server leads it back


@pytest.mark.parametrize("number", [1, 4])
def test_runs_of_a_database_follow_each_other(tmp_path: Path, number: int) -> None:
    """A start without a number continues the run; a lower number, or one that skips a run, is refused."""
    items = Items(["a", "b"], ["A", "B"])
    with closing(Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")) as storage:
        for run_number in (None, 2, None):
            prepare_run(storage, small_settings(terms={"run": run_number}).terms, items)
        assert stored_number(storage) == 2
        with pytest.raises(ParameterError, match="run must be 2"):
            prepare_run(storage, small_settings(terms={"run": number}).terms, items)
        assert stored_number(storage) == 2
