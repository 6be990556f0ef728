"""Typed access to a store's named values. A value that cannot be decoded raises the error for a damaged store."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from hushrec import wire
from hushrec.arrays import pack_arrays, unpack_arrays
from hushrec.budget.ledger import Ledger
from hushrec.device.budgets import Budgets
from hushrec.device.calls import not_joined
from hushrec.device.store import Store
from hushrec.messages import Envelope, Offer
from hushrec.models.predictor import Arrays
from hushrec.protocols.parties import State
from hushrec.signing import DeviceKey

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False, repr=False)
class ShownReport:
    """A report that the device sent, and the arrays that its protocol stores to show it to the person."""

    round_number: int
    report: Any
    arrays: State
    n_bytes: int


class Kept:
    """Typed access to the named values of one store. Write only inside `Store.change`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def required(self, name: str) -> bytes:
        """Return the bytes of a named value; raise if the store does not have it, because the device has not joined."""
        value = self.store.get(name)
        if value is None:
            raise not_joined()
        return value

    def budgets(self) -> Budgets:
        value = self.required("budgets")
        with self.store.intact("budgets"):
            return Budgets(**msgspec.json.decode(value))

    def ledger(self) -> Ledger:
        value = self.required("ledger")
        with self.store.intact("the ledger"):
            record = msgspec.json.decode(value)
        return Ledger.from_record(record)

    def _decoded(self, name: str, what: str, decode: Callable[[bytes], Value]) -> Value | None:
        value = self.store.get(name)
        with self.store.intact(what):
            return None if value is None else decode(value)

    def offer(self) -> Offer | None:
        return self._decoded("offer", "the offer", lambda value: wire.decode(value, Offer))

    def key(self, name: str = "key") -> DeviceKey | None:
        return self._decoded(name, "the key", DeviceKey.from_bytes)

    def device(self) -> str | None:
        """Return the id under which the server knows this device, or None before joining."""
        return self._decoded("device", "the device's name", bytes.decode)

    def private_state(self) -> State:
        """Return the `Client`'s private state: user vector, permanent bits, secrets. Must never leave the device."""
        packed = self.required("private_state")
        with self.store.intact("the private state"):
            return unpack_arrays(packed)

    def put_private_state(self, state: State) -> None:
        self.store.put("private_state", pack_arrays(state))

    def public(self) -> Arrays | None:
        """Return the arrays of the latest public table by name, or None if this device has none."""
        arrays = self._decoded("public", "item vectors", _finite_arrays)
        return None if arrays is None else {name: array.astype(np.float64) for name, array in arrays.items()}

    def put_public(self, arrays: Arrays) -> None:
        """Store the public table in float32, the precision in which it was sent."""
        self.store.put("public", pack_arrays({name: array.astype("<f4") for name, array in arrays.items()}))

    def shown(self) -> list[ShownReport]:
        """Return the last reports of this run to show to the person, the latest last. Must never leave the device."""
        found = []
        with self.store.intact("the last reports"):
            for body, packed in self._packed_reports():
                envelope = wire.decode(body, Envelope)
                found.append(ShownReport(envelope.round_number, envelope.message, _finite_arrays(packed), len(body)))
        return found

    def put_shown(self, body: bytes, arrays: State, most: int) -> None:
        """Store an encoded report with its arrays, and discard all but the last `most` reports."""
        with self.store.intact("the last reports"):
            earlier = self._packed_reports()
        self.store.put("shown", msgspec.msgpack.encode([*earlier, (body, pack_arrays(arrays))][-most:]))

    def _packed_reports(self) -> list[tuple[bytes, bytes]]:
        packed = self.store.get("shown")
        return [] if packed is None else msgspec.msgpack.decode(packed, type=list[tuple[bytes, bytes]])


def _finite_arrays(packed: bytes) -> dict[str, Any]:
    arrays = unpack_arrays(packed)
    if not all(np.all(np.isfinite(array)) for array in arrays.values()):
        raise ValueError
    return arrays
