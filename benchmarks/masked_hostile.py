"""One hostile device among 200 in a masked run: accuracy, attempts, and what they cost the others in ε.

    python benchmarks/masked_hostile.py [--model gp] [--devices 200] [--cohorts 1,3,4] [--seeds 8]
        [--survivors-of-one 0.8]

200 people of the data set train with ε = 8, in one cohort with the defaults of a network run or in several. One more
device has no ratings, and sends a table of its own in every round that asks it. Masks cancel exactly, as tests show
integer by integer, so they are left out here: integers, noise shares, cohorts, suspicion, choice of members and
learning are the product's own. Every run of one seed has the same people, and every device the same noise in the same
attempt, so that runs differ by the lie and by what it causes.

A table is `huge` integers in every round, in every other one (`huge, resting`) or from the third on (`huge, late`),
the same but with zeros in probes (`huge, not in probes` and `huge, late, not in probes`), `random` ones, or d times as
long as an honest table may be, block by block, in a direction that hurts: against the counts and the effects of the
most rated items, which no device knows. `hidden` is the longest table in that direction
that the server's checks let pass, block by block: that of a device which knows the sums and the noise of all others.
`hidden, not compared` is the same where cohorts are not compared with each other. `hidden, biases` lies in the blocks
of biases alone, and sends zeros in all others. `promoted` tables are hidden ones for
the one item that people like least: `exposure` is the part of the people who have it among their ten recommendations.
"""

import argparse
import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import load_data, write_record
from people import choose_people

from hushrec.arrays import IntArray
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import own_norm_squared
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.protocols.masked import server_side
from hushrec.protocols.masked.agreement import FEWEST_COHORTS, disagreements
from hushrec.protocols.masked.cohorts import cohort_sizes, draw_cohorts
from hushrec.protocols.masked.device_table import affordable_fraction
from hushrec.protocols.masked.encoding import BlockCode
from hushrec.protocols.masked.noise import discrete_gaussian
from hushrec.protocols.masked.plan import BIAS, COUNTS, FACTORS, Block
from hushrec.protocols.masked.protocol import NETWORK_CORRUPT, NETWORK_RESERVE, NETWORK_SURVIVORS
from hushrec.protocols.masked.secagg.roster import device_name
from hushrec.protocols.masked.server_round import Phase
from hushrec.protocols.masked.server_side import MaskedServer
from hushrec.protocols.masked.suspicion import Search
from hushrec.protocols.parties import NextAttempt
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import settle_terms

EPSILON = 8.0
MOST_ATTEMPTS = 2000  # of one round
LENGTHS = (10, 30, 100)
BISECTIONS = 10
TOP = 10
PUSHED = 100  # items
MEASURES = {"gp": "rmse", "audience": "auc"}


@dataclass
class Chance:
    """What a hostile device may look at when it writes its table: everything."""

    blocks: tuple[Block, ...]
    codes: tuple[BlockCode, ...]
    directions: list[np.ndarray]  # of length 1, by block
    round_number: int  # of the plan without repeats
    devices: int  # in its cohort
    probe: bool  # whether everybody was asked for zeros
    passes: Callable[[list[IntArray]], bool]  # whether the server believes its cohort with these integers added

    def scaled(self, clips: list[float]) -> list[IntArray]:
        """Tables so many times as long as honest ones may be."""
        parts = zip(clips, self.codes, self.directions, strict=True)
        return [
            np.rint(times * math.sqrt(code.norm_squared) * direction).astype(np.int64)
            for times, code, direction in parts
        ]


Lie = Callable[[Chance], list[IntArray]]  # what is added to the sum of each block


def times(clips: float) -> Lie:
    """A table so many times as long as an honest one may be."""
    return lambda chance: chance.scaled([clips] * len(chance.codes))


def huge(chance: Chance) -> list[IntArray]:
    """2³⁰ everywhere."""
    return [np.full(code.size, 2**30) for code in chance.codes]


def resting(chance: Chance) -> list[IntArray]:
    """2³⁰ everywhere in odd rounds, and nothing in the others."""
    return huge(chance) if chance.round_number % 2 else times(0)(chance)


