"""Train on a data set and return a `Result`: with a test part held out, or on every rating."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.engines import Remark
from hushrec.errors import RunError
from hushrec.simulation.checkpoints import checkpoint_files, remove_checkpoints
from hushrec.simulation.results import Result, from_json, load, load_final_model, save, save_final_model
from hushrec.simulation.run import CHECKPOINT_EVERY, Keep, Progress, Run
from hushrec.simulation.settings import Settings, default_model


def train(
    data: str | Path | Ratings,
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
    """Train on a data set's training part and measure on its test part.

    `data` is a name, a path or `Ratings`; `settings` are the fields of `Settings`. With `compare`, a private run is
    set beside the non-private model and `isgld` on the same split. With `out`, the result is kept in that
    folder, and a checkpoint after every `checkpoint_every` rounds until then; `resume` goes on from there, bit for
    bit as if nothing had happened. Ctrl-C keeps a checkpoint of the last whole round, and what was trained.
    `remark` hears what a person should know, such as a wait for the compiler.
    """
    started = time.perf_counter()
    Settings(**settings)  # refused before the data is read
    ratings = data if isinstance(data, Ratings) else load_ratings(data, data_dir=data_dir)
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
                save(run.result({}, interrupted=not run.is_over, seconds_in_all=seconds), out, replace=True)
            raise
        result = run.result(comparisons, interrupted=False, seconds_in_all=time.perf_counter() - started)
        if out is not None:
            save(result, out, replace=True)
            remove_checkpoints(out)
    return result


def train_final(result: Result, *, progress: Progress | None = None, remark: Remark | None = None) -> Result:
    """Train a finished run's settings again on every rating, its test part included: what lists are made from.

    A run that kept the model of its best round trains for as many rounds.
    """
    settings = Settings(**from_json(result.record["settings"]))
    rounds = result.record["best_round"]
    changes = {} if rounds is None else {"rounds": rounds, "patience": None}
    started = time.perf_counter()
    run = Run(result.ratings, settings.replace(final=True, **changes), remark=remark)
    run.train(progress)
    return run.result({}, interrupted=False, seconds_in_all=time.perf_counter() - started)


def load_final(folder: str | Path, *, remark: Remark | None = None) -> Result:
    """Read a run folder, and train its settings on every rating where it held some out; done once, and kept there.

    A run that was interrupted is taken as it is.
    """
    result, say = load(folder), remark or (lambda sentence: None)
    if result.record["interrupted"]:
        say(f"the run in {folder} was interrupted: recommending from {result.record['rounds']} rounds of it.")
    if result.record["final"] or result.record["interrupted"]:
        return result
    kept = load_final_model(folder, result)
    if kept is not None:
        return kept
    say(
        f"training on all {result.ratings.n_ratings} ratings, those of the test part too: a training of its own, for"
        " which real devices would pay its budget again."
    )
    final = train_final(result, remark=remark)
    with suppress(RunError):  # a folder that cannot be written is no reason to recommend nothing
        save_final_model(folder, final)
    return final
