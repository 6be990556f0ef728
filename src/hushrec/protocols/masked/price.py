"""The privacy price of a plan: the noise of each block, the cost of each round, and the budget of the run."""

import math
from dataclasses import dataclass, replace
from typing import Any

from hushrec.budget.accountants import TableAccountant
from hushrec.budget.events import TableSent
from hushrec.budget.gaussian import Cohort, epsilon_at_own_delta, own_delta, own_fraction, require_delta, run_mu
from hushrec.errors import ParameterError, require
from hushrec.protocols.masked.encoding import BlockCode, code_block
from hushrec.protocols.masked.plan import Plan
from hushrec.protocols.masked.wording import (
    COUNTED_RATINGS,
    EXACT_SUMS,
    GUESSED_LEVELS,
    GUESSED_SCALE,
    NOT_COVERED,
    REPLACED_UNIT,
    UNIT,
    UNLISTED,
)


@dataclass(frozen=True)
class PricedPlan:
    """A plan with the encoding and noise of each block, calibrated for a budget and a cohort. All fields are public."""

    plan: Plan
    codes: tuple[tuple[BlockCode, ...], ...]  # one tuple per round, with one code per block
    epsilon: float
    delta: float
    cohort: Cohort
    reserve: float  # share of μ² kept for repeated attempts

    @property
    def is_exact(self) -> bool:
        """Whether sums have no noise (ε = ∞); the cost of a table is then infinite."""
        return self.epsilon == math.inf

    @property
    def mu_squared(self) -> float:
        """The budget μ² of a device for the whole run, including the reserve."""
        return run_mu(self.epsilon, self.delta) ** 2

    def table_sent(self, round_index: int, fraction: float = 1.0) -> TableSent:
        """Return the budget event of sending one table; `round_index` counts rounds from 0.

        `fraction` multiplies the largest norm of every block; it is below 1 for a person with a smaller budget.
        """
        return TableSent(tuple(code.event(self.cohort, fraction) for code in self.codes[round_index]))

    def cost(self, round_index: int) -> float:
        """Return the cost μ² of one table of a round; `round_index` counts rounds from 0."""
        accountant = TableAccountant()
        accountant.compose(self.table_sent(round_index))
        return accountant.mu_squared

    def accountant(self) -> TableAccountant:
        """Return an accountant with the cost of one table in every round, without repeated attempts."""
        accountant = TableAccountant()
        for index in range(len(self.codes)):
            accountant.compose(self.table_sent(index))
        return accountant

    @property
    def own_delta(self) -> float:
        """The δ of the ε that a person sets as the budget of one run (`own_epsilon`): at most `LEDGER_DELTA`."""
        return own_delta(self.delta)

    @property
    def largest_own_epsilon(self) -> float:
        """The ε of the run at `own_delta`. A person's `own_epsilon` above this number has no effect."""
        return epsilon_at_own_delta(self.epsilon, self.delta)

    def own_fraction(self, own_epsilon: float) -> float:
        """Return the factor by which a device multiplies the largest norm of blocks, for its person's `own_epsilon`."""
        return own_fraction(own_epsilon, self.epsilon, self.delta)

    def epsilon_if(self, honest: int, fraction: float = 1.0) -> float:
        """Return the ε of the whole run, at `own_delta`, if only `honest` devices of each sum add their noise.

        The other devices collude with the server. `fraction` multiplies the largest norm of every block, as in
        `table_sent`. ε is infinite if the noise that is left guarantees nothing.
        """
        fewer = replace(self, cohort=Cohort(honest)).accountant()
        whole = self.mu_squared * fewer.mu_squared / self.accountant().mu_squared * fraction**2
        return TableAccountant(len(self.codes), whole, whole / 2, fewer.distance).epsilon(self.own_delta)

    def statement(
        self,
        *,
        n_unlisted: int = 0,
        scale_is_guessed: bool = False,
        levels_are_guessed: bool = False,
        plan_is_counted: bool = False,
    ) -> dict[str, Any]:
        """Return the entry `budget` of a run's result: ε and its unit, ε for a replaced profile, what is not covered.

        `n_unlisted` is the number of items that are in the catalogue only because somebody rated them, and
        `scale_is_guessed` says whether the scale of ratings was guessed from the smallest and the largest rating,
        `levels_are_guessed` whether the number of different ratings depends on the ratings, and `plan_is_counted`
        whether the plan depends on the number of ratings.
        """
        spent = self.accountant()
        not_covered = [
            *NOT_COVERED,
            *([EXACT_SUMS] if self.epsilon == math.inf else []),
            *([UNLISTED.format(f"{n_unlisted:,}")] if n_unlisted else []),
            *([GUESSED_SCALE] if scale_is_guessed else []),
            *([GUESSED_LEVELS] if levels_are_guessed else []),
            *([COUNTED_RATINGS] if plan_is_counted else []),
        ]
        whole = TableAccountant(len(self.codes), self.mu_squared, self.mu_squared / 2, spent.distance)
        return {
            "unit": UNIT,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rounds": len(self.codes),
            "item_level": whole.replaced_epsilon(self.delta),
            "item_level_unit": REPLACED_UNIT,
            "epsilon_zcdp": whole.zcdp_epsilon(self.delta),
            "mu": math.sqrt(self.mu_squared),
            "spent": spent.epsilon(self.delta),
            "reserve": self.reserve,
            "devices": self.cohort.devices,
            "smallest_cohort": self.cohort.smallest,
            "most_corrupt": self.cohort.most_corrupt,
            "most_omitted": self.cohort.omitted,
            "not_covered": not_covered,
        }


def price_plan(plan: Plan, *, epsilon: float, delta: float, cohort: Cohort, reserve: float = 0.0) -> PricedPlan:
    """Return the plan with noise sized so that one table in every round costs at most (1 − reserve) μ² in total.

    Repeated attempts may use the reserve. Raise `ParameterError` if the resulting cost exceeds `epsilon` at `delta`.
    """
    require_delta(delta, cohort.devices)
    require(0 <= reserve < 1, "reserve", "at least 0 and below 1", reserve)
    mu = run_mu(float(epsilon), delta) * math.sqrt(1 - reserve)
    codes = tuple(tuple(code_block(block, mu=mu, cohort=cohort) for block in one.blocks) for one in plan.rounds)
    priced = PricedPlan(plan, codes, float(epsilon), delta, cohort, reserve)
    spent = priced.accountant().epsilon(delta)
    if spent == math.inf and epsilon < math.inf:
        raise ParameterError(
            f"delta must be larger than {delta} at epsilon = {epsilon}: discrete noise differs slightly from Gaussian"
            " noise, and this difference alone uses up delta. Raise delta or lower epsilon."
        )
    if spent > epsilon * (1 + 1e-9):
        raise ParameterError(
            f"epsilon must be large enough that its cost can be computed without rounding errors, got {epsilon}. Raise"
            " epsilon, for example to 0.001."
        )
    return priced
