"""Cohorts that are compared with each other: honest ones agree, and a lie that is long for a cohort is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_masked_audience import small_problem as audience_problem
from test_masked_cohorts import LARGEST, three_cohorts
from test_masked_run import small_problem

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.messages import Address
from hushrec.protocols.masked.agreement import disagreements
from hushrec.protocols.masked.encoding import DecodedSum, add_sums, decode_sum, is_plausible
from hushrec.protocols.masked.messages import MaskedTable
from hushrec.protocols.masked.noise import summed_noise
from hushrec.simulation.training_problem import AnyProblem

PEOPLE, COHORTS, SPLITS = 60, 3, 6
DEVICES = [PEOPLE // COHORTS] * COHORTS


def cohort_sums(engine: CpuMaskedEngine, rng: np.random.Generator) -> list[dict[str, DecodedSum]]:
    """The next round's sums of three cohorts that are drawn by chance, with noise."""
    one, codes = engine.priced.plan.rounds[engine.round_number], engine.priced.codes[engine.round_number]
    cohorts = rng.permutation(PEOPLE).reshape(COHORTS, -1)
    found = []
    for members in cohorts:
        present = np.isin(np.arange(PEOPLE), members)
        parts = engine.sum_integers(one, codes, engine.learner.table(), present)
        noisy = [
            own + summed_noise(code.share_variance, len(members)).draw(code.size, rng=rng)
            for own, code in zip(parts, codes, strict=True)
        ]
        decoded = [
            decode_sum(code, own.astype(np.uint32), len(members)) for code, own in zip(codes, noisy, strict=True)
        ]
        found.append({block.name: own for block, own in zip(one.blocks, decoded, strict=True)})
    return found


def sized(problem: AnyProblem, smaller: AnyProblem) -> AnyProblem:
    """The people of one problem with the terms of another: sums hold a part of them."""
    return replace(problem, terms=smaller.terms)


PROBLEMS: dict[str, Callable[[float], AnyProblem]] = {
    "gp": lambda epsilon: sized(
        small_problem(n_users=PEOPLE, epsilon=epsilon), small_problem(n_users=20, epsilon=epsilon)
    ),
    "gp, large": lambda epsilon: sized(
        small_problem(n_users=PEOPLE, epsilon=epsilon, large=True),
        small_problem(n_users=20, epsilon=epsilon, large=True),
    ),
    "audience": lambda epsilon: sized(
        audience_problem(n_users=PEOPLE, epsilon=epsilon), audience_problem(n_users=20, epsilon=epsilon)
    ),
}


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [("gp", 1.0), ("gp", 8.0), ("gp", np.inf), ("gp, large", np.inf), ("audience", 8.0), ("audience", np.inf)],
)
def test_honest_cohorts_agree(name: str, epsilon: float) -> None:
    """Two kinds of people with opposite tastes, split by chance again and again: every block of every round."""
    engine, rng = CpuMaskedEngine(PROBLEMS[name](epsilon)), np.random.default_rng(5)
    for _ in engine.priced.plan.rounds:
        drawn = [cohort_sums(engine, rng) for _ in range(SPLITS)]
        assert max(max(disagreements(engine.learner, sums, DEVICES)) for sums in drawn) <= 1
        engine.learner.learn(add_sums(drawn[0]), PEOPLE)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_count_that_one_cohort_alone_has_is_found(name: str) -> None:
    """All people of the cohort could have rated the item, so that its length says nothing; in the others few have."""
    engine = CpuMaskedEngine(PROBLEMS[name](np.inf))
    sums = cohort_sums(engine, np.random.default_rng(6))
    counts, code = sums[1]["counts"], engine.priced.codes[0][0]
    pushed = counts.values.copy()
    pushed[3] += 2 * DEVICES[1]
    assert is_plausible(code, np.rint(pushed / code.grid).astype(np.int64).astype(np.uint32), DEVICES[1])
    found = disagreements(
        engine.learner, [sums[0], sums[1] | {"counts": counts._replace(values=pushed)}, sums[2]], DEVICES
    )
    assert found[1] == max(found) > 1


@pytest.mark.parametrize(("cohorts", "is_found"), [(3, True), (2, False)])
def test_a_cohort_that_disagrees_is_discarded_where_there_are_three(cohorts: int, is_found: bool) -> None:
    """Its members are suspected, and the others' sums are learned from; of two nobody can tell which is right."""
    largest = 16
    problem = audience_problem(n_users=cohorts * largest, epsilon=np.inf)
    engine = ReferenceEngine(sized(problem, audience_problem(n_users=largest, epsilon=np.inf)))
    side, honest = engine.server.side, engine.clients[4].report

    def report(address: Address, message: Any) -> Any:
        made = honest(address, message)
        if not isinstance(made, MaskedTable):
            return made
        more = np.zeros(len(made.numbers), dtype=np.int64)
        more[3] = 10 * side.terms.priced.codes[0][0].clip_units
        return replace(made, numbers=made.numbers + more.astype(np.uint32))

    engine.clients[4].report = report  # type: ignore[method-assign]
    engine.run_round()
    assert side.attempt.announcement.place == (1, 1)
    assert ("4" in side.suspects) == is_found
    assert len(side.suspects) == (largest if is_found else 0)
    assert side.learner.devices == 2 * largest


def test_honest_devices_in_cohorts_are_never_suspected() -> None:
    """Every message real, all rounds."""
    engine = three_cohorts()
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
        assert len(engine.server.side.attempt.survivors) == 3 * LARGEST
    assert not engine.server.side.suspects
