"""Masked runs over HTTP: all phases with real devices and stores, drop-outs, restarts, and what is left behind."""

import math
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from masked_kit import (
    N_ITEMS,
    PHASES,
    bytes_in,
    catalogue,
    close_phase,
    joined,
    masked_settings,
    new_people,
    play_round,
    report,
    tables_of,
    take_part,
    wait_for_phase,
)
from service_kit import OPEN_SOCKETS, RUN_ID, Live, RawDevice, held_port, live_server, wait_for
from test_device_ui import client_of
from test_service_faults import Clock

from hushrec import Device, wire
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.messages import Address, Envelope
from hushrec.protocols.masked.device_round import Consented, Keyed, Sent, Shared
from hushrec.protocols.masked.device_state import attempt_in
from hushrec.protocols.masked.messages import Consent, MaskedTable, SealedShares, Unmasking
from hushrec.protocols.masked.table import published_digest
from hushrec.service.rounds import Rounds
from hushrec.service.run_copy import WAIT_SECONDS
from hushrec.service.schema import reports
from hushrec.signing import DeviceKey

pytestmark = OPEN_SOCKETS


def test_a_whole_run_over_tls_learns_and_recommends(tmp_path: Path) -> None:
    """All phases of all rounds; ledgers are charged within their limits, no secret is left, films of one's kind win."""
    with joined(tmp_path, 5, masked_settings(5, terms={"evaluation": 0.1}), tls=True) as (live, devices):
        take_part(devices, lambda: False)
        assert live.rounds.is_over
        measured = live.rounds.server.side.learner.measured
        assert [row.round_number for row in measured] == [1, 2, 3, 4, 5]
        for device in devices:
            statement = device.budget()
            assert 0 < statement["spent"] <= statement["limit"]
            assert statement["rounds"] == live.rounds.offer.terms.max_rounds
            assert len(device._session.store.private_state()["attempt"]) == 0
            assert len(device.recommend(3)) == 3
            assert device.predict().shape == (N_ITEMS,)


def test_devices_that_vanish_before_their_keys_hold_up_nobody(tmp_path: Path) -> None:
    """Two of the four whom the round asks are gone: at the deadline those who joined meanwhile are asked as well."""
    settings = masked_settings(6, terms={"survivors": 4 / 6}, rounds={"min_devices": 4, "deadline_seconds": 1})
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, settings, items=catalogue()))
        people = new_people(tmp_path, 6)
        for device in people:
            stack.callback(device.close)
        for device in people[:4]:
            device.join(live.url)
        wait_for(lambda: live.rounds.is_open)
        assert len(live.rounds.server.asked) == 4
        for device in people[4:]:
            device.join(live.url)
        take_part(people[2:], lambda: live.rounds.round_number == 2)
        assert tables_of(people) == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_ends_at_its_deadline_without_the_silent_devices(tmp_path: Path, phase: str) -> None:
    """Two of six are silent from this phase on: nothing happens before the deadline, and the round goes on after it."""
    clock, settings = Clock(), masked_settings(6, terms={"survivors": 4 / 6})
    with joined(tmp_path, 6, settings, clock=clock) as (live, devices):
        for place in PHASES:
            awake = devices if PHASES.index(place) < PHASES.index(phase) else devices[2:]
            report(live, awake, place)
            if place == phase:
                clock.now += 59
                live.rounds.wake()
                time.sleep(0.05)
                assert live.rounds.server.address == Address(1, 1, place)
                clock.now += 2
                live.rounds.wake()
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)
        assert tables_of(devices) == [0 if PHASES.index(phase) <= PHASES.index("table") else 1] * 2 + [1] * 4


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_restarts_in_a_phase_goes_on_and_loses_no_report(tmp_path: Path, phase: str) -> None:
    """Half of the devices have reported in the phase; after the restart the others do, in the same attempt."""
    settings = masked_settings(4, terms={"survivors": 1.0})
    with held_port() as port, ExitStack() as stack:
        devices = new_people(tmp_path, 4)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            for place in PHASES[: PHASES.index(phase)]:
                report(live, devices, place)
            report(live, devices[:2], phase)
            reported = set(live.rounds.server.reported)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            assert live.rounds.server.address == Address(1, 1, phase)
            assert set(live.rounds.server.reported) == reported
            assert len(reported) == 2
            report(live, devices[2:], phase)
            for place in PHASES[PHASES.index(phase) + 1 :]:
                report(live, devices, place)
            wait_for(lambda: live.rounds.round_number == 2)
            assert live.rounds.server.side.learner.round_number == 1
        assert tables_of(devices) == [1] * 4


