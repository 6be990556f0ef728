"""Joining, following a server that moved, and enrolling again: from the shell, over real servers."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from command import Outcome, run
from service_kit import OPEN_SOCKETS, live_server, new_device, small_settings

from hushrec import Device
from hushrec.cli import device as command
from hushrec.device.calls import Job
from hushrec.device.session import Session
from hushrec.errors import BudgetExceeded, ConnectionFailed, ConsentNeeded, ParameterError, RemoteProtocolError
from hushrec.service.schema import invitations

pytestmark = OPEN_SOCKETS
ONE = {"min_devices": 1}


def count_unused(connection: sa.Connection) -> int:
    """Invitations that nobody has used."""
    return len(connection.execute(sa.select(invitations.c.digest).where(invitations.c.used_by.is_(None))).all())


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8470:", "http://127.0.0.1:847o", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1",
     "http://", "127.0.0.1:8470", "ftp://127.0.0.1", "http://127.0.0.1/page", "http://127.0.0.1?page", "https://xn--",
     "https://example..org", f"https://{64 * 'a'}.org"],
)  # fmt: skip
def test_an_address_that_no_server_can_have_is_refused(tmp_path: Path, address: str) -> None:
    """In one sentence, before anything is asked."""
    with new_device(tmp_path) as device, pytest.raises(ParameterError, match="server must be an address of the form"):
        device.join(address)


def test_a_device_has_joined_only_when_it_can_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `join` fetches the public table, the page offers no round, whose request would find no address."""
    seen = []
    look_at_public = Session.look_at_public

    def look(session: Session) -> Job:
        seen.append((device.has_joined, device.status().has_joined))
        yield from look_at_public(session)

    monkeypatch.setattr(Session, "look_at_public", look)
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        assert seen == [(True, False)]
        assert (device.status().has_joined, device.status().server) == (True, live.url)


def test_a_device_follows_a_server_that_moved(tmp_path: Path) -> None:
    """Another port, then another certificate too: the same run goes on, with the same key and bits."""
    settings, store = small_settings(rounds=ONE), ("--store", tmp_path / "device")
    new_device(tmp_path / "device").close()
    with live_server(tmp_path, settings, tls=True) as live:
        assert run("device", "join", live.url, "--ca", live.ca, "--rounds", 1, *store).code == 0
        old = live.url
        assert live.ca is not None
        for file in tmp_path.glob("*.pem"):
            file.unlink()  # the next start makes another authority
    with live_server(tmp_path, settings, tls=True) as live:
        assert live.url != old
        moved = run("device", "join", live.url, "--ca", live.ca, "--rounds", 1, *store)
        assert (moved.code, f"the server is now at {live.url}" in moved.err) == (0, True), moved.err
        assert live.rounds.registry.count_active() == 1
        with Device(tmp_path / "device") as device:
            assert (device.server, device.budget()["permanent_draws"], device.budget()["rounds"]) == (live.url, 1, 2)
        assert run("device", "join", "--rounds", 1, *store).code == 0  # it stays there


def test_a_server_that_moved_and_was_extended_is_followed_without_consent_to_more_rounds(tmp_path: Path) -> None:
    """The new address is taken, and so is an enrolment anew; the further rounds wait until the person agrees."""
    settings = small_settings(terms={"rounds": 1}, rounds=ONE)
    with new_device(tmp_path / "device") as device:
        with live_server(tmp_path, settings) as live:
            device.join(live.url)
            assert device.step(wait=30) == "reported"
            assert device.step(wait=30) == "run over"
            assert live.admin("POST", "/v1/admin/extend/2").status_code == 200
            old, token = live.url, live.admin_token
        with live_server(tmp_path, settings, admin_token=token) as live:
            assert live.url != old
            device.join(live.url)
            assert (device.server, device.status().rounds) == (live.url, 1)
            with pytest.raises(ConsentNeeded, match="--next"):
                device.step(wait=30)
            device.raise_budget(100)
            device.join(again=True)
            assert device.status().rounds == 1
            assert device.recommend(3)
            device.follow()
            assert device.status().rounds == 3


def test_a_move_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A wrong certificate, or nobody at the new address: the old one stays."""
    (tmp_path / "other").mkdir()
    with (
        live_server(tmp_path, small_settings(rounds=ONE), tls=True) as live,
        live_server(tmp_path / "other", small_settings(), tls=True) as other,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url, ca=live.ca)
        device._patience = 0
        with pytest.raises(ConnectionFailed) as untrusted:
            device.join(other.url)  # a new address comes without the old certificate
        assert untrusted.value.code == "certificate-untrusted"
        with pytest.raises(RemoteProtocolError, match="run"):
            device.join(other.url, ca=other.ca)
        with pytest.raises(RemoteProtocolError, match="run"):
            device.join(other.url, ca=other.ca, again=True)
        with pytest.raises(ConnectionFailed):
            device.join("https://127.0.0.1:9", ca=live.ca, again=True)
        assert (device.server, live.rounds.registry.count_active()) == (live.url, 1)
        assert device.step(wait=30) == "reported"


def again(folder: Path, *options: object) -> Outcome:
    """`hushrec device join --again` for the store in this folder, without taking part."""
    return run("device", "join", "--again", "--rounds", 0, "--store", folder, *options)


def test_enrolling_again_asks_the_ledger_first_and_keeps_the_certificate(tmp_path: Path) -> None:
    """No ghost device, no burned invitation; the old key leaves. The sentence's own command helps, without --ca."""
    settings = small_settings(rounds=ONE, open_enrolment=False)
    with live_server(tmp_path, settings, tls=True) as live:
        codes = live.admin("POST", "/v1/admin/invitations/2").json()["invitations"]
        with new_device(tmp_path / "device") as device:
            device.join(live.url, ca=live.ca, invitation=codes[0])
            assert device.step(wait=30) == "reported"
        for _ in range(2):
            refused = again(tmp_path / "device", "--invitation", codes[1])
            assert (refused.code, refused.err.count("\n")) == (1, 1)
            assert live.rounds.registry.count_active() == 1
            assert live.storage.at_once(count_unused) == 1
        assert "`hushrec device budget --raise-to 16`" in refused.err
        assert run("device", "budget", "--raise-to", 16, "--store", tmp_path / "device").code == 0
        done = again(tmp_path / "device", "--invitation", codes[1])
        assert done.code == 0, done.err
        assert live.rounds.registry.count_active() == 1  # the old key has left
        with Device(tmp_path / "device") as device:
            assert device.step() == "no round"  # a newcomer waits for the next one


