"""Secure aggregation: sums with drop-outs at every step, refusals, and nothing revealed below the threshold."""

import dataclasses
from collections.abc import Collection
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from secagg_kit import ANNOUNCEMENT, STEPS, Cohort, make_party

from hushrec.errors import AttemptFailed, ParameterError, RemoteProtocolError
from hushrec.protocols.masked.secagg import server
from hushrec.protocols.masked.secagg.chance import LARGEST_RISK
from hushrec.protocols.masked.secagg.device import (
    accept_partners,
    accept_roster,
    draw_neighbours,
    mask_table,
    open_shares,
    pair_key,
    reveal_shares,
    seal_shares,
    sign_survivors,
)
from hushrec.protocols.masked.secagg.primitives import SELF_LABEL, Keystream, commitment, derive, load_private
from hushrec.protocols.masked.secagg.roster import (
    PublicKeys,
    Roster,
    Rules,
    bitmap,
    choose_rules,
    edges,
    make_roster,
    share_risk,
    survivors_text,
)
from hushrec.protocols.masked.secagg.shamir import PRIME, join_shares, split_secret
from hushrec.randomness import SystemStream

FALSE_ALARM = 1e-6
SPARSE = Rules(smallest=12, most_corrupt=2, neighbours=15, threshold=8)  # of 20 devices, not everybody
COMPLETE = Rules(smallest=6, most_corrupt=1, neighbours=9, threshold=5)  # of 10 devices


@pytest.fixture(scope="module")
def finished() -> Cohort:
    """An attempt of 10 devices without drop-outs, all steps taken; tests read it and change copies."""
    cohort = Cohort(10, COMPLETE)
    cohort.play()
    return cohort


@pytest.mark.parametrize("lost", [0, 1, 2, 6])
@pytest.mark.parametrize("step", STEPS)
def test_sums_are_exact_with_drop_outs_after_every_step(step: str, lost: int) -> None:
    """0, 1, 10 % and 30 % of 20 devices leave before a step: the rest's sum, integer by integer."""
    cohort = Cohort(20, SPARSE, {step: set(range(0, 3 * lost, 3))})
    found = cohort.play()
    assert np.array_equal(found, cohort.plain_sum())
    assert len(cohort.survivors) == (20 - lost if step in ("keys", "shares", "table") else 20)


def test_drop_outs_in_all_steps_of_one_attempt() -> None:
    """One device leaves at each step; everybody is everybody's neighbour."""
    cohort = Cohort(20, Rules(11, 1, 19, 10), {step: {at} for at, step in enumerate(STEPS)})
    assert np.array_equal(cohort.play(), cohort.plain_sum())
    assert len(cohort.roster) == 19
    assert len(cohort.survivors) == 17


def test_a_masked_table_and_a_masked_sum_look_random() -> None:
    """Tables of zeros: bytes of each table, and of the sum before unmasking with drop-outs, pass χ² for uniform."""
    cohort = Cohort(10, COMPLETE, {"table": {3}}, size=4000)
    for party in cohort.parties:
        party.table = np.zeros(4000, dtype=np.uint32)
    cohort.enrol()
    cohort.share()
    cohort.send_tables()
    for table in [*cohort.tables.values(), cohort.total()]:
        counts = np.bincount(np.frombuffer(table.tobytes(), dtype=np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM / 10


def test_below_the_threshold_nothing_is_recovered() -> None:
    """Only 4 of 5 needed devices answer UNMASK: the attempt fails."""
    cohort = Cohort(10, COMPLETE, {"unmask": set(range(6))})
    with pytest.raises(AttemptFailed, match=r"too few devices stayed: 10 of 10 .*\(5 shares each are needed\)"):
        cohort.play()


def test_too_few_survivors_are_neither_signed_nor_summed() -> None:
    """5 tables of 6 needed: devices refuse the list, and the server has no sum."""
    cohort = Cohort(10, COMPLETE, {"table": set(range(5))})
    cohort.enrol()
    cohort.share()
    cohort.send_tables()
    with pytest.raises(RemoteProtocolError, match="survivors"):
        cohort.consent()
    with pytest.raises(AttemptFailed, match="at least 6"):
        cohort.recover()


@settings(max_examples=25)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 5), st.randoms())
def test_any_t_shares_give_the_secret(secret: bytes, threshold: int, more: int, random) -> None:  # type: ignore[no-untyped-def]
    """Whichever t or more of them, at whichever points."""
    points = random.sample(range(1, 10_000), threshold + more)
    shares = split_secret(secret, points, threshold, rng=SystemStream())
    chosen = random.sample(points, threshold + random.randint(0, more))
    assert join_shares({point: shares[point] for point in chosen}) == secret


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_t_minus_one_shares_fit_every_secret(secret: bytes, other: bytes) -> None:
    """For any other secret there is one share at the last place that makes it the answer: t − 1 say nothing."""
    shares = split_secret(secret, [1, 2, 3], 3, rng=SystemStream())
    # Lagrange at 0 for points 1, 2, 3 has coefficients 3, −3, 1.
    first, second = (int.from_bytes(shares[place], "big") for place in (1, 2))
    last = (int.from_bytes(other, "big") - 3 * first + 3 * second) % PRIME
    assert join_shares({1: shares[1], 2: shares[2], 3: last.to_bytes(66, "big")}) == other


