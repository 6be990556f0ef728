"""Whom a server leaves out after sums that honest devices cannot have made."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hushrec.protocols.masked.suspicion import Suspicion

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
    """At most n/(n − n_min) = 5 of 300, and it is always a suspect."""
    suspicion, rng, spoiled = Suspicion(), np.random.default_rng(seed), 0
    for _ in range(300):
        asked = suspicion.without_suspects(range(PEOPLE), terms(), rng=rng)
        assert len(asked) >= N_MIN
        if LIAR in asked and lies(suspicion, set(asked)):
            spoiled += 1
            suspicion.record_sums(asked, [])
            assert str(LIAR) in suspicion.suspects
        else:
            suspicion.record_sums([], asked)
        suspicion.record_presence(asked, len(asked), asked)
    assert 0 < spoiled <= PEOPLE // (PEOPLE - N_MIN)


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
    suspicion.forget_presence()
    assert 3 in suspicion.without_suspects(range(PEOPLE), terms(), rng=np.random.default_rng(0))


@pytest.mark.parametrize(("times", "asked"), [(1, 200), (2, 187)])
def test_with_several_cohorts_two_discarded_sums_are_needed(times: int, asked: int) -> None:
    """Devices of one discarded sum are spread; thirteen of two are left out, and four cohorts can still be filled."""
    suspicion = Suspicion()
    suspicion.record_presence(range(PEOPLE), PEOPLE, range(PEOPLE))
    suspicion.record_sums(range(50), range(50, PEOPLE))
    if times == 2:
        suspicion.record_sums(range(37, 87), range(37))
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
    again.restore(suspicion.state)
    draws = (np.random.default_rng(1) for _ in range(2))
    first, second = (one.without_suspects(range(PEOPLE), terms(), rng=next(draws)) for one in (suspicion, again))
    assert first == second
    assert 199 not in first
    assert again.suspects == suspicion.suspects


def test_a_run_of_an_earlier_version_continues_without_suspects() -> None:
    """Its state had the suspects of another rule."""
    suspicion = Suspicion()
    suspicion.restore({"suspects": np.array(["3"]), "culprits": np.array(["4"])})
    assert suspicion.suspects | suspicion.culprits == set()