def late(chance: Chance) -> list[IntArray]:
    """2³⁰ everywhere from the third round on, which has most of the budget."""
    return huge(chance) if chance.round_number > 2 else times(0)(chance)


def sly(lie: Lie, chance: Chance) -> list[IntArray]:
    """The same lie, but zeros in probes."""
    return times(0)(chance) if chance.probe else lie(chance)


def random(chance: Chance) -> list[IntArray]:
    """Uniform integers of 32 bits."""
    return [np.random.default_rng(code.size).integers(0, 2**32, code.size) for code in chance.codes]


def hidden(chance: Chance, only: str | None = None) -> list[IntArray]:
    """The longest table that passes, block by block; zeros but in blocks called `only`, if one is named."""
    clips = [0.0] * len(chance.codes)
    for place, block in enumerate(chance.blocks):
        if only not in (None, block.name):
            continue
        passing, failing = 0.0, 2.0 * chance.devices
        for _ in range(BISECTIONS):
            clips[place] = (passing + failing) / 2
            kept = chance.passes(chance.scaled(clips))
            passing, failing = (clips[place], failing) if kept else (passing, clips[place])
        clips[place] = passing
    return chance.scaled(clips)


@dataclass(frozen=True)
class Attack:
    """What a hostile device does."""

    lie: Lie
    promotes: bool = False  # one item, instead of harm to all predictions
    compared: bool = True  # whether the server compares its cohorts


ATTACKS = {
    "huge": Attack(huge),
    "huge, resting": Attack(resting),
    "huge, late": Attack(late),
    "huge, not in probes": Attack(functools.partial(sly, huge)),
    "huge, late, not in probes": Attack(functools.partial(sly, late)),
    "random": Attack(random),
    **{f"{clips} times": Attack(times(clips)) for clips in LENGTHS},
    "hidden": Attack(hidden),
    "hidden, not compared": Attack(hidden, compared=False),
    "hidden, biases": Attack(functools.partial(hidden, only=BIAS)),
    "hidden, biases, not compared": Attack(functools.partial(hidden, only=BIAS), compared=False),
    "promoted": Attack(hidden, promotes=True),
    "promoted, not compared": Attack(hidden, promotes=True, compared=False),
}


@dataclass
class Played:
    """What became of a run."""

    accuracy: float
    attempts: list[int]  # by round
    probes: int
    lost: list[int]  # by round: honest devices whose tables were not learned from
    believed: list[bool]  # by round: the false table is in a sum that was learned from
    spent: list[float]  # ε of each honest device
    unpaid: int  # tables of honest devices that were zeros for lack of budget
    suspects: int  # at the end
    disliked: int  # the item that people like least
    exposure: float  # of the promoted item
    most_off: float  # the largest disagreement of a cohort with the others


