"""The privacy levels (values of `epsilon_i`) that the device page offers for protocol `sdcf`.

There are only a few levels, so that many devices share one: the number of items in a report hints at a device's level.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hushrec.errors import ParameterError
from hushrec.protocols.configured import PrivacyLevel
from hushrec.protocols.gradient.meaning import SelectionBudget, explain_budget
from hushrec.protocols.gradient.messages import Terms

if TYPE_CHECKING:
    from hushrec.protocols.gradient.protocols import Sdcf


LEVELS = {"Strict": 0.25, "Middle": 1.0, "Usual": 4.0}  # epsilon_i by name


def check_level(epsilon_i: float) -> float:
    """Return `epsilon_i` if it is one of `LEVELS`; raise `ParameterError` if not."""
    if epsilon_i not in LEVELS.values():
        offered = ", ".join(f"{level:g}" for level in LEVELS.values())
        raise ParameterError(
            f"epsilon_i must be a level that the page offers ({offered}), got {epsilon_i:g}. Choose one."
        )
    return epsilon_i


def explain_levels(terms: Terms, own: "Sdcf", n_rated: int) -> list[PrivacyLevel]:
    """Return the privacy levels in `LEVELS`, and the person's present level if it is not among them, by ascending ε_I.

    The sentences of a level say how many items a report has on average, how many of these are rated, and how sure the
    server can be that a given item is rated. `own` is the protocol with the person's present budgets, `n_rated` the
    number of the person's ratings.
    """
    levels = {name: replace(own, epsilon_i=epsilon_i, epsilon_p=None) for name, epsilon_i in LEVELS.items()}
    present = next((name for name, epsilon_i in LEVELS.items() if epsilon_i == own.epsilon_i), "Your own")
    levels[present] = own
    by_budget = sorted(levels.items(), key=lambda level: level[1].epsilon_i)
    return [_explain_level(name, protocol, terms, n_rated, in_use=protocol is own) for name, protocol in by_budget]


def _explain_level(name: str, protocol: "Sdcf", terms: Terms, n_rated: int, *, in_use: bool) -> PrivacyLevel:
    meaning = explain_budget(
        SelectionBudget(
            n_rated=min(max(1, n_rated), terms.n_items - 1),
            n_items=terms.n_items,
            reports_per_client=float(terms.reports_per_client or 0),
            epsilon_i=protocol.epsilon_i,
            epsilon_p=protocol.selection.epsilon_p,
            epsilon_g=protocol.epsilon_g,
            rounds=terms.max_rounds,
            profile_cap=protocol.profile_cap,
        )
    )
    believed = f"If the server believed with {_share(meaning.belief_before)} probability that you rated an item, the"
    items, real = meaning.items_sent, meaning.real_among_them
    sent = f"Each round your device sends about {items:.1f} items, of which you rated about {real:.1f}"
    most, least = _share(meaning.belief_after_all_rounds), _share(meaning.belief_never_sent)
    return PrivacyLevel(
        name=name,
        level=protocol.epsilon_i,
        epsilon=meaning.epsilon_all_rounds,
        welcome=f"{believed} lists of reported items can raise this to at most {most}, over all rounds.",
        words=[
            f"{sent}; a random choice would contain {meaning.real_by_chance:.1f}.",
            f"{believed} items reported in all rounds can change this to at most {most} and at least {least}.",
            "No level hides the numbers that are sent with the items: see below what they reveal.",
        ],
        confirm=f"The budget is ε {meaning.epsilon_all_rounds:g} over all rounds. After your first round it cannot be"
        " changed.",
        in_use=in_use,
    )


def _share(probability: float) -> str:
    return f"{float(f'{100 * probability:.3g}'):g}\u00a0%"
