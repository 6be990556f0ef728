"""Auditors: the functions with which `hushrec audit` audits a protocol.

Every protocol that can be audited names its auditor. Protocols with the same auditor can be audited in one call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hushrec.audit.machines import audit_machines
from hushrec.audit.masked.bench import STEPS as MASKED_STEPS
from hushrec.audit.masked.bench import audit_masked, masked_settings
from hushrec.audit.masked.watched import label_of
from hushrec.audit.run import AUDITED, STEPS, Audit, audit, audited_protocols, settings_for
from hushrec.data.ratings import Ratings
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.simulation.settings import Settings

MODEL = "mf"  # the model of an audit that names neither a model nor a protocol
ROUNDS = 100


@dataclass(frozen=True)
class Auditor:
    """The functions with which `hushrec audit` audits protocols.

    The command prints a table with one column for each audited protocol or budget. `choose(model, protocols, options,
    seed)` returns the settings of each column.
    """

    choose: Callable[[str | None, list[str] | None, dict[str, Any], int], list[Settings]]
    audit: Callable[..., Audit]  # with the arguments of `audit.run.audit`
    label: Callable[[Settings], str]  # returns the name of a column
    steps: int  # number of steps of a column's progress bar


def find_auditor(model: str | None, protocols: list[str] | None) -> Auditor:
    """Return the auditor of the named protocols or, if none is named, of those that support the model.

    The model is by default `mf`. Raise `ParameterError` if one of these protocols has no auditor, or if their auditors
    differ.
    """
    names = protocols or audited_protocols(model or MODEL) or audited_protocols(MODEL)  # `choose` refuses the model
    paths = {find_protocol(name).auditor for name in names}
    path = paths.pop()
    if path is None or paths:
        raise ParameterError(
            f"protocol must name protocols that can be audited together, got {', '.join(names)}. Audit them one by one."
        )
    found: Auditor = imported(path)
    return found


def _choose_gradient(
    model: str | None, protocols: list[str] | None, options: dict[str, Any], seed: int
) -> list[Settings]:
    given = {**options, "rounds": options["rounds"] or ROUNDS}
    return settings_for(protocols, model=model or MODEL, seed=seed, **given)


def _audit_gradient(ratings: Ratings, settings: list[Settings], **arguments: Any) -> Audit:
    if settings[0].model not in AUDITED:
        return audit_machines(ratings, settings, n_victims=arguments["n_victims"])
    return audit(ratings, settings, **arguments)


def _choose_masked(model: str | None, _: list[str] | None, options: dict[str, Any], seed: int) -> list[Settings]:
    for name, value in options.items():
        if value is not None and name != "epsilon":
            raise ParameterError(f"{name} must not be given in an audit of protocol masked. Leave it out.")
    return masked_settings(model, options["epsilon"], seed)


GRADIENT = Auditor(_choose_gradient, _audit_gradient, lambda settings: settings.protocol, STEPS)
MASKED = Auditor(_choose_masked, audit_masked, label_of, len(MASKED_STEPS) + 1)
