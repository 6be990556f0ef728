"""Typed access to a store's named values. A value that cannot be decoded raises the error for a damaged store."""

from dataclasses import dataclass

import msgspec
import numpy as np

from hushrec import wire
from hushrec.arrays import FloatArray, pack_arrays, unpack_arrays
from hushrec.budget.ledger import Ledger
from hushrec.device.budgets import Budgets
from hushrec.device.store import Store
from hushrec.errors import LocalProtocolError
from hushrec.messages import Envelope, Offer
from hushrec.models.predictor import Arrays
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.plausible import LARGEST_ITEM_NORM
from hushrec.protocols.parties import State
from hushrec.signing import DeviceKey

KEPT_UPLOADS = 50  # as many as the person's page uses


@dataclass(frozen=True, eq=False, repr=False)
class Upload:
    """A gradient report, with the item vectors that the server had announced for its items."""

    report: GradientReport
    item_vectors: FloatArray  # (n_selected, item_width)
    n_bytes: int


class Kept:
    """Typed access to the named values of one store: decodes them on reading and encodes them on writing.

    Write only inside `Store.change`.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def required(self, name: str) -> bytes:
        """Return the bytes of a named value; raise if the store does not have it."""
        value = self.store.get(name)
        if value is None:
            raise LocalProtocolError(f"this store has no {name} yet. Join a server first.")
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

    def offer(self) -> Offer | None:
        value = self.store.get("offer")
        with self.store.intact("the offer"):
            return None if value is None else wire.decode(value, Offer)

    def key(self, name: str = "key") -> DeviceKey | None:
        value = self.store.get(name)
        with self.store.intact("the key"):
            return None if value is None else DeviceKey.from_bytes(value)

    def device(self) -> str | None:
        """Return the id under which the server knows this device, or None before joining."""
        value = self.store.get("device")
        with self.store.intact("the device's name"):
            return None if value is None else value.decode()

    def private_state(self) -> State:
        """Return the `Client`'s private state: user vector, permanent bits, secrets. Must never leave the device."""
        packed = self.required("private_state")
        with self.store.intact("the private state"):
            return unpack_arrays(packed)

    def put_private_state(self, state: State) -> None:
        self.store.put("private_state", pack_arrays(state))

    def public(self) -> Arrays | None:
        """Return the arrays of the latest public table by name, or None if this device has none."""
        packed = self.store.get("public")
        if packed is None:
            return None
        with self.store.intact("item vectors"):
            arrays = {name: array.astype(np.float64) for name, array in unpack_arrays(packed).items()}
            if not all(np.all(np.isfinite(array)) for array in arrays.values()):
                raise ValueError
            return arrays

    def put_public(self, arrays: Arrays) -> None:
        """Store the public table in float32, the precision in which it was sent."""
        self.store.put("public", pack_arrays({name: array.astype("<f4") for name, array in arrays.items()}))

    def uploads(self) -> list[Upload]:
        """Return the last gradient reports of this run with their items' announced vectors, the latest last."""
        found, packed = [], self.store.get("uploads") or b"\x90"
        with self.store.intact("the last reports"):
            for body, rows in msgspec.msgpack.decode(packed):
                report: GradientReport = wire.decode(body, Envelope).message
                found.append(Upload(report, _unpack_vectors(rows).reshape(len(report.items), -1), len(body)))
        return found

    def put_upload(self, body: bytes, rows: FloatArray, user_vector: FloatArray) -> None:
        """Store a gradient report, with the vectors of its items and the user vector from which it was made."""
        with self.store.intact("the last reports"):
            kept = msgspec.msgpack.decode(self.store.get("uploads") or b"\x90")
            kept.append((body, rows.astype("<f4").tobytes()))
        self.store.put("uploads", msgspec.msgpack.encode(kept[-KEPT_UPLOADS:]))
        self.store.put("last_user_vector", user_vector.tobytes())

    def last_user_vector(self) -> FloatArray:
        """Return the user vector from which the last report was made. Must never leave the device."""
        packed = self.required("last_user_vector")
        with self.store.intact("the last user vector"):
            return np.frombuffer(packed)


def _unpack_vectors(packed: bytes) -> FloatArray:
    numbers = np.frombuffer(packed, dtype="<f4")
    if not np.all(np.abs(numbers) <= LARGEST_ITEM_NORM):  # a device never accepts larger numbers
        raise ValueError
    return numbers.astype(np.float64)
