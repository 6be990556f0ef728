"""Whom a server leaves out after sums that honest devices cannot have made."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hushrec.protocols.masked.suspicion import MOST_VAIN_PROBES, Search, Suspicion

PEOPLE, N_MIN, LIAR = 200, 160, 7


def terms(smallest: int = N_MIN, largest: int = PEOPLE) -> Any:
    """The two numbers of a run's terms that matter here: n_min and the size of a cohort."""
    return SimpleNamespace(
        rules=SimpleNamespace(smallest=smallest), priced=SimpleNamespace(cohort=SimpleNamespace(devices=largest))
    )


def always(suspicion: Suspicion, asked: set[int]) -> bool:
    """Lie in every attempt."""
    return True


def when_others_look_worse(suspicion: Suspicion, asked: set[int]) -> bool:
    """Send an honest table while suspects are left out whom a good sum could make look worse."""
    return LIAR not in map(int, suspicion.suspects) or not set(map(int, suspicion.suspects)) - asked


def every_other(suspicion: Suspicion, asked: set[int]) -> bool:
    """Lie in every attempt after an honest one."""
    return suspicion._good[str(LIAR)] >= suspicion._discarded[str(LIAR)]


@pytest.mark.parametrize("lies", [always, when_others_look_worse, every_other])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_hostile_device_spoils_few_attempts_of_a_run_whatever_it_does(lies: Any, seed: int) -> None:
    """At most n/(n − n_min) = 5 of 300, and it is always a suspect. Here is no search by probes."""
    suspicion, rng, spoiled = Suspicion(), np.random.default_rng(seed), 0
    for _ in range(300):
        asked = suspicion.without_suspects(range(PEOPLE), terms(), rng=rng)
        assert len(asked) >= N_MIN
        suspicion.record_presence(asked, len(asked), asked)
        if LIAR in asked and lies(suspicion, set(asked)):
            spoiled += 1
            suspicion.record_sums(asked, [], has_one_cohort=False)
            assert str(LIAR) in suspicion.suspects
        else:
            suspicion.record_sums([], asked)
    assert 0 < spoiled <= PEOPLE // (PEOPLE - N_MIN)


Lies = Callable[[bool, set[int]], bool]  # whether a device that is asked lies: in a probe or not, beside whom


def in_tables(probe: bool, asked: set[int]) -> bool:
    """Send honest zeros in probes."""
    return not probe


def framing(probe: bool, asked: set[int]) -> bool:
    """Lie in probes whenever device 8 is asked too, so that it looks guilty."""
    return not probe or 8 in asked


def by_chance(probe: bool, asked: set[int]) -> bool:
    """Lie in some probes, and in every table."""
    return not probe or sum(asked) % 3 == 0


def framing_after_one_table() -> Lies:
    """Lie in the first table, and in probes whenever device 8 is asked too."""
    tables = iter([True])
    return lambda probe, asked: 8 in asked if probe else next(tables, False)


def searched(
    lies: Lies,
    seed: int,
    absent: range = range(0),
    attempts: int = 60,
    smallest: int = N_MIN,
    may_spoil: bool = False,
) -> tuple[Suspicion, list[int], int]:
    """So many attempts of devices that stay: the suspicion, who is asked next, and how many tables were in vain."""
    suspicion, rng, spoiled = Suspicion(), np.random.default_rng(seed), 0
    for number in range(attempts):
        asked = set(suspicion.without_suspects(range(PEOPLE), terms(smallest), rng=rng, may_spoil=may_spoil))
        here = asked - set(absent) if number else asked
        was_probe = suspicion.search is Search.PROBING
        is_false = LIAR in here and lies(was_probe, here)
        spoiled += is_false and not was_probe
        suspicion.record_presence(asked, len(here), here)
        suspicion.record_sums(*((here, []) if is_false else ([], here)), was_probe=was_probe)
        if is_false and not was_probe:
            assert str(LIAR) in suspicion._with_fewest_missed
    return suspicion, suspicion.without_suspects(range(PEOPLE), terms(smallest), rng=rng), spoiled


@pytest.mark.parametrize("seed", range(5))
def test_probes_single_out_a_device_that_always_lies(seed: int) -> None:
    """One table is in vain; afterwards everybody but the liar is asked."""
    suspicion, asked, spoiled = searched(lambda probe, asked: True, seed)
    assert (suspicion.search, suspicion.suspects, spoiled) == (Search.ENDED, {str(LIAR)}, 1)
    assert set(range(PEOPLE)) - set(asked) == {LIAR}
    assert suspicion._vain == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spare", [2, 14])
