"""Each side against the other gone bad: servers that would fill a device up, and strangers that would hold a server."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from command import run
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    RawDevice,
    begin_reports,
    get,
    live_server,
    make_body,
    new_device,
    small_settings,
    wait_for,
)
from test_service_security import kind, scripted

from hushrec import Device, wire
from hushrec.device import calls, joining, transport
from hushrec.device.calls import Call, Reply
from hushrec.device.transport import PATIENCE_SECONDS, SILENT_SECONDS, BlockingDriver
from hushrec.errors import ConnectionFailed, RemoteProtocolError
from hushrec.messages import Catalogue
from hushrec.signing import Request

pytestmark = OPEN_SOCKETS

Talk = Callable[[socket.socket], None]


@contextmanager
def bad_server(talk: Talk) -> Iterator[str]:
    """Run a server that reads a request's head and then calls `talk`, once per connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(100_000)
                try:
                    talk(connection)
                except OSError:
                    continue  # the device hung up: what the test hopes for

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(timeout=PATIENCE)


def says(head: str, body: bytes = b"") -> Talk:
    """Return a `talk` with a fixed reply."""
    return lambda connection: connection.sendall(f"HTTP/1.1 {head}\r\n\r\n".encode("latin-1") + body)


def ask(url: str, call: Call, session: object = None) -> Reply:
    """Return what a device's driver makes of the server's reply to its first try."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as http:
        return BlockingDriver(session, http, patience=0)._make(call)  # type: ignore[arg-type]


CALL = Call(Request("GET", "/v1/run"), signed=False, largest=1000)


def endless(connection: socket.socket) -> None:
    """Send a body that never ends."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")


@pytest.mark.parametrize("talk", [endless, says("200 OK\r\nContent-Length: 5000000000", bytes(3000))])
def test_a_device_takes_no_more_of_a_reply_than_it_asked_for(talk: Talk) -> None:
    """Neither a body without an end nor one with a large stated length fills the device's memory."""
    with bad_server(talk) as url, pytest.raises(RemoteProtocolError, match="at most 1000 bytes"):
        ask(url, CALL)


def test_a_server_that_hangs_up_is_one_sentence() -> None:
    """What httpx says of the connection is inside it, without its full stop."""
    with bad_server(lambda connection: None) as url, pytest.raises(ConnectionFailed, match=r"[a-z]\)\. Try again"):
        ask(url, CALL)


def test_a_reply_that_trickles_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives within its time limit, but the reply never ends."""
    monkeypatch.setattr(transport, "LONGEST_REPLY", 0.3)

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
        for _ in range(900):
            connection.sendall(b"x")
            time.sleep(0.02)

    with bad_server(trickle) as url, pytest.raises(ConnectionFailed, match="reply"):
        ask(url, CALL)


def test_a_server_that_takes_a_connection_and_says_nothing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hushrec device join` gives up after some tries, and the device has joined no server."""
    monkeypatch.setattr("hushrec.device.device.SILENT_SECONDS", 0.3)
    monkeypatch.setattr(Device.__init__, "__kwdefaults__", {"patience": 0.5})
    new_device(tmp_path / "device").close()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        outcome = run("device", "join", url, "--store", tmp_path / "device")
    assert outcome.code == 1
    assert "did not reply within 0.3 s" in outcome.err
    assert outcome.err.count("\n") == 1
    with Device(tmp_path / "device") as device:
        assert not device.has_joined


def test_a_silence_is_told_as_long_as_it_was() -> None:
    """The time in the error includes the wait that was asked for: 0.4 s and 0.1 s beyond are half a second."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.1) as http,
        pytest.raises(ConnectionFailed, match=r"reply within 0\.5 s"),
    ):
        BlockingDriver(None, http, patience=0)._make(replace(CALL, wait=0.4))  # type: ignore[arg-type]


def test_an_address_that_leads_nowhere_is_one_sentence(tmp_path: Path) -> None:
    """A try ends after 10 s without a connection, or after 20 s of silence beyond the wait that was asked for."""

    def drop(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"])
        raise httpx.ConnectTimeout("", request=request)

    limits: list[dict[str, float]] = []
    with transport.open_http("https://127.0.0.1:1", transport.tls_context(None), seconds=SILENT_SECONDS) as http:
        http._transport.close()
        http._transport = httpx.MockTransport(drop)
        driver = BlockingDriver(None, http, patience=0)  # type: ignore[arg-type]
        with pytest.raises(ConnectionFailed, match="within 10 s"):
            driver._make(replace(CALL, wait=30.0))
    assert limits == [{"connect": 10.0, "read": 50.0, "write": 20.0, "pool": 20.0}]


def test_tries_end_when_patience_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays grow to five seconds, with a random part; no delay begins that would end after half a minute."""
    now = [0.0]
    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0])
    attempts, delays = transport._Attempts(PATIENCE_SECONDS), []
    while (delay := attempts.next_delay()) is not None:
        delays.append(delay)
        now[0] += delay
    assert 6 <= len(delays) <= 14
    assert max(delays) <= 7.5
    assert PATIENCE_SECONDS - 7.5 <= now[0] <= PATIENCE_SECONDS
    assert transport._Attempts(0).next_delay() is None


