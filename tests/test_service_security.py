"""What a server refuses, and what a device refuses: forged, repeated, foreign, oversized and malformed requests."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    Live,
    RawDevice,
    begin_reports,
    get,
    live_server,
    make_body,
    new_device,
    play,
    small_settings,
    wait_for,
)

from hushrec import Device, wire
from hushrec.device import joining
from hushrec.device.calls import Reply
from hushrec.device.session import Session
from hushrec.errors import BudgetExceeded, CopiedStore, ParameterError, RemoteProtocolError
from hushrec.messages import Enrolment, Envelope, Receipt
from hushrec.protocols.gradient.messages import REPORT, ItemVectors
from hushrec.service.monitor import JsonLines
from hushrec.service.storage import Storage
from hushrec.signing import DeviceKey, Request, device_id_of, header_of, parse_header

pytestmark = OPEN_SOCKETS


def kind(reply: httpx.Response) -> str:
    """Return the error code in a problem+json body."""
    assert reply.headers["content-type"] == "application/problem+json"
    body = reply.json()
    assert body["status"] == reply.status_code
    assert body["detail"].endswith(".")
    return str(body["type"].removeprefix("urn:hushrec:problem:"))


def open_round(live: Live) -> None:
    """Wait until round 1 is open."""
    wait_for(lambda: live.rounds.is_open)


def test_the_same_bytes_are_taken_once_and_other_bytes_not_at_all(tmp_path: Path) -> None:
    """A repeated report gets another receipt and is counted once; a second, different one is refused."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        first = one.report(make_body())
        again = one.report(make_body())
        assert [wire.decode(reply.content, Receipt).repeated for reply in (first, again)] == [False, True]
        assert kind(one.report(make_body(size=0.2))) == "reported"
        assert live.rounds.n_reports == 1


def test_a_signature_covers_everything_that_a_request_says(tmp_path: Path) -> None:
    """Another key, device, body, target or run with the same signature is refused, and changes nothing."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live) as two:
        open_round(live)
        body, target = make_body(), "/v1/reports"
        honest = Request("POST", target, body)
        forged = {
            "another key": header_of(two.key.sign(honest, run_id=one.run_id, device=one.name, nonce=2**60)),
            "another body": one.sign(Request("POST", target, make_body(size=0.3))),
            "another target": one.sign(Request("POST", target + "?x=1", body)),
            "another method": one.sign(Request("PUT", target, body)),
            "another run": one.sign(honest, run_id="0" * 32),
        }
        for what, header in forged.items():
            reply = one.report(body, header=header)
            assert (what, kind(reply), reply.status_code) == (what, "bad-signature", 401)
        cross = one.sign(honest).replace(one.name, two.name)  # one's signature under two's name
        assert kind(one.report(body, header=cross)) == "bad-signature"
        assert live.rounds.n_reports == 0
        assert one.report(body).status_code == 200  # the honest report is still accepted


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer x",
        "Hushrec",
        "Hushrec a:1:x",
        f"Hushrec {'a' * 32}:2:{'A' * 85}",
        f"Hushrec {'a' * 32}:-1:{'A' * 86}",
    ],
)
def test_a_header_of_another_form_is_refused(header: str) -> None:
    """It is refused before the device is looked up."""
    with pytest.raises(RemoteProtocolError, match="Authorization"):
        parse_header(header)
    with pytest.raises(RemoteProtocolError, match="nonce must be at most"):
        parse_header(f"Hushrec {'a' * 32}:{2**62 + 1}:{'A' * 86}")


def test_a_request_that_was_seen_is_not_taken_again_even_after_a_restart(tmp_path: Path) -> None:
    """A recorded request that is sent again is refused as stale."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        token = live.admin_token
        recorded = one.sign(Request("POST", "/v1/reports", make_body()))
        assert one.report(make_body(), header=recorded).status_code == 200
        reply = one.report(make_body(), header=recorded)
        assert kind(reply) == "stale-nonce"
        assert reply.json()["last_nonce"] == parse_header(recorded).nonce
    with live_server(tmp_path, admin_token=token) as live:
        replay = httpx.post(
            f"{live.url}/v1/reports", content=make_body(), headers={"Authorization": recorded}, timeout=PATIENCE
        )
        assert kind(replay) == "stale-nonce"
        assert live.rounds.n_reports == 1  # the report itself is still stored


