"""The demo: train several protocols and budgets on synthetic ratings with a known ground truth, in about a minute."""

import copy
import shutil
import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hushrec.audit.auditors import quick_audit
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load
from hushrec.data.synthetic import synthetic_truth
from hushrec.errors import RunError
from hushrec.extras import is_installed
from hushrec.files import written
from hushrec.report import Section, Study, read_studies, write_report
from hushrec.report.leakage import PANELS, Point, leakage_plot, recovered
from hushrec.simulation.results import Reason, Recommendation, Result
from hushrec.simulation.run import Progress
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train

MARK = ".hushrec-demo"  # a file in the folder of a demo, which a later demo may replace
COMMON = {"rounds": 400, "factors": 5, "step": 0.6}  # for the settings whose model and protocol use these options
SHOWN = 5  # recommendations
ATTACKED_ROUNDS = 100  # of the gradient protocols, whose first rounds reveal the most

# The settings of the runs by the names of their folders, in the order of the report.
SETTINGS: dict[str, dict[str, Any]] = {
    "masked-8": {"protocol": "masked", "model": "gp", "epsilon": 8.0},
    "masked-1": {"protocol": "masked", "model": "gp", "epsilon": 1.0},
    "plain": {"protocol": "plain", "model": "mf"},
    "isgld-4": {"protocol": "isgld", "model": "mf", "epsilon": 4.0},
    "sdcf-4-4": {"protocol": "sdcf", "model": "mf", "epsilon_i": 4.0, "epsilon_g": 4.0},
    "sdcf-0.25-4": {"protocol": "sdcf", "model": "mf", "epsilon_i": 0.25, "epsilon_g": 4.0},
}
RECOMMENDS_FROM = "masked-8"


@dataclass(frozen=True)
class Suggestion:
    """One recommended item with its reasons, and the rating that the synthetic ground truth expects for it."""

    item: Recommendation
    truth: float
    reasons: list[Reason]


@dataclass(frozen=True)
class Advice:
    """The recommendations for one person, and a mean rating to compare them with."""

    person: str  # user id
    suggestions: list[Suggestion]
    truth_elsewhere: float  # mean rating that the ground truth expects for all films that the person has not rated


@dataclass(frozen=True)
class Demo:
    """The results of a demo."""

    folder: Path
    page: Path | None  # the report; None if the extra `report` is not installed
    study: Study  # the trained runs
    advice: Advice
    points: list[Point]  # of the leakage plot: test RMSE of each setting, and what attacks recover
    seconds: float  # duration of the demo


def run_demo(out: str | Path, *, progress: Progress, beside: Executor) -> Demo:
    """Train and attack with every entry of `SETTINGS`, recommend to one person, and write the results to `out`.

    The results are the ratings, the runs and, if the extra `report` is installed, plots and `report.html`. The attacks
    run in the executor `beside` during training. `progress` is called after every round with the key of the entry, the
    number of the round, the number of all rounds, and the test RMSE.
    """
    started = time.perf_counter()
    folder = prepare(out)
    ratings = load("synthetic")
    _write_files(ratings, folder)
    attacks = attack(ratings, beside)
    results = {name: _train(ratings, folder, name, progress) for name in SETTINGS}
    advice = advise(results[RECOMMENDS_FROM], ratings)
    runs = [folder / "runs" / name for name in SETTINGS]
    study = read_studies(runs)[0]
    points = [
        Point(trained.label, trained.protocol, trained.mean("rmse"), recovered(found, found["protocol"]))
        for found, trained in zip((attacked.result() for attacked in attacks), study.settings, strict=True)
    ]
    page = None
    if is_installed("report"):
        bias = results[RECOMMENDS_FROM].record["baselines"]["bias"]["rmse"]
        picture = leakage_plot(points, {"bias model": bias})
        page = write_report(
            runs,
            folder / "report.html",
            plots_folder=folder / "plots",
            title="hushrec demo",
            command="hushrec demo",
            sections=[_leaks(points), _recommendations(advice)],
            more_figures={"leakage": ("Accuracy against what a server recovers", picture)},
        ).page
        with written(folder, "--out"):
            for name, content in picture.files("leakage").items():
                (folder / "plots" / name).write_bytes(content)
    return Demo(folder, page, study, advice, points, time.perf_counter() - started)