def test_compressed_replies_are_not_unpacked() -> None:
    """A device asks for no compression, and does not decompress a reply: few bytes cannot become many."""
    import gzip

    packed = gzip.compress(bytes(10_000_000))[:1000]
    head = f"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}"
    with bad_server(says(head, packed)) as url:
        assert ask(url, CALL).body == packed


@pytest.mark.parametrize("value", ["²", "9" * 5000, "-1", "1e9"])
def test_numbers_in_headers_that_are_none_are_ignored(value: str) -> None:
    """An invalid header cannot crash a device."""
    with bad_server(says(f"204 No Content\r\nHushrec-Last-Report: {value}.1.0\r\nRetry-After: {value}")) as url:
        assert ask(url, CALL) == Reply(204)


def test_a_refusal_cannot_write_on_the_screen_what_it_likes() -> None:
    """Control characters are removed from a server's sentence, and an invalid body is not shown."""
    body = msgspec.json.encode({"detail": "come \x1b[2Jback"})
    with pytest.raises(RemoteProtocolError, match=r"refused \(503\): come \[2Jback"):
        calls.expect(Reply(503, body), 200)
    for nonsense in (b"[" * 100_000, b"\xff", b"{", b"[]"):
        with pytest.raises(RemoteProtocolError, match="no reason was given"):
            calls.expect(Reply(503, nonsense), 200)


def test_a_catalogue_holds_no_control_characters_and_no_novels() -> None:
    """Control characters and very long titles: the device refuses such a page, and the server such an item."""
    for ids, titles in ((["a\x1b"], ["A"]), (["a"], ["A\n"]), (["a"], ["A" * 501]), (["a" * 201], ["A"])):
        form = msgspec.msgpack.decode(wire.encode(Catalogue(0, ["a"], ["A"])))
        body = msgspec.msgpack.encode(form | {"ids": ids, "titles": titles})
        with pytest.raises(RemoteProtocolError, match="control characters"):
            wire.decode(body, Catalogue)


def test_a_run_too_large_for_a_device_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    """An offer cannot announce a table or catalogue that fills the device's memory."""
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        offer = live.rounds.offer
        for n_items, n_factors in ((calls.MOST_ITEMS + 1, 4), (50_000_000, 4), (60, calls.WIDEST_TABLE + 1)):
            huge = replace(offer, terms=replace(offer.terms, n_items=n_items, n_factors=n_factors))
            job = joining.join(device._session)
            next(job)
            with pytest.raises(RemoteProtocolError, match=f"got {n_items} items, {n_factors} numbers per item and"):
                job.send(Reply(200, wire.encode(huge)))
        assert not device.has_joined


