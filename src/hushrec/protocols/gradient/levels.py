"""The privacy levels (values of `epsilon_i`) that the device page offers for protocol `sdcf`.

There are only a few, because the number of items in a report hints at the privacy level of the device.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hushrec.errors import ParameterError
from hushrec.protocols.gradient.meaning import SelectionBudget, explain_budget
from hushrec.protocols.gradient.messages import Terms

if TYPE_CHECKING:
    from hushrec.protocols.gradient.protocols import Sdcf


@dataclass(frozen=True)
class Level:
    """A privacy level: one position of the slider on the device page."""

    name: str
    epsilon_i: float


LEVELS = (Level("Strict", 0.25), Level("Middle", 1.0), Level("Usual", 4.0))


def level_of(epsilon_i: float) -> Level:
    """Return the privacy level in `LEVELS` with this `epsilon_i`; raise `ParameterError` if there is none."""
    found = [level for level in LEVELS if level.epsilon_i == epsilon_i]
    if not found:
        offered = ", ".join(f"{level.epsilon_i:g}" for level in LEVELS)
        raise ParameterError(
            f"epsilon_i must be a level that the page offers ({offered}), got {epsilon_i:g}. Choose one."
        )
    return found[0]


def levels_for(epsilon_i: float) -> list[Level]:
    """Return `LEVELS`, and a level for the person's `epsilon_i` if it is not among them, by ascending budget."""
    own = [] if epsilon_i in {level.epsilon_i for level in LEVELS} else [Level("Your own", epsilon_i)]
    return sorted([*LEVELS, *own], key=lambda level: level.epsilon_i)


def explain_level(level: Level, terms: Terms, own: "Sdcf", n_rated: int) -> dict[str, Any]:
    """Return the meaning of a privacy level for a person with `n_rated` ratings, as entries for the device page.

    They say how many items a report names, how many of these are rated, and how sure the server can be that a given
    item is rated. `own` is the protocol with the person's present budgets.
    """
    in_use = level.epsilon_i == own.epsilon_i
    meaning = explain_budget(
        SelectionBudget(
            n_rated=min(max(1, n_rated), terms.n_items - 1),
            n_items=terms.n_items,
            reports_per_client=float(terms.reports_per_client or 0),
            epsilon_i=level.epsilon_i,
            epsilon_p=own.selection.epsilon_p if in_use else 2 * level.epsilon_i,
            epsilon_g=own.epsilon_g,
            rounds=terms.max_rounds,
            profile_cap=own.profile_cap,
        )
    )
    return {
        "name": level.name,
        "level": level.epsilon_i,
        "epsilon": meaning.epsilon_all_rounds,
        "items_sent": meaning.items_sent,
        "real": meaning.real_among_them,
        "by_chance": meaning.real_by_chance,
        "before": meaning.belief_before,
        "after": meaning.belief_after_all_rounds,
        "never": meaning.belief_never_sent,
        "in_use": in_use,
    }