def test_strangers_and_those_who_left_are_refused(tmp_path: Path) -> None:
    """Unknown keys, and keys of devices that left or were revoked."""
    with live_server(tmp_path) as live:
        with RawDevice(live, enrol=False) as stranger:
            assert kind(stranger.send("GET", "/v1/inbox")) == "not-enrolled"
        with RawDevice(live) as gone:
            assert gone.send("DELETE", "/v1/devices/me").status_code == 204
            assert kind(gone.send("GET", "/v1/inbox")) == "not-active"
            again = gone.send("POST", "/v1/devices", wire.encode(Enrolment(gone.key.public_key)))
            assert kind(again) == "not-active"
        with RawDevice(live) as bad, RawDevice(live):
            open_round(live)
            assert bad.report(make_body()).status_code == 200
            assert bad.name in [row["id"] for row in live.admin("GET", "/v1/admin/devices").json()["devices"]]
            assert live.admin("DELETE", f"/v1/admin/devices/{bad.name}").status_code == 204
            assert kind(bad.send("GET", "/v1/inbox")) == "not-active"
            assert live.rounds.n_reports == 0  # its report was deleted
            assert kind(live.admin("DELETE", "/v1/admin/devices/nobody")) == "unknown-device"


def test_an_enrolment_must_be_signed_with_the_key_it_brings(tmp_path: Path) -> None:
    """Nobody can enrol a public key without its private key."""
    with live_server(tmp_path) as live, RawDevice(live, enrol=False) as thief:
        victim = DeviceKey.generate().public_key
        body = wire.encode(Enrolment(victim))
        assert kind(thief.send("POST", "/v1/devices", body)) == "bad-signature"
        assert kind(thief.send("POST", "/v1/devices", body, device=device_id_of(victim))) == "bad-signature"
        own = wire.encode(Enrolment(thief.key.public_key))
        assert kind(thief.send("POST", "/v1/devices", own, device=device_id_of(victim))) == "bad-signature"
        assert kind(thief.send("POST", "/v1/devices", b"\x80")) == "malformed"
        low_order = wire.encode(Enrolment(bytes(32)))
        assert thief.send("POST", "/v1/devices", low_order).status_code in (401, 422)
        assert live.rounds.registry.count_active() == 0


MALFORMED = [
    (b"", 422, "MessagePack"),
    (b"\xc1" * 50, 422, "MessagePack"),
    (make_body(items=(1, 60)), 422, "below 60"),
    (make_body(size=200), 422, "at most 100"),
    (make_body(width=5), 422, "4 numbers"),
    (make_body(phase="keys"), 409, "phase report"),
    (make_body(attempt=2), 409, "attempt 1"),
    (make_body(run_id="cd" * 16), 409, "run"),
    (msgspec.msgpack.encode({"version": 9}), 426, "2, got 9"),
]


def test_a_malformed_report_is_refused_with_one_sentence(tmp_path: Path) -> None:
    """Afterwards the device can still send a valid report."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        for body, status, named in MALFORMED:
            reply = one.report(body)
            assert (reply.status_code, named in reply.json()["detail"]) == (status, True), reply.json()
        assert live.rounds.n_reports == 0
        assert one.report(make_body()).status_code == 200


def test_reports_of_other_rounds_are_refused(tmp_path: Path) -> None:
    """Reports that are late, early, or of a round before this device may report."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live) as two:
        open_round(live)
        assert kind(one.report(make_body(2))) == "phase-closed"
        with RawDevice(live) as late:
            assert kind(late.report(make_body())) == "not-asked"
            for device in (one, two):
                assert device.report(make_body()).status_code == 200
            wait_for(lambda: live.rounds.round_number == 2 and live.rounds.is_open)
            reply = one.report(make_body())
            assert (kind(reply), reply.json()["last_report"]) == ("phase-closed", "1.1.0")
            assert late.report(make_body(2)).status_code == 200
        assert live.monitor.refusals == 1  # of the device that was not asked; a healthy run has late reports too


