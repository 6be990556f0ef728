"""Masked rounds of a whole cohort in one process: sums, drop-outs, attempts, and a hostile device."""

import numpy as np
import pytest
from test_masked_rounds import RUN, SERVER, TABLE, Person, make_terms

from hushrec.engines.masked_cohort import MaskedCohort
from hushrec.errors import AttemptFailed
from hushrec.protocols.masked.encoding import decode_sum, split_table
from hushrec.randomness import SystemStream


class Run:
    """Ten devices and the cohort that sums them."""

    def __init__(self) -> None:
        self.terms = make_terms()
        self.people = [Person(number, self.terms) for number in range(10)]
        self.cohort = MaskedCohort(
            self.terms,
            RUN,
            SERVER,
            {person.name: person.round for person in self.people},
            {person.name: person.key for person in self.people},
        )

    def sum_of(self, names: frozenset[bytes]) -> np.ndarray:
        """The sum of these devices' last uploads."""
        return np.sum([person.upload for person in self.people if person.name in names], axis=0, dtype=np.uint32)


def test_all_rounds_of_a_plan_are_summed_and_decoded() -> None:
    """Both rounds: exact sums, and values of 10 × 0.5 within their known noise (one alarm in 10¹⁵)."""
    run = Run()
    for number, codes in enumerate(run.terms.priced.codes, start=1):
        found = run.cohort.run_round(number, TABLE, rng=SystemStream())
        assert (len(found.survivors), found.attempts) == (10, 1)
        assert np.array_equal(found.total, run.sum_of(found.survivors))
        for code, block in zip(codes, split_table(codes, found.total), strict=True):
            decoded = decode_sum(code, block, 10)
            assert np.all(np.abs(decoded.values - 5.0) < 8 * np.sqrt(decoded.noise_variance) + 1e-3)


@pytest.mark.parametrize("phase", ["keys", "shares", "table", "consent", "unmask"])
def test_a_lost_attempt_is_repeated_with_whoever_is_there(phase: str) -> None:
    """Six devices are away in one phase of the first attempt; the second one has all but two."""
    run = Run()
    names = [person.name for person in run.people]
    away = {1: names[:6], 2: names[:2]}
    found = run.cohort.run_round(
        1, TABLE, rng=SystemStream(), absent=lambda attempt, at: away[attempt] if at == phase else []
    )
    assert found.attempts == 2
    assert np.array_equal(found.total, run.sum_of(found.survivors))


def test_a_round_that_nobody_answers_has_no_sum() -> None:
    """Five attempts, and an error."""
    run = Run()
    with pytest.raises(AttemptFailed, match="5 attempts"):
        run.cohort.run_round(1, TABLE, rng=SystemStream(), absent=lambda attempt, phase: run.cohort._devices)


def test_a_device_with_another_public_table_drops_out() -> None:
    """It refuses the announcement; the others go on."""
    run = Run()
    report = run.people[0].round.report
    run.people[0].round.report = lambda message, **given: report(message, **given | {"table_digest": bytes(32)})  # type: ignore[method-assign]
    found = run.cohort.run_round(1, TABLE, rng=SystemStream())
    assert len(found.survivors) == 9
    assert run.people[0].name not in found.survivors


def test_a_table_of_huge_integers_spoils_its_attempt_and_not_the_run() -> None:
    """The sum is discarded; with the hostile device gone the next attempt succeeds."""
    run = Run()
    hostile = run.people[4]
    hostile.round._make_upload = lambda number: np.frombuffer(SystemStream().bytes(36), dtype=np.uint32)
    found = run.cohort.run_round(
        1, TABLE, rng=SystemStream(), absent=lambda attempt, phase: [hostile.name] if attempt > 1 else []
    )
    assert (found.attempts, len(found.survivors)) == (2, 9)
    assert np.array_equal(found.total, run.sum_of(found.survivors))