def test_a_server_that_restarts_goes_on_with_the_same_cohorts(tmp_path: Path) -> None:
    """Nine devices in sums of three; the server restarts when five have sent tables. All nine are learned from."""
    settings = masked_settings(3, terms={"survivors": 1.0}, rounds={"min_devices": 9})
    with held_port() as port, ExitStack() as stack:
        devices = new_people(tmp_path, 9)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            report(live, devices, "keys")
            report(live, devices, "shares")
            report(live, devices[:5], "table")
            cohorts = [cohort.asked for cohort in live.rounds.server.side.attempt.cohorts]
            assert [len(asked) for asked in cohorts] == [3, 3, 3]
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            assert [cohort.asked for cohort in live.rounds.server.side.attempt.cohorts] == cohorts
            report(live, devices[5:], "table")
            for phase in PHASES[3:]:
                report(live, devices, phase)
            wait_for(lambda: live.rounds.round_number == 2)
            assert live.rounds.server.side.learner.devices == 9
        assert tables_of(devices) == [1] * 9


def test_a_device_downloads_the_public_table_once_and_again_only_when_its_hash_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By requests at the server: one for each table and device, whatever is repeated, restarted or asked in between."""
    downloads, published = [], Rounds.published
    monkeypatch.setattr(Rounds, "published", lambda rounds: downloads.append(rounds.round_number) or published(rounds))

    def hashes() -> set[bytes]:
        return {published_digest(device._session.store.public() or {}) for device in devices}

    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        assert len(downloads) == 4  # when they joined
        first = hashes()
        report(live, devices, "keys")
        report(live, devices[1:], "shares")
        close_phase(live)
        devices[0].close()
        devices[0] = Device(tmp_path / "device-0")
        play_round(live, devices, attempt=2)
        assert (len(downloads), hashes()) == (4, first)
        report(live, devices, "keys", 2)
        assert len(downloads) == 8
        assert len(first | hashes()) == 2  # one table for all, another one than before
        for phase in PHASES[1:]:
            report(live, devices, phase, 2)
        assert len(downloads) == 8
        devices[0].close()


def test_a_device_whose_download_outlasts_the_round_reports_in_the_next_one(tmp_path: Path) -> None:
    """The table that it gets is of a later round than the announcement: it is no sign of another table for the same."""
    with joined(tmp_path, 6) as (live, devices):
        play_round(live, devices)
        wait_for_phase(live, Address(2, 1, "keys"))
        slow, *others = devices
        driver, job = slow._driver(), slow._session.step(5)
        call = job.send(driver._make(next(job)))
        assert call.request.target == "/v1/public"
        report(live, others, "keys", 2)
        close_phase(live)
        for phase in PHASES[1:]:
            report(live, others, phase, 2)
        wait_for_phase(live, Address(3, 1, "keys"))
        with pytest.raises(StopIteration) as end:
            job.send(driver._make(call))
        assert end.value.value == "no round"
        report(live, devices, "keys", 3)


def test_a_device_that_restarts_goes_on_and_its_file_holds_no_secret_afterwards(tmp_path: Path) -> None:
    """Its process ends after each phase; secrets are in the store while an attempt needs them, and gone after it."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        store = tmp_path / "device-0"
        kept: list[bytes] = []
        devices[0].close()
        for phase in PHASES:
            report(live, devices[1:], phase)
            with Device(store) as device:
                report(live, [device], phase)
                attempt = attempt_in(device._session.store.private_state())
                if isinstance(attempt, Keyed | Shared):
                    kept += [attempt.secrets.mask_private, attempt.secrets.channel_private, attempt.secrets.seed]
                    assert kept[0] in bytes_in(store)
                if isinstance(attempt, Sent):
                    kept += [shares.seed_share for shares in attempt.held.values()]
        assert len(kept) == 2 * 3 + 3
        assert not any(secret in bytes_in(store) for secret in kept)