def test_shares_by_hand() -> None:
    """Secret 5, coefficient 7 from the stream (66 bytes, of which 7 bits are cut): shares 12, 19 and 26 at 1, 2, 3."""

    class Stream:
        def bytes(self, length: int) -> bytes:
            return (7 << 7 | 3).to_bytes(length, "big")

    shares = split_secret((5).to_bytes(32, "big"), [1, 2, 3], 2, rng=Stream())
    assert [int.from_bytes(shares[place], "big") for place in (1, 2, 3)] == [12, 19, 26]


def test_shares_that_give_no_secret_of_32_bytes_are_none() -> None:
    """A random value of the field is almost never below 2²⁵⁶."""
    assert join_shares({1: b"\1" * 66, 2: b"\4" * 66}) is None


@pytest.mark.parametrize(
    ("secret", "points", "threshold"),
    [(bytes(31), [1], 1), (bytes(32), [0, 1], 1), (bytes(32), [1, 1], 1), (bytes(32), [1], 2)],
)
def test_impossible_shares_are_refused(secret: bytes, points: list[int], threshold: int) -> None:
    """Wrong length, place 0 (the secret itself), a place twice, more needed than there are."""
    with pytest.raises(ParameterError, match="points"):
        split_secret(secret, points, threshold, rng=SystemStream())


def test_wrong_shares_are_passed_over_or_end_the_attempt(finished: Cohort) -> None:
    """One device lies in all its shares: the sum is still right. Five of ten lie: no sum, and they are found."""
    expected = finished.plain_sum()
    for liars in ({4}, {0, 1, 2, 3, 4}):
        cohort = dataclass_copy(finished)
        cohort.revealed = finished.revealed | {
            liar: {owner: bytes(65) + b"\1" for owner in finished.revealed[liar]} for liar in liars
        }
        if len(liars) == 1:
            assert np.array_equal(cohort.recover(), expected)
        else:
            with pytest.raises(AttemptFailed, match="shares") as failure:
                cohort.recover()
            assert failure.value.culprits == liars


def dataclass_copy(cohort: Cohort) -> Cohort:
    """The same cohort with its own attributes."""
    copy = Cohort.__new__(Cohort)
    copy.__dict__ |= cohort.__dict__
    return copy


@pytest.fixture(scope="module")
def sixty() -> Cohort:
    """A finished cohort of 60 devices with n_min = 34, t = 30 and c_max = 3."""
    cohort = Cohort(60, Rules(smallest=34, most_corrupt=3, neighbours=59, threshold=30), size=5)
    cohort.play()
    return cohort


def with_lies(cohort: Cohort, lies: dict[int, Collection[int]], helpers: Collection[int] = range(60)) -> Cohort:
    """The same cohort in which each liar reveals wrong shares of these owners, and only `helpers` reply."""
    copy = dataclass_copy(cohort)
    copy.revealed = {
        helper: {
            owner: helper.to_bytes(66, "big") if owner in lies.get(helper, ()) else share
            for owner, share in cohort.revealed[helper].items()
        }
        for helper in helpers
    }
    return copy


LIARS = (0, 20, 40)
FEW = [*LIARS, *range(1, 20), *range(21, 33)]  # each device has t = 30 honest helpers, or 31, among them


