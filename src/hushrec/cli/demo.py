"""The command `hushrec demo`: train, attack and recommend on synthetic ratings."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import TimeRemainingColumn
from typer import Option

from hushrec.cli.app import JsonFlag, app, print_json, printable, progress_bars
from hushrec.cli.report import print_study, study_summary

if TYPE_CHECKING:
    from hushrec.demo import Demo
    from hushrec.report import Study


@app.command(epilog="Example: hushrec demo --out /tmp/hushrec-demo")
def demo(
    out: Annotated[Path, Option(help="Folder for the results; the results of an earlier demo are replaced.")] = Path(
        "hushrec-demo"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Train all protocols on synthetic ratings, attack them, and recommend items to one person.

    This takes about a minute and needs no network.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from hushrec.demo import SETTINGS, run_demo

    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as second,
        progress_bars(TimeRemainingColumn()) as show,
    ):

        def progress(name: str, round_number: int, rounds: int, error: float) -> None:
            finished = list(SETTINGS).index(name) + round_number / rounds
            show("demo", finished, len(SETTINGS), f"{name:12} rmse {error:.3f}")

        done = run_demo(out, progress=progress, beside=second)
    if as_json:
        print_json(
            {
                "folder": str(done.folder),
                "page": None if done.page is None else str(done.page),
                "study": study_summary(done.study),
                "recovered": {
                    point.label: {kind: vars(one) for kind, one in point.recovered.items()} for point in done.points
                },
                "person": done.advice.person,
                "recommendations": [
                    {**vars(entry.item), "truth": entry.truth, "reasons": [vars(reason) for reason in entry.reasons]}
                    for entry in done.advice.suggestions
                ],
                "seconds": done.seconds,
            }
        )
    else:
        print_demo(done)


def print_demo(done: "Demo") -> None:
    """Print accuracy, attacks, one person's recommendations, what guarantees do not cover, and what to do next."""
    from hushrec.demo import in_words

    print_study(done.study)
    _print_leaks(done)
    advice = done.advice
    mean = sum(entry.truth for entry in advice.suggestions) / len(advice.suggestions)
    _say(
        f"Recommendations for person {advice.person}, computed on their own device. The person's true mean rating of"
        f" these films is {mean:.1f}, and of all films that they have not rated {advice.truth_elsewhere:.1f}:",
        first=True,
    )
    for entry in advice.suggestions:
        _say(
            f"  {entry.item.predicted:.1f}  {entry.item.title} (true: {entry.truth:.1f}), {in_words(entry.reasons)}",
            indent=7,
        )
    for number, (protocol, what) in enumerate(_not_covered(done.study).items()):
        _say(f"Not covered by {protocol}: {'; '.join(what)}.", indent=2, first=number == 0)
    page = "needs matplotlib: pip install 'hushrec[report]'" if done.page is None else str(done.page)
    _say(f"{done.seconds:.0f} s. The report with plots: {page}", first=True)
    _say("Next, train on ratings of your own: hushrec train my.csv")
    _say(f"An example of such a file: {done.folder / 'ratings.csv'}")


def _print_leaks(done: "Demo") -> None:
    _say(
        "What a server recovers about 20 people: the share of rated items at 1 % false alarms, the share of exact"
        " ratings, the cosine with their taste vectors; in brackets what is known without any message:",
        first=True,
    )
    for point in done.points:
        found = "  ".join(f"{one.value:.2f} ({one.known_anyway:.2f})" for one in point.recovered.values())
        _say(f"  {point.label:22} {found}")


def _not_covered(study: "Study") -> dict[str, dict[str, None]]:
    """Return for each private protocol what its guarantee does not cover, as the keys of a dict, without repetition."""
    found: dict[str, dict[str, None]] = {}
    for setting in study.settings:
        if setting.private:
            found.setdefault(setting.protocol, {}).update(dict.fromkeys(setting.not_covered))
    return found


def _say(text: str, *, indent: int = 0, first: bool = False) -> None:
    """Print a paragraph wrapped to 79 columns, after an empty line if `first`; `indent` is for later lines."""
    print("\n" * first + textwrap.fill(printable(text), 79, subsequent_indent=" " * indent, break_long_words=False))
