"""One hostile device among 200 in a masked run of `gp`: accuracy, attempts, and what they cost the others in ε.

    python benchmarks/masked_hostile.py [--data ml-100k] [--devices 200] [--seeds 3]

200 people of the data set train with ε = 8, nine in ten of them as n_min and a reserve of a fifth. One more device
has no ratings, and sends a table of its own in every round that asks it. Masks cancel exactly, as tests show integer by
integer, so they are left out here: integers, noise, suspicion, choice of members and learning are the product's own.

A table is `huge` integers, `random` ones, or d times as long as an honest table may be, block by block, in a direction
that hurts: against the counts and the effects of the most rated items, which no device knows. `longest` is what the
check of norms lets pass at all, if the other tables add up to what they do here: the strongest liar that can be thought
of without the checks that a model makes of its sums.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import load_data, write_record
from people import choose_people

from hushrec.arrays import IntArray
from hushrec.budget.accountants import TableAccountant
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.protocols.masked.encoding import BlockCode, is_plausible
from hushrec.protocols.masked.noise import summed_noise
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.secagg.roster import device_name
from hushrec.protocols.masked.server_side import MaskedServer
from hushrec.protocols.parties import NextAttempt
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

EPSILON, CORRUPT = 8.0, 0.02
MOST_ATTEMPTS = 60  # of one round
LENGTHS = (1, 3, 10, 30, 100)

# What a hostile device adds to a block's sum of the other tables: code, direction of length 1, that sum, devices.
Lie = Callable[[BlockCode, np.ndarray, IntArray, int], IntArray]


def scaled(times: float) -> Lie:
    """A table `times` as long as an honest one may be."""
    return lambda code, direction, _, __: np.rint(times * math.sqrt(code.norm_squared) * direction).astype(np.int64)


def longest(code: BlockCode, direction: np.ndarray, others: IntArray, devices: int) -> IntArray:
    """The longest table in this direction with which the sum still passes the check."""
    low, high = 0.0, 4.0 * devices * math.sqrt(code.norm_squared)
    while high - low > 1:
        middle = (low + high) / 2
        passes = is_plausible(code, (others + np.rint(middle * direction).astype(np.int64)).astype(np.uint32), devices)
        low, high = (middle, high) if passes else (low, middle)
    return np.rint(low * direction).astype(np.int64)


def huge(code: BlockCode, *_: object) -> IntArray:
    """2³⁰ everywhere."""
    return np.full(code.size, 2**30)


def random(code: BlockCode, *_: object) -> IntArray:
    """Uniform integers of 32 bits."""
    return np.random.default_rng(code.size).integers(0, 2**32, code.size)


LIES: dict[str, Lie] = {
    "huge": huge,
    "random": random,
    "longest": longest,
    **{f"{times} times": scaled(times) for times in LENGTHS},
}


@dataclass
class Played:
    """What became of a run."""

    rmse: float
    attempts: list[int]  # by round
    believed: list[bool]  # by round: the hostile table is in the sum that was learned from
    spent: list[float]  # ε of each honest device
    unpaid: int  # tables of honest devices that were zeros for lack of budget
    suspects: int  # at the end


def directions(block: Block, popular: IntArray) -> np.ndarray:
    """A vector of length 1 against what most ratings are about; alternating where a block is not of items."""
    found = np.zeros(block.shape)
    signs = np.where(np.arange(100) % 2, 1.0, -1.0)
    if block.shape[0] == len(popular):
        found[popular[:100]] = signs.reshape(-1, *[1] * (found.ndim - 1))
    else:
        found[...] = np.resize(signs, found.shape)
    flat = found.ravel()
    return flat / np.linalg.norm(flat)


class Run:
    """Devices with and without ratings, the product's server, and one liar."""

    def __init__(self, ratings: Any, seed: int, lie: Lie | None, terms: dict[str, float]) -> None:
        settings = Settings(protocol="masked", split_seed=seed, seed=seed, **terms)
        with_liar = dataclasses.replace(ratings, user_ids=[*ratings.user_ids, "hostile"])
        self.task = settings.make_task(with_liar)
        self.problem = task_problem(self.task, settings)
        self.engine = CpuMaskedEngine(self.problem)
        side = self.problem.protocol(0).make_server(self.problem.terms, self.problem.model, seed)
        assert isinstance(side, MaskedServer)
        self.side, self.lie, self.seed = side, lie, seed
        self.engine.learner = side.learner
        self.hostile = self.problem.n_users - 1
        self.spent = [TableAccountant() for _ in range(self.problem.n_users)]
        self.unpaid = 0
        self.popular = np.argsort(-np.bincount(self.problem.items, minlength=self.problem.n_items), kind="stable")

    def play(self) -> Played:
        """All rounds."""
        attempts, believed = [], []
        for number in range(1, self.problem.terms.max_rounds + 1):
            members, count = self.side.choose_members(range(self.problem.n_users)), 1
            while (outcome := self.attempt(number, count, members)) is not None:
                members, count = outcome.members, count + 1
                assert count <= MOST_ATTEMPTS, "the hostile device has stopped the run"
            attempts.append(count)
            believed.append(self.hostile in set(members))
        predictor = self.problem.protocol(0).make_predictor(self.problem, self.side.public, {})
        delta = self.problem.terms.priced.delta
        spent = [accountant.epsilon(delta) for accountant in self.spent[:-1]]
        rmse = self.task.metrics(predictor)["rmse"]
        return Played(rmse, attempts, believed, spent, self.unpaid, len(self.side.suspects))

    def attempt(self, number: int, count: int, members: Any) -> NextAttempt | None:
        """One attempt: who can pay sends their table, everybody noise; None when the round is over."""
        priced = self.problem.terms.priced
        one, codes = priced.plan.rounds[number - 1], priced.codes[number - 1]
        present = np.isin(np.arange(self.problem.n_users), list(members))
        devices = int(present.sum())
        paid = self.charge(number, present)
        sums = self.engine.sum_integers(one, codes, self.side.learner.table(), paid)
        noise = SeededRandomness(self.seed).stream(Purpose.SUMMED_NOISE, number + count * 2**20)
        parts = []
        for block, code, own in zip(one.blocks, codes, sums, strict=True):
            total = own + summed_noise(code.share_variance, devices).draw(code.size, rng=noise)
            if self.lie is not None and present[self.hostile]:
                total = total + self.lie(code, directions(block, self.popular), total, devices)
            parts.append(total.astype(np.uint32))
        names = {device_name(int(user)): int(user) for user in np.flatnonzero(present)}
        outcome = self.close(number, count, names, np.concatenate(parts))
        return outcome if isinstance(outcome, NextAttempt) else None

    def charge(self, number: int, present: np.ndarray) -> np.ndarray:
        """Charge everybody who is present and can pay; the hostile device has nothing to pay for."""
        priced, paid = self.problem.terms.priced, present.copy()
        event = priced.table_sent(number - 1)
        for user in np.flatnonzero(present[:-1]):
            after = self.spent[user].copy()
            after.compose(event)
            if after.spent() <= priced.mu_squared * (1 + 1e-12):
                self.spent[user] = after
            else:
                paid[user] = False
                self.unpaid += 1
        paid[self.hostile] = False
        return paid

    def close(self, number: int, count: int, names: dict[bytes, int], total: np.ndarray) -> Any:
        """What the server does with an unmasked sum."""
        cohort = SimpleNamespace(sum=total, survivors=frozenset(names))
        announcement = SimpleNamespace(round_number=number, attempt=count, place=(number, count))
        attempt = SimpleNamespace(announcement=announcement, cohorts=[cohort], given_up=[], **vars(cohort))
        self.side._names, self.side.attempt = names, attempt  # type: ignore[assignment]
        return self.side._end_round(attempt)  # type: ignore[arg-type]