class Run:
    """Devices with and without ratings, the product's server, and one liar."""

    def __init__(self, setting: "Setting", people: Any, seed: int, attack: Attack | None, target: int | None) -> None:
        terms = {
            "epsilon": EPSILON,
            "survivors": setting.survivors,
            "corrupt": NETWORK_CORRUPT,
            "reserve": NETWORK_RESERVE,
            "repeats": setting.repeats,
        }
        settings = Settings(model=setting.model, protocol="masked", split_seed=seed, seed=seed, **terms)
        with_liar = dataclasses.replace(people, user_ids=[*people.user_ids, "hostile"])
        self.task = settings.make_task(with_liar)
        problem = task_problem(self.task, settings)
        largest = np.ones(math.ceil(problem.n_users / setting.cohorts), dtype=np.int64)
        sized = settle_terms(largest, problem.n_items, problem.model, problem.protocols, seed=seed)
        self.problem = dataclasses.replace(problem, terms=sized)
        self.engine = CpuMaskedEngine(self.problem)
        side = self.problem.protocol(0).make_server(self.problem.terms, self.problem.model, seed)
        assert isinstance(side, MaskedServer)
        self.side, self.attack, self.seed, self.target, self.setting = side, attack, seed, target, setting
        self.engine.learner = side.learner
        self.hostile = self.problem.n_users - 1
        self.spent = [TableAccountant() for _ in range(self.problem.n_users)]
        self.unpaid, self.most_off, self.probes = 0, 0.0, 0
        self.popular = np.argsort(-np.bincount(self.problem.items, minlength=self.problem.n_items), kind="stable")

    def play(self) -> Played:
        """All rounds."""
        attempts, lost, believed = [], [], []
        for number in range(1, self.problem.terms.max_rounds + 1):
            members, count = self.side.choose_members(range(self.problem.n_users)), 1
            while isinstance(outcome := self.play_attempt(number, count, members), NextAttempt):
                members, count = outcome.members, count + 1
                assert count <= MOST_ATTEMPTS, "the hostile device has stopped the run"
            attempts.append(count)
            lost.append(len(set(range(self.hostile)) - self.learned_from))
            believed.append(self.hostile in self.learned_from)
        predictor = self.problem.protocol(0).make_predictor(self.problem, self.side.public, {})
        delta = self.problem.terms.priced.delta
        spent = [accountant.epsilon(delta) for accountant in self.spent[:-1]]
        accuracy = self.task.metrics(predictor)[MEASURES[self.setting.model]]
        disliked, exposure = self.shown(predictor)
        suspects = len(self.side.suspects)
        ends = suspects, disliked, exposure, self.most_off
        return Played(accuracy, attempts, self.probes, lost, believed, spent, self.unpaid, *ends)

    def shown(self, predictor: Any) -> tuple[int, float]:
        """The item that people like least, and the part of them whose ten recommendations have the promoted one."""
        if self.attack is not None and not self.attack.promotes:
            return -1, 0.0
        people = np.arange(self.hostile)
        scores = predictor.scores(people)
        disliked = int(np.argmin(scores.mean(axis=0)))
        for user in people:
            own = slice(self.problem.starts[user], self.problem.starts[user + 1])
            scores[user, self.problem.items[own]] = -np.inf
        target = disliked if self.target is None else self.target
        shown = scores[:, [target]] > np.sort(scores, axis=1)[:, -TOP - 1, None]
        return disliked, float(shown.mean())

    def play_attempt(self, number: int, count: int, members: Any) -> Any:
        """One attempt: who can pay sends their table, unless it is a probe; everybody sends noise."""
        probe = self.side.suspicion.search is Search.PROBING
        self.probes += probe
        names = {device_name(int(user)): int(user) for user in members}
        levels = {name: level for name, user in names.items() if (level := self.side.suspicion.level(user))}
        terms = self.problem.terms
        sizes = cohort_sizes(len(names), terms.rules.smallest, terms.priced.cohort.devices)
        drawn = draw_cohorts(names, sizes, b"secret", bytes([self.seed, number, count]), levels)
        cohorts = [
            SimpleNamespace(
                survivors=frozenset(own),
                stayed=frozenset(own),
                n_keys=len(own),
                culprits=frozenset(),
                sum=self.honest_sum(number, count, [names[n] for n in own], probe),
            )
            for own in drawn
        ]
        announcement = SimpleNamespace(round_number=number, attempt=count, place=(number, count), probe=probe)
        attempt = SimpleNamespace(
            announcement=announcement, cohorts=cohorts, given_up=[], phase=Phase.SUMMED, is_single=len(cohorts) == 1
        )
        self.side._names, self.side.attempt = names, attempt  # type: ignore[assignment]
        for cohort in cohorts:
            if self.attack is not None and device_name(self.hostile) in cohort.survivors:
                cohort.sum = cohort.sum + self.lie(number, cohort)
        if len(cohorts) >= FEWEST_COHORTS and self.attack is None:
            sums = [self.side._decoded(cohort) for cohort in cohorts]  # type: ignore[list-item]
            off = disagreements(self.side.learner, sums, [len(cohort.survivors) for cohort in cohorts])
            self.most_off = max(self.most_off, *off)
        with self.comparison():
            good = self.side.believed(cohorts)  # type: ignore[arg-type]
            self.learned_from = {names[name] for cohort in good for name in cohort.survivors}
            return self.side._end_round(attempt)  # type: ignore[arg-type]

    def honest_sum(self, number: int, count: int, users: list[int], probe: bool) -> np.ndarray:
        """The sum of one cohort without the lie: everybody's integers, and each device's own noise."""
        priced = self.problem.terms.priced
        integers, codes = np.zeros(sum(code.size for code in priced.codes[number - 1])), priced.codes[number - 1]
        fractions = np.zeros(self.problem.n_users) if probe else self.charge(number, users)
        for fraction in np.unique(fractions[fractions > 0]):
            own = [replace(code, norm_squared=own_norm_squared(code.norm_squared, fraction)) for code in codes]
            integers += np.concatenate(
                self.engine.sum_integers(
                    priced.plan.rounds[number - 1], own, self.side.learner.table(), fractions == fraction
                )
            )
        noise = sum(draw_noise(self.seed, user, number, count, priced.codes[number - 1]) for user in users)
        return (integers.astype(np.int64) + noise).astype(np.uint32)

    def lie(self, number: int, cohort: Any) -> np.ndarray:
        """What the hostile device adds to the sum of its cohort."""
        priced, honest = self.problem.terms.priced, cohort.sum
        blocks, codes = priced.plan.rounds[number - 1].blocks, priced.codes[number - 1]

        def passes(more: list[IntArray]) -> bool:
            cohort.sum = honest + np.concatenate(more).astype(np.uint32)
            with self.comparison():
                kept = cohort in self.side.believed(self.side.attempt.cohorts)  # type: ignore[union-attr]
            cohort.sum = honest
            return kept

        direct = self.promote if self.attack.promotes else self.harm  # type: ignore[union-attr]
        probe = self.side.attempt.announcement.probe  # type: ignore[union-attr]
        group = math.ceil(number / self.setting.repeats)
        chance = Chance(blocks, codes, list(map(direct, blocks)), group, len(cohort.survivors), probe, passes)
        return np.concatenate(self.attack.lie(chance)).astype(np.uint32)  # type: ignore[union-attr]

    def comparison(self) -> Any:
        """With comparison of cohorts, or without it."""
        return compared(self.attack is None or self.attack.compared)

    def harm(self, block: Block) -> np.ndarray:
        """A vector of length 1 against what most ratings are about; alternating where a block is not of items."""
        found = np.zeros(block.shape)
        signs = np.where(np.arange(PUSHED) % 2, 1.0, -1.0)
        if block.shape[0] == self.problem.n_items:
            found[self.popular[:PUSHED]] = signs.reshape(-1, *[1] * (found.ndim - 1))
        else:
            found[...] = np.resize(signs, found.shape)
        flat = found.ravel()
        return flat / np.linalg.norm(flat)

    def promote(self, block: Block) -> np.ndarray:
        """Everything for one item: its count and its residuals."""
        found = np.zeros(block.shape)
        if block.name in (COUNTS, BIAS, FACTORS):
            found.reshape(self.problem.n_items, -1)[self.target, -1] = 1.0
        return found.ravel()

    def charge(self, number: int, users: list[int]) -> np.ndarray:
        """Charge everybody who can pay; return the fraction of the clips that each device sends, 0 for zeros."""
        priced, found = self.problem.terms.priced, np.zeros(self.problem.n_users)
        for user in users:
            if user == self.hostile:  # it has nothing to pay for
                continue
            found[user] = affordable_fraction(priced, number, self.spent[user])
            if found[user]:
                self.spent[user].compose(priced.table_sent(number - 1, found[user]))
            else:
                self.unpaid += 1
        return found


