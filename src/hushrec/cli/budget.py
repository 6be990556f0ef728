"""The command `hushrec budget`: explain what a privacy budget of protocol `sdcf` means."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hushrec.cli.app import JsonFlag, app, print_json, say
from hushrec.cli.options import with_personal_options
from hushrec.errors import ParameterError
from hushrec.files import written
from hushrec.protocols.gradient import SDCF

if TYPE_CHECKING:
    from hushrec.protocols.gradient.meaning import Meaning, SelectionBudget
    from hushrec.report.plots import Drawing


@app.command(epilog="Example: hushrec budget --rated 20 --items 3706 --epsilon-i 1 --profile-cap 600 --plot budget.svg")
@with_personal_options(after="reports_per_client", protocols=[SDCF])
def budget(
    rated: Annotated[int, Option(help="Number of items that the person has rated.")] = 85,
    items: Annotated[int, Option(help="Number of items in the catalogue.")] = 1682,
    reports_per_client: Annotated[
        float | None,
        Option(help="Average number of items that a device reports per round.  [default: the value of --rated]"),
    ] = None,
    model: Annotated[str, Option(help="Model of the run: mf, fm or bpr.")] = "mf",
    rounds: Annotated[int, Option(help="Number of rounds in which the device takes part.")] = 100,
    profile_cap: Annotated[
        int | None,
        Option(
            help="Calibrate the item selection for this public cap on the number of ratings.  [default: no cap;"
            " calibrate for --rated]"
        ),
    ] = None,
    prior: Annotated[
        float, Option(help="The server's prior probability that the person has rated a given item.")
    ] = 0.05,
    plot: Annotated[Path | None, Option(help="Also draw the explanation as a plot, into this SVG file.")] = None,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Explain what a privacy budget of protocol sdcf means for one person; nothing is trained.

    With masked, the default protocol, epsilon itself bounds what a whole run reveals: see docs/choose-a-budget.md, and
    the budget that `hushrec train` prints.
    """
    from hushrec.protocols import protocols_of
    from hushrec.protocols.gradient.meaning import SelectionBudget, explain_budget
    from hushrec.simulation.settings import Settings

    if "masked" in protocols_of(model):
        raise ParameterError(
            f"model must be mf, fm or bpr, the models of protocol sdcf, got {model}, a model of masked. There, epsilon"
            " itself bounds what a whole run reveals: see docs/choose-a-budget.md, and the budget that `hushrec train`"
            " prints."
        )
    settings = Settings(protocol=SDCF.name, model=model, **options)
    budgets = settings.make_protocol().chosen_options()
    chosen = SelectionBudget(
        n_rated=rated,
        n_items=items,
        reports_per_client=float(rated) if reports_per_client is None else reports_per_client,
        epsilon_i=budgets["epsilon_i"],
        epsilon_p=budgets["epsilon_p"],
        epsilon_g=budgets["epsilon_g"],
        rounds=rounds,
        profile_cap=profile_cap,
        prior=prior,
    )
    meaning = explain_budget(chosen)
    if plot is not None:
        with written(plot, "--plot"):
            plot.write_text(budget_plot(chosen), "utf-8")
        say(f"plot: {plot}")
    if as_json:
        print_json({**vars(chosen), **vars(meaning), "probabilities": vars(meaning.probabilities)})
    else:
        print("\n".join(in_words(chosen, meaning)))


