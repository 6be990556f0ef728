"""The test RMSE of the paper's main settings on ML-1M after 100 rounds with engine `cpu`, and the bias model's.

python benchmarks/accuracy.py [--data ml-1m]
"""

import argparse

from measure import load_data, write_record

from hushrec.simulation.training import train

SETTINGS = {
    "plain": {"protocol": "plain"},
    "sdcf, epsilon_g 4": {"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 4.0},
    "sdcf, epsilon_g 0.0625": {"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 0.0625},
    "sdcf, epsilon_g 0": {"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 0.0},
    "isgld 4": {"protocol": "isgld", "epsilon": 4.0},
    "isgld 2": {"protocol": "isgld", "epsilon": 2.0},
}


def main() -> None:
    """One split, one seed, 50 factors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="ml-1m")
    name = parser.parse_args().data
    ratings = load_data(name)
    records = {label: train(ratings, compare=False, **settings).record for label, settings in SETTINGS.items()}
    found = {label: round(record["metrics"]["rmse"], 4) for label, record in records.items()}
    bias = round(records["plain"]["baselines"]["bias"]["rmse"], 4)
    write_record(f"accuracy-{name}", {"rounds": records["plain"]["rounds"], "rmse": {**found, "bias model": bias}})


if __name__ == "__main__":
    main()
