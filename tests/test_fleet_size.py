"""From how many devices on a run pays: the numbers that pages and commands show are those of the record."""

import json
from pathlib import Path

import pytest

from hushrec.protocols.fleet_size import FleetSize, sentence_of, smallest_that_pays
from hushrec.protocols.gradient.fleet_size import MEASURED
from hushrec.protocols.masked.gp import fleet_size as masked

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "benchmarks" / "records" / "fleet-size-ml-100k.json").read_text())


def test_the_module_has_the_numbers_of_the_record() -> None:
    """To four digits, size by size."""
    names = ("devices", "rmse", "own_mean", "bias")
    assert [FleetSize(*(round(size[name], 4) for name in names)) for size in RECORD["sizes"]] == list(MEASURED)


def test_a_run_pays_where_it_beats_what_needs_no_server() -> None:
    """At that size and at every larger one that was measured; not at the next smaller one."""
    pays_from = smallest_that_pays(MEASURED)
    for size in MEASURED:
        assert (size.rmse < size.own_mean) or size.devices < pays_from
    below = [size for size in MEASURED if size.devices < pays_from]
    assert below[-1].rmse >= below[-1].own_mean


@pytest.mark.parametrize(("devices", "measured"), [(2, 25), (25, 25), (99, 50), (1e6, 943)])
def test_a_fleet_is_told_what_the_next_smaller_one_reached(devices: float, measured: int) -> None:
    """The sentence names the size that was measured and the verdict."""
    sentence = sentence_of(MEASURED, devices)
    assert f"With {measured} devices" in sentence
    assert ("less accurate" in sentence) == (measured < smallest_that_pays(MEASURED))


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_sizes_of_masked_are_those_of_its_records(epsilon: float) -> None:
    """Of ML-100K, and of ML-1M where there are more devices."""
    records = (
        (data, json.loads((ROOT / "benchmarks" / "records" / f"masked-fleet-size-{name}.json").read_text()))
        for data, name in (("MovieLens 100K", "ml-100k-network"), ("MovieLens 1M", "ml-1m-network"))
    )
    found: list[FleetSize] = []
    for data, record in records:
        largest = found[-1].devices if found else 0
        found += [
            FleetSize(size["devices"], size[f"epsilon {epsilon:g}"], size["user_mean"], size["bias"], data)
            for size in record["sizes"]
            if size["devices"] > largest
        ]
    assert tuple(found) == masked.MEASURED[epsilon]


def test_a_smaller_budget_than_measured_is_said_to_be_less_accurate() -> None:
    """The numbers at the smallest measured ε are too optimistic below it."""
    measured, below = masked.fleet_sentence(1.0, 943), masked.fleet_sentence(0.5, 943)
    assert below.startswith(measured)
    assert "ε = 1" in below[len(measured) :]


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_catalogues_without_attributes_have_a_record_of_their_own(epsilon: float) -> None:
    """With ids and titles alone every fleet has a larger error, and operators hear from how many devices a run pays."""
    record = json.loads((ROOT / "benchmarks" / "records" / "masked-fleet-size-ml-100k-bare-network.json").read_text())
    assert masked.BARE[epsilon] == tuple(
        FleetSize(
            size["devices"], size[f"epsilon {epsilon:g}"], size["user_mean"], size["bias"], masked.WITHOUT_ATTRIBUTES
        )
        for size in record["sizes"]
    )
    pays_from = smallest_that_pays(masked.BARE[epsilon])
    with_attributes = {size.devices: size.rmse for size in masked.MEASURED[epsilon] if "100K" in size.data}
    assert all(size.rmse > with_attributes[size.devices] for size in masked.BARE[epsilon])
    told = masked.fleet_sentence(epsilon, pays_from - 1, knows_attributes=False)
    assert told.startswith(f"{pays_from - 1} devices are too few")
    assert f"from {pays_from} devices on" in told


@pytest.mark.parametrize("measured", [*masked.MEASURED.values(), *masked.BARE.values(), MEASURED])
def test_no_sentence_contradicts_another_or_a_measured_run(measured: tuple[FleetSize, ...]) -> None:
    """Where a small run beats the own mean and a larger one does not, the sentence says both."""
    for devices in (1, 12, *(size.devices for size in measured)):
        told = sentence_of(measured, devices)
        used = max((size for size in measured if size.devices <= devices), default=measured[0], key=lambda s: s.devices)
        is_better, pays_from = used.rmse < used.own_mean, smallest_that_pays(measured)
        worse = [size.devices for size in measured if size.rmse >= size.own_mean]
        assert (" more accurate" in told) == is_better
        assert (
            "beat" in told and f"from {pays_from} devices on" in told.replace("about ", "").replace("at most ", "")
        ) == (devices >= pays_from or bool(worse))
        assert ("but with" in told) == (is_better and devices < pays_from and bool(worse))
        if "but with" in told:
            assert all(f"{number}" in told.partition("but with")[2] for number in worse)


def test_fewer_devices_than_were_ever_measured_are_called_too_few() -> None:
    """No word of a fleet that pays for the operator who expects three."""
    assert masked.fleet_sentence(8, 3).startswith("3 devices are too few")
    assert masked.fleet_sentence(8, 1).startswith("1 device is too few")
    assert "too few" not in masked.fleet_sentence(8, 25)


@pytest.mark.parametrize(("epsilon", "devices", "shown"), [(8, 1500, "1,000"), (4, 30, "25"), (0.5, 7000, "6,040")])
def test_a_masked_fleet_is_told_by_its_budget_and_size(epsilon: float, devices: int, shown: str) -> None:
    """Budgets between the measured ones count as the smaller; such a run beats the own mean at every measured size."""
    measured = masked.measured_at(epsilon)
    assert smallest_that_pays(measured) == 25
    sentence = masked.fleet_sentence(epsilon, devices)
    assert f"With {shown} devices" in sentence
    assert "more accurate" in sentence
    assert "at most 25 devices" in sentence
