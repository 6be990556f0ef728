"""Things that happen at once at the server, things that are cut in two, and how it ends."""

import asyncio
import contextlib
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from service_kit import OPEN_SOCKETS, PATIENCE, RawDevice, live_server, make_body, wait_for
from test_service_faults import Clock, join_two, make_rounds

from hushrec import wire
from hushrec.arrays import unpack_arrays
from hushrec.errors import StorageError
from hushrec.messages import Enrolment
from hushrec.open_files import allow_open_files
from hushrec.service import schema
from hushrec.service.dashboard import Dashboard
from hushrec.service.problems import Refusal
from hushrec.service.requests import Service
from hushrec.service.rounds import Rounds
from hushrec.service.storage import Storage
from hushrec.signing import DeviceKey, Request, device_id_of

pytestmark = OPEN_SOCKETS

ANSWER = Request("POST", "/v1/reports", make_body())


@contextlib.contextmanager
def insides(tmp_path: Path) -> Iterator[tuple[Storage, Rounds]]:
    """Yield a run without a socket."""
    storage, rounds = make_rounds(tmp_path, Clock(), Clock())
    yield storage, rounds
    storage.close()


def stored(storage: Storage, query: Any) -> list[Any]:
    """Return rows of the database."""
    return storage.at_once(lambda connection: connection.execute(query).all())


def test_two_who_open_a_round_at_once_open_one(tmp_path: Path) -> None:
    """The schedule and the operator open a round at once: memory and database stay at the same round."""

    async def scenario(rounds: Rounds) -> None:
        await join_two(rounds)
        outcomes = await asyncio.gather(rounds.open_round(), rounds.open_round(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), Refusal]
        await asyncio.gather(rounds.start(), rounds.start())
        assert rounds.round_number == 1

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        assert stored(storage, sa.select(schema.run.c.round, schema.run.c.phase)) == [(1, "report")]


def test_more_writes_than_one_transaction_takes_are_all_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that wait while others run are neither forgotten nor done twice, however many there are."""
    monkeypatch.setattr("hushrec.service.storage.MOST_PER_COMMIT", 3)

    def work(_: object, arguments: list[int]) -> list[int]:
        batches.append(len(arguments))
        return arguments

    async def scenario(storage: Storage) -> None:
        numbers = await asyncio.gather(*(storage.write_together(work, number) for number in range(1, 101)))
        assert numbers == list(range(1, 101))
        await asyncio.sleep(0.01)
        assert await storage.write_together(work, 101) == 101

    batches: list[int] = []
    with insides(tmp_path) as (storage, _):
        asyncio.run(scenario(storage))
    assert max(batches) <= 3
    assert sum(batches) == 101


def test_a_report_accepted_while_the_round_is_being_closed_is_in_its_sum(tmp_path: Path) -> None:
    """A report accepted before the close is stored before it: it gets a receipt, is counted, and is deleted."""

    async def scenario(rounds: Rounds) -> None:
        devices = await join_two(rounds)
        await rounds.open_round()
        await rounds.report(devices[0], 2, ANSWER)
        receipt, _ = await asyncio.gather(rounds.report(devices[1], 2, ANSWER), rounds.close_phase())
        assert not receipt.repeated

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        assert stored(storage, sa.select(schema.rounds.c.reports)) == [(2,)]
        assert stored(storage, sa.select(schema.reports)) == []


def test_items_that_are_added_at_once_are_all_there_once(tmp_path: Path) -> None:
    """Each item is once in memory and once in the database, and gets one vector."""

    async def scenario(rounds: Rounds) -> None:
        added = await asyncio.gather(*(rounds.add_items([f"new-{n}", "both"], ["", ""]) for n in range(5)))
        assert sorted(added) == [1, 1, 1, 1, 2]
        await rounds.open_round()
        assert len(rounds.public["item_vectors"]) == 66

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        told = rounds.catalogue.page(60).ids
        assert sorted(told) == ["both", *(f"new-{n}" for n in range(5))]
        query = sa.select(schema.items.c.id).where(schema.items.c.position >= 60).order_by(schema.items.c.position)
        assert [row.id for row in stored(storage, query)] == told


def test_a_device_that_reports_and_leaves_does_not_end_the_round_for_others(tmp_path: Path) -> None:
    """Its report stays in the sum, but the round still waits for the reports of the present devices."""

    async def scenario(rounds: Rounds) -> None:
        devices = [*await join_two(rounds), *await join_two(rounds)]
        await rounds.open_round()
        for device in devices[:2]:
            await rounds.report(device, 2, ANSWER)
            await rounds.leave(device)
        await rounds._advance()
        assert rounds.is_open
        for device in devices[2:]:
            await rounds.report(device, 2, ANSWER)
        await rounds._advance()
        assert not rounds.is_open

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        assert stored(storage, sa.select(schema.rounds.c.reports)) == [(4,)]


def test_a_report_of_a_device_that_is_being_revoked_does_not_stay(tmp_path: Path) -> None:
    """Whichever of the two requests the server handles first."""

    async def scenario(rounds: Rounds) -> None:
        devices = await join_two(rounds)
        await rounds.open_round()
        await asyncio.gather(rounds.report(devices[0], 2, ANSWER), rounds.revoke(devices[0].id))
        assert rounds.n_reports == 0

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        assert stored(storage, sa.select(schema.reports)) == []


def test_a_revoked_report_leaves_no_byte_in_the_files(tmp_path: Path) -> None:
    """It is overwritten like the reports of a round that has ended."""
    body = make_body(items=(3, 4), size=0.0123)
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        wait_for(lambda: live.rounds.is_open)
        assert one.report(body).status_code == 200

        def is_on_disk() -> bool:
            return any(body[-30:] in path.read_bytes() for path in tmp_path.glob("server.sqlite*"))

        assert is_on_disk()
        assert live.admin("DELETE", f"/v1/admin/devices/{one.name}").status_code == 204
        assert not is_on_disk()


def test_the_same_enrolment_twice_at_once_is_one_device(tmp_path: Path) -> None:
    """A device that enrols again before the first reply is not refused, and has one row."""

    async def scenario(rounds: Rounds) -> None:
        key = DeviceKey.generate()
        enrolment = Enrolment(key.public_key)
        request = Request("POST", "/v1/devices", wire.encode(enrolment))
        name = device_id_of(key.public_key)
        signed = [key.sign(request, run_id=rounds.offer.run_id, device=name, nonce=n) for n in (1, 2)]
        one, two = await asyncio.gather(*(rounds.enrol(enrolment, credentials, request) for credentials in signed))
        assert one is two

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(rounds))
        assert len(stored(storage, sa.select(schema.devices.c.id))) == 1


async def close_unheard(storage: Storage, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the round, but break the connection to the database after the commit."""
    write = storage.write

    async def lost(*arguments: Any, **named: Any) -> None:
        await write(*arguments, **named)
        raise StorageError("the connection broke.")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "write", lost)
        with pytest.raises(StorageError):
            await rounds.close_phase()