@functools.lru_cache(maxsize=4096)
def draw_noise(seed: int, user: int, number: int, count: int, codes: tuple[BlockCode, ...]) -> IntArray:
    """One device's noise of one attempt, all blocks in one vector."""
    rng = SeededRandomness(seed, user).stream(Purpose.NOISE_SHARES, number + count * 2**20)
    return np.concatenate([discrete_gaussian(code.share_variance).draw(code.size, rng=rng) for code in codes])


class compared:  # noqa: N801
    """A server that compares its cohorts, or one that does not."""

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.fewest = wanted, server_side.FEWEST_COHORTS

    def __enter__(self) -> None:
        server_side.FEWEST_COHORTS = self.fewest if self.wanted else sys.maxsize  # type: ignore[misc]

    def __exit__(self, *_: object) -> None:
        server_side.FEWEST_COHORTS = self.fewest  # type: ignore[misc]


@dataclass(frozen=True)
class Setting:
    """What an operator chooses, and the model."""

    model: str
    cohorts: int
    survivors: float
    repeats: int  # rounds into which each round is divided


def described(played: Played, honest: Played) -> dict[str, Any]:
    """What a run with a liar shows beside the one without."""
    return {
        "accuracy": round(played.accuracy, 5),
        "shift": round(played.accuracy - honest.accuracy, 5),
        "exposure": round(played.exposure, 4),
        "largest_disagreement": round(played.most_off, 3),
        "attempts": played.attempts,
        "probes": played.probes,
        "tables_not_learned_from": played.lost,
        "rounds_with_its_table": sum(played.believed),
        "epsilon_spent_median": round(float(np.median(played.spent)), 3),
        "epsilon_spent_most": round(max(played.spent), 3),
        "tables_of_zeros": played.unpaid,
        "suspects_at_the_end": played.suspects,
    }


