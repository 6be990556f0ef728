"""`hushrec capacity`: its constants are those of the records, its predictions are as good as the page says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scale_tables
from command import run

from hushrec import capacity as module
from hushrec.budget.gaussian import Cohort, run_mu
from hushrec.capacity import LARGEST_COHORT, MEASURED, TABLE_COLUMNS, capacity, masked_rounds
from hushrec.errors import ParameterError
from hushrec.protocols.masked.evaluation import NETWORK_SHARE, with_evaluation
from hushrec.protocols.masked.gp.plan import choose_plan
from hushrec.protocols.masked.secagg.roster import choose_rules

RECORDS = Path(__file__).parents[1] / "benchmarks" / "records"
ML_100K_ITEMS = 1682


def record(name: str) -> dict[str, Any]:
    """A committed record."""
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    return found


def fleet_size() -> tuple[float, int]:
    """The mean number of numbers in a table of the recorded fleet, and how many neighbours a device drew."""
    fleet = record("masked-fleet")
    devices = fleet["devices"]
    plan = choose_plan(devices, ML_100K_ITEMS, module.TASTE_COLUMNS, run_mu(fleet["epsilon"], 1e-6))
    plan = with_evaluation(plan, NETWORK_SHARE)
    assert len(plan.rounds) == fleet["rounds"]
    cohort = Cohort(devices, fleet["survivors"], fleet["corrupt"])
    neighbours = choose_rules(devices, cohort.smallest, cohort.most_corrupt).neighbours
    return float(np.mean([one.size for one in plan.rounds])), neighbours


def device_ms(numbers: float, devices: int) -> float:
    """The predicted processor time of a whole device."""
    first, per_number, per_device = MEASURED.device_ms
    return first + per_number * numbers + per_device * devices + MEASURED.device_session_ms


def fitted() -> dict[str, Any]:
    """The constants, from the records: what whole devices over HTTPS needed beyond what the formulas explain."""
    own, fleet = record("capacity")["constants"], record("masked-fleet")
    devices, (numbers, neighbours) = fleet["devices"], fleet_size()
    table = 4 * ML_100K_ITEMS * (module.TASTE_COLUMNS + module.FIXED_COLUMNS + TABLE_COLUMNS)
    device, server = own["device_ms"], own["server_ms"]
    return {
        "device_ms": device,
        "server_ms": server,
        "server_session_ms": fleet["server_cpu_ms_per_report"] - server[0] - server[1] * numbers,
        "bytes_per_neighbour": (fleet["bytes_up_per_device_and_round"] - 4 * numbers) / neighbours,
        "bytes_per_member": (fleet["bytes_down_per_device_and_round"] - table) / devices,
        "sdcf_device_ms": record("capacity-sdcf")["constants"]["device_ms"],
        "sdcf_server_ms": record("service-fleet")["server_cpu_ms_per_report"],
    }


def test_the_constants_are_those_of_the_records() -> None:
    """Fitted anew; what a session costs besides is not negative."""
    for name, value in fitted().items():
        assert getattr(MEASURED, name) == pytest.approx(value, rel=1e-3), name
        assert np.min(value) >= 0


def test_a_predicted_device_is_a_whole_one() -> None:
    """With store, ledger and HTTPS: within a tenth of the record it was fitted to, and a fifth of a fleet's devices."""
    whole, fleet = record("masked-device"), record("masked-fleet")
    alone = device_ms(whole["settings"]["numbers"], whole["settings"]["devices"])
    assert alone == pytest.approx(whole["median milliseconds"]["round"], rel=0.1)
    assert device_ms(fleet_size()[0], fleet["devices"]) == pytest.approx(fleet["device_cpu_ms_per_round"], rel=0.2)


def test_predictions_are_within_a_fifth_at_sizes_that_were_not_fitted() -> None:
    """Device and server, at two sizes each; the engine at its largest size, from the two smaller ones."""
    for point in record("capacity")["check"]:
        assert abs(point["device_ms_error"]) < 0.2
        assert abs(point["server_ms_error"]) < 0.2
    for point in record("capacity-sdcf")["check"]:
        assert abs(point["device_ms_error"]) < 0.2
    first, second, third = record("masked-scaling")["sizes"][-3:]
    slope = (second["seconds"] - first["seconds"]) / (second["ratings"] - first["ratings"])
    predicted = second["seconds"] + slope * (third["ratings"] - second["ratings"])
    assert predicted / third["seconds"] == pytest.approx(1, abs=0.2)


def test_a_masked_round_follows_its_plan() -> None:
    """Reports are four bytes a number and shares for the neighbours; a cohort is never larger than its limit."""
    usual = {"epsilon": 8.0, "hours": 24.0, "item_blocks": 1}
    rounds = masked_rounds(10**6, 10**5, **usual)
    plan = choose_plan(10**6, 10**5, module.TASTE_COLUMNS, run_mu(8.0, 1e-7))
    shares = rounds[0].device_mb_up * 1e6 - 4 * plan.rounds[0].size
    assert [one.device_mb_up * 1e6 - shares for one in rounds] == pytest.approx([4 * one.size for one in plan.rounds])
    twice = masked_rounds(2 * 10**6, 10**5, **usual)
    assert twice[0].device_mb_down == rounds[0].device_mb_down  # LARGEST_COHORT bounds the roster
    assert twice[0].server_cores == pytest.approx(2 * rounds[0].server_cores)
    assert capacity(2e6, 1e5)["cohorts"] == 2e6 / LARGEST_COHORT


def test_item_blocks_keep_reports_below_the_limit() -> None:
    """A million items are too many numbers for one table; the table that everybody fetches stays whole."""
    whole, cut = capacity(1e8, 1e6, item_blocks=1), capacity(1e8, 1e6)
    assert any(one["what"] == "device_mb_up" for one in whole["too_much"])
    assert cut["item_blocks"] > 1
    assert cut["largest_round"]["device_mb_up"] <= 10.0
    assert all(one["what"] != "device_mb_up" for one in cut["too_much"])


@pytest.mark.parametrize(
    ("options", "name"), [({"people": 5}, "people"), ({"protocol": "x"}, "protocol"), ({"hours": 0}, "hours")]
)
def test_impossible_sizes_are_refused(options: dict[str, Any], name: str) -> None:
    """By the name of what must hold."""
    with pytest.raises(ParameterError, match=name):
        capacity(**{"people": 1e6, "items": 1e5, **options})


def test_the_command_prints_it() -> None:
    """For people, and as JSON."""
    shown = run("capacity", "--people", "1e8", "--items", "1e6")
    assert shown.code == 0
    assert "item blocks" in shown.out
    found = json.loads(run("capacity", "--people", "1e6", "--items", "1e5", "--protocol", "sdcf", "--json").out)
    assert found == json.loads(json.dumps(capacity(1e6, 1e5, protocol="sdcf")))


def test_the_page_is_not_stale() -> None:
    """Run `python docs/generate.py scale` where it is."""
    page = (Path(__file__).parents[1] / "docs" / "scale.md").read_text("utf-8")
    assert scale_tables.with_scale(page) == page
