"""The audit of the gradient protocols: `audit` runs every attack on each chosen protocol."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.attacks import Attack
from hushrec.audit.attacks.combined import EXISTENCE, WithPopularity
from hushrec.audit.attacks.existence import (
    ConsistentRatings,
    OppositeDirections,
    PartnersOfPairs,
    Popularity,
    SelectionAverage,
)
from hushrec.audit.attacks.linkage import LinkEnrolments, LinkRounds
from hushrec.audit.attacks.machines import MACHINES
from hushrec.audit.attacks.metadata import METADATA, FinishTiming
from hushrec.audit.attacks.person import PersonFromReports
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE
from hushrec.audit.canaries import judge_canaries, plant
from hushrec.audit.devices import Clock, People, replay
from hushrec.audit.difference import attack_difference
from hushrec.audit.findings import TARGETS, Finding, Subject, worst
from hushrec.audit.judge import FALSE_RATES, judge, judge_linkage, judge_people, mean_roc
from hushrec.audit.malicious import attack_by_marks, attack_devices
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth, item_popularity, record
from hushrec.audit.poisoning import attack_integrity
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.selection_rounds import selection_curve
from hushrec.audit.statistics import mean_auc
from hushrec.data.ratings import Ratings
from hushrec.engines.gradient import GradientProblem
from hushrec.errors import ParameterError
from hushrec.plugins import plugins
from hushrec.protocols import PROTOCOLS, find_protocol, protocols_of
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

# An audit prints a table with one column per audited run. `Progress` is called with the name of a column, the name of a
# step, the number of the step, and the number of all steps.
Progress = Callable[[str, str, int, int], None]
# The input for one column: the data, the settings of the run, the number of people to attack, the known attributes of
# all people, and a function that returns the time in seconds.
Column = tuple[Ratings, Settings, int, People | None, Clock | None]
Outcome = tuple[list[Finding], dict[str, Any]]  # the findings about one run, and other results of the run by name
ColumnAttack = Callable[..., Outcome]  # called with a `Column` and, optionally, a `Progress`

STEPS = 6
FEWEST = 4  # smallest number of people to attack, because quarters of them are compared
USUAL = 100  # number of people to attack by default, if the data has at least 200 people
MALICIOUS_ROUNDS = 30  # rounds of a malicious server under a protocol with selection; without selection, two suffice
SAMPLE = 1000  # largest number of people in the random sample from which attacks learn
TIMED_ROUNDS = 20  # rounds in which the time of reports is measured
RETURNED_ROUNDS = 20  # rounds of people who left and came back
ATTACKED = ("mf", "bpr", "fm")  # models with attacks on their gradients
QUICK: tuple[Attack, ...] = (Popularity(), SelectionAverage(), WithPopularity(ConsistentRatings()), *VALUE, *MODEL)
# Attacks whose scores also guess the coins of canaries.
COIN_ATTACKS: tuple[Attack, ...] = (SelectionAverage(), ConsistentRatings(), OppositeDirections(), PartnersOfPairs())
ROC_OF = (  # names of the attacks whose ROC curves are plotted
    "popularity",
    "selection average",
    "error likelihood",
    "consistent ratings",
    "consistent ratings and steps + like-minded people",
    "opposite directions",
    "partners of pairs",
    "partners of pairs + like-minded people",
)


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit: all findings, the curves for its plots, and a description of data and settings."""

    findings: list[Finding] = field(repr=False)
    curves: dict[str, Any] = field(repr=False)
    about: dict[str, Any]

    @property
    def protocols(self) -> list[str]:
        return list(dict.fromkeys(finding.protocol for finding in self.findings))

    def record(self) -> dict[str, Any]:
        """Return the audit as a dictionary for JSON, including the most successful attack on each target."""
        table = {
            protocol: {
                target: None if found is None else {"name": found.name, "metric": found.metric, "value": found.value}
                for target in TARGETS
                for found in [worst(self.findings, protocol, target)]
            }
            for protocol in self.protocols
        }
        attacks = [finding.record() for finding in self.findings]
        return {**self.about, "attacks": attacks, "worst": table, "curves": self.curves}


