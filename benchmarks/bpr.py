"""One private round of `bpr` against one epoch of implicit's BPR, which is not private, in alternation.

    python benchmarks/bpr.py [--peer PYTHON] [--turns 7] [--data ml-1m]

`--peer` is a Python that has `implicit` (the extra `bench`), if not this one. Both learn 10 factors from every rating
as an action, with two threads. An epoch is the difference between fits of three epochs and of one, halved, so that the
peer's preparations do not count; a round is the mean of two. Prints medians and the machine, and keeps both.
"""

import statistics
from functools import partial

import numpy as np
from alternate import answer_lines, asking, need, read_options
from measure import load_data, timed, write_record

CLOCKS = ("wall", "processor")
THREADS = 2
FACTORS = 10


def worker(file: str) -> None:
    """The peer's side: answers every line with the wall and processor seconds of one epoch."""
    need("implicit", "implicit")
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    with np.load(file) as arrays:
        users, items = arrays["users"], arrays["items"]
    matrix = csr_matrix((np.ones(len(users), np.float32), (users, items)))

    def fit(epochs: int) -> dict[str, float]:
        model = BayesianPersonalizedRanking(factors=FACTORS, iterations=epochs, num_threads=THREADS, random_state=0)
        return timed(partial(model.fit, matrix, show_progress=False))

    def epoch(_: str) -> dict[str, float]:
        one, three = fit(1), fit(3)
        return {clock: (three[clock] - one[clock]) / 2 for clock in CLOCKS}

    fit(1)
    answer_lines(epoch)


def main() -> None:
    """Alternates two rounds of ours with fits of the peer."""
    options = read_options(turns=7)
    if options.worker:
        worker(options.worker)
        return

    import numba

    from hushrec.simulation.run import Run
    from hushrec.simulation.settings import Settings

    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    rounds = 2 * options.turns + 2
    run = Run(load_data(options.data), Settings(model="bpr", protocol="sdcf", engine="cpu", rounds=rounds))
    users, items, _ = run.task.training()

    def two_rounds() -> None:
        run.engine.run_round()
        run.engine.run_round()

    ours, theirs = [], []
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(THREADS)}
    with asking(options.peer, __file__, {"users": users, "items": items}, **threads) as ask:
        two_rounds()  # compiles
        for _ in range(options.turns):
            ours.append({clock: seconds / 2 for clock, seconds in timed(two_rounds).items()})
            theirs.append(ask("go"))
    found = {
        name: {clock: statistics.median(turn[clock] for turn in turns) for clock in CLOCKS}
        for name, turns in (("sdcf", ours), ("implicit", theirs))
    }
    write_record(
        f"bpr-{options.data}",
        {
            "actions": len(users),
            "factors": FACTORS,
            "threads": THREADS,
            "turns": options.turns,
            "median seconds": found,
            "ratio": {clock: found["implicit"][clock] / found["sdcf"][clock] for clock in CLOCKS},
        },
    )


if __name__ == "__main__":
    main()
