"""A matrix mechanism over two factor rounds: noise of the second round that takes back a part of the first round's.

Each device may remember its own share of noise, so that the sum of round 2 can have the noise (1 + λ)σ z₂ − λσ z₁ where
that of round 1 had σ z₁. A device sends x₁ and x₂, each of norm at most C. To release both sums is to release x₁ + σ z₁
and x₂ + λx₁ + (1 + λ)σ z₂, and the second of these moves by at most (1 + λ) C. Together they cost

    C²/σ² + (1 + λ)²C² / ((1 + λ)²σ²) = 2 C²/σ²

for every λ ≥ 0, as much as two rounds of independent noise σ. The accounting of the plan stays exact.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from changed import Change

from hushrec.arrays import FloatArray
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.protocols.masked.gp import learning as gp_learning
from hushrec.protocols.masked.gp.constants import CONSTANTS
from hushrec.protocols.masked.gp.server import GpLearner, Learned
from hushrec.protocols.masked.gp.table import PublicTable
from hushrec.protocols.masked.noise import summed_noise
from hushrec.protocols.masked.plan import FACTORS
from hushrec.protocols.masked.posteriors import RowNoise, column_posterior
from hushrec.protocols.masked.sums import ItemSum
from hushrec.randomness import Purpose, SeededRandomness


class Banded(GpLearner):
    """A learner that knows how loud the second factor block is."""

    band = 0.0

    def _learn(self, sums: Any, survivors: int) -> Learned:
        if FACTORS in sums and self._is_second():
            louder = (1 + self.band) ** 2 + self.band**2
            noisy = sums[FACTORS]
            sums = {**sums, FACTORS: noisy._replace(noise_variance=louder * noisy.noise_variance)}
        return super()._learn(sums, survivors)

    def _is_second(self) -> bool:
        return any(block.name == FACTORS for one in self.plan.rounds[: self.round_number] for block in one.blocks)


class SameColumns(Banded):
    """Both factor rounds measure the same directions; the columns are made from both estimates, pooled.

    In round 2 devices do not see the columns of round 1, so that residuals mean the same in both.
    """

    first: tuple[FloatArray, FloatArray, FloatArray, FloatArray]  # θ, its noise, directions D, root R of round 1

    def table(self) -> PublicTable:
        usual = super().table()
        if usual.directions.shape[1] == 0 or not self._is_second():
            return usual
        *_, directions, root = self.first
        width = directions.shape[1]
        columns = self.learned.columns.copy()
        columns[:, :width] = 0
        now = self.learned.root
        return replace(
            usual,
            offsets=CONSTANTS.centre + self.learned.effects + columns @ self.learned.mean,
            rows=columns @ now,
            directions=np.ascontiguousarray(np.linalg.solve(root, now[width:]).T @ directions),
        )

    def _learn_factors(self, learned: Learned, noisy: ItemSum) -> Learned:
        inverse = np.linalg.inv(noisy.mean_weight)
        found, private = noisy.sums @ inverse / learned.counts[:, None], (noisy.deviations / learned.counts) ** 2
        if not self._is_second():
            self.first = found, private, self.table().directions, self.learned.root
            return super()._learn_factors(learned, noisy)
        before, old, *_ = self.first
        shared = -self.band * old  # covariance of both rounds' noise
        weight = ((private - shared) / (old + private - 2 * shared))[:, None]
        pooled = weight * before + (1 - weight) * found
        variance = (old * private - shared**2) / (old + private - 2 * shared)
        own = inverse @ inverse
        sampling = CONSTANTS.noise * inverse @ noisy.squared_weight @ inverse
        noise = RowNoise(variance, own[:-1, :-1], 1 / learned.counts, sampling[:-1, :-1])
        factors = column_posterior(pooled[:, :-1], noise, learned.prior_columns)
        sizes = np.sqrt(np.average(factors**2, axis=0, weights=learned.counts))
        scaled = factors * CONSTANTS.column_spread / np.maximum(sizes, 1e-4)
        return self._with_estimate(
            self._instead(learned, scaled),
            learned.effects + found[:, -1],
            private * own[-1, -1],
            sampling[-1, -1] / learned.counts,
        )

    def _instead(self, learned: Learned, columns: FloatArray) -> Learned:
        """Put columns in the place of the first ones, which stay as zeros: the plan counts on their number."""
        width = columns.shape[1]
        zeros = self._append(learned, np.zeros_like(columns), CONSTANTS.factor_variance)
        order = np.r_[width : 2 * width, :width, 2 * width : len(zeros.mean)]
        return replace(
            zeros,
            columns=np.concatenate([columns, zeros.columns[:, :width], learned.columns[:, width:]], axis=1),
            mean=zeros.mean[order],
            covariance=zeros.covariance[np.ix_(order, order)],
        )


def price(band: float) -> float:
    """What both rounds cost, in C²/σ²: the largest ‖B⁻¹x‖² over x of two blocks of norm 1, with noise B z.

    ‖B⁻¹x‖² = Σ_st (B⁻ᵀB⁻¹)_st x_s·x_t, which is at most the sum of the absolute values, and reaches it.
    """
    inverse = np.linalg.inv(np.array([[1.0, 0.0], [-band, 1 + band]]))
    return float(np.abs(inverse.T @ inverse).sum())


def noise_over_rounds(learner: type[Banded], band: float) -> Change:
    """Two factor rounds with the noise above, λ the `band`."""
    assert abs(price(band) - 2) < 1e-9, "the rounds must cost what the plan says"

    def sum_tables(engine: CpuMaskedEngine, one: Any, table: Any, present: Any) -> list[Any]:
        codes = engine.priced.codes[engine.round_number]
        survivors = int(np.count_nonzero(present))
        rng = SeededRandomness(engine.problem.seed).stream(Purpose.SUMMED_NOISE, engine.round_number + 1)
        totals = []
        for block, own, code in zip(one.blocks, engine.sum_integers(one, codes, table, present), codes, strict=True):
            noise = summed_noise(code.share_variance, survivors).draw(code.size, rng=rng)
            if block.name == FACTORS:
                before = vars(engine).get("before")
                if before is not None:
                    noise = np.rint((1 + band) * noise - band * before / code.grid).astype(np.int64)
                vars(engine)["before"] = noise * code.grid
            totals.append((own + noise).astype(np.uint32))
        return totals

    def change(stack: ExitStack) -> None:
        stack.enter_context(patch.object(gp_learning.GpLearning, "learner", type("Chosen", (learner,), {"band": band})))
        stack.enter_context(patch.object(CpuMaskedEngine, "sum_tables", sum_tables))

    return change
