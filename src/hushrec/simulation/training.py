"""Train on a data set: with a test part held out to measure accuracy, or on every rating."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hushrec.data.frames import RatingTable, SparseMatrix
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.engines import Remark
from hushrec.errors import RunError
from hushrec.json_values import from_json
from hushrec.simulation.checkpoints import checkpoint_files, remove_checkpoints
from hushrec.simulation.results import Result, load, load_final_model, save_final_model
from hushrec.simulation.run import CHECKPOINT_EVERY, Keep, Progress, Run
from hushrec.simulation.settings import Settings, default_model


def train(
    data: str | Path | Ratings | RatingTable | SparseMatrix,
    *,
    data_dir: str | Path | None = None,
    compare: bool = True,
    out: str | Path | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    resume: bool = False,
    progress: Progress | None = None,
    remark: Remark | None = None,
    **settings: Any,
) -> Result:
    """Train on a data set's training part, measure on its test part, and return the result.

    `data` is a source of `hushrec.data.load`, or `Ratings`; `settings` are the arguments of `Settings`. `hushrec.train`
    explains the other arguments.
    """
    started = time.perf_counter()
    Settings(**settings)  # raises before the data is read
    ratings = data if isinstance(data, Ratings) else load_ratings(data, data_dir=data_dir)
    if remark is not None and ratings.scale_doubt:
        remark(ratings.scale_doubt)
    if settings.get("model") is None:
        settings["model"] = default_model(settings.get("protocol"), has_values=ratings.values is not None)
    chosen = Settings(**settings)
    keep = Keep(out, checkpoint_every, resume)
    run = Run(ratings, chosen, keep=keep, remark=remark)
    with keep.folder_for(run):
        try:
            run.train(progress)
            comparisons = run.compare(progress) if compare and not chosen.final else {}
        except KeyboardInterrupt:
            if out is not None and checkpoint_files(out):
                seconds = time.perf_counter() - started
                run.result({}, interrupted=not run.is_over, seconds_in_all=seconds).save(out, replace=True)
            raise
        result = run.result(comparisons, interrupted=False, seconds_in_all=time.perf_counter() - started)
        if out is not None:
            result.save(out, replace=True)
            remove_checkpoints(out)
    return result


def train_final(result: Result, *, remark: Remark | None = None) -> Result:
    """Train again with a finished run's settings on every rating, including the test part; return the new result.

    If early stopping chose the model of an earlier round, training stops at that round.
    """
    settings = Settings(**from_json(result.record["settings"]))
    rounds = result.record["best_round"]
    changes = {} if rounds is None else {"rounds": rounds, "patience": None}
    started = time.perf_counter()
    run = Run(result.ratings, settings.replace(final=True, **changes), remark=remark)
    run.train(None)
    return run.result({}, interrupted=False, seconds_in_all=time.perf_counter() - started)


def load_final(folder: str | Path, *, remark: Remark | None = None) -> Result:
    """Return a run folder's model trained on every rating; train it if necessary, and store it in the folder.

    For an interrupted run, return the result that the folder holds, without further training.
    """
    result, say = load(folder), remark or (lambda sentence: None)
    if result.record["interrupted"]:
        say(f"the run in {folder} was interrupted: recommending from its first {result.record['rounds']} rounds.")
    if result.record["final"] or result.record["interrupted"]:
        return result
    kept = load_final_model(folder, result)
    if kept is not None:
        return kept
    say(
        f"training again on all {result.ratings.n_ratings} ratings, including the test part. Real devices would pay the"
        " privacy budget a second time for this."
    )
    final = train_final(result, remark=remark)
    with suppress(RunError):  # recommend even if the folder cannot be written
        save_final_model(folder, final)
    return final
