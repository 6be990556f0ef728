"""Devices that are not there: rounds end without them, and wait for them again when they return."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from service_kit import (
    OPEN_SOCKETS,
    ROUND_WAIT,
    RUN_ID,
    RawDevice,
    live_server,
    make_body,
    new_device,
    play,
    prepare_known_run,
    small_settings,
    wait_for,
)
from test_service_faults import Clock

from hushrec import wire
from hushrec.errors import ConsentNeeded, RemoteProtocolError
from hushrec.messages import Enrolment
from hushrec.protocols.masked.messages import Consent
from hushrec.service.registry import Device
from hushrec.service.rounds import Rounds
from hushrec.service.settings import RoundSettings, Settings
from hushrec.service.setup import Items
from hushrec.service.storage import Storage
from hushrec.signing import DeviceKey, Request, device_id_of

pytestmark = OPEN_SOCKETS


class Stage:
    """A run without a socket, with a clock that a test moves and devices that have keys."""

    def __init__(self, folder: Path, **rounds: Any) -> None:
        settings = Settings.model_validate({**small_settings().model_dump(), "rounds": rounds})
        self.clock, self.wall = Clock(), Clock(1e9)
        self.storage = Storage(f"sqlite:///{folder / 'server.sqlite'}")
        prepare_known_run(self.storage, settings, Items([f"item-{n}" for n in range(60)], [""] * 60))
        self.rounds = Rounds(self.storage, settings, clock=self.clock, wall_clock=self.wall)
        self.keys: dict[str, DeviceKey] = {}
        self.nonce = 0

    async def join(self, count: int) -> list[Device]:
        """Enrol `count` further devices."""
        joined = []
        for _ in range(count):
            key = DeviceKey.generate()
            enrolment, name = Enrolment(key.public_key), device_id_of(key.public_key)
            request = Request("POST", "/v1/devices", wire.encode(enrolment))
            joined.append(await self.rounds.enrol(enrolment, self.sign(key, name, request), request))
            self.keys[name] = key
        return joined

    def sign(self, key: DeviceKey, name: str, request: Request) -> Any:
        self.nonce += 1
        return key.sign(request, run_id=RUN_ID, device=name, nonce=self.nonce)

    def heard(self, device: Device) -> None:
        """Send an authenticated request of the device."""
        request = Request("GET", "/v1/inbox?after=0")
        self.rounds.registry.authenticate(self.sign(self.keys[device.id], device.id, request), request)

    async def report(self, *devices: Device) -> None:
        """Let each device report in the open round."""
        for device in devices:
            self.heard(device)
            request = Request("POST", "/v1/reports", make_body(self.rounds.round_number, size=1e-4))
            await self.rounds.report(device, self.nonce, request)

    async def advance(self, seconds: float = 0) -> None:
        """Move the clock, and do what the schedule then does."""
        self.clock.now += seconds
        while await self.rounds._advance() == 0.0:
            pass


def played(tmp_path: Path, scenario: Callable[[Stage], Awaitable[None]], **rounds: Any) -> None:
    """Run a scenario with a new server."""

    async def play() -> None:
        stage = Stage(tmp_path, **rounds)
        try:
            await scenario(stage)
        finally:
            stage.storage.close()

    asyncio.run(play())


def test_newcomers_get_a_round_after_one_without_reports(tmp_path: Path) -> None:
    """Two devices enrol and vanish, three join: round 1 closes without reports at its deadline, round 2 asks all."""

    async def scenario(stage: Stage) -> None:
        await stage.join(2)
        await stage.advance()
        assert (stage.rounds.round_number, stage.rounds.is_open) == (1, True)
        newcomers = await stage.join(3)
        await stage.advance(4.9)
        assert stage.rounds.round_number == 1
        await stage.advance(0.2)
        assert (stage.rounds.round_number, stage.rounds.is_open) == (2, True)
        await stage.report(*newcomers)
        await stage.advance(5)
        assert stage.rounds.round_number == 3

    played(tmp_path, scenario, deadline_seconds=5)


def test_a_round_that_an_admin_opens_without_devices_closes_at_its_deadline(tmp_path: Path) -> None:
    """The next round asks the devices that joined meanwhile."""

    async def scenario(stage: Stage) -> None:
        await stage.rounds.start()
        newcomers = await stage.join(2)
        await stage.advance(5)
        assert (stage.rounds.round_number, stage.rounds.is_open) == (2, True)
        await stage.report(*newcomers)
        await stage.advance()
        assert stage.rounds.round_number == 3

    played(tmp_path, scenario, deadline_seconds=5)


def test_rounds_end_while_everybody_sleeps_and_begin_again_when_they_wake(tmp_path: Path) -> None:
    """After `missed_rounds` rounds without reports, no round opens until enough devices return."""

    async def scenario(stage: Stage) -> None:
        devices = await stage.join(2)
        await stage.advance()
        await stage.report(*devices)
        for _ in range(50):
            await stage.advance(6)
        slept = stage.rounds.round_number
        assert (slept <= 5, stage.rounds.is_open) == (True, False)
        stage.heard(devices[0])
        await stage.advance()
        assert not stage.rounds.is_open
        stage.heard(devices[1])
        await stage.advance()
        assert (stage.rounds.round_number, stage.rounds.is_open) == (slept + 1, True)

    played(tmp_path, scenario, deadline_seconds=5)


def test_a_device_that_missed_three_rounds_is_not_waited_for_until_it_returns(tmp_path: Path) -> None:
    """With early_fraction 1 an absent device costs three deadlines; then rounds close at once until it returns."""

    async def scenario(stage: Stage) -> None:
        *others, absent = await stage.join(4)
        await stage.advance()
        for number in (1, 2, 3):
            await stage.report(*others)
            await stage.advance(4)
            assert stage.rounds.round_number == number  # waiting for the absent one
            await stage.advance(1)
        assert stage.rounds.count_present(4) == 3
        await stage.report(*others)
        await stage.advance()
        assert stage.rounds.round_number == 5
        stage.heard(absent)
        assert stage.rounds.count_present(5) == 4
        await stage.report(*others)
        await stage.advance(4)
        assert stage.rounds.round_number == 5
        await stage.report(absent)
        await stage.advance()
        assert stage.rounds.round_number == 6

    played(tmp_path, scenario, early_fraction=1.0, deadline_seconds=5)


def test_a_round_that_may_close_early_waits_a_moment_for_the_others(tmp_path: Path) -> None:
    """4 reports of 5 devices close a round after the grace; 5 close it at once."""

    async def scenario(stage: Stage) -> None:
        devices = await stage.join(5)
        await stage.advance()
        await stage.report(*devices[:4])
        await stage.advance()
        await stage.advance(9)
        assert stage.rounds.round_number == 1
        await stage.advance(1)
        assert stage.rounds.round_number == 2
        await stage.report(*devices)
        await stage.advance()
        assert stage.rounds.round_number == 3

    played(tmp_path, scenario)


def test_no_device_gets_the_message_of_another_whose_memory_is_used_again(tmp_path: Path) -> None:
    """A new message may have the `id()` of a deleted one, but is never taken for it by the cache of encodings."""

    async def scenario(stage: Stage) -> None:
        await stage.join(2)
        await stage.advance()
        first = stage.rounds._encoded(Consent(bytes(64)))
        later = [Consent(bytes([1] * 64)) for _ in range(1000)]
        assert first not in map(stage.rounds._encoded, later)

    played(tmp_path, scenario)


def test_the_defaults_let_no_absent_device_hold_a_run_up() -> None:
    """Four fifths of the devices close a round; a hundred rounds that wait for their deadline take at most 4 hours."""
    defaults = RoundSettings()
    assert (defaults.early_fraction, defaults.missed_rounds) == (0.8, 3)
    assert defaults.deadline_seconds * 100 <= 4 * 3600


def test_the_admin_sees_when_a_device_was_last_seen_and_what_it_missed(tmp_path: Path) -> None:
    """The list of devices is the same after a restart."""
    settings = small_settings(rounds={"early_fraction": 0.5, "grace_seconds": 0})
    with live_server(tmp_path, settings, wall_clock=Clock(5e8)) as live, RawDevice(live) as one, RawDevice(live) as two:
        wait_for(lambda: live.rounds.is_open)
        for number in (1, 2):
            assert one.report(make_body(number, size=1e-4)).status_code == 200
            wait_for(lambda number=number: live.rounds.round_number == number + 1)
        token = live.admin_token
        before = live.admin("GET", "/v1/admin/devices").json()["devices"]
    with live_server(tmp_path, settings, admin_token=token) as live:
        after = live.admin("GET", "/v1/admin/devices").json()["devices"]
    assert sorted(after, key=str) == sorted(before, key=str)
    found = {entry["id"]: (entry["last_round"], entry["missed"], entry["last_seen"]) for entry in after}
    assert found == {one.name: (2, 0, 5e8), two.name: (0, 2, 5e8)}


@pytest.mark.parametrize("state", ["left", "revoked"])
def test_a_device_that_is_gone_is_not_waited_for(tmp_path: Path, state: str) -> None:
    """Neither if it left nor if it was revoked."""

    async def scenario(stage: Stage) -> None:
        *others, gone = await stage.join(3)
        await stage.advance()
        await (stage.rounds.leave(gone) if state == "left" else stage.rounds.revoke(gone.id))
        assert stage.rounds.count_present(1) == 2
        await stage.report(*others)
        await stage.advance()
        assert stage.rounds.round_number == 2

    played(tmp_path, scenario, early_fraction=1.0)


def test_a_run_that_is_over_can_be_extended_with_consent(tmp_path: Path) -> None:
    """A device that did not agree refuses further rounds; one that did takes part, without a new draw or enrolment."""
    settings = small_settings(terms={"rounds": 1}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        with pytest.raises(RemoteProtocolError, match="not over"):
            device.follow()
        assert play([device]) == [1]
        assert live.admin("POST", "/v1/admin/extend/2").json()["over"] is False
        assert live.admin("POST", "/v1/admin/extend/2").status_code == 409
        with pytest.raises(ConsentNeeded, match=r"2 further rounds.*--next") as consent:
            device.step(wait=ROUND_WAIT)
        assert consent.value.code == "next"
        device.follow()
        assert play([device]) == [2]
        assert device.budget()["rounds"] == 3
        token = live.admin_token
    with live_server(tmp_path, settings, admin_token=token) as live:  # the same settings, and the run that was extended
        assert live.rounds.offer.terms.max_rounds == 3
