"""A whole private training of `audience` against 15 epochs of implicit's BPR, which is not private, in alternation.

    python benchmarks/audience_training.py [--peer PYTHON] [--turns 5] [--data ml-1m]

`--peer` is a Python that has `implicit` (the extra `bench`), if not this one. Both start from arrays of the same
training part and use two threads. The peer's matrix is made before its clock starts; ours includes the public columns
of the items. The peer learns 10 factors, and 100 as it ships. Ours is the default: ε = 8 for one whole profile over the
whole training, every round of the plan; and ε = 1.
"""

from functools import partial

import numpy as np
from alternate import answer_lines, asking, need, read_options
from measure import best, load_data, timed, train_all_rounds, write_record

EPSILONS = (8.0, 1.0)
FACTORS = (10, 100)
EPOCHS = 15
THREADS = 2


def worker(file: str) -> None:
    """The peer's side: answers every line, a number of factors, with the seconds of one fit."""
    need("implicit", "implicit")
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    with np.load(file) as arrays:
        users, items = arrays["users"], arrays["items"]
    matrix = csr_matrix((np.ones(len(users), np.float32), (users, items)))

    def fit(factors: str) -> dict[str, float]:
        model = BayesianPersonalizedRanking(
            factors=int(factors), iterations=EPOCHS, num_threads=THREADS, random_state=0
        )
        return timed(partial(model.fit, matrix, show_progress=False))

    answer_lines(fit)


def main() -> None:
    """Alternates whole trainings."""
    options = read_options(turns=5)
    if options.worker:
        worker(options.worker)
        return

    import numba

    from hushrec.simulation.run import Run
    from hushrec.simulation.settings import Settings

    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    settings = {epsilon: Settings(protocol="masked", model="audience", epsilon=epsilon) for epsilon in EPSILONS}
    task = Run(load_data(options.data), settings[EPSILONS[0]]).task
    users, items, _ = task.training()

    def train(epsilon: float) -> None:
        train_all_rounds(task, settings[epsilon])

    for epsilon in EPSILONS:
        train(epsilon)  # compiles
    turns: dict[str, list[dict[str, float]]] = {}
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(THREADS)}
    with asking(options.peer, __file__, {"users": users, "items": items}, **threads) as ask:
        for _ in range(options.turns):
            for epsilon in EPSILONS:
                turns.setdefault(f"audience, epsilon {epsilon:g}", []).append(timed(partial(train, epsilon)))
            for factors in FACTORS:
                turns.setdefault(f"implicit, {factors} factors", []).append(ask(str(factors)))
    seconds = {name: best(found) for name, found in turns.items()}
    ratios = {
        f"{theirs} against {ours}": {clock: seconds[theirs][clock] / seconds[ours][clock] for clock in seconds[ours]}
        for theirs in seconds
        for ours in seconds
        if theirs.startswith("implicit") and ours.startswith("audience")
    }
    write_record(
        f"audience-{options.data}",
        {
            "actions": len(users),
            "epochs of implicit": EPOCHS,
            "threads": THREADS,
            "turns": options.turns,
            "seconds": seconds,
            "ratios": ratios,
        },
    )


if __name__ == "__main__":
    main()
