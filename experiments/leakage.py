"""Write the data of the plot of accuracy against leakage on ML-100K to `records/leakage/ml-100k.json`.

    python experiments/leakage.py

The success of attacks comes from the records of the audits. The test error of `masked` is that of the attacked run.
The test error of a gradient protocol is that of the run with the same settings in `task1-ml-100k`, split 0. Nothing is
trained or attacked here.
"""

import json
from pathlib import Path

from hushrec.experiment_records import read_records
from hushrec.report.leakage import Point, leakage_record, recovered

RECORDS = Path(__file__).parent / "records"
AUDITED = {"plain": "plain, not private", "isgld": "isgld ε=4", "sdcf": "sdcf ε_I=4, ε_g=4"}
PEERS = {"Surprise SVD": "SVD", "Surprise SVDpp": "SVD++", "myFM": "myFM"}
OTHERS = "simulated"
SHORT = {"Slope One sums": "Slope One", "public group of 20%": "public group"}
OUT = RECORDS / "leakage" / "ml-100k.json"


def read_json(*place: str) -> dict:
    """Return a record."""
    return json.loads(RECORDS.joinpath(*place).read_text("utf-8"))


def main() -> None:
    """Write the record."""
    gradient, masked = read_json("audit", "ml-100k.json"), read_json("audit", "ml-100k-masked.json")
    runs = [one for one in read_records(RECORDS / "task1-ml-100k") if one["split_seed"] == 0]
    errors = {one["label"]: one["metrics"]["rmse"] for one in runs}
    points = [Point(label, name, errors[label], recovered(gradient, name)) for name, label in AUDITED.items()]
    points += [
        Point(label.replace("inf", "∞"), "masked", run["metrics"]["rmse"], recovered(masked, label))
        for label, run in masked["runs"].items()
    ]
    points += [
        Point(f"{OTHERS} {SHORT[one['label'].split(' (')[0]]}", OTHERS, one["rmse"], recovered(one, one["label"]))
        for one in read_json("audit", "ml-100k-rivals.json")["rivals"]
        if one["rmse"] is not None
    ]
    peers = read_json("task1-ml-100k", "peers.json")["splits"]["0"]
    lines = {"bias model": runs[0]["baselines"]["bias"]["rmse"]}
    lines |= {f"{short}, not private": peers[name]["rmse"] for name, short in PEERS.items()}
    about = {"dataset": "ml-100k", "people_attacked": masked["users"], "made_by": "python experiments/leakage.py"}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(leakage_record(points, lines, about), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
