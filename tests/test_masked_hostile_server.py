"""A malicious server, lie by lie: a real device over HTTP refuses, and nothing more leaves it.

One honest round is recorded before each of its phases. Each test then opens a copy of the device's store and answers
its requests with one lie, signed with the server's own key where that helps the lie.
"""

import copy
import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lying_kit import DEVICES, SMALLEST, Honest, Told, connected, kept_by, record_round
from masked_kit import PHASES
from offline_kit import OfflineServer, make_small_offer
from service_kit import OPEN_SOCKETS, RUN_ID
from test_masked_rounds import Attempt

from hushrec import Device, wire
from hushrec.device import joining
from hushrec.errors import AttemptFailed, RemoteProtocolError
from hushrec.messages import Address, Catalogue, Offer, Public
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.device_round import Idle
from hushrec.protocols.masked.device_state import attempt_in
from hushrec.protocols.masked.messages import Announcement, Consent, Partners, Quorum
from hushrec.protocols.masked.secagg.device import draw_secrets, make_keys, pair_key
from hushrec.protocols.masked.secagg.primitives import SELF_LABEL, Keystream, derive, load_private
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, bitmap, device_name, masks_text, partners_digest
from hushrec.protocols.masked.server_round import Phase
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SystemStream

pytestmark = OPEN_SOCKETS