def test_no_phase_closes_early_below_n_min(tmp_path: Path) -> None:
    """2 of 5 are the fraction 0.4, but the grace begins with the report of the fourth device, n_min; then it ends.

    The first phase waits for more than n_min keys, so that a device may drop out later.
    """
    settings = masked_settings(5, rounds={"early_fraction": 0.4, "grace_seconds": 10})
    clock = Clock()

    def pass_time() -> None:
        clock.now += 11
        assert live.admin("POST", "/v1/admin/start").status_code == 200  # the schedule looks at the clock

    def report_three_then_one(phase: str) -> None:
        report(live, devices[:3], phase)
        pass_time()
        report(live, devices[3:4], phase)

    with joined(tmp_path, 5, settings, clock=clock) as (live, devices):
        report_three_then_one("keys")
        pass_time()
        report(live, devices[4:], "keys")
        report_three_then_one("shares")
        wait_for(lambda: live.rounds._early_at is not None)
        pass_time()
        for phase in PHASES[2:]:  # only the four that sent shares are asked
            report_three_then_one(phase)
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)
        assert tables_of(devices) == [1, 1, 1, 1, 0]


def test_a_few_devices_that_claim_later_rounds_raise_no_alarm_and_hide_none(tmp_path: Path) -> None:
    """A round beyond the plan is ignored, and c_max or half of the devices are too few; revoked ones do not count."""
    settings = masked_settings(5, terms={"survivors": 1.0, "corrupt": 0.2})
    with live_server(tmp_path, settings, items=catalogue()) as live, ExitStack() as stack:
        devices = [stack.enter_context(RawDevice(live)) for _ in range(5)]
        wait_for(lambda: live.rounds.is_open)

        def claim(device: RawDevice, last: str) -> str:
            device.send("GET", f"/v1/inbox?after=0&last={last}")
            return str(live.rounds.concern)

        assert live.rounds.offer.terms.rules.most_corrupt == 1
        assert "backup" not in claim(devices[0], "2.1.0")  # the only one that has asked, but not more than c_max
        for _ in range(3):
            close_phase(live)
        for device in devices[1:]:
            assert claim(device, "999999999.0.0") == claim(device, "0.0.0") == live.rounds.server.side.concern
        assert "backup" not in claim(devices[1], "2.1.0")
        found = claim(devices[2], "3.1.0")
        assert "3 of 5 devices" in found
        assert str(live.rounds.server.side.concern) in found
        live.admin("DELETE", f"/v1/admin/devices/{devices[2].name}")
        assert live.rounds.concern == live.rounds.server.side.concern


def test_the_server_deletes_the_reports_of_an_attempt_that_failed(tmp_path: Path) -> None:
    """Also the shares that two of six devices revealed, from its files; and those of the second attempt at its end."""
    with joined(tmp_path, 6) as (live, devices):
        file = Path(str(live.storage._url.database))

        def bodies() -> list[bytes]:
            return live.storage.at_once(lambda c: list(c.execute(sa.select(reports.c.body)).scalars()))

        def is_on_disk(body: bytes) -> bool:
            return any(body[-60:] in path.read_bytes() for path in file.parent.glob(f"{file.name}*"))

        for phase in PHASES[:-1]:
            report(live, devices, phase)
        before = set(bodies())
        report(live, devices[:2], "unmask")
        (share, _) = set(bodies()) - before
        assert is_on_disk(share)
        close_phase(live)
        wait_for_phase(live, Address(1, 2, "keys"))
        assert (bodies(), is_on_disk(share)) == ([], False)
        play_round(live, devices, attempt=2)
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)
        assert bodies() == []


def test_a_device_that_runs_on_has_no_secret_in_its_files_once_the_round_has_ended(tmp_path: Path) -> None:
    """Its store stays open: neither the file nor the write-ahead log has what an earlier phase needed."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        store, kept = tmp_path / "device-0", set[bytes]()
        for phase in PHASES:
            report(live, devices, phase)
            now = secrets_in(attempt_in(devices[0]._session.store.private_state()))
            files = bytes_in(store)
            assert all(secret in files for secret in now)
            assert not any(secret in files for secret in kept - now)
            kept |= now
        assert len(kept) == 3 + 2 * 3
        assert not now


def secrets_in(attempt: object) -> set[bytes]:
    """The secrets of a device, or the shares of others' secrets, that an attempt still needs."""
    if isinstance(attempt, Keyed | Shared):
        return {attempt.secrets.mask_private, attempt.secrets.channel_private, attempt.secrets.seed}
    sent = attempt.sent if isinstance(attempt, Consented) else attempt
    held = sent.held.values() if isinstance(sent, Sent) else ()
    return {share for shares in held for share in (shares.mask_share, shares.seed_share)}