def audit(ratings: Ratings, settings: list[Settings], **arguments: Any) -> Audit:
    """Attack a run with each of `settings`, which has one entry per gradient protocol; return the findings and curves.

    `arguments` are the keyword arguments of `attack_columns`.
    """
    first = settings[0]
    factors = first.options["factors"]
    if factors < 2:
        raise ParameterError(
            f"factors must be at least 2 in an audit, got {factors}: attacks recover directions of vectors. Use more."
        )
    n_people = min(len(task_problem(chosen.make_task(ratings), chosen).active_users) for chosen in settings)
    attack = attack_machines if first.model == "fm" else attack_run
    labels = [chosen.protocol for chosen in settings]
    findings, curves, about = attack_columns(attack, ratings, settings, labels, n_people, **arguments)
    shape = {name: first.options[name] for name in ("rounds", "factors")}
    return Audit(findings, {label: drawn for label, drawn in curves.items() if drawn}, {**about, **shape})


def silent(protocol: str, step: str, number: int, steps: int) -> None:
    """Do nothing; this is the default `Progress`."""


def attack_columns(
    attack: ColumnAttack,
    ratings: Ratings,
    settings: list[Settings],
    labels: list[str],
    n_people: int,
    *,
    n_victims: int | None = None,
    people: People | None = None,
    clock: Clock | None = None,
    progress: Progress = silent,
    run_all: Callable[[ColumnAttack, list[Column]], list[Outcome]] | None = None,
) -> tuple[list[Finding], dict[str, dict[str, Any]], dict[str, Any]]:
    """Audit a run with each of `settings` by calling `attack`.

    Return three values: all findings; the other results of each run, by the run's name in `labels`; and the entries of
    the audit's record about its data and settings.

    In each run `n_victims` of the `n_people` people are attacked: by default 100, or half of all people if that is
    fewer. `people` holds known attributes of all people, and `clock` returns the time in seconds. Without them, the
    attacks on attributes and on timing are left out.

    By default `attack` is called for one setting after the other, and calls `progress` before each of its steps.
    `run_all` can make these calls in parallel instead, without `progress`. It gets `attack` and a list with the
    argument of each call, a `Column`, and returns the outcomes in the order of this list.
    """
    n_victims = count_victims(n_people, n_victims)
    columns: list[Column] = [(ratings, chosen, n_victims, people, clock) for chosen in settings]
    outcomes = run_all(attack, columns) if run_all else [attack(column, progress) for column in columns]
    values = ratings.values
    if values is not None and ratings.scale is not None:
        values = ratings.scale.to_unit(values)
    options = [chosen.make_protocol().chosen_options() for chosen in settings]
    about = {
        "dataset": ratings.name,
        "model": settings[0].model,
        "users": n_victims,
        "seed": settings[0].seed,
        "ratings": None if values is None else RatingLevels.of(values).in_words(),
        "protocols": dict(zip(labels, options, strict=True)),
    }
    others = {label: other for label, (_, other) in zip(labels, outcomes, strict=True)}
    return [finding for found, _ in outcomes for finding in found], others, about