def test_a_report_is_kept_by_its_device_while_a_phase_is_closing(tmp_path: Path) -> None:
    """The close may fail and the phase stay open, so the server asks for the same report again."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        live.rounds._is_closing = True
        reply = one.report(make_body())
        assert (reply.status_code, kind(reply), reply.headers["Retry-After"]) == (503, "busy", "1")
        live.rounds._is_closing = False
        assert one.report(make_body()).status_code == 200


def test_a_body_that_is_too_long_is_refused_early(tmp_path: Path) -> None:
    """By its stated length, or as soon as a body without one is too long; with a signature or without."""
    with live_server(tmp_path) as live, RawDevice(live) as one:
        largest = live.rounds.server.side.largest_report
        assert kind(one.report(bytes(largest + 1))) == "too-large"

        def endless() -> Any:
            for _ in range(1000):
                yield bytes(largest // 10)

        header = one.sign(Request("POST", "/v1/reports", b""))
        with httpx.Client(base_url=live.url, timeout=PATIENCE) as http:
            try:
                reply = http.post("/v1/reports", content=endless(), headers={"Authorization": header})
                assert kind(reply) == "too-large"
            except httpx.TransportError:
                pass  # the server closed the connection while we were still sending: refused as well
            assert http.get("/healthz").status_code == 200


def test_one_device_that_asks_too_often_is_slowed_and_others_are_not(tmp_path: Path) -> None:
    """The rate is counted per device, after the signature is checked, so that nobody can use up another's."""
    settings = small_settings(limits={"requests_per_second": 0.001, "burst": 3})
    with live_server(tmp_path, settings) as live, RawDevice(live) as greedy, RawDevice(live) as modest:
        open_round(live)
        forged = greedy.sign(Request("GET", "/v1/inbox")).replace(greedy.name, modest.name)
        for _ in range(10):
            assert greedy.send("GET", "/v1/inbox", header=forged).status_code == 401
        replies = [greedy.report(make_body()) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
        assert kind(replies[-1]) == "too-many-requests"
        assert replies[-1].headers["retry-after"] == "1"
        assert modest.report(make_body()).status_code == 200


def test_a_full_queue_sends_devices_away_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure: 503 with Retry-After, before a body is read or a signature checked."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        with monkeypatch.context() as patched:
            patched.setattr(Storage, "waiting", property(lambda _: 10_000))
            reply = one.report(make_body())
            assert (kind(reply), reply.status_code, reply.headers["retry-after"]) == ("busy", 503, "1")
        assert one.report(make_body()).status_code == 200


def test_more_reports_at_once_than_the_server_wants_are_sent_away(tmp_path: Path) -> None:
    """Bodies being received count too, so that slow senders cannot fill the server's memory."""
    settings = small_settings(limits={"waiting_reports": 3, "body_seconds": PATIENCE})
    with live_server(tmp_path, settings) as live, RawDevice(live) as one, RawDevice(live):
        open_round(live)
        slow = begin_reports(live, one.sign(Request("POST", "/v1/reports", make_body())), 3)
        wait_for(lambda: one.report(b"").status_code == 503)
        for connection in slow:
            connection.close()
        wait_for(lambda: one.report(make_body()).status_code == 200)


def test_pages_that_do_not_exist_and_wrong_methods_are_problems_too(tmp_path: Path) -> None:
    """Every refusal has the same form."""
    with live_server(tmp_path) as live:
        assert kind(get(f"{live.url}/nowhere")) == "http"
        assert kind(httpx.post(f"{live.url}/v1/run", timeout=PATIENCE)) == "http"
        assert kind(get(f"{live.url}/v1/items?first=-1")) == "malformed"
        reply = live.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["a", "a"]})
        assert kind(reply) == "bad-items"