def described(played: Played, honest: Played) -> dict[str, Any]:
    """What a run with a liar shows beside the one without."""
    return {
        "rmse": round(played.rmse, 5),
        "shift": round(played.rmse - honest.rmse, 5),
        "attempts": played.attempts,
        "rounds_with_its_table": sum(played.believed),
        "epsilon_spent_median": round(float(np.median(played.spent)), 3),
        "epsilon_spent_most": round(max(played.spent), 3),
        "epsilon_without_it": round(float(np.median(honest.spent)), 3),
        "tables_of_zeros": played.unpaid,
        "suspects_at_the_end": played.suspects,
    }


def measured(ratings: Any, devices: int, seed: int, terms: dict[str, float], lies: list[str]) -> dict[str, Any]:
    """Every lie in a run of the same people."""
    drawn = np.random.default_rng(seed).permutation(ratings.n_users)[:devices]
    people = choose_people(ratings, np.isin(np.arange(ratings.n_users), drawn))
    honest = Run(people, seed, None, terms).play()
    found = {"none": described(honest, honest)}
    for name in lies:
        found[name] = described(Run(people, seed, LIES[name], terms).play(), honest)
        print(seed, name, found[name], flush=True)
    return found


def main() -> None:
    """Measure, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--survivors", type=float, default=0.9)
    parser.add_argument("--reserve", type=float, default=0.2)
    parser.add_argument("--lies", default=",".join(LIES))
    parser.add_argument("--name", default="masked-hostile", help="of the record")
    options = parser.parse_args()
    ratings, lies = load_data(options.data), options.lies.split(",")
    terms = {"epsilon": EPSILON, "survivors": options.survivors, "corrupt": CORRUPT, "reserve": options.reserve}
    runs = [measured(ratings, options.devices, seed, terms, lies) for seed in range(options.seeds)]
    means = {
        name: {
            "shift": round(float(np.mean([run[name]["shift"] for run in runs])), 5),
            "largest_shift": max(run[name]["shift"] for run in runs),
            "attempts": float(np.mean([sum(run[name]["attempts"]) for run in runs])),
            "rounds_with_its_table": float(np.mean([run[name]["rounds_with_its_table"] for run in runs])),
            "epsilon_spent": round(float(np.mean([run[name]["epsilon_spent_median"] for run in runs])), 3),
        }
        for name in runs[0]
    }
    command = "python " + " ".join(sys.argv)
    result = {"command": command, "data": options.data, "devices": options.devices, **terms}
    write_record(f"{options.name}-{options.data}", result | {"by_table": means, "seeds": runs})


if __name__ == "__main__":
    main()