def test_a_search_has_as_many_probes_as_it_needs(seed: int, spare: int) -> None:
    """With two devices to spare it needs up to 200 / 2 + 1 probes; still one table is in vain."""
    attempts = 1 + PEOPLE // spare + spare
    suspicion, asked, spoiled = searched(lambda probe, asked: True, seed, attempts=attempts, smallest=PEOPLE - spare)
    assert (suspicion.search, suspicion.suspects, spoiled) == (Search.ENDED, {str(LIAR)}, 1)
    assert set(range(PEOPLE)) - set(asked) == {LIAR}


@pytest.mark.parametrize("lies", [in_tables, framing, by_chance])
@pytest.mark.parametrize("seed", range(3))
def test_whoever_plays_with_probes_spoils_one_table_more(lies: Lies, seed: int) -> None:
    """At most n/(n − n_min) + 1 = 6: either it is found after all, or the search is given up."""
    suspicion, asked, spoiled = searched(lies, seed)
    assert spoiled <= PEOPLE // (PEOPLE - N_MIN) + 1
    assert LIAR not in asked
    assert suspicion.search is Search.HALVING or suspicion.suspects == {str(LIAR)}
    assert suspicion.search is Search.HALVING or lies is not in_tables


@pytest.mark.parametrize("lies", [in_tables, by_chance])
@pytest.mark.parametrize("seed", range(5))
def test_where_the_budget_pays_for_it_whoever_plays_with_probes_is_singled_out(lies: Lies, seed: int) -> None:
    """At most log₂ 40 + 1, that is 6, tables more are in vain, and then everybody but the liar is asked."""
    _, asked, spoiled = searched(lies, seed, may_spoil=True)
    assert spoiled <= PEOPLE // (PEOPLE - N_MIN) + 1 + 6
    assert set(range(PEOPLE)) - set(asked) == {LIAR}


@pytest.mark.parametrize("seed", range(5))
def test_halving_ends_with_a_liar_that_rests_meanwhile(seed: int) -> None:
    """It sends honest tables while few are left out, and so spoils at most 6 tables more than without halving."""

    def while_many_are_left_out(probe: bool, asked: set[int]) -> bool:
        return not probe and PEOPLE - len(asked) not in range(2, PEOPLE - N_MIN)

    spoiled = searched(while_many_are_left_out, seed, may_spoil=True, attempts=300)[2]
    assert spoiled <= PEOPLE // (PEOPLE - N_MIN) + 1 + 6


def test_a_sum_that_contradicts_the_halving_ends_it() -> None:
    """Nobody whom the halving suspects was in this discarded sum. From then on as many as possible are left out."""
    suspicion = begun(range(PEOPLE))
    suspicion.search = Search.HALVING
    suspicion.record_sums([], range(40, PEOPLE))
    assert suspicion._hidden == set(map(str, range(40)))
    suspicion.record_sums(range(20, PEOPLE), [])  # half of the forty were asked again
    assert suspicion._hidden == set(map(str, range(20, 40)))
    suspicion.record_sums([], range(30, PEOPLE))
    assert suspicion._hidden == set(map(str, range(20, 30)))
    draws = [np.random.default_rng(n) for n in range(2)]
    without, asked = (
        suspicion.without_suspects(range(PEOPLE), terms(), rng=rng, may_spoil=bool(n)) for n, rng in enumerate(draws)
    )
    assert set(range(PEOPLE)) - set(without) == set(range(20, 30))
    assert len(set(range(20, 30)) - set(asked)) == 5
    suspicion.record_sums([*range(20), *range(30, PEOPLE)], [])
    assert suspicion.search is Search.FAILED
    assert len(suspicion.without_suspects(range(PEOPLE), terms(), rng=draws[0], may_spoil=True)) == N_MIN


def test_a_search_leaves_out_the_device_that_is_framed_or_the_one_that_frames_it() -> None:
    """One table and the probes that ask device 8 are spoiled. Who of the two is left out of a probe first decides."""
    found = set()
    for seed in range(8):
        suspicion, asked, spoiled = searched(framing_after_one_table(), seed)
        assert (suspicion.search, spoiled) == (Search.ENDED, 1)
        found |= set(range(PEOPLE)) - set(asked)
    assert found == {LIAR, 8}


def test_a_liar_that_goes_offline_stays_suspected() -> None:
    """Sums are good without it, so probes blame the likeliest who is there, and leave out the absent too."""
    suspicion, asked, spoiled = searched(lambda probe, asked: True, 0, absent=range(LIAR, LIAR + 1))
    assert suspicion.search is Search.ENDED
    assert spoiled == 1
    assert str(LIAR) in suspicion.suspects
    assert LIAR not in asked


