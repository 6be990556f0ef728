"""A server and devices on loopback: the whole way of a report, and what both sides keep."""

import asyncio
import os
import re
import socket
import stat
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    RawDevice,
    get,
    live_server,
    make_body,
    new_device,
    play,
    small_settings,
    wait_for,
)

from hushrec import Device
from hushrec.errors import BudgetExceeded, ConnectionFailed, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.service import serving

pytestmark = OPEN_SOCKETS


@pytest.mark.parametrize("tls", [False, True])
def test_two_devices_take_part_in_every_round_and_get_recommendations(tmp_path: Path, tls: bool) -> None:
    """Two stores, two keys, one server: both report in all rounds, and get recommendations of unrated items."""
    with live_server(tmp_path, tls=tls) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
        for device in devices:
            device.join(live.url, ca=live.ca)
        start = live.rounds.public["item_vectors"].copy()
        assert play(devices) == [6, 6]
        assert live.rounds.is_over
        assert not np.array_equal(live.rounds.public["item_vectors"], start)
        assert live.count("reports", kind="stored") == 12
    for n, device in enumerate(devices):
        rated = {f"item-{item}" for item in np.random.default_rng(n).choice(60, size=12, replace=False)}
        suggestions = device.recommend(5)  # the server is gone: this is offline
        assert len(suggestions) == 5
        assert not rated & {suggestion.item for suggestion in suggestions}
        assert suggestions[0].title.startswith("Item-")
        statement = device.budget()
        assert (statement["rounds"], statement["spent"], statement["capped"]) == (6, 8.0, True)
        device.close()