def test_a_close_whose_commit_was_not_heard_of_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection to the database broke after the commit: the next try loads what is stored."""

    async def scenario(storage: Storage, rounds: Rounds) -> None:
        devices = await join_two(rounds)
        await rounds.open_round()
        for device in devices:
            await rounds.report(device, 2, ANSWER)
        await close_unheard(storage, rounds, monkeypatch)
        assert rounds.is_open
        await rounds._advance()
        assert not rounds.is_open
        packed = await storage.write(lambda c: c.execute(sa.select(schema.run.c.state)).scalar_one())
        assert np.array_equal(unpack_arrays(packed)["item_vectors"], rounds.public["item_vectors"])

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(storage, rounds))
        assert stored(storage, sa.select(schema.rounds.c.reports)) == [(2,)]


def test_no_report_gets_a_receipt_in_a_round_that_the_database_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a close whose commit was not confirmed and the next try, a report gets no receipt, as no sum holds it."""

    async def scenario(storage: Storage, rounds: Rounds) -> None:
        one, two = await join_two(rounds)
        await rounds.open_round()
        await rounds.report(one, 2, ANSWER)
        await close_unheard(storage, rounds, monkeypatch)
        with pytest.raises(StorageError, match="phase"):
            await rounds.report(two, 2, ANSWER)
        assert (two.last_round, rounds.n_reports) == (0, 1)
        await rounds.close_phase()
        with pytest.raises(Refusal, match="no round is open"):
            await rounds.report(two, 3, ANSWER)

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(storage, rounds))
        assert stored(storage, sa.select(schema.rounds.c.reports)) == [(1,)]
        assert stored(storage, sa.select(schema.reports.c.device)) == []