MARK = 12345.5  # a number that a lie puts something else for


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    """One round for all tests; each takes copies of its stores."""
    return record_round(tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("phase", PHASES)
def test_the_device_of_these_tests_answers_an_honest_server(honest: Honest, tmp_path: Path, phase: str) -> None:
    """What is refused below is refused for its lie."""
    shutil.copytree(honest.folder / phase, tmp_path / "device")
    told = Told(honest.messages[phase], public=honest.public)
    with connected(tmp_path / "device", told) as device:
        assert device.step() == "reported"
    assert len(told.left) == 1


def widen_rows(arrays: Arrays) -> None:
    """A column that changes nothing, but that a device would have to compute with."""
    arrays["rows"] = np.hstack([arrays["rows"], np.zeros((len(arrays["rows"]), 1))])
    arrays["directions"] = np.vstack([arrays["directions"], np.zeros((1, arrays["directions"].shape[1]))])


def add_array(arrays: Arrays) -> None:
    """An array that no model has."""
    arrays["more"] = np.ones(3)


def double_round(arrays: Arrays) -> None:
    """Two numbers where one stands."""
    arrays["round_number"] = np.zeros(2)


def exceed_plan(arrays: Arrays) -> None:
    """A round that no plan has, and from which the device would think that the run is over."""
    arrays["round_number"] = np.array(99.0)


def precede_plan(arrays: Arrays) -> None:
    """A round before the first."""
    arrays["round_number"] = np.array(-1.0)


def with_terms(honest: Honest, terms: Any) -> Told:
    """A server that announces another table, and serves it with these terms."""
    told = with_table(honest, shift_offsets)
    told.public = wire.encode(dataclasses.replace(wire.decode(told.public, Public), terms=terms))
    return told


# The lies --------------------------------------------------------------------------------------------------------


def with_table(
    honest: Honest,
    change: Callable[[Arrays], None],
    mark: bytes | None = None,
    address: Address | None = None,
    **changes: Any,
) -> Told:
    """A server that announces another table, and serves it; `mark` takes the place of `MARK` in its bytes."""
    public = wire.decode(honest.public, Public)
    arrays = {name: np.array(array) for name, array in public.by_name().items()}
    change(arrays)
    body = wire.encode(Public.of(RUN_ID, public.round_number, public.terms, arrays))
    if mark is not None:
        assert np.float32(MARK).tobytes() in body
        body = body.replace(np.float32(MARK).tobytes(), mark)
        arrays["offsets"][0] = np.frombuffer(mark, dtype=np.float32)[0]
    return Told(honest.announce(table_digest=published_digest(arrays), **changes), address, body)


def mark_offset(arrays: Arrays) -> None:
    """Put the mark where a lie will stand."""
    arrays["offsets"][0] = MARK


def cut_offsets(arrays: Arrays) -> None:
    """Leave out the last item."""
    arrays["offsets"] = arrays["offsets"][:-1]


def shift_offsets(arrays: Arrays) -> None:
    """Make another table that a device would accept."""
    np.copyto(arrays["offsets"], 3.25)


def weaker(terms: MaskedTerms) -> MaskedTerms:
    """The same terms with a quarter of the noise: no constructor lets them pass, and a liar uses none."""
    changed = copy.deepcopy(terms)
    for codes in changed.priced.codes:
        for code in codes:
            object.__setattr__(code, "share_variance", code.share_variance // 4)
    changed.__dict__.pop("digest", None)
    return changed


def roster_of(honest: Honest, entries: list[PublicKeys], announcement: bytes | None = None) -> Roster:
    """A roster of these entries, in its order."""
    return Roster(announcement or honest.roster.announcement, tuple(sorted(entries, key=lambda entry: entry.device)))


def own_devices(honest: Honest, count: int, announcement: bytes) -> list[PublicKeys]:
    """Keys of devices that the server runs itself, each signed with an identity of its own."""
    return [
        make_keys(draw_secrets(rng=SystemStream()), announcement, device_name(n + 1), Ed25519PrivateKey.generate())
        for n in range(count)
    ]


def own_entry(honest: Honest) -> PublicKeys:
    """The keys that the device sent."""
    return honest.roster.entries[honest.own]


def replaced(honest: Honest, position: int, **changes: bytes) -> Roster:
    """The roster with other keys in one place."""
    entries = list(honest.roster.entries)
    entries[position] = dataclasses.replace(entries[position], **changes)
    return roster_of(honest, entries)


def partners(honest: Honest, shown: list[int], senders: list[int] | None = None) -> Partners:
    """What the honest server said, with other partners and senders."""
    true = honest.messages["table"]
    sealed = dict(zip(map(int, true.senders), true.sealed, strict=True))
    chosen = [one for one in shown if one != honest.own] if senders is None else senders
    return Partners(bitmap(shown, DEVICES), np.array(chosen), tuple(sealed.get(one, bytes(148)) for one in chosen))


def masked_for(honest: Honest, position: int, partners: list[int]) -> bytes:
    """The signature of a device with this list of partners."""
    return honest.identities[position].sign(masks_text(partners_digest(honest.roster, partners)))


def quorum(signatures: dict[int, bytes]) -> Quorum:
    """These signatures, by position."""
    return Quorum(np.array(sorted(signatures)), tuple(signatures[one] for one in sorted(signatures)))


def everybody() -> list[int]:
    """All positions of the roster."""
    return list(range(DEVICES))


Lie = Callable[[Honest], Told]
STRANGER = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
LIES: dict[str, tuple[str, str, Lie]] = {  # what it is → store before this phase, reason of the refusal, the lie
    # An announcement, and the public table.
    "signed by another server": ("keys", "signed", lambda h: Told(h.announce(key=STRANGER), public=h.public)),
    "a table that was signed as a probe": (
        "keys", "signed", lambda h: Told(dataclasses.replace(h.announce(probe=True), probe=False), public=h.public),
    ),
    "a probe that was signed as a table": (
        "keys", "signed", lambda h: Told(dataclasses.replace(h.announce(), probe=True), public=h.public),
    ),
    "of another run": ("keys", "run that this device joined", lambda h: Told(h.announce(), run_id="cd" * 16)),
    "a changed plan": ("keys", "terms", lambda h: Told(h.announce(terms_digest=bytes(32)), public=h.public)),
    "a weaker noise share": (
        "keys", "terms", lambda h: Told(h.announce(terms_digest=weaker(h.terms).digest), public=h.public),
    ),
    "a round that the plan has not": (
        "keys", "round", lambda h: Told(h.announce(99), Address(99, 1, "keys"), h.public),
    ),
    "announced with another table than it serves": (
        "keys", "table", lambda h: Told(h.announce(table_digest=bytes(32)), public=h.public),
    ),
    "a table with a NaN row": (
        "keys", "finite", lambda h: with_table(h, mark_offset, np.float32(np.nan).tobytes()),
    ),
    "a table with an infinite row": (
        "keys", "finite", lambda h: with_table(h, mark_offset, np.float32(np.inf).tobytes()),
    ),
    "a table that is too short": ("keys", "offsets|rows|row", lambda h: with_table(h, cut_offsets)),
    "a table with a further array": ("keys", "known arrays", lambda h: with_table(h, add_array)),
    "a table without its round": ("keys", "round_number", lambda h: with_table(h, lambda a: a.pop("round_number"))),
    "a table after two rounds at once": ("keys", "round_number", lambda h: with_table(h, double_round)),
    "a table of terms that are no terms": ("keys", "terms must be", lambda h: with_terms(h, Consent(bytes(64)))),
    "a table of another protocol's terms": ("keys", "terms must be", lambda h: with_terms(h, make_small_offer().terms)),
    "a table after more rounds than the plan has": ("keys", "round_number", lambda h: with_table(h, exceed_plan)),
    "a table after fewer rounds than none": ("keys", "round_number", lambda h: with_table(h, precede_plan)),
    "a later attempt in the envelope of this one": (
        "keys", "of its envelope", lambda h: Told(h.announce(1, 2), Address(1, 1, "keys"), h.public),
    ),
    "a replayed attempt": ("shares", "in order", lambda h: Told(h.announce())),
    "a replayed attempt in a new envelope": (
        "shares", "later|envelope", lambda h: Told(h.announce(), Address(1, 2, "keys")),
    ),
    "a probe of the attempt of a table": ("shares", "in order", lambda h: Told(h.announce(probe=True))),
    "a probe of the attempt of a table in a new envelope": (
        "shares", "later|envelope", lambda h: Told(h.announce(probe=True), Address(1, 2, "keys")),
    ),
    "a replayed round": ("after", "in order", lambda h: Told(h.announce())),
    "a new attempt in an old envelope": ("shares", "in order|later", lambda h: Told(h.announce(1, 2))),
    "another table in a replayed attempt": ("table", "in order", lambda h: with_table(h, shift_offsets)),
    "another table in a replayed attempt in a new envelope": (
        "table", "later", lambda h: with_table(h, shift_offsets, address=Address(1, 2, "keys")),
    ),
    "another table in a new attempt signed by another server": (
        "table", "signed",
        lambda h: with_table(h, shift_offsets, address=Address(1, 2, "keys"), attempt=2, key=STRANGER),
    ),
    # A roster.
    "a roster of another announcement": (
        "shares", "announcement",
        lambda h: Told(roster_of(h, list(h.roster.entries), h.announce(1, 2).digest)),
    ),
    "a roster without this device": (
        "shares", "keys",
        lambda h: Told(roster_of(h, [h.roster.entries[n] for n in h.others])),
    ),
    "a roster with other keys for this device": (
        "shares", "keys", lambda h: Told(replaced(h, h.own, mask_key=bytes(range(32)))),
    ),
    "a roster with other keys for somebody else": (
        "shares", "signed",
        lambda h: Told(replaced(h, h.others[0], channel_key=bytes(range(32)))),
    ),
    "a roster below n_min": (
        "shares", f"at least {SMALLEST}",
        lambda h: Told(
            roster_of(h, [own_entry(h), *(h.roster.entries[n] for n in h.others[: SMALLEST - 2])]),
        ),
    ),
    "a roster of the server's own devices, below n_min": (
        "shares", f"at least {SMALLEST}",
        lambda h: Told(
            roster_of(h, [own_entry(h), *own_devices(h, SMALLEST - 2, h.roster.announcement)]),
        ),
    ),
    "a roster of devices that answered something else": (
        "shares", "signed",
        lambda h: Told(roster_of(h, [own_entry(h), *own_devices(h, SMALLEST, bytes(32))])),
    ),
    "a roster that names a device twice": (
        "shares", "once|ascending",
        lambda h: Told(h.roster, alter=repeat_entry(h)),
    ),
    "a roster cut short on the way": (
        "shares", "message", lambda h: Told(h.roster, alter=lambda body: body[:-7]),
    ),
    # Partners: who sent shares.
    "too few partners": (
        "table", f"at least {SMALLEST}",
        lambda h: Told(partners(h, sorted([h.own, *h.others[: SMALLEST - 2]]))),
    ),
    "partners without this device": (
        "table", "this device", lambda h: Told(partners(h, h.others)),
    ),
    "shares of somebody who is no partner": (
        "table", "shares",
        lambda h: Told(partners(h, sorted([h.own, *h.others[:-1]]), h.others)),
    ),
    "shares of the device itself": (
        "table", "this device", lambda h: Told(partners(h, everybody(), everybody())),
    ),
    "a bitmap of the wrong length": (
        "table", "bitmap",
        lambda h: Told(dataclasses.replace(h.messages["table"], partners=bytes(2))),
    ),
    "a bitmap beyond the roster": (
        "table", "positions",
        lambda h: Told(dataclasses.replace(h.messages["table"], partners=b"\xff")),
    ),
    "survivors before any table": (
        "table", "in order", lambda h: Told(h.survivors(everybody())),
    ),
    "survivors in the envelope of tables": (
        "table", "message must be", lambda h: Told(h.survivors(everybody()), Address(1, 1, "table")),
    ),
    # Survivors: whose tables arrived.
    "survivors below n_min": (
        "consent", f"at least {SMALLEST}",
        lambda h: Told(h.survivors([h.own, *h.others[: SMALLEST - 2]])),
    ),
    "a lie that this device dropped out": (
        "consent", "this device", lambda h: Told(h.survivors(h.others)),
    ),
    "survivors of the wrong length": (
        "consent", "bitmap", lambda h: Told(dataclasses.replace(h.messages["consent"], survivors=b"\xf8\x00")),
    ),
    "a survivor that has signed another list of partners": (
        "consent", "list of partners",
        lambda h: Told(h.survivors(everybody(), {h.others[0]: masked_for(h, h.others[0], h.others[1:])})),
    ),
    "a survivor that another one has signed for": (
        "consent", "list of partners",
        lambda h: Told(h.survivors(everybody(), {h.others[0]: masked_for(h, h.others[1], everybody())})),
    ),
    "a survivor without a signature": (
        "consent", "list of partners",
        lambda h: Told(
            dataclasses.replace(h.survivors(h.others[1:]), survivors=bitmap(everybody(), DEVICES)),
        ),
    ),
    "a second list of survivors": (
        "unmask", "in order",
        lambda h: Told(h.survivors([h.own, *h.others[:-1]])),
    ),
    "a second list in the envelope of a quorum": (
        "unmask", "message must be",
        lambda h: Told(h.survivors([h.own, *h.others[:-1]]), Address(1, 1, "unmask")),
    ),
    # A quorum: who signed.
    "a quorum of too few": (
        "unmask", "signatures of the survivors",
        lambda h: Told(quorum(dict(list(h.consents(everybody()).items())[:2]))),
    ),
    "survivors' lists that differ": (
        "unmask", "signatures of the survivors",
        lambda h: Told(quorum(h.consents(sorted([h.own, *h.others[:-1]])))),
    ),
    "forged signatures": (
        "unmask", "signatures of the survivors",
        lambda h: Told(quorum(dict.fromkeys(everybody(), bytes(64)))),
    ),
    "one signature for all": (
        "unmask", "signatures of the survivors",
        lambda h: Told(quorum(dict.fromkeys(everybody(), h.consents(everybody())[0]))),
    ),
    "signatures of strangers": (
        "unmask", "signatures of the survivors",
        lambda h: Told(
            quorum({at + DEVICES: signed for at, signed in h.consents(everybody()).items()})),
    ),
    "asking for the other shares as well": (
        "after", "in order", lambda h: Told(quorum(h.consents(everybody()))),
    ),
    "asking for the other shares with another list": (
        "after", "in order",
        lambda h: Told(h.survivors([h.own, *h.others[:-1]])),
    ),
}  # fmt: skip


def repeat_entry(honest: Honest) -> Callable[[bytes], bytes]:
    """Name one device of the roster where another stands."""
    first, second = (honest.roster.entries[n].device for n in honest.others[:2])
    return lambda body: body.replace(second, first)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_nothing_leaves(honest: Honest, tmp_path: Path, lie: str) -> None:
    """No report is sent, and nothing is paid.

    A lie in an announcement, out of order or unreadable stops the device and changes nothing: the honest message is
    answered afterwards. A lie inside an attempt ends the attempt for this device: it answers the next announcement.
    """
    phase, reason, tell = LIES[lie]
    shutil.copytree(honest.folder / phase, tmp_path / "device")
    told = tell(honest)
    is_inside = not isinstance(told.message, Announcement) and reason not in ("in order", "message", "once|ascending")
    with connected(tmp_path / "device", told) as device:
        before = kept_by(device)
        if is_inside:
            assert device.step() == "refused"
            assert re.search(reason, device.status().refusal)
            assert isinstance(attempt_in(device._session.store.private_state()), Idle)
            before["private_state"] = device._store.get("private_state") or b""
        else:
            with pytest.raises(RemoteProtocolError, match=reason):
                device.step()
            assert device.status().refusal == ""
        assert told.left == []
        assert kept_by(device) == before
        if is_inside:
            told.message, told.address, told.public = honest.announce(1, 2), Address(1, 2, "keys"), honest.public
            assert device.step() == "reported"
            assert re.search(reason, device.status().refusal)  # until an attempt is finished
        elif phase != "after":
            told.message, told.address, told.public = honest.messages[phase], None, honest.public
            told.run_id, told.alter = RUN_ID, lambda body: body
            assert device.step() == "reported"


def test_a_table_that_does_not_fit_the_round_is_refused_before_any_rating_is_read(
    honest: Honest, tmp_path: Path
) -> None:
    """No keys are sent, and the honest attempt that follows is answered."""
    shutil.copytree(honest.folder / "keys", tmp_path / "device")
    told = with_table(honest, widen_rows)
    with connected(tmp_path / "device", told) as device:
        with pytest.raises(RemoteProtocolError, match="rows"):
            device.step()
        assert told.left == []
        told.message, told.public = honest.messages["keys"], honest.public
        assert device.step() == "reported"


def test_no_table_is_made_from_another_public_table_than_was_announced(honest: Honest, tmp_path: Path) -> None:
    """The stored public table is another one: the device fetches it again, and sends nothing if it is still another."""
    shutil.copytree(honest.folder / "table", tmp_path / "device")
    told = with_table(honest, shift_offsets)
    other, told.message = told.public, honest.messages["table"]
    with connected(tmp_path / "device", told) as device:
        device._driver().run(device._session.refresh_public())
        before = kept_by(device)
        with pytest.raises(RemoteProtocolError, match="announced"):
            device.step()
        assert (told.left, kept_by(device)) == ([], before)
        told.public = honest.public
        assert device.step() == "reported"
        assert published_digest(device._session.store.public() or {}) == honest.messages["keys"].table_digest
    shutil.copytree(honest.folder / "table", tmp_path / "next")
    told.public, told.left = other, []
    with connected(tmp_path / "next", told) as device:
        device._driver().run(device._session.refresh_public())
        with pytest.raises(RemoteProtocolError, match="announced"):
            device.step()
        told.message, told.address, told.public = honest.announce(1, 2), Address(1, 2, "keys"), honest.public
        assert device.step() == "reported"  # in the next attempt
        assert [type(message) for message in told.left] == [PublicKeys]


@pytest.mark.parametrize(
    "change", ["a weaker noise share", "a changed plan", "no such server", "a stranger's next run"]
)
def test_a_lie_about_the_terms_is_refused_at_the_next_contact(honest: Honest, tmp_path: Path, change: str) -> None:
    """A public table of other terms than were accepted, and an offer that costs more than it says."""
    shutil.copytree(honest.folder / "keys", tmp_path / "device")
    public = wire.decode(honest.public, Public)
    told = Told(honest.announce())
    if change == "a weaker noise share":
        told.offer = wire.encode(dataclasses.replace(honest.offer, terms=weaker(honest.terms)))
        reason = "epsilon"
    elif change == "a changed plan":
        other = MaskedTerms(dataclasses.replace(honest.terms.priced, reserve=0.1), honest.terms.rules)
        told.offer = wire.encode(dataclasses.replace(honest.offer, terms=other))
        told.public = wire.encode(Public.of(RUN_ID, public.round_number, other, public.by_name()))
        reason = "run that this device joined"
    else:
        run_id = RUN_ID if change == "no such server" else "cd" * 16
        told.offer = wire.encode(dataclasses.replace(honest.offer, run_id=run_id, server_key=bytes(32)))
        reason = "run that this device joined"
    with connected(tmp_path / "device", told) as device:
        with pytest.raises(RemoteProtocolError, match=reason):
            device._driver().run(joining.fetch_offer(device._session))
        if change == "a changed plan":
            with pytest.raises(RemoteProtocolError, match="terms"):
                device._driver().run(device._session.refresh_public())
        if change == "a stranger's next run":
            with pytest.raises(RemoteProtocolError, match="neither"):
                device._driver().run(joining.follow(device._session))
        assert told.left == []


def test_an_offer_of_another_protocols_terms_is_refused(honest: Honest, tmp_path: Path) -> None:
    """By a device that has joined, and by one that would."""
    shutil.copytree(honest.folder / "keys", tmp_path / "joined")
    told = Told(offer=wire.encode(dataclasses.replace(honest.offer, terms=make_small_offer().terms)))
    with connected(tmp_path / "joined", told) as device:
        with pytest.raises(RemoteProtocolError, match="joined"):
            device._driver().run(joining.fetch_offer(device._session))
        with pytest.raises(RemoteProtocolError, match=r"neither|not over"):
            device._driver().run(joining.look_next(device._session))
    check_joining(tmp_path / "new", wire.decode(told.offer, Offer), "terms must be")


def test_an_offer_of_a_protocol_that_does_not_protect_ratings_is_refused(tmp_path: Path) -> None:
    """A server may offer `plain`, to devices that were made for another run."""
    check_joining(tmp_path / "new", make_small_offer(protocol="plain"), "protect ratings")


def check_joining(folder: Path, offer: Offer, reason: str) -> None:
    """A new device refuses the offer, and the server does not hear from it again."""
    server = OfflineServer(offer)
    with Device.create(folder) as device, pytest.raises(RemoteProtocolError, match=reason):
        server.run(joining.join(device._session))
    assert server.asked == ["GET /v1/run"]


def test_new_items_of_another_width_are_refused_and_the_store_stays_whole(honest: Honest, tmp_path: Path) -> None:
    """A page with more attributes than the catalogue has, or with none: the device goes on without it."""
    offer = honest.offer
    for name, attributes in (("wide", np.ones((1, 7))), ("none", None)):
        shutil.copytree(honest.folder / "after", tmp_path / name)
        told = Told(offer=wire.encode(offer), public=honest.public)
        told.page = wire.encode(Catalogue(offer.terms.n_items, ["new"], ["New"], attributes))
        with connected(tmp_path / name, told) as device:
            assert device._store.count_attributes() == 1
            with pytest.raises(RemoteProtocolError, match="attributes"):
                device._driver().run(device._session.refresh_catalogue(offer.terms.n_items + 1))
            assert device._store.count_items() == offer.terms.n_items
            told.message, told.address = honest.announce(2), Address(2, 1, "keys")
            assert device.step() == "reported"


# Lies to a part of the cohort --------------------------------------------------------------------------------------


def test_two_tables_for_different_devices_end_before_any_share(honest: Honest, tmp_path: Path) -> None:
    """A device that was shown another table signs its keys for it: they fit in nobody's roster, nor others' in its."""
    shown = with_table(honest, shift_offsets).message
    for announcement, reason in ((honest.roster.announcement, "announcement"), (shown.digest, "signed")):
        shutil.copytree(honest.folder / "keys", tmp_path / reason)
        told = with_table(honest, shift_offsets)
        with connected(tmp_path / reason, told) as device:
            assert device.step() == "reported"
            (keys,) = told.left
            others = [honest.roster.entries[n] for n in honest.others]
            told.message = roster_of(honest, [keys, *others], announcement)
            assert device.step() == "refused"
            assert reason in device.status().refusal
            assert told.left == [keys]


def test_a_helper_reveals_one_share_of_each_device_whatever_it_is_told(honest: Honest, tmp_path: Path) -> None:
    """The server lies that one dropped out, with everybody's signatures: its mask key, and never its seed as well."""
    shutil.copytree(honest.folder / "consent", tmp_path / "device")
    gone = honest.others[0]
    survivors = [position for position in everybody() if position != gone]
    told = Told(honest.survivors(survivors))
    with connected(tmp_path / "device", told) as device:
        held = attempt_in(device._session.store.private_state()).held
        assert device.step() == "reported"
        told.message = quorum(honest.consents(survivors))
        assert device.step() == "reported"
        told.message = honest.survivors(everybody())
        with pytest.raises(RemoteProtocolError, match="in order"):
            device.step()
        _, unmasking = told.left
    revealed = dict(zip(map(int, unmasking.owners), unmasking.shares, strict=True))
    assert revealed == {
        owner: shares.mask_share if owner == gone else shares.seed_share for owner, shares in held.items()
    }
    everything = wire.encode(told.left[0]) + wire.encode(unmasking)
    assert held[gone].seed_share not in everything


class TwoRosters(Attempt):
    """A server that shows device 0 a roster without the last one, and takes whatever comes.

    It says of device 0 that it survived (`with_victim`), or that it dropped out.
    """

    with_victim: bool

    def play_lie(self) -> None:
        """Every phase up to the sum; the server keeps what device 0 sends."""
        self.play(Phase.SHARES)
        self.secrets = [person.round.state.secrets for person in self.people]
        server, victim = self.server, self.people[0]
        honest = server._roster
        self.shown = Roster(honest.announcement, honest.entries[:-1])
        for person in self.people:
            shown = self.shown if person is victim else server.question(person.name)
            server._reports[person.name] = person.report(shown)
        server.close()
        for person in self.people[1:]:
            server.receive(person.name, person.report(server.question(person.name)))
        senders, inbox = range(1, 9), server._inbox[0]
        partners = Partners(bitmap(range(9), 9), np.array(senders), tuple(inbox[one] for one in senders))
        self.sent = victim.report(partners)
        with pytest.raises(RemoteProtocolError, match="list of partners"):
            server.check(victim.name, self.sent)

        if self.with_victim:
            server._total += self.sent.numbers
            server._reports[victim.name] = self.sent.signature
        for _ in ("consent", "unmask"):
            server.close()
            for person in self.people[1:]:
                server.receive(person.name, person.report(server.question(person.name)))


@pytest.mark.parametrize("with_victim", [True, False])
def test_two_rosters_for_different_devices_give_no_table(with_victim: bool) -> None:
    """Nobody can open the shares of the device that saw another roster, whether it is said to survive or not.

    Even with all pair masks of its table, the self mask is left, and the table is random.
    """
    attempt = TwoRosters()
    attempt.with_victim = with_victim
    attempt.play_lie()
    assert not any(0 in unmasking.owners for unmasking in attempt.server._reports.values())
    with pytest.raises(AttemptFailed, match="shares"):
        attempt.server.close()
    assert attempt.server.sum is None
    victim = attempt.people[0]
    own, pairing = victim.round.state.own, victim.round.state.pairing
    left, keystream = attempt.sent.numbers.copy(), Keystream(len(attempt.sent.numbers))
    for other in pairing.neighbours:
        private = load_private(attempt.secrets[other].mask_private)
        keystream.subtract(left, pair_key(private, attempt.shown, pairing.context, other, own))
    assert not np.any(left == victim.table)
    keystream.subtract(left, derive(attempt.secrets[0].seed, SELF_LABEL, pairing.context, own))
    np.testing.assert_array_equal(left, victim.table)  # what the server lacks is the seed alone