def test_the_server_keeps_no_report_after_a_round(tmp_path: Path) -> None:
    """Between rounds the files of the database hold no byte of a report that was in them during the round."""
    settings = small_settings(terms={"reports_per_client": 30}, rounds={"automatic": False})
    with (
        live_server(tmp_path, settings) as live,
        new_device(tmp_path / "device") as device,
        new_device(tmp_path / "other", seed=1) as other,
    ):
        seen: list[bytes] = []
        send = device._session.store.put

        def spy(name: str, value: bytes) -> None:
            if name == "outbox":
                seen.append(value)
            send(name, value)

        def is_on_disk() -> bool:
            piece = seen[0][len(seen[0]) // 2 :][:64]
            return any(piece in path.read_bytes() for path in tmp_path.glob("server.sqlite*"))

        device._session.store.put = spy  # type: ignore[method-assign]
        device.join(live.url)
        other.join(live.url)  # never reports, so that the round stays open until the operator closes it
        live.admin("POST", "/v1/admin/start")
        assert device.step(wait=ROUND_WAIT) == "reported"
        assert live.rounds.is_open
        assert is_on_disk()
        live.admin("POST", "/v1/admin/close")
        assert not live.rounds.is_open
        assert not is_on_disk()


def test_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Folder 0700, files 0600; a store that others can read is refused."""
    with new_device(tmp_path / "store"):
        assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
        for name in ("device.sqlite", "device.sqlite-wal"):
            assert stat.S_IMODE((tmp_path / "store" / name).stat().st_mode) == 0o600
    os.chmod(tmp_path / "store" / "device.sqlite", 0o644)
    with pytest.raises(Exception, match="store"):
        Device(tmp_path / "store")


def test_an_invitation_lets_one_device_in(tmp_path: Path) -> None:
    """Without a code, with a wrong one, or with one that another device used, a device stays out."""
    with live_server(tmp_path, small_settings(open_enrolment=False)) as live:
        (code,) = live.admin("POST", "/v1/admin/invitations/1").json()["invitations"]
        for given in (None, "wrong"):
            with new_device(tmp_path / f"out-{given}") as device:
                with pytest.raises(RemoteProtocolError, match="invitation"):
                    device.join(live.url, invitation=given)
                assert not device.has_joined
        with new_device(tmp_path / "in") as device:
            device.join(live.url, invitation=code)
            assert device.has_joined
        with new_device(tmp_path / "late") as device, pytest.raises(RemoteProtocolError, match="invitation"):
            device.join(live.url, invitation=code)


def test_a_device_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """When one of two devices has left, the report of the other closes the round."""
    with live_server(tmp_path) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
        for device in devices:
            device.join(live.url)
        assert devices[0].step(wait=ROUND_WAIT) == "reported"
        devices[1].leave()
        assert not devices[1].has_joined
        wait_for(lambda: not live.rounds.is_open)
        assert devices[0].step(wait=0.2) == "no round"  # two devices are needed for a round
        assert live.rounds.round_number == 1
        with pytest.raises(LocalProtocolError, match="has not joined"):
            devices[1].step()
        for device in devices:
            device.close()


def test_a_key_can_be_changed(tmp_path: Path) -> None:
    """After a change the server refuses the old key, and accepts reports with the new one."""
    with live_server(tmp_path) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
        for device in devices:
            device.join(live.url)
        old = devices[0]._store.get("key")
        devices[0].rotate_key()
        assert devices[0]._store.get("key") != old
        assert play(devices) == [6, 6]
        for device in devices:
            device.close()


def test_new_items_join_the_catalogue_between_rounds(tmp_path: Path) -> None:
    """Items added during training reach the devices with the next round; known items keep their positions."""
    with live_server(tmp_path) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
        for device in devices:
            device.join(live.url)
        assert devices[0].step(wait=ROUND_WAIT) == "reported"
        added = live.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["item-0", "new-a", "new-b"]}).json()
        assert added == {"added": 2}
        devices[0].add_rating("new-a", 5, keep_unknown=True)  # this device has not heard of it yet
        assert play(devices) in ([5, 6], [6, 6])
        assert live.rounds.public["item_vectors"].shape == (62, 4)
        for device in devices:
            assert [name for name, _ in device._store.catalogue()][-2:] == ["new-a", "new-b"]
            assert len(device.predict()) == 62
            device.close()


def test_a_permanent_epoch_needs_the_persons_consent(tmp_path: Path) -> None:
    """At a new epoch a device stops with one sentence until the limit is raised; then the draw is charged."""
    settings = small_settings(terms={"rounds": 4, "epoch_rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        assert [device.step(wait=ROUND_WAIT) for _ in range(2)] == ["reported", "reported"]
        with pytest.raises(BudgetExceeded, match=r"device budget --raise-to 16`"):
            device.step(wait=ROUND_WAIT)
        assert device.budget()["rounds"] == 2
        device.raise_budget(16)
        assert [device.step(wait=ROUND_WAIT) for _ in range(3)] == ["reported", "reported", "run over"]
        assert (device.budget()["permanent_draws"], device.budget()["committed"]) == (2, 16.0)


def test_before_its_first_round_a_device_has_nothing_to_recommend(tmp_path: Path) -> None:
    """Joining again changes nothing, and a device without ratings does not take part."""
    with live_server(tmp_path) as live:
        with new_device(tmp_path / "device") as device:
            with pytest.raises(LocalProtocolError, match="has not joined a server"):
                device.recommend()
            device.join(live.url)
            with pytest.raises(LocalProtocolError, match="public table"):
                device.recommend()
            with pytest.raises(ParameterError, match="count"):
                device.recommend(0)
            device.join(live.url)  # it has, and nothing changes
            assert live.rounds.registry.count_active() == 1
        with Device.create(tmp_path / "empty") as empty:
            empty.join(live.url)
            with pytest.raises(LocalProtocolError, match="rated"):
                empty.step()


def test_the_admins_token_opens_the_admins_doors_only(tmp_path: Path) -> None:
    """Admin routes refuse a request without the token, with a wrong token, or with a device's credentials."""
    with live_server(tmp_path) as live:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {live.admin_token}"}):
            reply = httpx.post(f"{live.url}/v1/admin/pause", headers=header, timeout=PATIENCE)
            assert reply.status_code == 401
            assert reply.headers["content-type"] == "application/problem+json"
        assert live.admin("POST", "/v1/admin/pause").json()["paused"] is True
        exported = msgspec.msgpack.decode(live.admin("GET", "/v1/admin/public").content)["arrays"]["item_vectors"]
        vectors = np.frombuffer(exported["float64"]).reshape(exported["shape"])
        assert np.array_equal(vectors, live.rounds.public["item_vectors"])


def test_people_can_read_offer_and_catalogue_as_json(tmp_path: Path) -> None:
    """The same content that devices get in MessagePack."""
    with live_server(tmp_path) as live:
        offer = get(f"{live.url}/v1/run", headers={"Accept": "application/json"}).json()
        assert (offer["protocol"], offer["options"]["profile_cap"], offer["terms"]["n_items"]) == ("sdcf", 30, 60)
        items = get(f"{live.url}/v1/items?first=58", headers={"Accept": "application/json"}).json()
        assert items["ids"] == ["item-58", "item-59"]
        assert get(f"{live.url}/healthz").json() == {"status": "ok"}


def test_metrics_are_what_the_page_lists_and_name_no_device(tmp_path: Path) -> None:
    """The reply has the text format of Prometheus; labels are kinds and codes only."""
    page = (Path(__file__).parents[1] / "docs" / "service.md").read_text("utf-8")
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        wait_for(lambda: live.rounds.is_open)
        assert one.report(make_body()).status_code == 200
        assert one.report(make_body()).status_code == 200
        assert one.report(b"").status_code == 422
        reply = get(f"{live.url}/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(reply.text)}
        values = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
        assert values["hushrec_reports_total", "stored"] == values["hushrec_reports_total", "repeated"] == 1
        assert values["hushrec_refusals_total", "malformed"] == 1
        assert (values["hushrec_devices_active",], values["hushrec_reports_in_round",]) == (2, 1)
        assert values["hushrec_report_seconds_count",] == 2
        for family in families.values():
            shown = family.name.removeprefix("hushrec") + "_total" * (family.type == "counter")
            assert f"`{shown}`" in page or f"`hushrec{shown}`" in page
            assert {name for sample in family.samples for name in sample.labels} <= {"kind", "code", "le"}


def test_wrong_tls_is_refused(tmp_path: Path) -> None:
    """A certificate that the device was not given is not trusted, and nothing is sent."""
    with live_server(tmp_path, tls=True) as live, new_device(tmp_path / "device") as device:
        with pytest.raises(ConnectionFailed, match="certificate") as refusal:
            device.join(live.url)
        assert refusal.value.code == "certificate-untrusted"
        assert not device.has_joined


@pytest.mark.parametrize("address", ["ftp://host", "https://", "https://host/path", "host:1"])
def test_an_address_must_be_one(tmp_path: Path, address: str) -> None:
    """Any other form than https://HOST:PORT is refused."""
    with new_device(tmp_path / "device") as device, pytest.raises(ParameterError, match="https://HOST:PORT"):
        device.join(address)


def test_an_address_with_a_password_is_refused_without_repeating_it(tmp_path: Path) -> None:
    """It would be stored and shown on the page; the error contains neither user nor password."""
    with new_device(tmp_path / "device") as device:
        with pytest.raises(ParameterError) as refused:
            device.join("https://jane:secret@host.example")
        assert device.server is None
    assert "server must not contain a user name" in str(refused.value)
    assert not {"jane", "secret"} & set(re.findall(r"\w+", str(refused.value)))


def test_a_new_device_can_be_told_how_patient_to_be(tmp_path: Path) -> None:
    """`Device.create` takes `patience`, as `Device` does."""
    with Device.create(tmp_path / "device", patience=3.0, epsilon_i=1.0) as device:
        assert device._patience == 3.0
        assert device.budgets.by_protocol()["sdcf"]["epsilon_i"] == 1.0


def test_plain_http_beyond_this_machine_is_refused(tmp_path: Path) -> None:
    """Both the server and the device refuse it."""
    from hushrec.service.serving import check_binding

    with new_device(tmp_path / "device") as device, pytest.raises(ParameterError, match="server must use https"):
        device.join("http://192.0.2.1:80")
    with pytest.raises(ParameterError, match="plain HTTP"):
        check_binding("0.0.0.0", tls=False, insecure=False)
    check_binding("0.0.0.0", tls=True, insecure=False)
    check_binding("0.0.0.0", tls=False, insecure=True)
    check_binding("::1", tls=False, insecure=False)


def test_replies_leave_at_once() -> None:
    """Connections of the bound socket do not wait to fill a packet (TCP_NODELAY), which costs a quarter of the rate."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = serving.bind("127.0.0.1", 0)
        async with await asyncio.start_server(look, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await asyncio.wait_for(found, PATIENCE)

    assert asyncio.run(accepted()) == 1
