"""A whole private training of `masked` against Surprise's `SVD().fit`, which is not private, in alternation.

    python benchmarks/masked_training.py [--peer PYTHON] [--turns 5] [--data ml-1m]

`--peer` is a Python that has `scikit-surprise` (the extra `bench`), if not this one. Both start from arrays of the same
training part and end with everything that predictions need. Surprise is as it ships: 100 factors, 20 epochs; it keeps
the order in which it got the ratings, so it is timed in the random order that its own splits have, and sorted by user.
Ours is the default: ε = 8 for one whole profile over the whole training, every round of the plan.
"""

from typing import Any

import numpy as np
from alternate import answer_lines, asking, need, read_options
from measure import best, load_data, timed, train_all_rounds, write_record

EPSILONS = (8.0, 1.0)
RANDOM, BY_USER = "surprise, random order", "surprise, user order"


def worker(file: str) -> None:
    """The peer's side: answers every line with the seconds of one fit."""
    need("surprise", "scikit-surprise")
    from surprise import SVD, Reader
    from surprise.dataset import DatasetAutoFolds

    with np.load(file) as arrays:
        users, items, values = arrays["users"], arrays["items"], arrays["values"]
    data = DatasetAutoFolds.__new__(DatasetAutoFolds)
    data.reader = Reader(rating_scale=(1, 5))

    def fed(order: np.ndarray) -> Any:
        columns = (array[order].tolist() for array in (users, items, values))
        return data.construct_trainset(list(zip(*columns, [None] * len(users), strict=True)))

    orders = {RANDOM: np.random.default_rng(0).permutation(len(users)), BY_USER: np.argsort(users, kind="stable")}
    trainsets = {name: fed(order) for name, order in orders.items()}
    answer_lines(lambda name: timed(lambda: SVD(random_state=0).fit(trainsets[name])))


def main() -> None:
    """Alternates whole trainings."""
    options = read_options(turns=5)
    if options.worker:
        worker(options.worker)
        return

    from hushrec.simulation.run import Run
    from hushrec.simulation.settings import Settings

    ratings = load_data(options.data)
    settings = {epsilon: Settings(protocol="masked", epsilon=epsilon) for epsilon in EPSILONS}
    task = Run(ratings, settings[EPSILONS[0]]).task
    users, items, values = task.training()

    def train(epsilon: float) -> None:
        train_all_rounds(task, settings[epsilon])

    for epsilon in EPSILONS:
        train(epsilon)  # compiles
    turns: dict[str, list[dict[str, float]]] = {}
    with asking(options.peer, __file__, {"users": users, "items": items, "values": values}) as ask:
        for _ in range(options.turns):
            for epsilon in EPSILONS:
                turns.setdefault(f"masked, epsilon {epsilon:g}", []).append(timed(lambda e=epsilon: train(e)))
            for peer in (RANDOM, BY_USER):
                turns.setdefault(peer, []).append(ask(peer))
    seconds = {name: best(found) for name, found in turns.items()}
    ratios = {
        peer: {
            f"epsilon {epsilon:g}": {
                clock: seconds[peer][clock] / own for clock, own in seconds[f"masked, epsilon {epsilon:g}"].items()
            }
            for epsilon in EPSILONS
        }
        for peer in (RANDOM, BY_USER)
    }
    write_record(
        f"masked-{options.data}",
        {"ratings": len(users), "turns": options.turns, "seconds": seconds, "takes times as long": ratios},
    )


if __name__ == "__main__":
    main()