def test_devices_are_counted_in_the_thread_in_which_they_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing thread never iterates over a dictionary that enrolments change."""
    threads = set()

    async def scenario(rounds: Rounds) -> None:
        entitled = rounds.registry.entitled

        def watched(round_number: int) -> list[str]:
            threads.add(threading.current_thread())
            return entitled(round_number)

        monkeypatch.setattr(rounds.registry, "entitled", watched)
        devices = await join_two(rounds)
        await rounds.open_round()
        for device in devices:
            await rounds.report(device, 2, ANSWER)
        await rounds.close_phase()

    with insides(tmp_path) as (_, rounds):
        asyncio.run(scenario(rounds))
    assert threads == {threading.main_thread()}


def test_strangers_use_up_no_turn_of_those_who_may_join(tmp_path: Path) -> None:
    """Forged signatures, and signed requests without an invitation, are refused without a write and do not count."""

    async def scenario(storage: Storage, rounds: Rounds) -> None:
        registry = rounds.registry
        registry._open_enrolment = False
        registry._limits = registry._limits.model_copy(update={"enrolments_per_second": 0.2})
        one_place = schema.enrolments.update().values(tokens=1.0, filled_at=time.time())
        await storage.write(lambda connection: connection.execute(one_place))
        code, other = await registry.invite(2)

        async def enrol(key: DeviceKey, invitation: str | None, *, signed_by: DeviceKey | None = None) -> None:
            enrolment = Enrolment(key.public_key, invitation)
            request = Request("POST", "/v1/devices", wire.encode(enrolment))
            name = device_id_of(key.public_key)
            credentials = (signed_by or key).sign(request, run_id=rounds.offer.run_id, device=name, nonce=1)
            await rounds.enrol(enrolment, credentials, request)

        keys = [DeviceKey.generate() for _ in range(3)]
        with pytest.raises(Refusal, match="must be signed"):
            await enrol(keys[0], code, signed_by=keys[1])
        for invitation in (None, "x" * 22):
            with pytest.raises(Refusal, match="invitation"):
                await enrol(keys[0], invitation)
        await enrol(keys[1], code)
        with pytest.raises(Refusal, match="invitation"):
            await enrol(keys[2], code)
        with pytest.raises(Refusal, match="too many"):
            await enrol(keys[2], other)
        await storage.write(lambda connection: connection.execute(one_place))
        await enrol(keys[2], other)  # the refusal has not used up the invitation

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(storage, rounds))
        assert len(stored(storage, sa.select(schema.devices.c.id))) == 2


def test_the_schedule_survives_what_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unexpected exception, which is logged by its type, the schedule still opens and closes rounds."""
    lines: list[dict[str, object]] = []
    with insides(tmp_path) as (_, rounds):
        advance, failures = rounds._advance, [ZeroDivisionError(), StorageError("the database cannot be used now.")]

        async def failing() -> float | None:
            if failures:
                raise failures.pop()
            return await advance()

        async def scenario() -> None:
            await join_two(rounds)
            schedule = asyncio.create_task(rounds.run_schedule())
            while not rounds.is_open:
                await asyncio.sleep(0.001)
            schedule.cancel()

        monkeypatch.setattr("hushrec.service.rounds.RETRY_SECONDS", 0.001)
        monkeypatch.setattr(rounds, "_advance", failing)
        monkeypatch.setattr(
            "hushrec.service.rounds.log_event", lambda event, **facts: lines.append({"event": event, **facts})
        )
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    reasons = [line["reason"] for line in lines if line["event"] == "round-error"]
    assert reasons == ["the database cannot be used now.", "ZeroDivisionError"]


def test_strangers_cannot_fill_the_queue_that_reports_wait_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks share one query, and the number of concurrent reads of the history is limited."""

    async def scenario(storage: Storage, rounds: Rounds) -> None:
        service = Service(rounds)
        submitted = []
        submit = storage._submit
        monkeypatch.setattr(storage, "_submit", lambda *job, **how: submitted.append(job) or submit(*job, **how))
        await asyncio.gather(*(service.check_health() for _ in range(500)))
        assert len(submitted) == 1
        await service.check_health()  # a later one asks anew
        assert len(submitted) == 2
        dashboard = Dashboard(rounds)
        outcomes = await asyncio.gather(*(dashboard.past(0) for _ in range(9)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [dict] * 4 + [Refusal] * 5
        assert outcomes[-1].code == "busy"
        assert "rounds" in await dashboard.past(0)  # their places are free again

    with insides(tmp_path) as (storage, rounds):
        asyncio.run(scenario(storage, rounds))


def test_a_server_that_stops_tells_those_who_wait(tmp_path: Path) -> None:
    """A device in a long poll gets the reply that there is no round, instead of a broken connection."""
    heard = []
    with live_server(tmp_path) as live:
        device = RawDevice(live)

        def wait() -> None:
            heard.append(device.send("GET", "/v1/inbox?wait=60").status_code)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_for(lambda: live.rounds.registry.known(device.name).bucket.tokens < 999.5)
    waiting.join(timeout=PATIENCE)
    device.http.close()
    assert heard == [204]


def test_a_server_takes_as_many_connections_as_the_system_allows() -> None:
    """The soft limit of open files is raised, because every device keeps a connection open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "address", ["nonsense", "", "sqlite://", "sqlite:///:memory:", "mysql://host/name", "postgresql://host:port/x"]
)
def test_an_address_that_is_no_database_is_refused(address: str) -> None:
    """The error names the two valid forms."""
    with pytest.raises(StorageError, match="sqlite:///FILE"):
        Storage(address)


def test_files_that_cannot_hold_a_database_are_refused(tmp_path: Path) -> None:
    """One sentence each, for a folder that does not exist and for a file that is not a database."""
    (tmp_path / "file").write_text("x" * 5000)
    with pytest.raises(StorageError, match="--database"):
        Storage(f"sqlite:///{tmp_path / 'file' / 'server.sqlite'}")
    with pytest.raises(StorageError, match="--database"):
        Storage(f"sqlite:///{tmp_path / 'file'}")