def test_a_person_changes_their_budget_and_nobody_sees_it(tmp_path: Path) -> None:
    """A quarter of it from the second round on: the ledger stays below, and a report is as long as everybody's."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        play_round(live, devices)
        devices[0].choose(epsilon=2.0)
        for number in range(2, live.rounds.offer.terms.max_rounds + 1):
            for phase in PHASES:
                report(live, devices[:-1], phase, number)
                assert len(set(bodies_of(live, phase))) == 1
                report(live, devices[-1:], phase, number)
        spent = [device.budget()["spent"] for device in devices]
        assert spent[0] < 4 < spent[1]


def bodies_of(live: Live, phase: str) -> list[int]:
    """Lengths of the reports of the open phase, as they are stored."""
    query = sa.select(sa.func.length(reports.c.body)).where(reports.c.phase == phase)
    return live.storage.at_once(lambda connection: list(connection.execute(query).scalars()))


def test_a_device_does_not_join_a_run_that_its_person_would_not_accept(tmp_path: Path) -> None:
    """A smallest cohort below the person's own minimum: nothing is enrolled."""
    with live_server(tmp_path, masked_settings(5), items=catalogue()) as live:
        with Device.create(tmp_path / "device", least_cohort=50) as device:
            with pytest.raises(RemoteProtocolError, match="at least 50"):
                device.join(live.url)
            assert not device.has_joined
        assert live.rounds.registry.count_active() == 0


def test_a_hostile_device_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    """Stale attempts, other phases, short tables, forged consent and second reports: each is a refusal."""
    with joined(tmp_path, 5) as (live, devices), RawDevice(live) as hostile:
        wait_for(lambda: live.rounds.is_open)
        assert hostile.name not in live.rounds.server.asked  # it joined after the round was opened
        name = devices[0]._session.name
        assert name is not None
        hostile.name, hostile.key = name, DeviceKey.from_bytes(devices[0]._session.store.required("key"))
        report(live, devices, "keys")
        wait_for_phase(live, Address(1, 1, "shares"))
        for place, message, status in (
            (Address(1, 1, "keys"), Consent(bytes(64)), 409),
            (Address(1, 2, "shares"), Consent(bytes(64)), 409),
            (Address(1, 1, "shares"), Consent(bytes(64)), 409),
            (Address(1, 1, "shares"), SealedShares(np.arange(2), (bytes(148),) * 2, (bytes(64),) * 2), 422),
        ):
            assert hostile.report(wire.encode(Envelope.to(RUN_ID, place, message))).status_code == status
        report(live, devices, "shares")
        short = MaskedTable(np.zeros(3, dtype=np.uint32), bytes(64))
        body = wire.encode(Envelope.to(RUN_ID, Address(1, 1, "table"), short))
        wait_for_phase(live, Address(1, 1, "table"))
        assert hostile.report(body).status_code == 422
        report(live, devices, "table")
        forged = wire.encode(Envelope.to(RUN_ID, Address(1, 1, "consent"), Consent(bytes(64))))
        wait_for_phase(live, Address(1, 1, "consent"))
        assert hostile.report(forged).status_code == 401
        report(live, devices, "consent")
        report(live, devices[1:], "unmask")
        stranger = Unmasking(np.array([0]), (bytes(66),))
        answer = hostile.report(wire.encode(Envelope.to(RUN_ID, Address(1, 1, "unmask"), stranger))).status_code
        assert answer in (200, 422)  # whether it holds a share of the first device is chance
        close_phase(live) if answer == 422 else None
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)