@pytest.mark.parametrize("owners", [[33], range(60)])
@pytest.mark.parametrize("helpers", [range(60), FEW])
def test_liars_neither_spoil_the_sum_nor_frame_an_owner(
    sixty: Cohort, owners: Collection[int], helpers: Collection[int]
) -> None:
    """As many right shares as the threshold are enough, however many wrong ones there are beside them."""
    assert np.array_equal(with_lies(sixty, dict.fromkeys(LIARS, owners), helpers).recover(), sixty.plain_sum())


@pytest.mark.parametrize(("owners", "culprits"), [([33], set()), (range(60), set(LIARS))])
def test_with_too_few_right_shares_only_those_are_blamed_who_must_have_lied(
    sixty: Cohort, owners: Collection[int], culprits: set[int]
) -> None:
    """29 right shares: three helpers or owner 33 may have lied about 33; who is at odds with everybody has lied."""
    with pytest.raises(AttemptFailed, match="shares") as failure:
        with_lies(sixty, dict.fromkeys(LIARS, owners), FEW[:-2]).recover()
    assert failure.value.culprits == culprits


@pytest.mark.parametrize("helpers", [range(60), FEW])
@pytest.mark.parametrize("left_out", [0, 4, 33])
def test_an_owner_whose_shares_nobody_can_confirm_is_blamed(
    sixty: Cohort, helpers: Collection[int], left_out: int
) -> None:
    """Nobody has the share of 33 that it committed to, or some have none: more than c_max cannot have lied."""
    cohort = with_lies(sixty, dict.fromkeys(range(60), (33,)), helpers)
    for helper in list(cohort.revealed)[:left_out]:
        del cohort.revealed[helper][33]
    with pytest.raises(AttemptFailed, match="shares") as failure:
        cohort.recover()
    assert failure.value.culprits == {33}


def test_an_owner_that_shares_another_secret_is_blamed(sixty: Cohort) -> None:
    """Everybody has what 33 committed to, but it is not the seed whose hash 33 published."""
    cohort = dataclass_copy(sixty)
    other = split_secret(bytes(32), [helper + 1 for helper in sixty.drawn[33]], 30, rng=SystemStream())
    hashes = {helper: bytes(32) + commitment(other[helper + 1]) for helper in sixty.drawn[33]}
    cohort.drawn = sixty.drawn | {33: hashes}
    cohort.revealed = {
        helper: shares | ({} if helper == 33 else {33: other[helper + 1]}) for helper, shares in sixty.revealed.items()
    }
    with pytest.raises(AttemptFailed, match="shares") as failure:
        cohort.recover()
    assert failure.value.culprits == {33}


@pytest.mark.parametrize(("replies", "culprits"), [(60, {33}), (50, {33}), (49, set())])
def test_an_owner_with_as_many_disputes_as_liars_may_cause_is_blamed_if_enough_replied(
    replies: int, culprits: set[int]
) -> None:
    """Of 20 neighbours, 33 commits falsely to ten, as many as c_max; an honest owner would have t = 11 right shares."""
    cohort = Cohort(60, Rules(smallest=50, most_corrupt=10, neighbours=20, threshold=11), size=5)
    cohort.play()
    helpers = sorted(cohort.drawn[33])
    cohort.drawn[33] |= dict.fromkeys(helpers[:10], bytes(64))
    away = [number for number in range(60) if number not in (33, *helpers)][: 60 - replies]
    cohort.revealed = {helper: shares for helper, shares in cohort.revealed.items() if helper not in away}
    with pytest.raises(AttemptFailed, match="shares") as failure:
        cohort.recover()
    assert failure.value.culprits >= culprits
    assert bool(failure.value.culprits) == bool(culprits)


def test_one_lie_among_devices_that_all_should_be_honest_blames_nobody() -> None:
    """With c_max = 0, owner 0 or helper 4 may have lied."""
    cohort = Cohort(5, Rules(smallest=4, most_corrupt=0, neighbours=4, threshold=3), {"unmask": {2}})
    cohort.play()
    cohort.revealed[4] |= {0: bytes(66)}
    with pytest.raises(AttemptFailed, match="1 of 5") as failure:
        cohort.recover()
    assert failure.value.culprits == frozenset()