def budget_plot(budget: "SelectionBudget") -> "Drawing":
    """Plot what an `sdcf` budget reveals: how many reported items are really rated, and what a server may conclude.

    The left panel shows the expected number of rated items among those sent in a round as a function of `epsilon_i`,
    with the default of `epsilon_p`. The right panel shows the server's probability after each round that one item is
    rated: if it was sent in every round so far, and if it was never sent.
    """
    from hushrec.protocols.gradient.meaning import belief, explain_budget
    from hushrec.protocols.gradient.protocols import Sdcf
    from hushrec.report.plots import HEIGHT, MUTED, SERIES, WIDTH, new_axes, to_svg

    def real_at(epsilon_i: float) -> float:
        own = replace(budget, epsilon_i=epsilon_i, epsilon_p=default_epsilon_p(epsilon_i))
        return explain_budget(own).real_among_them

    def default_epsilon_p(epsilon_i: float) -> float:
        return Sdcf(epsilon_i, None).selection.epsilon_p

    with new_axes(2 * WIDTH, HEIGHT, columns=2) as (figure, (left, right)):
        scales = [2.0**power for power in range(-4, 11)]
        usable = [epsilon for epsilon in scales if default_epsilon_p(epsilon) < 600 * budget.n_protected]
        left.plot(
            usable, [real_at(epsilon) for epsilon in usable], color=SERIES[0], linewidth=1.8, label="really rated"
        )
        meaning = explain_budget(budget)
        left.axhline(meaning.items_sent, color=MUTED, linestyle="--", linewidth=1.2, label="sent")
        left.axhline(meaning.real_by_chance, color=MUTED, linestyle=":", linewidth=1.2, label="really rated, by chance")
        left.plot(budget.epsilon_i, meaning.real_among_them, "o", color=SERIES[1], label="this budget")
        left.set_xscale("log", base=2)
        left.set_xticks(usable[::2], [f"{epsilon:g}" for epsilon in usable[::2]])
        left.set_xlabel("ε_I per round, profile-level (ε_P = 2 ε_I)")
        left.set_ylabel("items per round")
        rounds = range(1, budget.rounds + 1)
        always = [100 * belief(budget, rounds=count) for count in rounds]
        never = [100 * belief(budget, rounds=count, sent=False) for count in rounds]
        right.plot(rounds, always, color=SERIES[1], linewidth=1.8, label="sent in every round")
        right.plot(rounds, never, color=SERIES[0], linewidth=1.8, label="never sent")
        right.axhline(100 * budget.prior, color=MUTED, linestyle=":", linewidth=1.2, label="before")
        right.set_xlabel("round")
        right.set_ylabel("server's belief that one item is rated (%)")
        for axes in (left, right):
            axes.legend(loc="best", frameon=False, fontsize=8, handlelength=2.4)
        return to_svg(figure)


def in_words(chosen: "SelectionBudget", meaning: "Meaning") -> list[str]:
    """Return the explanation of a budget `chosen` and its `meaning`, as lines of text."""
    found, not_covered = meaning.probabilities, list(meaning.not_covered)
    if chosen.epsilon_g is not None:  # the model has fake errors
        outside = f"{meaning.real_errors_outside_fakes:.0%} of a person's real errors lie where no fake can be"
        not_covered.append(f"at epsilon_g = {chosen.epsilon_g:g}, {outside}")
    cap = "" if chosen.profile_cap is None else f", calibrated from a public cap of {chosen.profile_cap}"
    rounds = "one round" if chosen.rounds == 1 else f"{chosen.rounds:,} rounds"
    return [
        f"A person who rated {chosen.n_rated:,} of {chosen.n_items:,} items, in {rounds} of sdcf{cap}.",
        "",
        "What the device sends",
        f"  each round, on average, {meaning.items_sent:.1f} items; {meaning.real_among_them:.1f} are really rated",
        f"  (of items drawn at random, {meaning.real_by_chance:.1f} would be)",
        f"  a permanent bit is still true with probability {meaning.bit_survives:.2f}",
        "",
        "What the server can believe about one item, from which items are sent",
        f"  before                                  {meaning.belief_before:8.2%}",
        f"  sent in one round: at most              {meaning.belief_after_one_round:8.2%}",
        f"  sent in all {chosen.rounds:>5,} rounds: at most       {meaning.belief_after_all_rounds:8.2%}",
        f"  sent in none of them: at least          {meaning.belief_never_sent:8.2%}",
        "",
        "What it costs (δ = 0)",
        *_wrapped(f"unit: {meaning.unit}"),
        f"  one round                               ε = {meaning.epsilon_round:g}",
        f"  all {chosen.rounds:>5,} rounds                        ε = {meaning.epsilon_all_rounds:g}",
        f"  one rating replaced by another          ε = {meaning.epsilon_one_rating:.3g}, all rounds",
        f"  the smallest epsilon_p that works       {meaning.smallest_epsilon_p:.4g} (here {chosen.epsilon_p:g})",
        "",
        "How: chance that …",
        f"  f   a permanent bit is replaced by a coin     {found.prob_randomize:.4f}",
        f"  p*  an unrated item is sent                   {found.prob_send_unrated:.4f}",
        f"  q*  a rated item is sent                      {found.prob_send_rated:.4f}",
        f"  p   an item is sent whose permanent bit is 0  {found.prob_send_zero:.4f}",
        f"  q   an item is sent whose permanent bit is 1  {found.prob_send_one:.4f}",
        "",
        "Not covered",
        *(line for what in not_covered for line in _wrapped(f"- {what}")),
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="    ")