def test_no_log_line_names_a_device_or_an_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rounds and counts are logged, but no device and no network address."""
    caplog.set_level(logging.WARNING, logger="uvicorn")  # as `hushrec serve` does
    caplog.set_level(logging.INFO, logger="hushrec")
    with live_server(tmp_path, small_settings(terms={"rounds": 2})) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
        names = []
        for device in devices:
            device.join(live.url)
            names.append(device._session.name)
        play(devices)
        for device in devices:
            device.close()
    written = [record.getMessage() for record in caplog.records if record.name.startswith(("hushrec", "uvicorn"))]
    assert any("round-closed" in line for line in written)
    assert not [line for line in written if any(str(name) in line for name in names) or "127.0.0.1:" in line]


def test_every_line_of_the_log_is_one_object() -> None:
    """Lines of the service, and lines of the web server with an exception."""
    import json
    import sys

    try:
        raise ZeroDivisionError(f"of device {3 + 4}")
    except ZeroDivisionError:
        error = sys.exc_info()
    ours = logging.LogRecord("hushrec.service", logging.INFO, "", 1, '{"event": "phase-closed", "round": 3}', (), None)
    theirs = logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "a %s\nline", ("long",), error)
    lines = [json.loads(JsonLines().format(record)) for record in (ours, theirs)]
    assert [line.pop("time")[:2] for line in lines] == ["20", "20"]
    assert lines[0] == {"event": "phase-closed", "round": 3}
    assert (lines[1]["event"], lines[1]["text"]) == ("message", "a long\nline")
    assert lines[1]["error"] == "ZeroDivisionError"
    assert "test_service_security" in lines[1]["trace"]
    assert "device 7" not in str(lines)


# The device's side ---------------------------------------------------------------------------------------------


def test_a_copied_store_is_found_out_at_contact(tmp_path: Path) -> None:
    """The second copy learns that its key has reported in a later round, and refuses to take part from then on."""
    settings = small_settings(rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live:
        with new_device(tmp_path / "original") as original:
            original.join(live.url)
            assert original.step(wait=ROUND_WAIT) == "reported"
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        with Device(tmp_path / "original") as original:
            assert original.step(wait=ROUND_WAIT) == "reported"
        with Device(tmp_path / "copy") as copy:
            for _ in range(2):
                with pytest.raises(CopiedStore, match="copy"):
                    copy.step(wait=ROUND_WAIT)
            with pytest.raises(BudgetExceeded, match="--raise-to 16`"):
                copy.join(live.url, again=True)
            assert (live.rounds.registry.count_active(), copy.budget()["committed"]) == (1, 8)
            copy.raise_budget(16)
            copy.join(live.url, again=True)
            live.admin("POST", "/v1/admin/close")  # the round that waits for the old key
            assert copy.step(wait=ROUND_WAIT) == "reported"
            assert copy.budget()["committed"] == 16  # a new draw of permanent bits
            assert copy._session.client().last_round == 4


def test_a_store_restored_from_before_its_first_round_pays_for_the_lost_draw(tmp_path: Path) -> None:
    """Permanent bits that the backup lacks were drawn and used: enrolling again charges them too."""
    with live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live:
        with new_device(tmp_path / "device") as device:
            device.join(live.url)
        shutil.copytree(tmp_path / "device", tmp_path / "backup")
        with Device(tmp_path / "device") as device:
            assert device.step(wait=ROUND_WAIT) == "reported"
        with Device(tmp_path / "backup") as backup:
            with pytest.raises(CopiedStore):
                backup.step(wait=ROUND_WAIT)
            backup.raise_budget(16)
            backup.join(live.url, again=True)
            assert backup.budget()["committed"] == 8  # the draw that was lost
            live.admin("POST", "/v1/admin/close")
            assert backup.step(wait=ROUND_WAIT) == "reported"
            assert backup.budget()["committed"] == 16


@pytest.mark.parametrize("changes_key", [False, True])
def test_enrolling_again_after_an_interruption_charges_the_copy_once(tmp_path: Path, changes_key: bool) -> None:
    """Killed before its old key leaves, and begun a second time: the copy's draws are in the ledger once.

    If the copy has changed the key, the server does not say what it reported, and every round so far counts.
    """
    settings = small_settings(terms={"epoch_rounds": 1}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live:
        with new_device(tmp_path / "original") as original:
            original.join(live.url)
            original.raise_budget(1000)
            assert original.step(wait=ROUND_WAIT) == "reported"
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        with Device(tmp_path / "original") as original:
            assert original.step(wait=ROUND_WAIT) == "reported"
            if changes_key:
                original.rotate_key()
        wait_for(lambda: live.rounds.round_number == 3)
        draws = 3 if changes_key else 2  # with the draw of the copied round
        for _ in range(2):
            with Device(tmp_path / "copy") as copy:
                driver, job = copy._driver(), joining.rejoin(copy._session)
                call = next(job)
                while call.request.method != "DELETE":
                    call = job.send(driver._make(call))
                job.close()
            with Device(tmp_path / "copy") as copy:
                assert copy.budget()["permanent_draws"] == draws
                with pytest.raises(CopiedStore):
                    copy.step()
        with Device(tmp_path / "copy") as copy:
            copy.join(again=True)
            assert copy.budget()["permanent_draws"] == draws


def test_two_copies_that_report_in_the_same_round_at_once_are_found_out(tmp_path: Path) -> None:
    """The second report has other bytes: the server refuses it, and that copy stops taking part.

    Ten items a round, because two answers that choose none would be the same bytes.
    """
    with live_server(tmp_path, small_settings(terms={"reports_per_client": 10}, rounds={"min_devices": 2})) as live:
        with new_device(tmp_path / "a") as device, RawDevice(live):
            device.join(live.url)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with Device(tmp_path / "a") as first, Device(tmp_path / "b") as second:
            job = second._session.step(wait=ROUND_WAIT)
            call = next(job)
            driver = second._driver()
            announced = driver._make(call)  # the copy has the announcement, and has not reported
            assert first.step(wait=ROUND_WAIT) == "reported"
            with pytest.raises(CopiedStore):
                job.send(driver._make(job.send(announced)))
            with pytest.raises(CopiedStore):
                second.step()


def test_a_clock_that_goes_back_does_not_lock_a_device_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server names the last nonce, and the device continues with higher ones."""
    with live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live:
        with new_device(tmp_path / "device") as device:
            device.join(live.url)
            assert device.step(wait=ROUND_WAIT) == "reported"
        monkeypatch.setattr("hushrec.device.session.time.time_ns", lambda: 1_000_000_000)
        with Device(tmp_path / "device") as device:
            assert device.step(wait=ROUND_WAIT) == "reported"


