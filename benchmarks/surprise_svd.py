"""One private `sdcf` round against one epoch of Surprise's SVD, which is not private, in alternation.

    python benchmarks/surprise_svd.py [--peer PYTHON] [--turns 20] [--data ml-1m]

`--peer` is a Python that has `scikit-surprise` (the extra `bench`), if not this one. Same 50 factors, same training
part. Surprise visits ratings user by user, but its ratings lie in memory in the order in which they were
fed: in the split's random order, as any random split feeds them, or sorted by user. An epoch is the
difference between the quickest fit of three epochs and of one, halved, so that preparations do not count.
"""

import statistics

import numpy as np
from alternate import answer_lines, asking, need, read_options
from measure import best, load_data, timed, write_record

FACTORS = 50


def worker(file: str) -> None:
    """The peer's side: answers the name of an order with the seconds of fits of one and of three epochs."""
    need("surprise", "scikit-surprise")
    from surprise import SVD, Reader
    from surprise.dataset import DatasetAutoFolds

    with np.load(file) as arrays:
        users, items, values = arrays["users"], arrays["items"], arrays["values"]
    orders = {"random": np.arange(len(users)), "user": np.lexsort((items, users))}
    data = DatasetAutoFolds.__new__(DatasetAutoFolds)
    data.reader = Reader(rating_scale=(1, 5))
    trainsets = {}
    for name, rows in orders.items():
        fed = zip(users[rows].tolist(), items[rows].tolist(), values[rows].tolist(), [None] * len(rows), strict=True)
        trainsets[name] = data.construct_trainset(list(fed))

    def fit(order: str, epochs: int) -> dict[str, float]:
        return timed(lambda: SVD(n_factors=FACTORS, n_epochs=epochs, random_state=0).fit(trainsets[order]))

    answer_lines(lambda order: [fit(order, epochs) for epochs in (1, 3)])


def main() -> None:
    """Alternates rounds of `sdcf` and `plain` with epochs in both orders."""
    options = read_options(turns=20)
    if options.worker:
        worker(options.worker)
        return

    from hushrec.simulation.run import Run
    from hushrec.simulation.settings import Settings

    ratings = load_data(options.data)
    rounds = 3 * options.turns + 2
    runs = {name: Run(ratings, Settings(protocol=name, factors=FACTORS, rounds=rounds)) for name in ("sdcf", "plain")}
    users, items, values = runs["plain"].task.training()
    seconds: dict[str, list[dict[str, float]]] = {}
    with asking(options.peer, __file__, {"users": users, "items": items, "values": values}) as ask:
        for run in runs.values():
            run.engine.run_round()  # compiles
            run.engine.run_round()
        for _ in range(options.turns):
            for name, run in runs.items():
                seconds.setdefault(name, []).extend(timed(run.engine.run_round) for _ in range(3))
            for order in ("random", "user"):
                one, three = ask(order)
                seconds.setdefault(f"{order} order, one epoch", []).append(one)
                seconds.setdefault(f"{order} order, three epochs", []).append(three)
    found = {name: best(turns) for name, turns in seconds.items()}
    medians = {name: statistics.median(turn["wall"] for turn in turns) for name, turns in seconds.items()}
    for order in ("random", "user"):
        one, three = found.pop(f"{order} order, one epoch"), found.pop(f"{order} order, three epochs")
        found[f"surprise, {order} order"] = {clock: (three[clock] - one[clock]) / 2 for clock in one}
    ratios = {
        f"{name} against surprise, {order} order": {
            clock: found[f"surprise, {order} order"][clock] / found[name][clock] for clock in ("wall", "processor")
        }
        for name in runs
        for order in ("random", "user")
    }
    write_record(
        f"surprise-{options.data}",
        {
            "ratings": len(users),
            "factors": FACTORS,
            "turns": options.turns,
            "seconds": found,
            "median wall seconds of a round or a fit": medians,
            "ratios": ratios,
        },
    )


if __name__ == "__main__":
    main()
