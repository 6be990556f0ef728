"""The ledger: charged before sending, all or nothing, and honest about what it does not cover."""

import copy
import json
import math
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hushrec.budget.accountants import ACCOUNTANTS, Accountant
from hushrec.budget.events import GradientsSent, PermanentDraw, RatingsPerturbed, SelectionSent, TablesElsewhere
from hushrec.budget.ledger import Ledger
from hushrec.device.budgets import consent
from hushrec.errors import BudgetExceeded, LedgerError, ParameterError, UnknownEvent
from hushrec.protocols.gradient import wording
from hushrec.protocols.gradient.protocols import Sdcf

DRAW = PermanentDraw(8.0, 20, capped=False)


def used_ledger() -> Ledger:
    """One draw, two rounds."""
    ledger = Ledger(selection=8.0)
    ledger.charge([DRAW])
    for _ in range(2):
        ledger.charge([SelectionSent(2.0), GradientsSent(3, 1.5)])
    return ledger


def statement(ledger: Ledger) -> dict[str, Any]:
    """What the protocol says to the person."""
    return Sdcf(4.0, 4.0).ledger_statement(ledger).to_dict()


def test_a_statement_is_worked_by_hand() -> None:
    """epsilon_p = 8 at h = 20, two rounds of 2 with gradients of rho 1.5 each."""
    found = statement(used_ledger())
    assert found.pop("unit") == wording.selection_unit(None)
    assert found.pop("not_covered") == wording.ledger_not_covered(capped=False, perturbed=False)
    assert ["ρ 3" in sentence for sentence in found.pop("sentences")] == [False, False, True]
    assert "epsilon_i" in found.pop("fixed")
    assert found == {
        "delta": 0.0,
        "committed": 8.0,
        "spent": 4.0,
        "limit": 8.0,
        "item_level": 4.0 / 20,
        "rounds": 2,
        "permanent_draws": 1,
        "capped": False,
        "value_rho": 3.0,
        "rating_epsilon": 0.0,
        "own_epsilon": None,
        "own_delta": None,
        "charged": None,
    }


def test_a_public_cap_covers_the_number_of_ratings() -> None:
    """With a cap the unit says so and the number of ratings leaves the list; one draw without it brings it back."""
    ledger = Ledger(selection=16.0)
    ledger.charge([PermanentDraw(8.0, 100, capped=True)])
    found = statement(ledger)
    assert found["capped"]
    assert "any two profiles of up to the public cap" in found["unit"]
    assert wording.COUNT not in found["not_covered"]
    ledger.charge([DRAW])
    assert not statement(ledger)["capped"]
    assert wording.COUNT in statement(ledger)["not_covered"]


def test_noisy_ratings_are_recorded_and_do_not_cover_existence() -> None:
    """Rating values have a price of their own, and the statement says that existence is in plain sight."""
    ledger = Ledger()
    ledger.charge([RatingsPerturbed(4.0)])
    assert statement(ledger)["rating_epsilon"] == 4.0
    assert wording.EXISTENCE in statement(ledger)["not_covered"]


def test_what_needs_a_limit_is_refused_without_one() -> None:
    """A selection may not be drawn before the person has set its limit; gradient values are recorded."""
    ledger = Ledger()
    ledger.charge([GradientsSent(3, 1.5)])
    with pytest.raises(BudgetExceeded, match="max_selection_epsilon"):
        ledger.charge([DRAW])
    ledger.raise_limit("selection", 8.0)
    ledger.charge([DRAW])
    assert (ledger.limit("selection"), ledger.limit("value")) == (8.0, None)