def scripted(session: Session, replies: list[Reply]) -> Any:
    """Run one step of a device with replies that a test makes."""
    job = session.step()
    next(job)
    try:
        for reply in replies:
            job.send(reply)
    except StopIteration as end:
        return end.value
    raise AssertionError("the job wanted more replies")


def announcement(session: Session, vectors: Any = None, terms: Any = None, **changes: Any) -> bytes:
    """Return round 1 as the server would announce it, with changes of its envelope."""
    assert session.offer is not None
    vectors = np.full((60, 4), 0.4) if vectors is None else vectors
    place = {"run_id": session.offer.run_id, "round_number": 1, "attempt": 1, "phase": REPORT} | changes
    return wire.encode(Envelope(**place, message=ItemVectors(terms or session.offer.terms, 1, vectors)))


def test_a_device_refuses_a_server_that_breaks_what_was_accepted(tmp_path: Path) -> None:
    """Another run, round, phase or term, or item vectors that would reveal ratings: nothing is reported or charged."""
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        session = device._session
        assert session.offer is not None
        broken = {
            "run that this device joined": announcement(session, run_id="0" * 32),
            "must come in order": announcement(session, phase="keys"),
            "item vectors": announcement(session, round_number=2),
            "terms must be": announcement(session, terms=replace(session.offer.terms, step=0.8)),
        }
        for sentence, made in broken.items():
            with pytest.raises(RemoteProtocolError, match=sentence):
                scripted(session, [Reply(200, made)])
        for vectors, sentence in ((np.zeros((60, 4)), "near zero"), (np.full((60, 4), 1e4), "norms of at most")):
            made = announcement(session, vectors=vectors)
            with pytest.raises(RemoteProtocolError, match=sentence):
                scripted(session, [Reply(200, made)])
        assert device.budget()["rounds"] == 0
        assert device._store.get("outbox") is None


def test_a_store_holds_its_ratings_to_its_scale(tmp_path: Path) -> None:
    """The error names the scale, and not the rating that was given."""
    with new_device(tmp_path / "device", scale=(0.0, 10.0)) as device:
        with pytest.raises(ParameterError, match="from 0 to 10") as caught:
            device.add_rating("item-1", 10.5)
        assert "10.5" not in str(caught.value)
        device.add_rating("item-1", 10)
        device.remove_rating("item-1")
        with pytest.raises(ParameterError, match="item"):
            device.remove_rating("item-1")
    with pytest.raises(ParameterError, match="low < high"):
        Device.create(tmp_path / "other", scale=(5.0, 1.0))
    assert not (tmp_path / "other").exists()


def test_forget_leaves_nothing_behind(tmp_path: Path) -> None:
    """The folder is removed; a folder that is not a store is not touched."""
    folder = tmp_path / "device"
    with new_device(folder) as device:
        with pytest.raises(Exception, match="another process"):
            Device.forget(folder)
        assert device.budget()["rounds"] == 0
    Device.forget(folder)
    assert not folder.exists()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    with pytest.raises(Exception, match="there is no store"):
        Device.forget(tmp_path / "precious")
    assert (tmp_path / "precious" / "file").exists()
