"""From how many devices on a run pays: the numbers that pages and commands show are those of the record."""

import json
from pathlib import Path

import pytest

from hushrec.protocols.gradient.fleet_size import MEASURED, FleetSize, expected, fleet_sentence, pays_from

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "benchmarks" / "records" / "fleet-size-ml-100k.json").read_text())


def test_the_module_has_the_numbers_of_the_record() -> None:
    """To four digits, size by size."""
    names = ("devices", "rmse", "own_mean", "bias")
    assert [FleetSize(*(round(size[name], 4) for name in names)) for size in RECORD["sizes"]] == list(MEASURED)


def test_a_run_pays_where_it_beats_what_needs_no_server() -> None:
    """At that size and at every larger one that was measured; not at the next smaller one."""
    for size in MEASURED:
        assert (size.rmse < size.own_mean) or size.devices < pays_from()
    below = [size for size in MEASURED if size.devices < pays_from()]
    assert below[-1].rmse >= below[-1].own_mean


@pytest.mark.parametrize(("devices", "measured"), [(2, 25), (25, 25), (99, 50), (1e6, 943)])
def test_a_fleet_is_told_what_the_next_smaller_one_reached(devices: float, measured: int) -> None:
    """The sentence names the size that was measured and the verdict."""
    assert expected(devices).devices == measured
    sentence = fleet_sentence(devices)
    assert f"With {measured} devices" in sentence
    assert ("less exact" in sentence) == (measured < pays_from())