def test_a_catalogue_comes_in_pages_and_must_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply holds one page at most; a page that is empty or begins at another position is refused."""
    monkeypatch.setattr("hushrec.service.catalogue.ITEMS_PER_PAGE", 7)
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        assert len(wire.decode(get(f"{live.url}/v1/items?first=50").content, Catalogue).ids) == 7
        assert wire.decode(get(f"{live.url}/v1/items?first=900").content, Catalogue).ids == []
        device.join(live.url)
        assert [name for name, _ in device._store.catalogue()] == [f"item-{n}" for n in range(60)]
        for page in (Catalogue(60, [], []), Catalogue(61, ["x"], ["X"])):
            job = device._session.refresh_catalogue(61)
            next(job)
            with pytest.raises(RemoteProtocolError, match="catalogue"):
                job.send(Reply(200, wire.encode(page)))


def test_a_round_that_the_run_does_not_have_had_no_report(tmp_path: Path) -> None:
    """A server cannot make a device charge itself for a billion lost draws."""
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        with pytest.raises(RemoteProtocolError, match="round"):
            scripted(device._session, [Reply(204, b"", (7, 1, 0))])
        assert device._store.get("copied") is None


def test_joining_elsewhere_changes_nothing_while_joined(tmp_path: Path) -> None:
    """With an unreachable server, and with another run: the device stays with its own server."""
    settings = small_settings(rounds={"min_devices": 1})
    (tmp_path / "other").mkdir()
    with (
        live_server(tmp_path, settings) as live,
        live_server(tmp_path / "other", settings) as other,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        device._patience = 0
        with pytest.raises(ConnectionFailed):
            device.join("http://127.0.0.1:1")
        with pytest.raises(RemoteProtocolError, match="run that this device joined") as refusal:
            device.join(other.url)
        assert refusal.value.code == "wrong-run"
        assert other.rounds.registry.count_active() == 0
        assert device.server == live.url
        assert device.step(wait=ROUND_WAIT) == "reported"


def test_a_key_change_that_was_cut_short_is_finished_by_the_next_step(tmp_path: Path) -> None:
    """Whether or not the server received the new key before the device was killed."""
    with live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live:
        with new_device(tmp_path / "device") as device:
            device.join(live.url)
        for heard in (False, True):
            with Device(tmp_path / "device") as device:
                job = joining.rotate_key(device._session)
                call = next(job)
                if heard:
                    assert device._driver()._make(call).status == 204
                job.close()  # killed here
            with Device(tmp_path / "device") as device:
                assert device.step(wait=ROUND_WAIT) == "reported"
                assert device._store.get("next_key") is None


def test_a_device_waits_no_longer_than_its_connection_does(tmp_path: Path) -> None:
    """A longer wait of the app is shortened: the server would refuse it, or the device's own timeout would end it."""
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        assert next(device._session.step(wait=600)).request.target == "/v1/inbox?after=0&last=0.0.0&wait=45"


def test_plain_requests_take_no_proxy_and_encrypted_ones_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain HTTP is for this machine only, whatever proxy the environment names."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    context = transport.tls_context(None)
    with bad_server(says("204 No Content")) as url, transport.open_http(url, context, seconds=PATIENCE) as http:
        assert http.get("/").status_code == 204


# Strangers at the server ---------------------------------------------------------------------------------------


def test_a_stranger_cannot_make_the_server_read_a_long_body(tmp_path: Path) -> None:
    """Only the operator may send a long body, and it is not read before the token is checked."""
    with live_server(tmp_path) as live:
        target = f"{live.url}/v1/admin/catalogue/items"
        sent = 0

        def endless_body() -> Iterator[bytes]:
            nonlocal sent
            while sent < 1000:
                sent += 1
                yield bytes(100_000)

        with suppress(httpx.TransportError):  # the server closes the connection while we are still sending
            assert kind(httpx.post(target, content=endless_body(), timeout=PATIENCE)) == "not-admin"
        assert sent < 500
        for body in (b"{", b'{"ids": []}', b'{"ids": ["a"], "x": 1}'):
            assert kind(live.admin("POST", "/v1/admin/catalogue/items", content=body)) == "malformed"
        assert kind(live.admin("POST", "/v1/admin/catalogue/items", content=bytes(10_000_001))) == "too-large"
        bad = live.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["a"], "titles": ["\x1b"]})
        assert "control characters" in bad.json()["detail"]


def test_downloads_that_nobody_reads_are_cut_off_and_hold_no_device_up(tmp_path: Path) -> None:
    """Clients that request the public table and do not read it get 503 above the limit, and are disconnected."""
    settings = small_settings(
        terms={"factors": 50}, rounds={"min_devices": 1}, limits={"waiting_downloads": 2, "body_seconds": 5}
    )
    with live_server(tmp_path, settings, n_items=60_000) as live:  # 12 MB: more than the kernel keeps for a connection
        port = int(live.url.rpartition(":")[2])
        idle = []
        for _ in range(2):
            stranger = socket.socket()
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.connect(("127.0.0.1", port))
            stranger.sendall(b"GET /v1/public HTTP/1.1\r\nHost: x\r\n\r\n")
            stranger.settimeout(PATIENCE)
            assert stranger.recv(8) == b"HTTP/1.1"  # it has a place
            idle.append(stranger)
        assert get(f"{live.url}/v1/public").status_code == 503
        with RawDevice(live) as device:  # devices have room of their own
            wait_for(lambda: live.rounds.is_open)
            assert device.send("GET", "/v1/inbox").status_code == 200
        wait_for(lambda: get(f"{live.url}/v1/public").status_code == 200)  # their places are free again
        for stranger in idle:
            stranger.close()