def measured(setting: Setting, ratings: Any, devices: int, seed: int, attacks: list[str]) -> dict[str, Any]:
    """Every attack in a run of the same people."""
    drawn = np.random.default_rng(seed).permutation(ratings.n_users)[:devices]
    people = choose_people(ratings, np.isin(np.arange(ratings.n_users), drawn))
    calm = Run(setting, people, seed, None, None)
    honest = calm.play()
    measure = MEASURES[setting.model]
    found = {
        "none": described(honest, honest)
        | {"baselines": {name: round(own[measure], 5) for name, own in calm.task.baselines().items() if measure in own}}
    }
    for name in attacks:
        found[name] = described(Run(setting, people, seed, ATTACKS[name], honest.disliked).play(), honest)
        print(setting.cohorts, seed, name, found[name], flush=True)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, lists round by round; the shift of each seed, and the standard error of their mean."""
    found = {}
    for name in runs[0]:
        shifts = [run[name]["shift"] for run in runs]
        means = {
            key: np.mean([run[name][key] for run in runs], axis=0).round(5).tolist()
            for key in runs[0][name]
            if key != "baselines"
        }
        error = round(float(np.std(shifts, ddof=1) / math.sqrt(len(shifts))), 5)
        found[name] = means | {"shift_standard_error": error, "shifts": shifts}
    return found


def main() -> None:
    """Measure, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--model", default="gp", choices=MEASURES)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--cohorts", default="1,3,4", help="how many, comma-separated")
    parser.add_argument("--survivors", type=float, default=0.75, help="n_min ÷ n_max of several cohorts")
    parser.add_argument("--survivors-of-one", type=float, default=NETWORK_SURVIVORS, help="the same of one cohort")
    parser.add_argument("--repeats", type=int, default=1, help="rounds into which each round is divided")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="separated by semicolons")
    parser.add_argument("--name", default="masked-hostile", help="of the record")
    options = parser.parse_args()
    ratings, attacks = load_data(options.data), options.attacks.split(";")
    result = {}
    for cohorts in map(int, options.cohorts.split(",")):
        survivors = options.survivors_of_one if cohorts == 1 else options.survivors
        setting = Setting(options.model, cohorts, survivors, options.repeats)
        chosen = [name for name in attacks if ATTACKS[name].compared or cohorts >= FEWEST_COHORTS]
        runs = [measured(setting, ratings, options.devices, seed, chosen) for seed in range(options.seeds)]
        baselines = {
            name: round(float(np.mean([run["none"]["baselines"][name] for run in runs])), 5)
            for name in runs[0]["none"]["baselines"]
        }
        result[str(cohorts)] = {"survivors": setting.survivors, "baselines": baselines, "by_attack": summary(runs)}
    about = {"command": "python " + " ".join(sys.argv), **vars(options), "epsilon": EPSILON}
    write_record(f"{options.name}-{options.model}-{options.data}", about | {"by_cohorts": result})


if __name__ == "__main__":
    main()
