"""Auditors: the functions with which `hushrec audit` audits a protocol.

Every protocol that can be audited names its auditor. Protocols with the same auditor can be audited in one call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.findings import Finding
from hushrec.audit.masked.bench import STEPS as MASKED_STEPS
from hushrec.audit.masked.bench import audit_masked, masked_settings
from hushrec.audit.masked.people import attack_quickly as attack_masked_quickly
from hushrec.audit.masked.watched import label_of
from hushrec.audit.run import STEPS, Audit, attack_quickly, audit, audited_protocols, settings_for
from hushrec.data.ratings import Ratings
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

MODEL = "mf"  # the model of an audit that names neither a model nor a protocol
QUICK_PEOPLE = 20  # number of people to attack in a quick audit


@dataclass(frozen=True)
class Auditor:
    """The functions with which `hushrec audit` audits protocols.

    The command prints a table with one column for each audited protocol or budget. `choose(model, protocols, options,
    seed)` returns the settings of each column. `quick_attacks(settings, problem, victims, rng)` trains once, and
    returns the findings of a few attacks on items, ratings and taste by a server that follows its protocol.
    """

    choose: Callable[[str | None, list[str] | None, dict[str, Any], int], list[Settings]]
    audit: Callable[..., Audit]  # with the arguments of `audit.run.audit`
    label: Callable[[Settings], str]  # returns the name of a column
    steps: int  # number of steps of a column's progress bar
    quick_attacks: Callable[[Settings, AnyProblem, IntArray, np.random.Generator], list[Finding]]


def find_auditor(model: str | None, protocols: list[str] | None) -> Auditor:
    """Return the auditor of the named protocols or, if none is named, of the protocols that support the model.

    The model is by default `mf`. Raise `ParameterError` if one of these protocols has no auditor, or if their auditors
    differ.
    """
    names = protocols or audited_protocols(model or MODEL) or audited_protocols(MODEL)  # `choose` refuses others
    paths = {find_protocol(name).auditor for name in names}
    if None in paths:
        raise ParameterError(
            f"protocol must name protocols that can be audited, got {', '.join(names)}. The protocol of a plug-in must"
            " declare an `auditor`."
        )
    path, *others = map(str, paths)
    if others:
        raise ParameterError(
            f"protocol must name protocols that can be audited together, got {', '.join(names)}. Audit them one by one."
        )
    found: Auditor = imported(path)
    return found


def quick_audit(ratings: Ratings, settings: Settings) -> dict[str, Any]:
    """Train once, attack items, ratings and taste of 20 people, and return the findings as JSON data."""
    auditor = find_auditor(settings.model, [settings.protocol])
    problem, rng = task_problem(settings.make_task(ratings), settings), np.random.default_rng([settings.seed, 6])
    victims = np.sort(rng.permutation(problem.active_users)[:QUICK_PEOPLE])
    findings = auditor.quick_attacks(settings, problem, victims, rng)
    return {"protocol": findings[0].protocol, "attacks": [one.record() for one in findings]}


def _choose_gradient(
    model: str | None, protocols: list[str] | None, options: dict[str, Any], seed: int
) -> list[Settings]:
    return settings_for(protocols, model=model or MODEL, seed=seed, **options)


def _choose_masked(model: str | None, _: list[str] | None, options: dict[str, Any], seed: int) -> list[Settings]:
    for name, value in options.items():
        if value is not None and name != "epsilon":
            raise ParameterError(f"{name} must not be given in an audit of protocol masked. Leave it out.")
    return masked_settings(model, options["epsilon"], seed)


GRADIENT = Auditor(_choose_gradient, audit, lambda settings: settings.protocol, STEPS, attack_quickly)
MASKED = Auditor(_choose_masked, audit_masked, label_of, len(MASKED_STEPS) + 1, attack_masked_quickly)
