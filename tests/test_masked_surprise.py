"""Sums that honest devices do not make: found by what counts and earlier rounds tell of the items, never by mistake."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_masked_parties import survivors_of
from test_masked_run import FEW, N_ITEMS, small_problem

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.messages import Address
from hushrec.protocols.masked.encoding import BlockCode, DecodedSum, decode_sum, is_plausible
from hushrec.protocols.masked.gp.surprise import counts_surprise
from hushrec.protocols.masked.messages import MaskedTable


def surprises(problem: Any) -> list[float]:
    """Of every round of an honest run."""
    engine, found = CpuMaskedEngine(problem), []
    learn = engine.learner.learn

    def watched(sums: Any, survivors: int) -> None:
        found.append(engine.learner.surprise(sums, survivors))
        learn(sums, survivors)

    engine.learner.learn = watched  # type: ignore[method-assign]
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    return found


@pytest.mark.parametrize("options", [{}, {"large": True}, {"epsilon": np.inf}, {"epsilon": 1.0}, {"dropout": 0.2}])
def test_honest_runs_surprise_nobody(options: dict[str, Any]) -> None:
    """Every round of every plan, with noise, without, and with devices that are absent."""
    assert max(surprises(small_problem(**options))) <= 1


def test_counts_of_honest_devices_are_from_zero_to_all() -> None:
    """Noise takes them a little outside; more negative numbers than noise makes, or one far outside, are found."""
    rng = np.random.default_rng(4)
    honest = np.concatenate([np.full(20, 90.0), np.zeros(980)]) + rng.normal(0, 5, 1_000)
    assert counts_surprise(DecodedSum(honest, 25.0, 0.0), 100) <= 1
    spread = honest + rng.choice([-6.0, 6.0], 1_000)
    assert counts_surprise(DecodedSum(spread, 25.0, 0.0), 100) > 1
    single = honest.copy()
    single[500] = 100 + 50
    assert counts_surprise(DecodedSum(single, 25.0, 0.0), 100) > 1


def crafted(kind: str, code: BlockCode, rng: np.random.Generator) -> np.ndarray:
    """A sum of a block that is about as long as the tables of all devices may be together."""
    made = {
        "spread": lambda: rng.normal(size=code.size),
        "signs": lambda: rng.choice([-1.0, 1.0], code.size),
        "negative": lambda: -np.abs(rng.normal(size=code.size)),
        "heavy": lambda: rng.normal(size=code.size) ** 5,
        "one number": lambda: np.eye(1, code.size, rng.integers(code.size))[0],
    }[kind]()
    length = 0.99 * FEW * np.sqrt(code.norm_squared) / np.linalg.norm(made)
    return np.rint(length * made).astype(np.int64).astype(np.uint32)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["zeros", "spread", "signs", "negative", "heavy", "one number"])
def test_no_sum_that_passes_the_check_of_length_stops_the_server(kind: str, large: bool) -> None:
    """A hostile device chooses the sums of some blocks: the server learns a finite table, without a warning.

    An error would come again with every try to close the phase, and end the run.
    """
    for seed in range(5):
        rng, engine = np.random.default_rng(seed), CpuMaskedEngine(small_problem(n_users=FEW, large=large))
        priced = engine.problem.terms.priced
        for one, codes in zip(priced.plan.rounds, priced.codes, strict=True):
            sums = engine.sum_tables(one, engine.learner.table(), np.ones(FEW, dtype=np.bool_))
            for place, code in enumerate(codes):
                if rng.random() < 0.6:
                    zeros = np.zeros(code.size, dtype=np.uint32)
                    sums[place] = zeros if kind == "zeros" else crafted(kind, code, rng)
                    assert is_plausible(code, sums[place], FEW)
            decoded = [decode_sum(code, own, FEW) for code, own in zip(codes, sums, strict=True)]
            named = dict(zip((block.name for block in one.blocks), decoded, strict=True))
            assert engine.learner.surprise(named, FEW) >= 0
            engine.learner.learn(named, FEW)
            for array in vars(engine.learner.table()).values():
                assert np.isfinite(array).all()


def test_a_table_as_long_as_all_others_together_is_discarded() -> None:
    """By its norm it could be honest; in the third round, when effects are known, its sender is found and left out."""
    engine = ReferenceEngine(small_problem(n_users=24, epsilon=20.0, survivors=0.6, reserve=0.5))
    side, sent = engine.server.side, []
    honest = engine.clients[4].report

    def report(address: Address, message: Any) -> Any:
        made = honest(address, message)
        if not isinstance(made, MaskedTable) or address.round_number < 3:
            return made
        code = side.terms.priced.codes[address.round_number - 1][0]
        added = np.zeros(len(made.numbers), dtype=np.int64)
        signs = np.where(np.arange(N_ITEMS) % 3 == 0, 1, -1)
        added[:N_ITEMS] = signs * int(20 * np.sqrt(code.norm_squared / N_ITEMS))
        sent.append(is_plausible(code, added[: code.size].astype(np.uint32), 24))
        return replace(made, numbers=made.numbers + added.astype(np.uint32))

    engine.clients[4].report = report  # type: ignore[method-assign]
    engine.run_round()
    engine.run_round()
    assert not side.suspects
    engine.run_round()
    assert all(sent)
    assert side.attempt.announcement.attempt > 1
    assert 4 not in survivors_of(engine)
    assert "4" in side.suspects