def test_an_owner_cannot_make_the_server_leave_out_honest_helpers(sixty: Cohort) -> None:
    """Its shares to 14 of them are wrong, and there are liars besides: every secret is rebuilt."""
    lies: dict[int, Collection[int]] = dict.fromkeys(range(41, 55), (5,))
    cohort = with_lies(sixty, lies | dict.fromkeys(LIARS, (33,)))
    assert np.array_equal(cohort.recover(), sixty.plain_sum())


@pytest.mark.parametrize(("liars", "joined"), [(0, 60), (3, 60), (30, 30), (60, 0)])
def test_each_secret_is_joined_at_most_once_however_many_lie(
    sixty: Cohort, liars: int, joined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of rebuilding does not grow with the number of liars, and t shares are enough for each secret."""
    sizes: list[int] = []
    monkeypatch.setattr(server, "join_shares", lambda shares: sizes.append(len(shares)) or join_shares(shares))
    with suppress(AttemptFailed):
        with_lies(sixty, dict.fromkeys(range(liars), range(60))).recover()
    assert sizes == [30] * joined


def test_shares_of_strangers_and_of_wrong_length_do_not_count(finished: Cohort) -> None:
    """Shares of 65 bytes, and those of a helper that was not drawn, are ignored: too few are left."""
    cohort = dataclass_copy(finished)
    cohort.revealed = {
        helper: {owner: share[:-1] for owner, share in answer.items()} for helper, answer in finished.revealed.items()
    }
    with pytest.raises(AttemptFailed, match="10 of 10"):
        cohort.recover()
    cohort.revealed = finished.revealed
    cohort.drawn = finished.drawn | {0: {helper: finished.drawn[0][helper] for helper in (1, 2)}}
    with pytest.raises(AttemptFailed, match="1 of 10") as failure:
        cohort.recover()
    assert failure.value.culprits == {0}


def test_each_device_reveals_one_share_of_each_neighbour() -> None:
    """Of a survivor the share of b, of one that dropped out that of s; never both, and none of strangers."""
    cohort = Cohort(10, COMPLETE, {"table": {2}})
    cohort.play()
    (gone,) = set(cohort.drawn) - set(cohort.survivors)
    for party in cohort.parties:
        if party.own in cohort.revealed:
            for owner, share in cohort.revealed[party.own].items():
                held = party.held[owner]
                assert share == (held.mask_share if owner == gone else held.seed_share)
            assert cohort.revealed[party.own].keys() == party.held.keys()


def test_different_lists_of_partners_give_noise_not_sums() -> None:
    """The server tells one device that another never shared: its masks differ from everybody's, the sum is garbage."""
    cohort = Cohort(10, COMPLETE)
    cohort.enrol()
    cohort.share()
    victim = next(party for party in cohort.parties if party.own == 0)
    shown = set(cohort.drawn) - {9}
    victim.pairing = accept_partners(cohort.roster, 0, victim.drawn, shown, shown - {0}, COMPLETE)
    cohort.send_tables()
    honest = [party for party in cohort.parties if party.own != 0]
    for party in honest:  # they refuse the victim's table, and take part in nothing that has it
        with pytest.raises(RemoteProtocolError, match="list of partners"):
            cohort.sign(party, cohort.survivors)
    others = [party.own for party in honest]
    signatures = {party.own: cohort.sign(party, others) for party in honest}
    for party in honest:
        cohort.revealed[party.own] = reveal_shares(
            party.held, cohort.roster.identities, party.pairing, others, signatures, COMPLETE
        )
    shares = {own + 1: given[0] for own, given in cohort.revealed.items()}
    threshold = dict(list(shares.items())[: COMPLETE.threshold])
    assert join_shares(threshold) == victim.secrets.mask_private  # it counts as dropped out: its seed stays secret


FEW_NEIGHBOURS = Rules(smallest=48, most_corrupt=4, neighbours=21, threshold=11)


class SplitPartners:
    """A server that shows one device a list of partners without half of those that hold its shares.

    It runs c_max devices itself. It then says that the other half dropped out, to get their mask keys, and that the
    victim survived, to get its seed: then no mask of the victim's table is left.
    """

    def __init__(self) -> None:
        self.cohort = Cohort(60, FEW_NEIGHBOURS)
        self.cohort.enrol()
        self.cohort.share()
        self.at = {party.own: party for party in self.cohort.parties}
        self.corrupt = set(range(56, 60))
        self.victim = next(p for own, p in self.at.items() if own < 56 and self.corrupt.intersection(p.drawn))
        threshold, drawn = FEW_NEIGHBOURS.threshold, set(self.victim.drawn)
        honest, own = sorted(drawn - self.corrupt), drawn & self.corrupt
        self.left_out = honest[threshold - len(own) :]  # of the victim's list of partners
        self.dropped = set(honest[: threshold - len(own)])  # of the list of survivors
        shown = set(self.at).difference(self.left_out)
        self.victim.pairing = accept_partners(self.cohort.roster, self.victim.own, drawn, shown, [], FEW_NEIGHBOURS)
        self.cohort.send_tables()
        self.survivors = set(self.at) - self.dropped
        self.signatures: dict[int, bytes] = {}

    def ask(self, *, honest_check: bool) -> dict[int, dict[int, bytes]]:
        """What devices reveal: those that sign the list of survivors, once a quorum has signed it."""
        for own in self.survivors - {self.victim.own}:
            party = self.at[own]
            checked = party.held if honest_check and own not in self.corrupt else ()
            given = party.identity, self.cohort.roster.identities, own, party.pairing, self.survivors, checked
            with suppress(RemoteProtocolError):
                self.signatures[own] = sign_survivors(*given, self.cohort.masked_for, FEW_NEIGHBOURS)
        told = self.survivors, self.signatures, FEW_NEIGHBOURS
        identities = self.cohort.roster.identities
        found = {own: self.at[own] for own in self.signatures}
        return {own: reveal_shares(p.held, identities, p.pairing, *told) for own, p in found.items()}

    def seed_shares(self, revealed: dict[int, dict[int, bytes]]) -> dict[int, bytes]:
        """The shares of the victim's seed that the server has then."""
        return {own + 1: given[self.victim.own] for own, given in revealed.items() if self.victim.own in given}


def test_a_device_with_another_list_of_partners_is_not_unmasked() -> None:
    """Those that hold its shares do not sign a list of survivors with it, so that fewer than n_min devices sign."""
    attack = SplitPartners()
    assert len(attack.survivors) >= FEW_NEIGHBOURS.smallest
    with pytest.raises(RemoteProtocolError, match="signatures"):
        attack.ask(honest_check=True)
    assert attack.signatures.keys().isdisjoint(set(attack.victim.drawn) - attack.corrupt)
    assert len(attack.signatures) < FEW_NEIGHBOURS.smallest


def test_without_that_check_the_table_of_such_a_device_would_be_read() -> None:
    """The attack above is right: with the seed, and the keys of those that "dropped out", no mask is left."""
    attack = SplitPartners()
    revealed = attack.ask(honest_check=False)
    seed = join_shares(dict(list(attack.seed_shares(revealed).items())[: FEW_NEIGHBOURS.threshold]))
    assert seed == attack.victim.secrets.seed
    own, pairing, keystream = attack.victim.own, attack.victim.pairing, Keystream(50)
    table = attack.cohort.tables[own].copy()
    keystream.subtract(table, derive(seed, SELF_LABEL, pairing.context, own))
    for other in pairing.neighbours:
        private = attack.at[other].secrets.mask_private
        if other not in attack.corrupt:
            shares = {one + 1: given[other] for one, given in revealed.items() if other in given}
            assert join_shares(dict(list(shares.items())[: FEW_NEIGHBOURS.threshold])) == private
        key = pair_key(load_private(private), attack.cohort.roster, pairing.context, other, own)
        (keystream.subtract if own < other else keystream.add)(table, key)
    np.testing.assert_array_equal(table, attack.victim.table)


def test_a_different_roster_or_announcement_is_another_context(finished: Cohort) -> None:
    """R covers the announcement and every byte of every entry."""
    roster = finished.roster
    changed = [Roster(bytes(32), roster.entries), Roster(roster.announcement, roster.entries[:-1])]
    entry = roster.entries[3]
    for name in ("mask_key", "channel_key", "seed_hash", "signature", "identity"):
        other = bytes([getattr(entry, name)[0] ^ 1]) + getattr(entry, name)[1:]
        entries = (*roster.entries[:3], dataclasses.replace(entry, **{name: other}), *roster.entries[4:])
        changed.append(Roster(roster.announcement, entries))
    assert len({roster.digest, *(one.digest for one in changed)}) == 8


def test_a_roster_without_this_device_or_of_another_announcement_is_refused(finished: Cohort) -> None:
    """The very keys that were sent must be there, under the announcement that was answered."""
    roster, keys = finished.roster, finished.parties[0].keys
    with pytest.raises(RemoteProtocolError, match="announcement"):
        accept_roster(roster, bytes(32), keys, COMPLETE)
    with pytest.raises(RemoteProtocolError, match="keys"):
        accept_roster(roster, ANNOUNCEMENT, make_party(99, 5).keys, COMPLETE)
    changed = dataclasses.replace(keys, mask_key=bytes(31) + b"\x09")
    with pytest.raises(RemoteProtocolError, match="keys"):
        accept_roster(roster, ANNOUNCEMENT, changed, COMPLETE)


def test_a_roster_that_is_too_small_for_the_rules_is_refused(finished: Cohort) -> None:
    """Fewer than n_min devices, and neighbours of whom too many may be corrupt."""
    keys = finished.parties[0].keys
    with pytest.raises(RemoteProtocolError, match="at least 11"):
        accept_roster(finished.roster, ANNOUNCEMENT, keys, Rules(11, 1, 9, 5))
    with pytest.raises(RemoteProtocolError, match="neighbours"):
        accept_roster(finished.roster, ANNOUNCEMENT, keys, Rules(8, 5, 9, 5))


def test_forged_keys_are_refused(finished: Cohort) -> None:
    """By the server when it makes the roster; by devices for those they draw and for those who drew them."""
    party, other = finished.parties[:2]
    forged = dataclasses.replace(other.keys, mask_key=party.keys.channel_key[::-1])
    with pytest.raises(RemoteProtocolError, match="signed"):
        make_roster(ANNOUNCEMENT, [party.keys, forged])
    entries = tuple(forged if entry == other.keys else entry for entry in finished.roster.entries)
    roster = Roster(ANNOUNCEMENT, entries)
    with pytest.raises(RemoteProtocolError, match="signed"):
        seal_shares(party.secrets, roster, party.own, party.drawn, COMPLETE, rng=SystemStream())
    with pytest.raises(RemoteProtocolError, match=r"neighbours .* at least 5"):
        seal_shares(party.secrets, finished.roster, party.own, party.drawn[:4], COMPLETE, rng=SystemStream())
    sparse = tuple(one for one in range(10) if one not in (party.own, other.own))
    with pytest.raises(RemoteProtocolError, match="signed"):
        accept_partners(roster, party.own, sparse, range(10), [other.own], COMPLETE)


def test_a_roster_names_everything_once_and_in_order(finished: Cohort) -> None:
    """A device twice, a wrong order, a key twice."""
    first, second = finished.roster.entries[:2]
    with pytest.raises(RemoteProtocolError, match="ascending"):
        Roster(ANNOUNCEMENT, (first, first))
    with pytest.raises(RemoteProtocolError, match="ascending"):
        Roster(ANNOUNCEMENT, (second, first))
    with pytest.raises(RemoteProtocolError, match="distinct"):
        Roster(ANNOUNCEMENT, (first, dataclasses.replace(second, mask_key=first.channel_key)))


def test_keys_of_wrong_lengths_are_refused() -> None:
    """Lengths are checked where the message is built."""
    with pytest.raises(RemoteProtocolError, match="bytes"):
        PublicKeys(bytes(16), bytes(32), bytes(31), bytes(32), bytes(32), bytes(64))


def test_a_mask_key_of_low_order_is_refused(finished: Cohort) -> None:
    """X25519 with the point 0 gives no secret: nobody masks with it."""
    party, other = finished.parties[:2]
    entries = tuple(
        dataclasses.replace(entry, mask_key=bytes(32)) if entry == other.keys else entry
        for entry in finished.roster.entries
    )
    with pytest.raises(RemoteProtocolError, match="order"):
        mask_table(party.secrets, Roster(ANNOUNCEMENT, entries), party.own, party.pairing, party.table)


@pytest.mark.parametrize(
    ("partners", "senders", "reason"),
    [
        (range(1, 10), [], "this device"),
        (range(8), [9], "senders"),
        (range(10), [0], "this device"),
        (range(5), [], "at least 6"),
        (range(10), [1], "neighbours"),
    ],
)
def test_wrong_partners_are_refused(finished: Cohort, partners: range, senders: list[int], reason: str) -> None:
    """Without this device, with strangers among the senders, too few, too few of its own neighbours."""
    drawn = (1, 2, 3, 4) if reason == "neighbours" else tuple(range(1, 10))
    with pytest.raises(RemoteProtocolError, match=reason):
        accept_partners(finished.roster, 0, drawn, partners, senders, COMPLETE)


def test_a_flood_of_neighbours_is_refused() -> None:
    """With k = 2 a device accepts six partners; seven devices that all draw it do not make it work for them."""
    rules = Rules(smallest=6, most_corrupt=0, neighbours=2, threshold=2)
    cohort = Cohort(10, rules)
    cohort.enrol()
    with pytest.raises(RemoteProtocolError, match="at most 6"):
        accept_partners(cohort.roster, 0, (1, 2), range(10), range(1, 8), rules)


def test_corrupt_devices_that_draw_a_victim_get_no_share_of_it() -> None:
    """Shares go to those that the victim drew itself, however many drew it."""
    cohort = Cohort(20, SPARSE)
    cohort.enrol()
    cohort.share()
    victim = cohort.parties[0]
    drew_it = {party.own for party in cohort.parties if victim.own in party.drawn}
    assert set(victim.sealed) == set(victim.drawn)
    assert drew_it - set(victim.drawn)
    assert victim.pairing.neighbours == drew_it | set(victim.drawn)


def test_what_was_sealed_for_another_cannot_be_opened(finished: Cohort) -> None:
    """The wrong recipient, a changed byte, a wrong length of what is inside: left out, without an error."""
    first, second, third = finished.parties[:3]
    sealed = first.sealed[second.own].sealed
    good = open_shares(second.secrets, finished.roster, second.own, {first.own: sealed})
    assert set(good) == {first.own}
    assert not open_shares(third.secrets, finished.roster, third.own, {first.own: sealed})
    assert not open_shares(second.secrets, finished.roster, second.own, {first.own: sealed[:-1] + b"\0"})
    assert not open_shares(second.secrets, finished.roster, second.own, {first.own: b""})


def test_a_hostile_list_of_survivors_is_not_signed(finished: Cohort) -> None:
    """Without this device, with somebody who never shared, too few, somebody counted twice."""
    party = finished.parties[0]
    narrow = dataclasses.replace(party.pairing, partners=frozenset(range(9)))
    everybody = list(range(10))
    for survivors, pairing in [
        ([one for one in everybody if one != party.own], party.pairing),
        (everybody, narrow),
        (everybody[:5], dataclasses.replace(party.pairing)),
        ([party.own] * 9, party.pairing),
    ]:
        with pytest.raises(RemoteProtocolError, match="survivors"):
            finished.sign(party, survivors, pairing)


def test_nothing_is_revealed_without_a_quorum(finished: Cohort) -> None:
    """n_min devices must have signed. One fewer, forged signatures, others' lists and strangers do not count."""
    party, signatures = finished.parties[0], finished.signatures
    assert COMPLETE.smallest == 6

    def reveal(given: dict[int, bytes], survivors: list[int]) -> dict[int, bytes]:
        return reveal_shares(party.held, finished.roster.identities, party.pairing, survivors, given, COMPLETE)

    assert reveal(dict(list(signatures.items())[:6]), finished.survivors)
    hostile = [
        dict(list(signatures.items())[:5]),
        {at: bytes(64) for at in signatures},
        dict.fromkeys(signatures, signatures[0]),
        {at + 10: signature for at, signature in signatures.items()},
    ]
    for given_signatures in hostile:
        with pytest.raises(RemoteProtocolError, match="at least 6"):
            reveal(given_signatures, finished.survivors)
    with pytest.raises(RemoteProtocolError, match="at least 6"):
        reveal(signatures, finished.survivors[:-1])  # signed another list


def test_no_share_of_a_device_that_is_no_partner_is_revealed(finished: Cohort) -> None:
    """It would be the share of its mask key, as of one who dropped out."""
    party = finished.parties[0]
    left_out = min(party.held)
    pairing = dataclasses.replace(party.pairing, partners=party.pairing.partners - {left_out})
    survivors = sorted(pairing.partners)
    text = survivors_text(pairing.context, survivors, 10)
    signatures = {other.own: other.identity.sign(text) for other in finished.parties}
    revealed = reveal_shares(party.held, finished.roster.identities, pairing, survivors, signatures, COMPLETE)
    assert revealed.keys() == party.held.keys() - {left_out}


def test_no_two_lists_can_both_have_a_quorum() -> None:
    """Honest devices sign once and corrupt ones twice: n − c + 2c signatures are fewer than two times n_min."""
    for devices in range(3, 60):
        for smallest in range(1, devices + 1):
            for corrupt in range(smallest):
                try:
                    rules = choose_rules(devices, smallest, corrupt)
                except ParameterError:
                    continue
                assert devices + corrupt < 2 * smallest
                assert corrupt <= rules.most_colluding(devices) < max(corrupt + 1, 2 * smallest - devices)


def test_neighbours_are_drawn_uniformly_without_oneself() -> None:
    """So many of the others; each as often as any other, by χ²; all of them where there are no more."""
    rules = Rules(6, 0, 4, 3)
    counts = np.zeros(10)
    for _ in range(2000):
        drawn = draw_neighbours(rules, 10, 3, rng=SystemStream())
        assert len(set(drawn)) == 4
        counts[list(drawn)] += 1
    assert counts[3] == 0
    # Given fixed totals the counts vary less than a multinomial's, by the factor 1 − k/n: the test is conservative.
    assert stats.chisquare(np.delete(counts, 3)).pvalue > FALSE_ALARM
    assert draw_neighbours(rules, 4, 0, rng=SystemStream()) == (1, 2, 3)


def test_edges_join_those_who_shared_and_drew_each_other() -> None:
    """By hand: 3 drew 0 and never shared, so it is no partner."""
    assert edges({0: (1, 3), 1: (2,), 2: ()}) == {0: {1}, 1: {0, 2}, 2: {1}}


def test_a_bitmap_by_hand() -> None:
    """Positions 0, 7 and 8 of 10; one beyond is refused."""
    assert bitmap([8, 0, 7], 10) == b"\x81\x80"
    with pytest.raises(RemoteProtocolError, match="position"):
        bitmap([10], 10)


def test_rules_by_probability() -> None:
    """Few enough corrupt neighbours for anybody's secrets, enough helpers for everybody, and no more than needed."""
    rules = choose_rules(1000, 800, 80)
    assert rules.threshold == rules.neighbours // 2 + 1
    assert rules.neighbours < 100
    assert rules.risk(1000) <= LARGEST_RISK
    too_few = Rules(800, 80, 20, 11)  # anybody of 1,000 may be the one whose neighbours are corrupt
    assert too_few.risk(1000) == pytest.approx(1000 * stats.hypergeom.sf(10, 999, 80, 20), rel=1e-9)
    for devices, corrupt, neighbours, threshold in (
        (100, 10, 20, 6),
        (1000, 400, 100, 51),
        (10, 3, 9, 5),
        (9, 7, 20, 5),
    ):
        exact = stats.hypergeom.sf(threshold - 1, devices - 1, corrupt, min(neighbours, devices - 1))
        assert share_risk(devices, corrupt, neighbours, threshold) == pytest.approx(exact, rel=1e-9, abs=1e-30)
    small = choose_rules(50, 40, 4)
    assert (small.neighbours, small.threshold) == (49, 25)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Rules(6, 6, 9, 5), "most_corrupt"),
        (lambda: Rules(6, 1, 9, 4), "threshold"),
        (lambda: Rules(6, 1, 9, 10), "threshold"),
        (lambda: choose_rules(2, 2, 0), "devices"),
        (lambda: choose_rules(100, 50, 0), "smallest"),
        (lambda: choose_rules(20, 20, 18), "corrupt"),
    ],
)
def test_impossible_rules_are_refused(call, name: str) -> None:  # type: ignore[no-untyped-def]
    """One sentence that names the parameter."""
    with pytest.raises(ParameterError, match=name):
        call()


def test_secrets_have_no_repr(finished: Cohort) -> None:
    """Neither secrets nor held shares print their bytes."""
    party = finished.parties[0]
    shown = repr(party.secrets) + repr(party.held) + str(party.secrets)
    for secret in (party.secrets.mask_private, party.secrets.seed, *(held.seed_share for held in party.held.values())):
        assert repr(secret) not in shown
        assert secret.hex() not in shown
