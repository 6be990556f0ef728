"""A hostile device of a masked run: refused, passed over, or left out after the attempt that it spoiled."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from masked_kit import (
    PHASES,
    close_phase,
    joined,
    masked_settings,
    new_people,
    play_round,
    report,
    tables_of,
    wait_for_phase,
)
from service_kit import OPEN_SOCKETS, RUN_ID, Live, RawDevice, wait_for
from test_masked_parties import run_of, survivors_of

from hushrec import Device, wire
from hushrec.client import Client
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.messages import Address, Envelope
from hushrec.protocols.masked.messages import Consent, MaskedTable, SealedShares, Unmasking
from hushrec.protocols.masked.secagg.roster import PublicKeys, keys_text
from hushrec.protocols.masked.server_round import ServerRound
from hushrec.protocols.masked.server_side import MANY_ATTEMPTS
from hushrec.protocols.simulated import simulated_secret
from hushrec.signing import DeviceKey

pytestmark = OPEN_SOCKETS

HOSTILE = 4
NEXT_ROUND = Address(2, 1, "keys")
OTHER = Consent(bytes(64))

Change = Callable[[Any], Any]


def spoil(client: Client, change: Change) -> None:
    """Let a device change what it sends."""
    honest = client.report

    def report(address: Address, message: Any) -> Any:
        return change(honest(address, message))

    client.report = report  # type: ignore[method-assign]


def garbage_shares(sent: Any) -> Any:
    """Shares that nobody can open."""
    return replace(sent, sealed=(bytes(148),) * len(sent.sealed)) if isinstance(sent, SealedShares) else sent


def swapped_shares(sent: Any) -> Any:
    """Everybody gets what was sealed for somebody else."""
    return replace(sent, sealed=sent.sealed[::-1]) if isinstance(sent, SealedShares) else sent


def wrong_unmasking(sent: Any) -> Any:
    """Shares of others that are none."""
    return Unmasking(sent.owners, (bytes(66),) * len(sent.shares)) if isinstance(sent, Unmasking) else sent


def huge_table(sent: Any) -> Any:
    """Integers that no honest device sends."""
    return replace(sent, numbers=sent.numbers + np.uint32(2**30)) if isinstance(sent, MaskedTable) else sent


def attempts_of(engine: ReferenceEngine) -> int:
    """How many attempts the last round had."""
    return int(engine.server.side.attempt.announcement.attempt)


def signed_keys(device: Device, live: Live, signer: Ed25519PrivateKey | None = None, **changes: bytes) -> Change:
    """A device that changes its keys, and signs them; with its own key unless another is given."""
    identity = signer or Ed25519PrivateKey.from_private_bytes(device._session.store.required("key"))
    announcement = live.rounds.server.side.attempt.announcement.digest

    def change(sent: Any) -> Any:
        if not isinstance(sent, PublicKeys):
            return sent
        changed = replace(sent, **changes)
        return replace(changed, signature=identity.sign(keys_text(announcement, *changed.parts()[:-1])))

    return change


@pytest.mark.parametrize("is_stored", [False, True])
def test_over_http_keys_of_low_order_are_refused_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """Also if they are in the database already: they count as missing when the phase closes."""
    with joined(tmp_path, 6) as (live, devices):
        wait_for_phase(live, Address(1, 1, "keys"))
        spoil(devices[0]._session.client(), signed_keys(devices[0], live, mask_key=bytes(32)))
        if is_stored:
            with monkeypatch.context() as patch:
                patch.setattr(ServerRound, "_check_keys", lambda *_: None)
                report(live, devices[:1], "keys")
        else:
            with pytest.raises(RemoteProtocolError, match="X25519"):
                devices[0].step(wait=5)
            assert live.rounds.n_reports == 0
        finish_without_first(live, devices)


def test_over_http_keys_that_name_another_identity_than_the_enrolled_one_are_refused(tmp_path: Path) -> None:
    """Although they are signed with it: the roster would name a key that belongs to no device of the run."""
    with joined(tmp_path, 6) as (live, devices):
        wait_for_phase(live, Address(1, 1, "keys"))
        another = Ed25519PrivateKey.generate()
        own = {"identity": another.public_key().public_bytes_raw()}
        spoil(devices[0]._session.client(), signed_keys(devices[0], live, another, **own))
        with pytest.raises(RemoteProtocolError, match="enrolled"):
            devices[0].step(wait=5)
        assert live.rounds.n_reports == 0
        devices[1].rotate_key()  # the new key is the enrolled one from now on
        finish_without_first(live, devices)


def test_over_http_a_device_that_names_the_identity_of_another_is_left_out_alone(tmp_path: Path) -> None:
    """Identities are the same in every attempt, so that everybody knows them from earlier rosters."""
    with joined(tmp_path, 6) as (live, devices):
        wait_for_phase(live, Address(1, 1, "keys"))
        identity = DeviceKey.from_bytes(devices[1]._session.store.required("key")).public_key
        spoil(devices[0]._session.client(), signed_keys(devices[0], live, mask_key=identity))
        report(live, devices[:1], "keys")
        finish_without_first(live, devices)


def finish_without_first(live: Live, devices: list[Device]) -> None:
    """All but the first device report, and the round ends in its first attempt."""
    for phase in PHASES:
        report(live, devices[1:], phase)
        if phase == "keys" and live.rounds.n_reports == len(devices) - 1:  # the first one's were refused
            close_phase(live)
    wait_for(lambda: live.rounds.server.side.learner.round_number == 1)
    assert tables_of(devices) == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("change", [garbage_shares, swapped_shares])
@pytest.mark.parametrize("leaves", [False, True])
def test_shares_that_nobody_can_open_spoil_one_attempt_of_a_run(change: Change, leaves: bool) -> None:
    """Whether it sends a table or leaves before: its secret cannot be rebuilt, and from then on it is not asked."""
    engine = run_of(reserve=0.5)
    spoil(engine.clients[HOSTILE], change)
    if leaves:
        engine.absent = lambda address: {HOSTILE} if address.phase in PHASES[2:] else set()
    rounds = []
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
        rounds.append(attempts_of(engine))
        assert HOSTILE not in survivors_of(engine)
    assert rounds == [2, *[1] * (len(rounds) - 1)]
    assert engine.server.side.suspects == {str(HOSTILE)}


def test_an_operator_hears_of_probes_that_find_a_false_table_and_cost_nobody_budget() -> None:
    """Honest devices pay for the spoiled table and for the good one; the concern speaks of probes only in probes."""
    engine, heard = run_of(reserve=0.5), {}
    side = engine.server.side
    spoil(engine.clients[HOSTILE], huge_table)

    def listen(address: Address) -> set[int]:
        heard[address.attempt] = side.attempt.announcement.probe, "is a probe" in str(side.concern)
        return set()

    engine.absent = listen
    engine.run_round()
    attempts = attempts_of(engine)
    assert side.suspects == {str(HOSTILE)}
    assert attempts > MANY_ATTEMPTS
    assert heard == {n: (1 < n < attempts, MANY_ATTEMPTS <= n < attempts) for n in range(1, attempts + 1)}
    assert {client.ledger["table"].tables for user, client in engine.clients.items() if user != HOSTILE} == {2}


def test_wrong_shares_of_others_are_passed_over() -> None:
    """One liar among ten helpers: every secret has other shares, and nobody is suspected."""
    engine = run_of()
    spoil(engine.clients[HOSTILE], wrong_unmasking)
    engine.run_round()
    assert attempts_of(engine) == 1
    assert engine.server.side.suspects == frozenset()


def test_helpers_that_leave_are_not_blamed_on_the_owners() -> None:
    """Too few shares because too many left: the next attempt asks everybody."""
    engine = run_of()
    engine.absent = lambda address: set(range(6)) if (address.attempt, address.phase) == (1, "unmask") else set()
    engine.run_round()
    assert (attempts_of(engine), engine.server.side.suspects) == (2, frozenset())


def shared_key(engine: ReferenceEngine, user: int) -> Change:
    """A device that uses a mask key which another hostile device uses as well."""
    identity = Ed25519PrivateKey.from_private_bytes(simulated_secret(engine.problem.seed, user))

    def change(sent: Any) -> Any:
        if not isinstance(sent, PublicKeys):
            return sent
        changed = replace(sent, mask_key=bytes(range(1, 33)))
        announcement = engine.server.side.attempt.announcement.digest
        return replace(changed, signature=identity.sign(keys_text(announcement, *changed.parts()[:-1])))

    return change


def other_secrets(sent: Any) -> Any:
    """Shares that open, but that are not the committed ones."""
    if not isinstance(sent, SealedShares):
        return sent
    return replace(sent, commitments=(bytes(64),) * len(sent.commitments))


PEOPLE, C_MAX = 24, 4
TOGETHER = {
    "keys and shares": {0: shared_key, 7: shared_key, 13: garbage_shares, 21: other_secrets},
    "shares": {0: garbage_shares, 7: other_secrets, 13: swapped_shares, 21: wrong_unmasking},
    "unmasking": {0: wrong_unmasking, 7: wrong_unmasking, 13: wrong_unmasking, 21: None},
    "one table": {0: shared_key, 7: shared_key, 13: garbage_shares, 21: huge_table},
}


@pytest.mark.parametrize("together", TOGETHER)
def test_a_run_with_c_max_hostile_devices_ends_in_few_attempts(together: str) -> None:
    """A failed attempt finds a culprit; a false table is left out after n/(n − n_min) attempts at the latest."""
    engine = run_of(n_users=PEOPLE, survivors=0.7083, corrupt=0.23, reserve=0.5)
    rules = engine.problem.terms.rules
    assert (rules.most_corrupt, rules.smallest) == (C_MAX, 17)
    silent = set()
    for user, change in TOGETHER[together].items():
        if change is None:
            silent.add(user)
        else:
            spoil(engine.clients[user], shared_key(engine, user) if change is shared_key else change)
    engine.absent = lambda address: silent if address.phase == "unmask" else set()
    attempts = []
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
        attempts.append(attempts_of(engine))
    failed = sum(attempts) - len(attempts)
    tables = math.ceil((PEOPLE - 3) / (PEOPLE - 3 - rules.smallest)) if together == "one table" else 0
    assert failed <= C_MAX + tables
    assert engine.server.side.suspicion.culprits <= set(map(str, TOGETHER[together]))
    if together == "unmasking":  # t right shares remain, so no attempt fails and nobody has to be found
        assert failed == 0
    else:
        assert engine.server.side.suspicion.culprits


def test_devices_that_share_a_key_are_left_out_unless_they_are_needed() -> None:
    """With n_min devices and no more, they end every attempt in its first phase, which costs nobody anything."""
    engine = run_of(n_users=6, survivors=1.0, corrupt=0.0)
    for user in (2, 3):
        spoil(engine.clients[user], shared_key(engine, user))
    with pytest.raises(LocalProtocolError, match="failed 30 times"):
        engine.run_round()
    side = engine.server.side
    assert side.suspects == {"2", "3"}
    assert "Revoke" in side.concern
    assert [client.ledger["table"].tables for client in engine.clients.values()] == [0] * 6


@pytest.mark.parametrize("change", [garbage_shares, huge_table])
def test_over_http_a_device_that_spoils_an_attempt_is_left_out_of_the_next(tmp_path: Path, change: Change) -> None:
    """The others pay for one attempt more, and finish the round. Probes find who sends a huge table, and are free."""
    settings = masked_settings(6, terms={"survivors": 0.8, "reserve": 0.5})
    with joined(tmp_path, 6, settings) as (live, devices):
        spoil(devices[0]._session.client(), change)
        attempt = 0
        while live.rounds.server.side.learner.round_number == 0:
            attempt += 1
            asked = [device for device in devices if device._session.name in live.rounds.server.asked]
            play_round(live, asked, 1, attempt)
            after = Address(1, attempt + 1, "keys")
            wait_for(lambda after=after: live.rounds.is_open and live.rounds.server.address in (after, NEXT_ROUND))
        side = live.rounds.server.side
        assert side.suspects == {str(devices[0]._session.name)}
        assert tables_of(devices[1:]) == [2] * 5
        assert attempt == 2 or change is huge_table  # whose shares are garbage is known at once


def test_over_http_a_run_pauses_while_no_suspect_can_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Six devices must stay. With six, one spoiled attempt is paid for; with seven, probes find the device."""
    settings = masked_settings(7, terms={"survivors": 0.8, "reserve": 0.5}, rounds={"min_devices": 6})
    with caplog.at_level("INFO", "hushrec.service"), joined(tmp_path, 6, settings) as (live, devices):
        spoil(devices[0]._session.client(), huge_table)
        liar = devices[0]._session.name
        play_round(live, devices)
        wait_for_phase(live, Address(1, 2, "keys"))
        assert live.rounds.is_paused
        assert {device.step(wait=0.1) for device in devices} == {"no round"}
        assert tables_of(devices[1:]) == [1] * 5
        assert "No suspect can be left out: of 6 devices, 6 must stay." in live.rounds.concern
        wait_for(lambda: "run-paused" in caplog.text)
        assert caplog.text.count("the sum was discarded: honest devices cannot have made it.") == 1
        assert all(str(device._session.name) not in caplog.text for device in devices)
        (newcomer,) = new_people(tmp_path / "more", 1)
        newcomer.join(live.url)
        everybody = [*devices, newcomer]
        assert live.admin("POST", "/v1/admin/start").status_code == 200
        attempt = 2
        while live.rounds.server.side.learner.round_number == 0:
            attempt += 1
            wait_for_phase(live, Address(1, attempt, "keys"))
            marks = {row["id"]: row for row in live.admin("GET", "/v1/admin/devices").json()["devices"]}
            assert marks[str(liar)]["suspected"]
            asked = [device for device in everybody if device._session.name in live.rounds.server.asked]
            assert {name for name, row in marks.items() if not row["left_out"]} == {d._session.name for d in asked}
            play_round(live, asked, 1, attempt)
            after = Address(1, attempt + 1, "keys")
            wait_for(lambda after=after: not live.rounds.is_open or live.rounds.server.address in (after, NEXT_ROUND))
        assert live.rounds.server.side.suspects == {str(liar)}
        assert tables_of(devices[1:]) == [2] * 5
        (row,) = live.admin("GET", "/v1/admin/rounds").json()["rounds"]
        assert [failure["attempt"] for failure in row["failures"]] == list(range(1, attempt))
        assert row["failures"][0]["reason"].startswith("the sum was discarded")
        newcomer.close()


def test_the_same_report_twice_counts_once_and_another_is_refused(tmp_path: Path) -> None:
    """In every phase: the same bytes are acknowledged again, other ones are not taken."""
    with joined(tmp_path, 4, masked_settings(4, terms={"survivors": 1.0})) as (live, devices), RawDevice(live) as raw:
        raw.name = str(devices[0]._session.name)
        raw.key = DeviceKey.from_bytes(devices[0]._session.store.required("key"))
        sent: list[Any] = []
        spoil(devices[0]._session.client(), lambda message: sent.append(message) or message)
        for phase in PHASES:
            report(live, devices[:1], phase)
            again, other = (wire.encode(Envelope.to(RUN_ID, Address(1, 1, phase), m)) for m in (sent[-1], OTHER))
            assert raw.report(again).status_code == 200
            assert raw.report(other).status_code == 409
            assert live.rounds.n_reports == 1
            report(live, devices[1:], phase)
        wait_for(lambda: live.rounds.server.side.learner.round_number == 1)
        assert tables_of(devices) == [1] * 4