def test_a_unit_of_its_own_is_priced_by_its_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event names its unit, which can be charged, limited and stored once it has an accountant."""

    @dataclass(slots=True)
    class Whispers(Accountant):
        unit: ClassVar[str] = "whisper"
        heard: int = 0

        def compose(self, event: Any) -> None:
            self.heard += 1

        def charged(self) -> float:
            return float(self.heard)

    monkeypatch.setitem(ACCOUNTANTS, "whisper", Whispers)
    whisper = SimpleNamespace(unit="whisper")
    ledger = Ledger(whisper=2)
    ledger.charge([whisper, whisper])
    with pytest.raises(BudgetExceeded, match=r"whisper budget .* max_whisper_epsilon"):
        ledger.charge([whisper])
    assert Ledger.from_record(json.loads(json.dumps(ledger.to_record())))["whisper"] == Whispers(2)


def test_a_further_draw_is_refused_until_the_person_raises_the_limit() -> None:
    """A second epoch, or a lost store, adds epsilon_p; the refusal is a sentence and changes nothing."""
    ledger = used_ledger()
    before = ledger.to_record()
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge([SelectionSent(2.0), DRAW])
    assert all(part in str(refusal.value) for part in ("8 of 8", "costs 8", "max_selection_epsilon"))
    assert ledger.to_record() == before
    ledger.raise_limit("selection", 16.0)
    ledger.charge([DRAW, SelectionSent(2.0)])
    selection = ledger["selection"]
    assert (selection.charged(), selection.spent(), selection.permanent_draws) == (16.0, 6.0, 2)


def test_rounds_within_an_epoch_are_never_refused() -> None:
    """All selections of an epoch are paid for by its draw."""
    ledger = used_ledger()
    for _ in range(1000):
        ledger.charge([SelectionSent(2.0)])
    assert ledger["selection"].spent() == 8.0


def test_value_and_rating_limits_are_enforced_where_given() -> None:
    """With max_value_rho or max_rating_epsilon, one charge too many is refused as a whole."""
    ledger = Ledger(selection=8.0, value=2.0, rating=4.0)
    ledger.charge([DRAW, SelectionSent(2.0), GradientsSent(3, 1.5), RatingsPerturbed(4.0)])
    before = ledger.to_record()
    with pytest.raises(BudgetExceeded, match="max_value_rho"):
        ledger.charge([SelectionSent(2.0), GradientsSent(3, 1.0)])
    with pytest.raises(BudgetExceeded, match="max_rating_epsilon"):
        ledger.charge([RatingsPerturbed(4.0)])
    assert ledger.to_record() == before


def test_decimals_that_add_up_to_the_limit_fit() -> None:
    """Three draws of 0.1 under a limit of 0.3, although their sum in binary is a little more."""
    ledger = Ledger(selection=0.3)
    for _ in range(3):
        ledger.charge([PermanentDraw(0.1, 5, capped=True)])
    with pytest.raises(BudgetExceeded):
        ledger.charge([PermanentDraw(1e-9, 5, capped=True)])


@pytest.mark.parametrize("events", [[DRAW, "stranger"], [SelectionSent(1.0)], [GradientsSent(1, 1.0), 7]])
def test_unknown_events_are_refused_and_change_nothing(events: Any) -> None:
    """A stranger anywhere in the list, or a selection before any bits."""
    ledger = Ledger(selection=8.0)
    before = ledger.to_record()
    with pytest.raises(UnknownEvent, match=r"cannot price a|PermanentDraw"):
        ledger.charge(events)
    assert ledger.to_record() == before


@pytest.mark.parametrize("limit", [-1.0, math.inf, math.nan])
def test_limits_must_be_finite_and_not_negative(limit: float) -> None:
    """Each limit by its name."""
    names = {"selection": "max_selection_epsilon", "value": "max_value_rho", "rating": "max_rating_epsilon"}
    for unit, name in names.items():
        with pytest.raises(ParameterError, match=f"{name} .* got {limit}"):
            Ledger(**{unit: limit})
    with pytest.raises(ParameterError, match="max_selection_epsilon"):
        used_ledger().raise_limit("selection", limit)


def test_a_limit_is_set_anew_only_where_nothing_was_spent() -> None:
    """Lower, higher or away, before the first cost in its unit; not after it."""
    ledger = Ledger(value=3.0)
    ledger.set_limit("value", 1.0)
    assert ledger.limit("value") == 1.0
    ledger.set_limit("value", None)
    assert ledger.limit("value") is None
    ledger.raise_limit("table", 4.0)
    ledger.charge([TablesElsewhere(1.0, 0.0)])
    with pytest.raises(LedgerError, match="table"):
        ledger.set_limit("table", 9.0)


def test_a_limit_is_never_lowered() -> None:
    """Lowering would make what was committed look like a breach."""
    with pytest.raises(ParameterError, match="max_selection_epsilon"):
        used_ledger().raise_limit("selection", 7.0)


epsilons = st.one_of(st.floats(1e-3, 50), st.integers(1, 50), st.integers(1, 50).map(np.int64))
counts = st.one_of(st.integers(1, 500), st.integers(1, 500).map(np.int64))
events = st.one_of(
    st.builds(PermanentDraw, epsilons, counts, st.booleans()),
    st.builds(SelectionSent, epsilons),
    st.builds(GradientsSent, counts, st.one_of(st.floats(0, 1e8), st.integers(0, 10**8), st.just(np.float32(1.5)))),
    st.builds(RatingsPerturbed, epsilons),
)


@given(st.lists(st.lists(events, max_size=4), max_size=12))
def test_a_record_brings_the_same_ledger_back(charges: list[list[Any]]) -> None:
    """Any history survives JSON, keeps its limit, and spends no more than it committed; 4 and 4.0 are the same."""
    ledger = Ledger(selection=120, value=10**9)
    for charge in charges:
        before = ledger.to_record()
        try:
            ledger.charge(charge)
        except (BudgetExceeded, UnknownEvent):
            assert ledger.to_record() == before
    back = Ledger.from_record(json.loads(json.dumps(ledger.to_record())))
    assert back.to_record() == ledger.to_record()
    assert statement(back) == statement(ledger)
    assert back["selection"].spent() <= back["selection"].charged() * (1 + 1e-12)
    assert back["selection"].charged() <= 120.0 * (1 + 1e-12)


def test_whole_numbers_in_a_record_are_totals_too() -> None:
    """8 and 8.0 are the same total, and the same limit."""
    record = used_ledger().to_record()
    totals = record["totals"]["selection"]
    whole = {name: int(value) if value == int(value) else value for name, value in totals.items()}
    assert any(type(whole[name]) is not type(value) for name, value in totals.items())
    stored = {**record, "limits": {"selection": 8}, "totals": {**record["totals"], "selection": whole}}
    assert Ledger.from_record(stored).to_record() == record


VERSION_1 = {
    "version": 1,
    "max_selection_epsilon": 8.0,
    "max_value_rho": None,
    "max_rating_epsilon": None,
    "selection": {
        "permanent_draws": 1, "rounds": 2, "capped_draws": 0, "closed_committed": 0.0, "closed_spent": 0.0,
        "closed_item_level": 0.0, "epoch_epsilon": 8.0, "epoch_sent": 4.0, "epoch_protected": 20,
    },
    "value": {"gradients": 6, "rho": 3.0},
    "rating": {"perturbations": 0, "total": 0.0},
}  # fmt: skip


def test_a_ledger_of_the_first_version_is_read() -> None:
    """Devices keep what they have spent over an update; what is missing from it is damage."""
    assert Ledger.from_record(VERSION_1).to_record() == used_ledger().to_record()
    for name in VERSION_1.keys() - {"version"}:
        with pytest.raises(LedgerError):
            Ledger.from_record({key: value for key, value in VERSION_1.items() if key != name})


def damaged(*path: str, value: Any) -> Any:
    """A good record with one value changed; the value `...` takes the key away."""
    record: Any = used_ledger().to_record()
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return record


@pytest.mark.parametrize(
    "record",
    [
        damaged("limits", value=...),
        damaged("limits", "selection", value=-1.0),
        damaged("limits", "selection", value="8"),
        damaged("limits", "stranger", value=8.0),
        damaged("totals", "stranger", value={}),
        damaged("extra", value=1),
        damaged("totals", "selection", value=None),
        damaged("totals", "selection", "rounds", value=...),
        damaged("totals", "selection", "stranger", value=1),
        damaged("totals", "selection", "rounds", value=2.5),
        damaged("totals", "selection", "rounds", value=-1),
        damaged("totals", "selection", "epoch_sent", value=math.nan),
        damaged("totals", "selection", "epoch_sent", value="4"),
        damaged("totals", "selection", "epoch_sent", value=math.inf),
        damaged("totals", "selection", "epoch_protected", value=0),
        damaged("totals", "selection", "capped_draws", value=2),
        damaged("totals", "selection", "closed_spent", value=1.0),
        damaged("totals", "selection", "permanent_draws", value=0),
        damaged("totals", "selection", "epoch_epsilon", value=0.0),
        damaged("totals", "value", "rho", value=-1.0),
        damaged("totals", "value", "rho", value=None),
        damaged("totals", "value", "rho", value=True),
        damaged("totals", "value", "rho", value=10**400),
        damaged("totals", "value", value=[1]),
    ],
)
def test_a_damaged_record_is_refused(record: Any) -> None:
    """Missing, strange, of a wrong type, out of range, or impossible together: refused, never repaired."""
    with pytest.raises(LedgerError, match="ledger record is damaged"):
        Ledger.from_record(record)


@pytest.mark.parametrize("record", [None, [], "{}", {}, damaged("version", value=3), damaged("version", value=...)])
def test_a_record_of_another_version_is_refused(record: Any) -> None:
    """Only versions 1 and 2 are known."""
    with pytest.raises(LedgerError, match="version 1 or"):
        Ledger.from_record(record)


def test_rounds_without_bits_are_no_history() -> None:
    """A record whose rounds have no draw behind them is damaged, though every number alone is fine."""
    record = copy.deepcopy(used_ledger().to_record())
    record["totals"]["selection"] |= {"permanent_draws": 0, "epoch_epsilon": 0.0}
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.from_record(record)


def test_a_ledger_prints_its_limit_only() -> None:
    """Nothing that depends on ratings."""
    assert repr(used_ledger()) == "Ledger(selection=8)"


def test_a_charge_takes_microseconds_and_no_memory() -> None:
    """943 ledgers and 100 rounds: totals only, and a record of one size (2 µs each on an idle machine)."""
    ledger = used_ledger()
    charge = [SelectionSent(2.0), GradientsSent(3, 1.5)]
    best = math.inf
    for _ in range(5):
        start = time.thread_time()
        for _ in range(1000):
            ledger.charge(charge)
        best = min(best, time.thread_time() - start)
    assert best / 1000 < 1e-4
    assert len(json.dumps(ledger.to_record())) < 600


def test_a_device_names_the_limit_of_the_unit_that_refused():
    """Not that of another protocol's unit, and in words that fit every protocol."""
    ledger = Ledger(selection=8.0, rating=2.0)
    with (
        pytest.raises(BudgetExceeded, match=r"^the next report needs .* 4, .* limit is 2\.") as refusal,
        consent("the next report needs"),
    ):
        ledger.charge([RatingsPerturbed(4.0)])
    assert (refusal.value.limit, refusal.value.needed) == (2.0, 4.0)