def test_a_refused_invitation_does_not_tie_a_device_to_that_server(tmp_path: Path) -> None:
    """Refused by one server, a device can join another one, which gets another key."""
    (tmp_path / "other").mkdir()
    with (
        live_server(tmp_path, small_settings(open_enrolment=False)) as closed,
        live_server(tmp_path / "other", small_settings()) as other,
        new_device(tmp_path / "device") as device,
    ):
        with pytest.raises(RemoteProtocolError, match="--invitation") as refusal:
            device.join(closed.url)
        assert refusal.value.code == "not-invited"
        assert (device.server, device.has_joined) == (None, False)
        shown = device._store.get("key")
        device.join(other.url)
        assert device.server == other.url
        assert device._store.get("key") != shown


def test_a_device_can_leave_a_server_that_is_gone(tmp_path: Path) -> None:
    """Told so, it does not ask; ratings and ledger stay, and another server can be joined."""
    store = ("--store", tmp_path / "device")
    with live_server(tmp_path, small_settings(rounds=ONE)) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        assert device.step(wait=30) == "reported"
    assert run("device", "leave", "--without-server", *store).code == 0
    with Device(tmp_path / "device") as device:
        assert not device.has_joined
        assert (len(device.ratings()), device.budget()["committed"]) == (12, 8.0)


def test_an_id_that_the_catalogue_does_not_have_is_refused_and_found_by_title(tmp_path: Path) -> None:
    """`rate Item-7 5` took the title for an id; `search` tells the id. Nothing echoes what was rated."""
    store = ("--store", tmp_path / "device")
    Device.create(tmp_path / "device").close()
    assert "Join a server first" in run("device", "search", "x", *store).err
    with live_server(tmp_path) as live, Device(tmp_path / "device") as device:
        device.join(live.url)
        with pytest.raises(ParameterError, match="1 of 2 is not"):
            device.add_ratings({"item-7": 4, "Item-7": 5})
        assert device.ratings() == {}
    refused = run("device", "rate", "Item-7", 5, *store)
    assert (refused.code, "device search" in refused.err, "Item-7" in refused.err) == (1, True, False)
    found = json.loads(run("device", "search", "ITEM", "7", "--json", *store).out)
    assert {"item": "item-7", "title": "Item-7"}.items() <= found["items"][0].items()
    assert found["count"] == 6  # 7, 17, 27, 37, 47, 57
    assert run("device", "rate", "item-7", 5, *store).code == 0
    assert "Item-7" in run("device", "search", "item-7", *store).out
    assert "no title has all of these words" in run("device", "search", "nothing", *store).err
    (tmp_path / "own.csv").write_text("item,rating\nitem-4,2\nelsewhere,5\n")
    imported = run("device", "import", tmp_path / "own.csv", *store).err
    assert "2 ratings are stored\n1 of them are not used" in imported


def test_join_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone with a server that wants two devices: it says so, and goes on waiting."""
    monkeypatch.setattr(command, "WAIT_SECONDS", 0.01)
    turns = []

    def step(device: Device, wait: float) -> str:
        turns.append(wait)
        return ["no round", "no round", "run over"][len(turns) - 1]

    with live_server(tmp_path) as live:
        new_device(tmp_path / "device").close()
        monkeypatch.setattr(Device, "step", step)
        outcome = run("device", "join", live.url, "--store", tmp_path / "device")
    lines = outcome.err.splitlines()
    assert lines[0].startswith(f"joined {live.url}: 60 items, 6 rounds")
    assert lines[1].startswith("Up to 6 rounds")  # what the run asks of the device
    assert lines[2].startswith("waiting for a round")
    assert lines[3].startswith("still waiting")
    assert "nothing reported yet" in lines[3]
    assert lines[-1] == "0 rounds reported; the run is over"
    assert len(turns) == 3


def test_a_server_that_forgot_a_device_says_what_to_do(tmp_path: Path) -> None:
    """Revoked, or unknown to a server restored from an old backup: the sentence names the way back."""
    with live_server(tmp_path, small_settings(rounds=ONE)) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        name = device._session.name
        live.rounds.registry._devices.pop(name)  # as after a restore from before the enrolment
        with pytest.raises(RemoteProtocolError, match=r"\(401\).*join --again") as unknown:
            device.step()
        assert unknown.value.code == "not-enrolled"


def test_consent_is_asked_for_by_name(tmp_path: Path) -> None:
    """At a permanent epoch, too, the refusal names the command, and carries the limit that it needs."""
    settings = small_settings(terms={"rounds": 4, "epoch_rounds": 1}, rounds=ONE)
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device", epsilon_i=0.5) as device:
        device.join(live.url)
        assert device.step(wait=30) == "reported"
        with pytest.raises(BudgetExceeded, match=r"--raise-to 2`") as refusal:
            device.step(wait=30)
        assert (refusal.value.needed, refusal.value.code) == (2.0, "budget")