@pytest.mark.parametrize("in_probes", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_liar_that_joins_again_under_another_name_gains_no_head_start(in_probes: bool, seed: int) -> None:
    """Sums that were discarded before a device's first table say nothing about it, so they do not count as missed."""
    suspicion, rng, members, spoiled = Suspicion(), np.random.default_rng(seed), list(range(PEOPLE)), [0, 0, 0]
    names = iter((LIAR, PEOPLE, PEOPLE + 1))
    liar, number = next(names), 0
    for _ in range(100):
        asked = suspicion.without_suspects(members, terms(), rng=rng)
        was_probe = suspicion.search is Search.PROBING
        is_false = liar in asked and (in_probes or not was_probe)
        spoiled[number] += is_false and not was_probe
        suspicion.record_presence(asked, len(asked), asked)
        suspicion.record_sums(*((asked, []) if is_false else ([], asked)), was_probe=was_probe)
        if not (was_probe or is_false) and number < 2:
            members.remove(liar)
            liar, number = next(names), number + 1
            members.append(liar)
    assert max(spoiled) <= PEOPLE // (PEOPLE - N_MIN) + 1
    assert liar not in suspicion.without_suspects(members, terms(), rng=rng)


def begun(members: range) -> Suspicion:
    """A search that has begun: these devices have stayed, and their first sum was discarded."""
    suspicion = Suspicion()
    suspicion.record_presence(members, len(members), members)
    suspicion.record_sums(members, [])
    assert suspicion.search is Search.PROBING
    return suspicion


def ended() -> Suspicion:
    """A search that has ended with the liar."""
    suspicion = begun(range(PEOPLE))
    others = [name for name in range(PEOPLE) if name != LIAR]
    suspicion.record_sums([], others, was_probe=True)
    assert (suspicion.search, suspicion.suspects) == (Search.ENDED, {str(LIAR)})
    return suspicion


def test_without_devices_to_spare_a_few_probes_are_in_vain() -> None:
    """Everybody is asked again, at no cost, until the search fails or more devices have stayed."""
    few = range(N_MIN)
    suspicion = begun(few)
    for _ in range(MOST_VAIN_PROBES):
        assert suspicion.search is Search.PROBING
        assert suspicion.without_suspects(few, terms(), rng=np.random.default_rng(0)) == list(few)
        suspicion.record_sums(few, [], was_probe=True)
    assert suspicion.search is Search.HALVING


def test_a_search_survives_an_attempt_with_too_few_keys() -> None:
    """Who is online is not known then, so a probe of everybody comes next."""
    suspicion = begun(range(PEOPLE))
    suspicion.record_presence(range(PEOPLE), 0, ())
    assert len(suspicion.without_suspects(range(PEOPLE), terms(), rng=np.random.default_rng(0))) == PEOPLE
    assert suspicion.search is Search.PROBING


def test_a_search_fails_after_so_many_probes_in_vain() -> None:
    """Two liars that are never left out together spoil every probe."""
    suspicion = begun(range(PEOPLE))
    for number in range(MOST_VAIN_PROBES):
        assert suspicion.search is Search.PROBING, number
        suspicion.record_sums(range(PEOPLE), [], was_probe=True)
    assert suspicion.search is Search.HALVING
    suspicion.record_sums(range(PEOPLE), [])
    assert suspicion.search is Search.HALVING


def test_with_several_cohorts_a_search_continues_but_does_not_begin() -> None:
    """A discarded sum of several costs a round one cohort only; in a probe it tells more than a sum of all."""
    suspicion = Suspicion()
    suspicion.record_sums(range(50), range(50, PEOPLE), has_one_cohort=False)
    assert suspicion.search is Search.NOT_BEGUN
    suspicion = begun(range(PEOPLE))
    suspicion.record_sums(range(50), range(50, PEOPLE), was_probe=True, has_one_cohort=False)
    assert (suspicion.search, len(suspicion.suspects)) == (Search.PROBING, 50)


@pytest.mark.parametrize("has_one_cohort", [True, False])
def test_a_discarded_sum_after_a_search_says_that_the_search_found_the_wrong_device(has_one_cohort: bool) -> None:
    """Or that there is another one. A good sum leaves it at that."""
    suspicion = ended()
    suspicion.record_sums([], range(LIAR))
    assert suspicion.search is Search.ENDED
    suspicion.record_sums(range(LIAR), range(LIAR + 1, PEOPLE), has_one_cohort=has_one_cohort)
    assert suspicion.search is Search.HALVING


def test_after_a_search_several_cohorts_leave_out_the_device_that_it_found_and_nobody_else() -> None:
    """Although many honest devices were in two discarded probes or more."""
    suspicion = begun(range(PEOPLE))
    for left_out in (range(100, 140), range(140, 180)):
        suspicion.record_sums([name for name in range(PEOPLE) if name not in left_out], [], was_probe=True)
    suspicion.record_sums([], [name for name in range(PEOPLE) if name != LIAR], was_probe=True)
    assert suspicion.search is Search.ENDED
    found = suspicion.without_suspects(range(PEOPLE), terms(38, 50), rng=np.random.default_rng(0))
    assert set(range(PEOPLE)) - set(found) == {LIAR}


@pytest.mark.parametrize(("offline", "left"), [(0, 0), (20, 0), (20, 5), (30, 10), (39, 0), (60, 0)])
def test_no_more_are_left_out_than_those_who_stay_can_spare(offline: int, left: int) -> None:
    """Offline devices are asked, but do not count; as many may leave again as have left the last attempt."""
    suspicion, online = Suspicion(), range(PEOPLE - offline)
    suspicion.record_sums(online, [])
    suspicion.record_presence(range(PEOPLE), len(online), online[: len(online) - left])
    asked = suspicion.without_suspects(range(PEOPLE), terms(), rng=np.random.default_rng(0))
    spare = max(len(online) - 2 * left - N_MIN, 0)
    assert len(asked) == PEOPLE - spare
    assert set(range(PEOPLE)) - set(asked) <= set(online)


def test_nobody_is_left_out_after_too_few_have_sent_keys() -> None:
    """Not even a culprit: who is online is not known."""
    suspicion = Suspicion()
    suspicion.culprits |= {"3"}
    suspicion.record_presence(range(PEOPLE), PEOPLE, range(PEOPLE))
    assert 3 not in suspicion.without_suspects(range(PEOPLE), terms(), rng=np.random.default_rng(0))
    suspicion.record_presence(range(PEOPLE), 0, ())
    assert 3 in suspicion.without_suspects(range(PEOPLE), terms(), rng=np.random.default_rng(0))


@pytest.mark.parametrize(("times", "asked"), [(1, 200), (2, 187)])
def test_with_several_cohorts_two_discarded_sums_are_needed(times: int, asked: int) -> None:
    """Devices of one discarded sum are spread; thirteen of two are left out, and four cohorts can still be filled."""
    suspicion = Suspicion()
    suspicion.record_presence(range(PEOPLE), PEOPLE, range(PEOPLE))
    suspicion.record_sums(range(50), range(50, PEOPLE), has_one_cohort=False)
    if times == 2:
        suspicion.record_sums(range(37, 87), range(37), has_one_cohort=False)
    found = suspicion.without_suspects(range(PEOPLE), terms(38, 50), rng=np.random.default_rng(0))
    assert len(found) == asked
    assert times == 1 or set(range(PEOPLE)) - set(found) == set(range(37, 50))


def test_a_restored_server_leaves_out_the_same() -> None:
    """From the arrays of its state."""
    suspicion, again = Suspicion(), Suspicion()
    suspicion.record_sums(range(150), range(150, PEOPLE))
    suspicion.record_sums([], range(100))
    suspicion.record_presence(range(PEOPLE), PEOPLE, range(5, PEOPLE))
    suspicion.culprits |= {"199"}
    suspicion._hidden |= {"3"}
    again.restore(suspicion.state)
    assert again._hidden == {"3"}
    draws = (np.random.default_rng(1) for _ in range(2))
    first, second = (one.without_suspects(range(PEOPLE), terms(), rng=next(draws)) for one in (suspicion, again))
    assert first == second
    assert 199 not in first
    assert again.suspects == suspicion.suspects
    assert again.search is Search.PROBING


def test_a_run_of_an_earlier_version_continues_without_suspects() -> None:
    """Its state had the suspects of another rule."""
    suspicion = Suspicion()
    suspicion.restore({"suspects": np.array(["3"]), "culprits": np.array(["4"])})
    assert suspicion.suspects | suspicion.culprits == set()


def test_a_restored_server_without_discarded_sums_has_no_suspects() -> None:
    """Although its state names everybody who was in a good sum."""
    suspicion, again = Suspicion(), Suspicion()
    suspicion.record_sums([], range(PEOPLE))
    again.restore(suspicion.state)
    assert again.suspects == suspicion.suspects == set()


def test_a_state_without_missed_sums_gives_the_same_suspects() -> None:
    """As an earlier version saved it."""
    suspicion, again = Suspicion(), Suspicion()
    suspicion.record_sums(range(150), range(150, PEOPLE), has_one_cohort=False)
    suspicion.record_sums(range(100, PEOPLE), range(100), has_one_cohort=False)
    again.restore({name: array for name, array in suspicion.state.items() if name != "suspicion_missed"})
    assert again.suspects == suspicion.suspects == set(map(str, range(100, 150)))
