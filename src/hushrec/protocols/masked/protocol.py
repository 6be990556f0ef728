"""The masked protocol with the options of one run: makes its terms, devices, server, budget and predictor."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from hushrec.arrays import BoolArray
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import LEDGER_DELTA, Cohort, default_delta, own_delta, require_delta, run_mu
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged, ParameterError, RemoteProtocolError, require
from hushrec.models import find_model
from hushrec.models.gaussian_process import Ratings
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.configured import ConfiguredProtocol, Fleet, LedgerStatement, PrivacyLevel, Spending
from hushrec.protocols.masked import levels
from hushrec.protocols.masked.device_side import MaskedDevice
from hushrec.protocols.masked.evaluation import NETWORK_SHARE, is_hidden, is_readable, with_evaluation
from hushrec.protocols.masked.learning import find_learning, learning_of
from hushrec.protocols.masked.messages import MaskedTable
from hushrec.protocols.masked.plan import MOST_REPEATS
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg.roster import Rules, choose_rules
from hushrec.protocols.masked.server_side import PHASES, MaskedServer
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.masked.wording import LEDGER_NOT_COVERED, LEDGER_REPLACED_UNIT, LEDGER_UNIT, SEEDED, ordinal
from hushrec.protocols.parties import DeviceSide, ServerSide, State
from hushrec.randomness import Purpose, SeededRandomness, SystemRandomness

SAFE_DEVIATIONS = 5.0  # standard deviations between the expected and the smallest allowed number of survivors
NETWORK_SURVIVORS = 0.8  # default share of the expected devices that must survive
NETWORK_CORRUPT = 0.05  # default share of the smallest cohort that may be corrupt
FEWEST_DEVICES = 3  # smallest n_max of a network run
LARGEST_COHORT = 10_000  # largest n_max of a network run: a device downloads the keys of its whole cohort
LARGE_COHORT = 20  # with fewer devices the default share of corrupt ones is 0
MOST_EVALUATION = 0.5  # largest share of μ² for evaluation
NETWORK_RESERVE = 0.2  # default share of μ² for repeated attempts: enough to repeat any one round with factor columns


@dataclass(frozen=True)
class Masked(ConfiguredProtocol):
    """The masked protocol with the options of one run.

    In each round a device sends one clipped, noised and masked table, and the server sees only sums of tables.
    """

    name: ClassVar[str] = "masked"
    phases: ClassVar[tuple[str, ...]] = PHASES
    takes_own_level: ClassVar[bool] = True  # reports do not reveal which level a person typed

    epsilon: float  # budget for one person's whole profile over all rounds
    delta: float | None = None  # probability with which the budget may be exceeded; None: `default_delta`
    dropout: float = 0.0  # fraction of the devices that are absent from a simulated round
    survivors: float | None = None  # smallest fraction of the devices with which a round may end; None: from `dropout`
    corrupt: float | None = None  # fraction of the survivors that may add no noise; None: 0
    reserve: float | None = None  # share of μ² that is kept for repeated attempts; None: 0
    evaluation: float = 0.0  # share of μ² for measuring accuracy on held-out ratings
    repeats: int = 1  # number of rounds into which each round of the plan is divided
    own_epsilon: float | None = field(
        default=None, repr=False
    )  # budget of this person, if it is smaller than `epsilon`
    least_cohort: int | None = None  # smallest number of honest devices in a sum that this person accepts

    def __post_init__(self) -> None:
        absent = "Give the fraction of devices that are absent from a round, such as 0.1."
        require(0 <= self.dropout < 1, "dropout", "at least 0 and below 1", self.dropout, absent)
        valid = "Give the smallest fraction of devices whose reports make a round valid, such as 0.8."
        possible = self.survivors is None or 0 < self.survivors <= 1
        require(possible, "survivors", "above 0 and at most 1", self.survivors, valid)
        kept = "Give the share of the budget for repeated attempts; 0.2 is usual on the network."
        require(self.reserve is None or 0 <= self.reserve < 1, "reserve", "at least 0 and below 1", self.reserve, kept)
        share = "Give the share of the budget for measuring accuracy, such as 0.02."
        possible = 0 <= self.evaluation <= MOST_EVALUATION
        require(possible, "evaluation", f"from 0 to {MOST_EVALUATION}", self.evaluation, share)
        number = "Give the number of rounds into which each round is divided, such as 8."
        possible = 1 <= self.repeats <= MOST_REPEATS
        require(possible, "repeats", f"from 1 to {MOST_REPEATS}", self.repeats, number)
        small = "Give at most 1/(10 devices), such as 1e-6."
        require(self.delta is None or 0 < self.delta < 1, "delta", "above 0 and below 1", self.delta, small)
        run_mu(self.epsilon, self.delta or LEDGER_DELTA)  # raises for an impossible budget
        require(self.own_epsilon is None or self.own_epsilon >= 0, "own_epsilon", "at least 0", self.own_epsilon)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**{name: value for name, value in options.items() if value is not None})

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Return a copy of `options` with the defaults of a network run, whose devices may drop out or be hostile.

        `survivors`, `corrupt` and `reserve` get a default if they are missing or None, and `evaluation` if it is
        present and None. `n_items` is not used. Raise `ParameterError` if `n_devices`, the largest cohort, is below
        `FEWEST_DEVICES` or above `LARGEST_COHORT`.
        """
        least = f"at least {FEWEST_DEVICES} under masked, which reveals only sums over several devices"
        online = "Give the number of devices that you expect online in one round."
        require(n_devices >= FEWEST_DEVICES, "expected_devices", least, n_devices, online)
        most = f"at most {LARGEST_COHORT:,} under masked, where it is the largest number of devices in one sum"
        advice = f"Give {LARGEST_COHORT}: more devices than that form several cohorts."
        require(n_devices <= LARGEST_COHORT, "expected_devices", most, f"{n_devices:,}", advice)
        given = {name: value for name, value in options.items() if value is not None}
        if "delta" in given:
            require_delta(given["delta"], n_devices)
        corrupt = NETWORK_CORRUPT if n_devices >= LARGE_COHORT else 0.0
        found = {**options, "survivors": NETWORK_SURVIVORS, "corrupt": corrupt, "reserve": NETWORK_RESERVE, **given}
        if "evaluation" in options and "evaluation" not in given:
            own = {entry.name for entry in fields(cls)}  # without the options of the model
            chosen = cls.from_options({name: value for name, value in found.items() if name in own})
            found["evaluation"] = chosen.readable_evaluation(n_devices)
        return found

    def readable_evaluation(self, devices: int) -> float:
        """Return the default of the option `evaluation` in a network run with this number of devices.

        It is `NETWORK_SHARE`, or 0 if noise would hide the measured accuracy (see `is_readable`).
        """
        delta, cohort, _ = self._noise_and_rules(devices)
        mu = run_mu(self.epsilon, delta) * math.sqrt(1 - (self.reserve or 0.0))
        return NETWORK_SHARE if is_readable(devices, cohort.honest, mu) else 0.0

    def _noise_and_rules(self, devices: int) -> tuple[float, Cohort, Rules]:
        """Return δ, the cohort for which the noise is sized, and the rules of secure aggregation for this cohort."""
        delta = default_delta(devices) if self.delta is None else self.delta
        cohort = Cohort(devices, self.expected_survivors(devices), self.corrupt or 0.0)
        rules = _rules(cohort)
        return delta, replace(cohort, omitted=rules.most_omitted(devices)), rules

    def predicts_new_items(self, model: str) -> bool:
        return find_learning(model).predicts_new_items

    def asks(self, terms: MaskedTerms) -> list[str]:
        priced = terms.priced
        largest = max(one.size for one in priced.plan.rounds)
        cost = f"At most ε = {priced.epsilon:g} (δ = {priced.delta:g}) for one person's whole profile over all rounds."
        if priced.is_exact:
            cost = "No privacy budget (ε = inf): sums have no noise, and only masks hide a table."
        rounds = "1 round" if terms.max_rounds == 1 else f"{terms.max_rounds} rounds, each"
        repeats = priced.plan.repeats
        changes = [f"The public table changes after every {ordinal(repeats)} round."] if repeats > 1 else []
        return [
            f"{rounds} with a masked table of up to {largest:,} integers.",
            *changes,
            cost,
            f"Only sums over at least {priced.cohort.honest:,} honest devices are revealed.",
            levels.describe_trust(terms, priced.largest_own_epsilon),
        ]

    def describe_report(self, terms: MaskedTerms, round_number: int, message: MaskedTable) -> list[str]:
        numbers, exact, fewest = message.numbers, terms.priced.is_exact, terms.priced.cohort.honest
        noise, and_noise = ("", "") if exact else ("noise and ", ", with the noise of all devices")
        limits = "This run adds no noise, so nothing limits what" if exact else "Your budget limits how much"
        return [
            f"Round {round_number}: {len(numbers):,} integers, such as {', '.join(map(str, numbers[:6]))}.",
            f"They are your clipped numbers plus {noise}masks, and look random to anyone who reads them.",
            f"Without ratings, with a used-up budget, or in a search for false reports, they are {noise}masks only.",
            f"The server adds up the reports of at least {fewest:,} honest devices, and the masks cancel.",
            f"It sees only the sum: how often each item was rated and how it was liked{and_noise}.",
            f"{limits} this sum can reveal about you.",
        ]

    def privacy_levels(self, terms: MaskedTerms, n_rated: int, own: str | None = None) -> list[PrivacyLevel]:
        return levels.explain_levels(terms, math.inf if self.own_epsilon is None else self.own_epsilon, own)

    def options_at(self, level: float, terms: MaskedTerms) -> dict[str, Any]:
        return {"own_epsilon": levels.read_level(level, terms)}

    def expected_devices(self, terms: MaskedTerms) -> int:
        return terms.priced.cohort.devices

    def most_corrupt(self, terms: MaskedTerms) -> int:
        return terms.rules.most_corrupt

    def expectation(self, terms: MaskedTerms, model: str, n_devices: float) -> str | None:
        return find_learning(model).expectation(terms.priced, n_devices)

    def notices(self, terms: MaskedTerms) -> list[str]:
        priced = terms.priced
        cohort, mu = priced.cohort, run_mu(priced.epsilon, priced.delta) * math.sqrt(1 - priced.reserve)
        found = []
        if priced.is_exact:
            found.append(
                "epsilon is inf: sums have no noise, and only masks hide a table. A device joins only if its person has"
                " set epsilon to inf, or to 0, with which it sends zeros; every other device refuses this run"
            )
        if is_hidden(priced.plan, cohort.devices, cohort.honest, mu):
            found.append(
                f"with {cohort.devices} devices, noise will probably hide the accuracy that this run measures; leave"
                " out the option evaluation to spend its budget on learning"
            )
        return found

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> MaskedTerms:
        """Return the terms: a plan chosen from public numbers, the noise of each block, and the masking rules.

        Raise `ParameterError` for options that contradict each other or a budget that cannot be met.
        """
        devices = len(fleet.rated_counts)
        delta, cohort, rules = self._noise_and_rules(devices)
        if self.least_cohort is not None and cohort.honest < self.least_cohort:
            raise ParameterError(
                f"least_cohort must be at most {cohort.honest}, the fewest honest devices in a sum of this run, got"
                f' {self.least_cohort}. Raise the option "survivors", or lower the option "least_cohort".'
            )
        plan = learning_of(fleet.model).choose_plan(devices, run_mu(self.epsilon, delta))
        if self.evaluation:
            plan = with_evaluation(plan, self.evaluation)
        plan = plan.repeated(self.repeats)
        priced = price_plan(plan, epsilon=self.epsilon, delta=delta, cohort=cohort, reserve=self.reserve or 0.0)
        return MaskedTerms(priced, rules)

    def expected_survivors(self, devices: int) -> float:
        """Return the smallest fraction of the devices with which a round may end.

        It is the option `survivors` or, by default, the fraction that remains after `dropout`, less a margin of
        `SAFE_DEVIATIONS` standard deviations.
        """
        if self.survivors is not None:
            return self.survivors
        absent = self.dropout * devices + SAFE_DEVIATIONS * math.sqrt(devices * self.dropout * (1 - self.dropout))
        return max(math.floor(devices - absent), 1) / devices

    def statement(self, spending: Spending) -> dict[str, Any]:
        """Return the entry `budget` of a simulated run; its `not_covered` says that the noise has a known seed."""
        terms: MaskedTerms = spending.terms
        own = {} if self.own_epsilon is None else {"own_epsilon": self.own_epsilon}
        columns = spending.model.columns
        predicts = find_model(spending.model.name).predicts == "rating"
        whole = terms.priced.statement(
            n_unlisted=columns.n_unlisted,
            scale_is_guessed=columns.scale_is_guessed,
            levels_are_guessed=columns.levels_are_guessed and predicts,
            plan_is_counted=self._plan_is_counted(spending.model, terms.priced.cohort.devices, terms.priced.delta),
        )
        return whole | {"rounds": spending.rounds, "not_covered": [*whole["not_covered"], SEEDED]} | own

    def _plan_is_counted(self, model: Any, devices: int, delta: float) -> bool:
        """Return whether the plan of a simulation is another one because ratings per person were counted."""
        columns, mu = model.columns, run_mu(self.epsilon, delta)
        unknown = replace(model, columns=replace(columns, ratings_per_person=math.inf))
        plans = [learning_of(one).choose_plan(devices, mu) for one in (model, unknown)]
        return columns.ratings_are_counted and plans[0] != plans[1]

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        ratings = Ratings(arrays["rated_starts"], arrays["rated_items"], arrays["rated_values"])
        return find_learning(record["model"]).predictor_from(arrays, ratings)

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> Predictor:
        learning = learning_of(problem.model)
        final = int(public["round_number"]) == problem.terms.max_rounds
        return learning.predictor(learning.table_from(public), _ratings(problem), final=final)

    def predictor_from(self, problem: Any, arrays: Arrays) -> Predictor:
        if len(arrays["log_counts"]) != problem.n_items:
            raise ValueError(
                f"log_counts must have one entry per item, {problem.n_items}, got {len(arrays['log_counts'])}."
            )
        return learning_of(problem.model).predictor_from(arrays, _ratings(problem))

    def failure(self, terms: Any, public: Arrays, round_number: int) -> Diverged:
        return Diverged(
            f"training with masked failed in round {round_number}: predictions are not finite."
            " Raise epsilon, or wait for more devices."
        )

    # The two sides ----------------------------------------------------------------------------------------------

    def make_device(self, terms: MaskedTerms, model: Any) -> DeviceSide:
        self.check_terms(terms)
        return MaskedDevice(terms, model, self.fraction(terms))

    def check_terms(self, terms: MaskedTerms) -> None:
        cohort = terms.priced.cohort
        if cohort.devices > LARGEST_COHORT or terms.rules.neighbours >= cohort.devices:
            raise RemoteProtocolError(
                f"a cohort must have at most {LARGEST_COHORT} devices, more than the neighbours that each one draws,"
                f" got {cohort.devices} devices and {terms.rules.neighbours} neighbours. The device does not join."
            )
        if self.least_cohort is not None and cohort.honest < self.least_cohort:
            raise ParameterError(
                f"the fewest honest devices in a sum of the run must be at least {self.least_cohort} (least_cohort),"
                f" got {cohort.honest}. Lower least_cohort, or do not join."
            )
        if self.epsilon != terms.priced.epsilon or self.delta not in (None, terms.priced.delta):
            raise RemoteProtocolError(
                f"epsilon and delta of the options must be those of the terms, {terms.priced.epsilon:g} and"
                f" {terms.priced.delta:g}, got {self.epsilon:g} and {self.delta}. The device does not join."
            )
        choose_rules(cohort.devices, cohort.smallest, cohort.most_corrupt)  # raises for impossible rules
        terms.rules.check_risk(cohort.devices)
        terms.check_omitted()
        self.fraction(terms)  # raises for an own budget in a run without noise

    def make_server(self, terms: MaskedTerms, model: Any, seed: int) -> ServerSide:
        return MaskedServer(terms, model, SeededRandomness(seed))

    def make_network_server(self, terms: MaskedTerms, model: Any, state: State) -> ServerSide:
        side = MaskedServer(terms, model, SystemRandomness())
        side.restore(state)
        return side

    def joining_costs(self, terms: MaskedTerms) -> dict[str, float]:
        """Return the largest cost of the run as {"table": μ²}, which is infinite for a run without noise.

        The cost covers all rounds and the reserve for repeated attempts. It is the run's μ² times the square of
        `fraction(terms)`, which is below 1 for a person with a smaller `own_epsilon`, and 0 for a person whose device
        sends zeros only.
        """
        fraction = self.fraction(terms)
        return {"table": fraction**2 * terms.priced.mu_squared if fraction else 0.0}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        return {"table": run_mu(epsilon, self._ledger_delta) ** 2}

    @property
    def _ledger_delta(self) -> float:
        """The δ at which a person's ledger states ε: the option `delta`, but at most `LEDGER_DELTA`."""
        return own_delta(self.delta or LEDGER_DELTA)

    def own_budget(self, terms: MaskedTerms | None) -> tuple[float | None, float | None]:
        if self.own_epsilon is None or terms is None:
            return self.own_epsilon, None
        return min(self.own_epsilon, terms.priced.largest_own_epsilon), terms.priced.own_delta

    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        """Return what one device has spent on the tables of all runs.

        ε is computed at δ = 10⁻⁶, which is small enough for runs of up to 100,000 devices, or at the option `delta` if
        that is smaller.
        """
        spent: TableAccountant = ledger["table"]
        limit, delta = ledger.limit("table") or 0.0, self._ledger_delta
        allowed = TableAccountant(mu_squared=limit, rho=limit / 2, distance=spent.distance)
        replaced = spent.replaced_epsilon(delta)
        return LedgerStatement(
            unit=LEDGER_UNIT,
            spent=spent.epsilon(delta),
            limit=allowed.epsilon(delta),
            delta=delta,
            rounds=spent.tables,
            charged="1 table sent" if spent.tables == 1 else f"{spent.tables} tables sent",
            sentences=[
                f"An upper bound on what all sums so far can reveal about your whole profile (\u03b4 {delta:g}).",
                f"For {LEDGER_REPLACED_UNIT}, the bound is \u03b5 {replaced:.3g}.",
                "When the budget is used up, your device sends zeros with noise, which look the same.",
            ],
            not_covered=LEDGER_NOT_COVERED,
            numbers={"item_level": replaced, "item_level_unit": LEDGER_REPLACED_UNIT},
        )

    def fraction(self, terms: MaskedTerms) -> float:
        """Return the factor, from 0 to 1, by which this person's device multiplies the largest norm of every block.

        It is 1 without `own_epsilon`, or if `own_epsilon` is at least the run's ε. For this comparison, both ε are
        computed at the same δ: the smaller of the run's δ and `LEDGER_DELTA`.
        """
        if self.own_epsilon is None:
            return 1.0
        return terms.priced.own_fraction(self.own_epsilon)

    def present(self, seed: int, round_number: int, n_users: int) -> BoolArray:
        stream = SeededRandomness(seed).stream(Purpose.ABSENCE, round_number)
        return np.asarray(stream.random(n_users) >= self.dropout)


def _rules(cohort: Cohort) -> Rules:
    """Return the rules of secure aggregation for a cohort.

    If no rules are safe for the cohort, as in some small simulations, each device draws all others as neighbours.
    `check_terms` refuses such rules.
    """
    try:
        return choose_rules(cohort.devices, cohort.smallest, cohort.most_corrupt)
    except ParameterError:
        others = max(cohort.devices - 1, 1)
        return Rules(cohort.smallest, cohort.most_corrupt, others, others // 2 + 1)


def _ratings(problem: Any) -> Ratings:
    return Ratings(problem.starts, problem.items, problem.values)