def with_common(settings: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, updated with the entries of `common` that its model and protocol use."""
    used = Settings(**settings).options
    return {**settings, **{option: value for option, value in common.items() if option in used}}


def attack(ratings: Ratings, beside: Executor) -> list[Future[dict[str, Any]]]:
    """Start attacks on every entry of `SETTINGS` in the executor `beside`; return futures of the records, in order.

    The attacks begin with the last entry and training with the first, so that the two do not compile the same kernels
    at the same time. The attacks get a copy of the ratings: an executor pickles its tasks in another thread, and Polars
    can deadlock if a frame is pickled while training reads it.
    """
    fewer = {**COMMON, "rounds": ATTACKED_ROUNDS}
    own = copy.deepcopy(ratings)
    last_first = reversed([Settings(**with_common(settings, fewer)) for settings in SETTINGS.values()])
    return [beside.submit(quick_audit, own, settings) for settings in last_first][::-1]


def _train(ratings: Ratings, folder: Path, name: str, progress: Progress) -> Result:
    return train(
        ratings,
        compare=False,
        out=folder / "runs" / name,
        progress=lambda _protocol, *reached: progress(name, *reached),
        **with_common(SETTINGS[name], COMMON),
    )


def prepare(out: str | Path) -> Path:
    """Create the demo's folder, or delete the runs, plots and page of an earlier demo in it; return the folder.

    Raise `RunError` if `out` is a file, or a folder with files but without `MARK`, the file that every demo writes.
    """
    folder = Path(out)
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} must be new, empty or the folder of an earlier demo. Choose another --out.")
    with written(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text("Made by `hushrec demo`, which replaces what it made here before.\n")
        for name in ("runs", "plots"):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        (folder / "report.html").unlink(missing_ok=True)
    return folder


def _write_files(ratings: Ratings, folder: Path) -> None:
    """Write the synthetic ratings and films as `ratings.csv` and `items.csv`, as examples of rating files."""
    rows = {
        "user": [ratings.user_ids[user] for user in ratings.users],
        "item": [ratings.item_ids[item] for item in ratings.items],
        "rating": ratings.values,
    }
    pl.DataFrame(rows).write_csv(folder / "ratings.csv", float_precision=0)
    attributes = ratings.attributes
    assert attributes is not None
    genres = [name.removeprefix("genre=") for name in attributes.columns if name.startswith("genre=")]
    flags = attributes.select(f"genre={genre}" for genre in genres).rows()
    films = {
        "id": ratings.item_ids,
        "title": ratings.titles,
        "year": attributes["year"].cast(pl.Int64),
        "genre": ["|".join(genre for genre, flag in zip(genres, row, strict=True) if flag) for row in flags],
    }
    pl.DataFrame(films).write_csv(folder / "items.csv")


def advise(result: Result, ratings: Ratings) -> Advice:
    """Return recommendations for the person with the most ratings, and the ratings that the ground truth expects."""
    user = int(np.bincount(ratings.users).argmax())
    person = ratings.user_ids[user]
    everything = np.arange(ratings.n_items)
    expected = synthetic_truth().expected(np.full(ratings.n_items, user), everything)
    unrated = np.setdiff1d(everything, ratings.items[ratings.users == user])
    suggestions = [
        Suggestion(item, float(expected[ratings.item_ids.index(item.item)]), result.explain(person, item.item, 2))
        for item in result.recommend(person, SHOWN)
    ]
    return Advice(person, suggestions, float(expected[unrated].mean()))


def in_words(reasons: list[Reason]) -> str:
    """Return the reasons for a recommendation as a clause, such as "like Heat, your 5"."""
    named = "; ".join(f"{reason.title}, your {reason.rating:g}" for reason in reasons)
    return f"like {named}" if reasons else "nothing you liked is like it"


ABOUT_LEAKS = (
    "Attacks on 20 people, by a server that follows the protocol. Of each person: the rated items that are found at 1 %"
    " false alarms, the ratings that are guessed exactly, and the cosine of a guess with the person's taste. In"
    " brackets: what is known without any message. Against masked the server knows everybody else's ratings as well."
)


def _leaks(points: list[Point]) -> Section:
    rows = [
        [point.label, *(f"{one.value:.2f} ({one.known_anyway:.2f})" for one in point.recovered.values())]
        for point in points
    ]
    return Section("What a server recovers", [ABOUT_LEAKS], ["", *PANELS.values()], rows)


def _recommendations(advice: Advice) -> Section:
    return Section(
        f"Recommended to person {advice.person}, and why",
        [
            f"From the run {RECOMMENDS_FROM}. The person's device computes this itself; nothing is sent.",
            "These ratings are made up, so the rating that the truth expects is known too.",
            f"Of all films that this person did not rate, the truth expects {advice.truth_elsewhere:.2f} on average.",
        ],
        ["film", "predicted", "in truth", "because"],
        [
            [str(entry.item.title), f"{entry.item.predicted:.2f}", f"{entry.truth:.2f}", in_words(entry.reasons)]
            for entry in advice.suggestions
        ],
    )