def count_victims(n_people: int, n_victims: int | None) -> int:
    """Return the number of people to attack: `n_victims` or, if that is None, the default of `attack_columns`.

    Raise `ParameterError` if the number is below `FEWEST` or above half of `n_people`, or if `n_people` is too small.
    """
    if n_people < 2 * FEWEST:
        raise ParameterError(f"an audit needs at least {2 * FEWEST} people, got {n_people}. Use more data.")
    n_victims = min(USUAL, n_people // 2) if n_victims is None else n_victims
    if n_victims < FEWEST:
        raise ParameterError(f"users, the number of people to attack, must be at least {FEWEST}, got {n_victims}.")
    if n_victims > n_people // 2:
        raise ParameterError(
            f"users, the number of people to attack, must be at most {n_people // 2}, which is half of all people, got"
            f" {n_victims}: the attacks learn from the people whom they do not attack."
        )
    return n_victims


def attack_run(column: Column, progress: Progress = silent) -> Outcome:
    """Audit one gradient protocol; return its findings, and the curves for its plots."""
    return Bench(column, progress).run()


def attack_machines(column: Column, progress: Progress = silent) -> Outcome:
    """Audit one gradient protocol with model `fm`; return the findings of the attacks `MACHINES`, and no curves."""
    ratings, settings, n_victims, _, _ = column
    progress(settings.protocol, "training", 0, STEPS)
    problem, rng = task_problem(settings.make_task(ratings), settings), np.random.default_rng([settings.seed, 6])
    victims = np.sort(rng.permutation(problem.active_users)[:n_victims])
    return attack_victims(problem, victims, MACHINES, rng), {}


def attack_quickly(
    settings: Settings, problem: GradientProblem, victims: IntArray, rng: np.random.Generator
) -> list[Finding]:
    """Train once, and return the findings of a few attacks on the victims' items, ratings and taste."""
    return attack_victims(problem, victims, QUICK, rng)


def attack_victims(
    problem: GradientProblem, victims: IntArray, attacks: Sequence[Attack], rng: np.random.Generator
) -> list[Finding]:
    """Train once, and return the findings of these attacks on the reports of the victims."""
    observation, truth, _ = record(problem, victims)
    return [finding for attack in attacks for finding in judge(attack, observation, truth, rng=rng)]


def audited_protocols(model: str) -> list[str]:
    """Return the names of the protocols that support the model and that `hushrec audit` can attack."""
    return [name for name in protocols_of(model) if find_protocol(name).auditor is not None]


def settings_for(protocols: list[str] | None, *, model: str, **options: Any) -> list[Settings]:
    """Return the settings of each protocol; by default of all protocols in `audited_protocols(model)`.

    Each protocol gets only the options that it uses. Raise `ParameterError` for an option that no chosen protocol uses.
    """
    names = list(dict.fromkeys(protocols or audited_protocols(model)))
    for name in names:
        if model not in find_protocol(name).models:
            raise ParameterError(
                f"protocol must support model {model}, got {name}. Choose one of {', '.join(protocols_of(model))}, or"
                " another model."
            )
    if model not in ATTACKED:
        raise ParameterError(f"model must be one of {', '.join(ATTACKED)} to be attacked, got {model}.")
    used = {name: {option.name for option in find_protocol(name).options} for name in names}
    own = {option.name for protocol in PROTOCOLS.values() for option in protocol.options}
    for name, value in options.items():
        if value is not None and name in own and not any(name in used[chosen] for chosen in names):
            raise ParameterError(
                f"{name} must be an option of one of the chosen protocols, {', '.join(names)}. Leave it out."
            )
    return [
        Settings(
            protocol=chosen,
            model=model,
            **{name: value for name, value in options.items() if name not in own or name in used[chosen]},
        )
        for chosen in names
    ]


class Bench:
    """The audit of one protocol: it trains a run with canaries, records it, and runs every attack on it."""

    def __init__(self, column: Column, progress: Progress) -> None:
        ratings, self.settings, n_victims, self.people, self.clock = column
        self.progress = progress
        rng = np.random.default_rng([self.settings.seed, 6])
        problem = task_problem(self.settings.make_task(ratings), self.settings)
        chosen = rng.permutation(problem.active_users)
        self.victims = np.sort(chosen[:n_victims])
        self.problem, self.canaries = plant(problem, chosen[n_victims:], rng=rng)
        self.sample = np.sort(rng.permutation(problem.active_users)[:SAMPLE])
        self.popularity = item_popularity(problem, np.setdiff1d(problem.active_users, self.victims))

    def run(self) -> Outcome:
        """Train, run all attacks, and return their findings and the curves for the plots."""
        watched = np.concatenate([self.victims, self.canaries.users])
        self._say("training", 0)
        everyone, truth, engine = record(self.problem, watched, self.sample, self.popularity)
        n_victims = len(self.victims)
        observation = replace(everyone, reports=everyone.reports[:n_victims])
        own = {name: getattr(truth, name)[:n_victims] for name in ("rated", "ratings", "user_vectors")}
        truth = replace(truth, **own)
        findings: list[Finding] = []
        self._say("values and existence", 1)
        for attack in (*EXISTENCE, *MODEL, *VALUE, *plugins("attacks").values()):
            findings += judge(attack, observation, truth, rng=self._draws(1))
        self._say("people and metadata", 2)
        findings += self._metadata(observation, truth) + self._people(observation)
        self._say("a malicious server", 3)
        findings += self._active(observation)
        self._say("poisoning", 4)
        findings += attack_integrity(self.problem, engine, rng=self._draws(4))
        self._say("canaries", 5)
        planted = replace(everyone, reports=everyone.reports[n_victims:])
        for attack in COIN_ATTACKS:
            findings += judge_canaries(attack, planted, self.canaries, self.problem)
        return findings, self._curves(observation, truth)

    def _draws(self, part: int) -> np.random.Generator:
        """Return random generator number `part`; each group of attacks has its own, so that groups are independent."""
        return np.random.default_rng([self.settings.seed, 6, part])

    def _say(self, what: str, step: int) -> None:
        self.progress(self.settings.protocol, what, step, STEPS)

    def _metadata(self, observation: Observation, truth: Truth) -> list[Finding]:
        found = [one for attack in METADATA for one in judge(attack, observation, truth, rng=self._draws(2))]
        if self.clock is not None:
            few = observation.first_rounds(TIMED_ROUNDS)
            timed = replay(self.problem, few, self.victims, clock=self.clock)
            found += judge(FinishTiming(), timed, truth, rng=self._draws(2))
        return found + self._linkage(observation)

    def _linkage(self, observation: Observation) -> list[Finding]:
        rounds = LinkRounds()
        if not rounds.applies_to(observation):
            return []
        back = min(RETURNED_ROUNDS, observation.n_rounds // 2)
        before, late = observation.first_rounds(observation.n_rounds - back), observation.last_rounds(back)
        after = replay(replace(self.problem, seed=self.problem.seed + 5), late, self.victims)
        enrolments, name = LinkEnrolments(), observation.protocol.name
        return [
            judge_linkage(Subject.of(rounds, name), rounds.scores(observation)),
            judge_linkage(Subject.of(enrolments, name), enrolments.scores(before, after)),
        ]

    def _people(self, observation: Observation) -> list[Finding]:
        if self.people is None:
            return []
        attributes = {name: labels[self.sample] for name, labels in self.people.items()}
        attack = PersonFromReports()
        subject = Subject.of(attack, observation.protocol.name)
        return judge_people(subject, attack.kernel(observation), attributes, rng=self._draws(3))

    def _active(self, observation: Observation) -> list[Finding]:
        few = self.victims[:20]
        findings: list[Finding] = []
        selects = observation.protocol.selection is not None
        if selects:
            findings += attack_by_marks(self.problem, observation, few, rng=self._draws(5))
        if self.problem.model.learns_from_pairs:
            return findings
        rounds = MALICIOUS_ROUNDS if selects else 2
        findings += attack_devices(self.problem, observation, few, rounds=rounds, rng=self._draws(6))
        if observation.n_rounds < 2:  # the difference attack needs rounds before and after
            return findings
        return findings + attack_difference(self.problem, observation, few, rng=self._draws(8))

    def _curves(self, observation: Observation, truth: Truth) -> dict[str, Any]:
        """Return the data of the plots: ROC curves, success by round, and the attack on selections alone."""
        curves: dict[str, Any] = {"false_rates": FALSE_RATES.tolist(), "roc": {}, "rounds": []}
        for attack in EXISTENCE:
            if attack.name in ROC_OF and attack.applies_to(observation):
                curves["roc"][attack.name] = mean_roc(observation.guessed_by(attack), truth.rated).tolist()
        for rounds in sorted({1, 3, 10, 30, observation.n_rounds}):
            if rounds <= observation.n_rounds:
                curves["rounds"].append({"rounds": rounds, **self._early(observation.first_rounds(rounds), truth)})
        selection = observation.protocol.selection
        if selection is not None:
            profiles = [self.problem.profile(user)[0] for user in self.victims]
            points = selection_curve(profiles, selection, observation.terms, rng=self._draws(7))
            curves["selection"] = [asdict(point) for point in points]
        return curves

    def _early(self, observation: Observation, truth: Truth) -> dict[str, float]:
        few = replace(observation, reports=observation.reports[:20])
        return {
            attack.name: mean_auc(attack.guess(few), truth.rated[:20])
            for attack in (SelectionAverage(), ConsistentRatings(), OppositeDirections())
            if attack.applies_to(few)
        }