def test_reports_of_a_failed_attempt_are_refused_in_the_next(tmp_path: Path) -> None:
    """The bytes that an honest device sent in attempt 1 are refused in every phase of attempt 2, and change nothing."""
    sent: dict[Address, bytes] = {}

    def note(request: httpx.Request) -> None:
        if request.url.path == "/v1/reports":
            sent[wire.decode(request.content, Envelope).address] = request.content

    with joined(tmp_path, 5, masked_settings(5, terms={"reserve": 0.5})) as (live, devices), RawDevice(live) as thief:
        name = devices[0]._session.name
        assert name is not None
        thief.name, thief.key = name, DeviceKey.from_bytes(devices[0]._session.store.required("key"))
        devices[0]._driver().http.event_hooks = {"request": [note]}
        for phase in PHASES:
            report(live, devices if phase != "unmask" else devices[:1], phase)
        assert len(sent) == len(PHASES)
        earlier = list(sent.values())
        close_phase(live)
        for phase in PHASES:
            wait_for_phase(live, Address(1, 2, phase))
            before = live.rounds.n_reports
            assert [thief.report(body).status_code for body in earlier] == [409] * len(PHASES)
            assert live.rounds.n_reports == before
            report(live, devices, phase, 1, 2)
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)


def test_a_server_with_another_key_is_not_believed(tmp_path: Path) -> None:
    """Devices pin the key of the offer that they accepted: an announcement under another one is refused."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0}, rounds={"automatic": False})) as (
        live,
        devices,
    ):
        live.rounds.server.side.sign_as(RUN_ID, bytes(range(32)))
        live.admin("POST", "/v1/admin/start")
        with pytest.raises(RemoteProtocolError, match="signed by the server"):
            devices[0].step(wait=5)
        assert tables_of(devices) == [0] * 4
        assert len(devices[0]._session.store.private_state()["attempt"]) == 0


def test_a_table_of_zeros_is_shown_as_sent(tmp_path: Path) -> None:
    """A person without ratings sends a table as others do, and the page shows it."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        for item in devices[0].ratings():
            devices[0].remove_rating(item)
        for phase in PHASES[:3]:
            report(live, devices, phase)
        assert tables_of(devices) == [0, 1, 1, 1]
        left = client_of(devices[0]).get("/api/sent").json()["table"]
        assert "Round 1: 24 integers" in left[0]
        sent = devices[0].sent()
        assert sent is not None
        assert [list(one.arrays) for one in sent.reports] == [[]]


