"""A fleet of real devices against a real server over loopback with TLS, beside the engine on the same split.

    python benchmarks/service_fleet.py [--devices 943] [--rounds 100] [--out benchmarks/records/service-fleet.json]

Every device has its own store, keys and connection, in two processes; the server is one of its own, with SQLite. The
split is that of `hushrec train` (80 % of the file's rows, seed 0), the terms are the engine's defaults with a public
cap.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from served import fleet_options, run_network

from hushrec.cli.fleet import _members
from hushrec.data import load
from hushrec.simulation.training import train

CONFIG = """
[terms]
protocol = "sdcf"
factors = 50
rounds = {rounds}
reports_per_client = {reports_per_client}
expected_devices = {devices}
profile_cap = {cap}
[rounds]
min_devices = {devices}
early_fraction = 1.0
[limits]
enrolments_per_second = 1000
"""


def main() -> None:
    """Run the fleet, then the engine, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    fleet_options(parser, 8472)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cap", type=int, default=600)
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args()
    ratings = load(options.data)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        members = _members(ratings, options.devices, 0, place / "stores")
        per_client = sum(len(member.ratings) for member in members) / len(members)
        terms = {"rounds": options.rounds, "reports_per_client": per_client, "cap": options.cap}
        config = CONFIG.format(devices=len(members), **terms)
        record, outcome = run_network(options, place, config, write_items(place, ratings), members)
    record["profile_cap"] = options.cap
    if options.devices == ratings.n_users:
        result = train(
            options.data,
            protocol="sdcf",
            engine=options.engine,
            rounds=options.rounds,
            profile_cap=options.cap,
            compare=False,
        )
        record["engine_rmse"] = result.metrics["rmse"]
        record["difference"] = outcome.rmse_trained - result.metrics["rmse"] if outcome.held_out else None
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def write_items(place: Path, ratings: Any) -> Path:
    """Write the catalogue of a data set, ids and titles, and return its path."""
    titles = ratings.titles or ratings.item_ids
    rows = (f'{name},"{title.replace(chr(34), "")}"\n' for name, title in zip(ratings.item_ids, titles, strict=True))
    (place / "items.csv").write_text("id,title\n" + "".join(rows))
    return place / "items.csv"


if __name__ == "__main__":
    main()
