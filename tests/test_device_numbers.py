"""Whatever numbers the device's API accepts, its store reads back."""

import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_kit import N_ITEMS, OfflineServer, make_small_offer

from hushrec import Device
from hushrec.device import joining
from hushrec.errors import HushrecError, ParameterError

OFFER = make_small_offer(epoch_rounds=1)  # every round draws anew, so that each raised limit is used


def in_any_form(low: float, high: float) -> st.SearchStrategy[Any]:
    """A number as people write it: int, float, of numpy, a fraction, a decimal."""
    whole = st.integers(int(np.ceil(low)), int(high))
    real = st.floats(low, high)
    narrow = st.floats(low, high, width=32)
    return st.one_of(
        whole,
        real,
        whole.map(np.int64),
        real.map(np.float64),
        narrow.map(np.float32),
        whole.map(Fraction),
        whole.map(Decimal),
    )


@settings(max_examples=12)
@given(
    epsilon_i=in_any_form(0.5, 9),
    epsilon_g=in_any_form(0, 9),
    max_value_rho=st.none() | in_any_form(0, 1e9),
    scale=st.tuples(in_any_form(-5, 1), in_any_form(2, 10)),
    more=in_any_form(1, 50),
)
def test_whatever_the_api_accepts_the_store_reads_back(
    epsilon_i: Any, epsilon_g: Any, max_value_rho: Any, scale: Any, more: Any
) -> None:
    """Create, rate, join, answer, raise the limit, answer again; then a new Device reads the same ledger."""
    server, ratings = OfflineServer(OFFER), {f"item-{n}": scale[n % 2] for n in range(8)}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        budgets = {"epsilon_i": epsilon_i, "epsilon_g": epsilon_g, "max_value_rho": max_value_rho, "scale": scale}
        with Device.create(store, **budgets) as device:
            device.add_ratings(ratings)
            server.run(joining.join(device._session))
            for _ in range(2):
                try:
                    server.run(device._session.step())
                except HushrecError:  # a limit that holds, or a budget that no probabilities reach
                    break
                device.raise_budget(device.budget()["limit"] + float(epsilon_i) * 2 + float(more))
            device.raise_budget(1000 + more if not isinstance(more, Decimal) else 1000 + int(more))
            before = device.budget()
        with Device(store) as device:
            assert device.budget() == before
            assert device.ratings() == {item: float(value) for item, value in ratings.items()}
            assert device.budgets.by_protocol()["sdcf"]["epsilon_i"] == float(epsilon_i)


@pytest.mark.parametrize("name", ["epsilon_i", "epsilon_p", "epsilon_g", "max_value_rho"])
def test_what_is_no_number_is_refused_by_name_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    """Text, flags, lists and infinity: one sentence, and no half-made store."""
    for bad in ("4", True, np.True_, b"4", [4], float("nan"), float("inf"), 10**400, 1j):
        with pytest.raises(ParameterError, match=name):
            Device.create(tmp_path / "store", **{name: bad})
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("scale", [(1,), (1, 2, 3), ("1", "5"), (5, 1), 5, None, (1, float("inf"))])
def test_a_scale_is_two_numbers(tmp_path: Path, scale: Any) -> None:
    """Anything else is refused before a store is made."""
    with pytest.raises(ParameterError, match="scale"):
        Device.create(tmp_path / "store", scale=scale)
    assert not (tmp_path / "store").exists()


def test_ratings_that_are_no_numbers_are_refused_without_being_echoed(tmp_path: Path) -> None:
    """A rating that is text or a flag is refused; nothing is stored, and the sentence holds neither item nor value."""
    with Device.create(tmp_path / "store") as device:
        for bad in ("4", None, True, float("nan"), [4]):
            with pytest.raises(ParameterError, match="rating") as refusal:
                device.add_ratings({"good": 4, "item-7": bad})
            assert "item-7" not in str(refusal.value)
        assert device.ratings() == {}


def test_the_offline_server_lets_a_device_take_part(tmp_path: Path) -> None:
    """The kit itself: three rounds, each asked for and answered."""
    server = OfflineServer()
    with Device.create(tmp_path / "store", epsilon_i=4, epsilon_g=4) as device:
        device.add_ratings({f"item-{n}": 1 + n % 5 for n in range(10)})
        server.run(joining.join(device._session))
        assert device.status().n_items == N_ITEMS
        assert [server.run(device._session.step()) for _ in range(3)] == ["reported"] * 3
    with Device(tmp_path / "store") as device:
        assert (device.budget()["rounds"], device.budget()["spent"]) == (3, 8.0)