def test_one_slow_device_does_not_take_the_places_of_the_others(tmp_path: Path) -> None:
    """Of many reports in its name that are not completed, four are received; the report of another is accepted."""
    settings = small_settings(limits={"waiting_reports": 6, "body_seconds": PATIENCE})
    with live_server(tmp_path, settings) as live, RawDevice(live) as slow, RawDevice(live) as other:
        wait_for(lambda: live.rounds.is_open)
        sockets = begin_reports(live, slow.sign(Request("POST", "/v1/reports", make_body())), 20)
        wait_for(lambda: len(select.select(sockets, [], [], 0)[0]) == 16)  # four are still being received
        told = {connection.recv(100).split()[1] for connection in select.select(sockets, [], [], 0)[0]}
        assert b"429" in told <= {b"429", b"503"}
        assert other.report(make_body()).status_code == 200
        for connection in sockets:
            connection.close()


def test_a_stranger_that_sends_slowly_in_the_name_of_a_device_does_not_keep_it_out(tmp_path: Path) -> None:
    """Ids are known to other devices, and a signature can be checked only when the body has arrived."""
    settings = small_settings(limits={"body_seconds": PATIENCE})
    with live_server(tmp_path, settings) as live, RawDevice(live) as victim, RawDevice(live):
        wait_for(lambda: live.rounds.is_open)
        sockets = begin_reports(live, f"Hushrec {victim.name}:1:{'A' * 86}", 8)
        wait_for(lambda: len(select.select(sockets, [], [], 0)[0]) == 4)  # four are still being received
        assert victim.report(make_body()).status_code == 200
        for connection in sockets:
            connection.close()


def test_the_report_of_an_unknown_device_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    """The stranger has sent nothing but the head."""
    with live_server(tmp_path) as live:
        (connection,) = begin_reports(live, f"Hushrec {'0' * 32}:1:{'A' * 86}", 1)
        connection.settimeout(PATIENCE)
        assert connection.recv(100).split()[1] == b"401"
        connection.close()


def test_reports_that_would_fill_the_memory_are_sent_away(tmp_path: Path) -> None:
    """The stated lengths of all bodies being received are added up; a single one is always accepted."""
    settings = small_settings(limits={"waiting_megabytes": 0.0001, "body_seconds": PATIENCE})
    with live_server(tmp_path, settings) as live, RawDevice(live) as slow, RawDevice(live) as other:
        wait_for(lambda: live.rounds.is_open)
        header = slow.sign(Request("POST", "/v1/reports", make_body()))
        with ExitStack() as opened:
            begun: list[socket.socket] = []

            def is_refused() -> bool:
                """Begin a slow report, again if the server refused it because of another; then try a second one."""
                if not begun or select.select(begun[-1:], [], [], 0)[0]:
                    begun.append(opened.enter_context(begin_reports(live, header, 1)[0]))
                return other.report(b"xx").status_code == 503

            wait_for(is_refused)
        wait_for(lambda: other.report(make_body()).status_code == 200)


def test_the_database_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It holds reports while a round is open."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        wait_for(lambda: live.rounds.is_open)
        assert one.report(make_body()).status_code == 200
        files = list(tmp_path.glob("server.sqlite*"))
        assert {path.name for path in files} >= {"server.sqlite", "server.sqlite-wal", "server.sqlite.lock"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_a_mistake_of_the_server_is_a_problem_too_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception gives a problem+json reply without details, and is logged by its type."""
    caplog.set_level("INFO", logger="hushrec")
    with live_server(tmp_path) as live:
        monkeypatch.setattr(type(live.rounds.catalogue), "page", lambda *_: 1 / 0)
        reply = get(f"{live.url}/v1/items")
        assert (kind(reply), reply.status_code) == ("internal", 500)
    assert '{"event": "error", "kind": "ZeroDivisionError"}' in caplog.text