def test_the_page_shows_a_masked_run_in_its_own_words(tmp_path: Path) -> None:
    """Levels below the run's budget, a change in between, what left as random numbers, and the ledger."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices):
        page = client_of(devices[0])
        told = page.post("/api/look", json={"server": live.url}).json()["expectation"]
        assert told == page.get("/api/levels").json()["expectation"]
        assert "4 devices are too few" in told
        assert [level["name"] for level in page.get("/api/levels").json()["levels"]] == ["Strict", "Middle", "Usual"]
        report(live, devices[:1], "keys")  # it has read the public table, which tells nothing yet
        assert page.get("/api/state").json()["can_recommend"] is False
        with pytest.raises(LocalProtocolError, match="no round of this run has ended"):
            devices[0].recommend()
        report(live, devices[1:], "keys")
        assert page.get("/api/sent").json() == {"last": None, "table": None}
        for phase in PHASES[1:]:
            report(live, devices, phase)
        wait_for(lambda: live.rounds.round_number == 2)
        devices[0].step(wait=5)
        shown = page.get("/api/recommendations").json()
        assert "not by the predicted rating alone" in shown["order"]
        rated = {devices[0].catalogue.title_of(item): value for item, value in devices[0].ratings().items()}
        reasons = [reason for item in shown["items"] for reason in item["reasons"]]
        assert reasons
        assert all(reason["rating"] == rated[reason["title"]] >= np.mean(list(rated.values())) for reason in reasons)
        counts = devices[0]._session.predictions.public()["log_counts"]
        first = [item["item"] for item in page.get("/api/search").json()["items"]]
        assert first == [f"item-{n}" for n in np.argsort(-counts, kind="stable")[: len(first)]]  # the most popular
        left = " ".join(page.get("/api/sent").json()["table"])
        assert "Round 1: 24 integers" in left
        assert "at least 4 honest devices" in left
        assert page.post("/api/level", json={"level": 4}).status_code == 204
        state = page.get("/api/state").json()
        assert (state["ledger"]["fixed"], state["ledger"]["rounds"]) == (None, 1)
        used = [level for level in page.get("/api/levels").json()["levels"] if level["in_use"]]
        assert [level["name"] for level in used] == ["Middle"]


def own_epsilon(device: Device) -> float:
    """The most that one run may cost this person."""
    return device.budgets.by_protocol()["masked"]["epsilon"]


def test_a_level_of_ones_own_is_explained_set_and_taken_back_without_a_word_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 and 4.0 are one level; what is typed changes nothing before it is set; the three levels stay as they are."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (_, devices):
        device, page = devices[0], client_of(devices[0])
        monkeypatch.setattr(Device, "_driver", lambda *_, **__: pytest.fail("a level must not be told to the server"))

        def names(own: str | None = None) -> list[str]:
            found = page.get("/api/levels", params={} if own is None else {"own": own}).json()["levels"]
            asked = [] if own is None else [float(own)]
            assert [level["level"] for level in found if level["is_asked"]] == asked
            return [level["name"] + "*" * level["in_use"] for level in found]

        assert names() == names("4") == names("4.0") == names("8") == ["Strict", "Middle", "Usual*"]
        assert names("2.5") == ["Strict", "Your own", "Middle", "Usual*"]
        assert names("0") == ["Your own", "Strict", "Middle", "Usual*"]
        assert own_epsilon(device) == 8
        assert page.post("/api/level", json={"level": 2.5}).status_code == 204
        assert own_epsilon(device) == 2.5
        assert names() == ["Strict", "Your own*", "Middle", "Usual"]
        for wrong in ("", "much", "-1", "8.1", "nan", "inf"):
            refusal = page.get("/api/levels", params={"own": wrong})
            assert (refusal.status_code, refusal.json()["detail"].count(". ")) == (409, 0)
            assert "level must be a number from 0" in refusal.json()["detail"]
        assert page.post("/api/level", json={"level": 9}).status_code == 409
        assert own_epsilon(device) == 2.5
        assert page.post("/api/level", json={"level": 8}).status_code == 204
        assert names() == ["Strict", "Middle", "Usual*"]


def test_a_level_of_ones_own_is_chosen_before_joining(tmp_path: Path) -> None:
    """It is explained beside the others, and a number beyond the run's budget enrols nobody."""
    with (
        live_server(tmp_path, masked_settings(4), items=catalogue()) as live,
        Device.create(tmp_path / "device") as device,
    ):
        page = client_of(device)
        told = page.post("/api/look", json={"server": live.url, "own": "3"}).json()
        (level,) = (one for one in told["levels"] if one["is_asked"])
        assert (level["level"], level["name"]) == (3.0, "Your own")
        assert "of 100 cases" in level["welcome"]
        assert page.post("/api/join", json={"server": live.url, "level": 9}).status_code == 409
        assert (device.has_joined, own_epsilon(device)) == (False, 8.0)
        assert page.post("/api/join", json={"server": live.url, "level": 3}).status_code == 204
        assert (device.has_joined, own_epsilon(device)) == (True, 3.0)


def test_attempts_that_fail_wait_longer_and_then_pause_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each attempt too few devices send shares. The third attempt begins after a wait; after it the run pauses."""
    monkeypatch.setattr("hushrec.service.rounds.MOST_ATTEMPTS", 3)
    clock = Clock()
    with joined(tmp_path, 5, clock=clock) as (live, devices):
        for attempt, wait in enumerate((0, 0, WAIT_SECONDS), 1):
            wait_for_phase(live, Address(1, attempt, "keys"))
            assert live.rounds.held_seconds == pytest.approx(wait)
            if wait:
                assert devices[0].step(wait=wait / 2) == "no round"
            clock.now += wait
            report(live, devices, "keys", attempt=attempt)
            report(live, devices[:2], "shares", attempt=attempt)
            close_phase(live)
        wait_for_phase(live, Address(1, 4, "keys"))
        clock.now += 10_000
        assert live.rounds.held_seconds == math.inf
        assert live.rounds.deadline == 60 + 3 * WAIT_SECONDS
        assert devices[0].step(wait=0.1) == "no round"
        concern = str(live.rounds.concern)
        assert "The run is paused in round 1. Its last attempt failed: there must be at least" in concern
        assert "reports in phase shares, got 2" in concern
    with live_server(tmp_path, masked_settings(5), items=catalogue(), admin_token=live.admin_token) as live:
        assert live.rounds.held_seconds == math.inf  # also after a restart
        assert live.admin("POST", "/v1/admin/start").status_code == 200
        assert live.rounds.server.address == Address(1, 5, "keys")
        assert not live.rounds.is_paused
