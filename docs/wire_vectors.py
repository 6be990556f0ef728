"""Makes the test vectors of docs/wire.md: `docs/wire-vectors.json`, by `python docs/generate.py wire`.

In the JSON, bytes are {"hex": …}, buffers {"float32": […]} or {"uint32": […]}, and tables have a "width" beside them.
"""

import hashlib
import json
import typing
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hushrec import wire
from hushrec.budget.calibrate import calibrate_selection, fake_error_bound
from hushrec.budget.gaussian import Cohort
from hushrec.errors import RemoteProtocolError
from hushrec.messages import KINDS, PROTOCOL_VERSION, Catalogue, Enrolment, Envelope, Offer, Public, Receipt
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.messages import REPORT, GradientReport, ItemVectors, Terms
from hushrec.protocols.masked.messages import (
    Announcement,
    Consent,
    MaskedTable,
    Partners,
    Quorum,
    SealedShares,
    Survivors,
    Unmasking,
)
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, choose_rules
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.signing import DeviceKey, Request, device_id_of, header_of

FILE = Path(__file__).parent / "wire-vectors.json"
SECAGG = Path(__file__).parent / "vectors" / "secagg.json"
RUN_ID = "00112233445566778899aabbccddeeff"
SECRET = bytes(range(32))
TERMS = Terms(
    model="mf", n_factors=2, n_items=4, reports_per_client=1.5, data_weight=30.0, step=0.4, decay=0.6, max_rounds=100,
    epoch_rounds=None, user_regularization=np.array([0.5, 0.25]), item_regularization=np.array([0.125, 1.0]),
)  # fmt: skip
SERVER_KEY = DeviceKey.from_bytes(bytes(range(32, 64))).public_key
TABLE = np.array([[0.5, 1.0], [-0.25, 0.75], [1.5, 0.0], [0.125, 2.0]])


def messages() -> dict[str, Any]:
    """One message of every type, and an empty report."""
    report = GradientReport(7, np.array([0, 3]), np.array([[0.5, -1.25], [3.0, 0.0078125]]))
    none = GradientReport(7, np.empty(0, dtype=np.int64), np.empty((0, 2)))
    return {
        "enrolment": Enrolment(DeviceKey.from_bytes(SECRET).public_key, None),
        "enrolment with an invitation": Enrolment(DeviceKey.from_bytes(SECRET).public_key, "Grüße"),
        "offer": Offer(RUN_ID, "sdcf", "mf", {"factors": 2, "profile_cap": 2}, TERMS, SERVER_KEY),
        "masked offer": Offer(RUN_ID, "masked", "gp", {"epsilon": 8.0}, masked_terms(), SERVER_KEY),
        "catalogue": Catalogue(0, ["1", "2"], ["Toy Story (1995)", "Amélie"]),
        "catalogue with attributes": Catalogue(0, ["1", "2"], ["A", "B"], np.array([[0.5, 0.0], [-0.25, 1.0]])),
        "public": Public.of(RUN_ID, 6, TERMS, {"item_vectors": TABLE}),
        "announcement": Envelope(RUN_ID, 7, 1, REPORT, ItemVectors(TERMS, 7, TABLE, 2.5)),
        "report": Envelope(RUN_ID, 7, 1, REPORT, report),
        "empty report": Envelope(RUN_ID, 7, 1, REPORT, none),
        "receipt": Receipt(7, 1, REPORT, repeated=False),
        **masked_messages(),
    }


def masked_terms() -> MaskedTerms:
    """A plan of two rounds for a thousand devices."""
    plan = make_plan([[Block("counts", (4,), 4.0, 0.25)], [Block("bias", (4, 1), 3.0, 0.75)]])
    rules = choose_rules(1000, 800, 40)
    cohort = Cohort(1000, 0.8, 0.05, rules.most_omitted(1000))
    return MaskedTerms(price_plan(plan, epsilon=8.0, delta=1e-6, cohort=cohort, reserve=0.25), rules)


def masked_messages() -> dict[str, Any]:
    """One message of every phase of a masked round, from and for device 0 of `docs/vectors/secagg.json`."""
    found = json.loads(SECAGG.read_text("utf-8"))
    raw = bytes.fromhex
    announced = {
        name: raw(value) if name[-6:] in ("digest", "nature") else value
        for name, value in found["announcement"].items()
    }
    names = ("device", "identity", "mask_key", "channel_key", "seed_hash", "keys_signature")
    keys = [PublicKeys(*(raw(entry[name]) for name in names)) for entry in found["devices"]]
    sent = [one for one in found["sealed"] if one["sender"] == 0]
    received = [one for one in found["sealed"] if one["recipient"] == 0]
    revealed = [one for one in found["revealed"] if one["helper"] == 0]
    masked_for = tuple(raw(entry["masks_signature"]) for entry in found["devices"])
    signatures = tuple(raw(signature) for signature in found["survivors_signatures"])
    of_round = {
        "masked announcement": Announcement(**announced),
        "masked keys": keys[0],
        "masked roster": Roster(raw(found["announcement_digest"]), tuple(keys)),
        "masked shares": SealedShares(
            _positions(sent, "recipient"),
            *(tuple(raw(one[name]) for one in sent) for name in ("sealed", "commitments")),
        ),
        "masked partners": Partners(
            b"\xf0", _positions(received, "sender"), tuple(raw(one["sealed"]) for one in received)
        ),
        "masked table": MaskedTable(np.array(found["devices"][0]["table"], dtype=np.uint32), masked_for[0]),
        "masked survivors": Survivors(b"\xe0", np.array([1, 2]), masked_for[1:3]),
        "masked consent": Consent(signatures[0]),
        "masked quorum": Quorum(np.array(found["survivors"]), signatures),
        "masked unmasking": Unmasking(_positions(revealed, "owner"), tuple(raw(one["share"]) for one in revealed)),
    }
    phases = [phase for phase in ("keys", "shares", "table", "consent", "unmask") for _ in range(2)]
    envelopes = zip(of_round.items(), phases, strict=True)
    return {name: Envelope(RUN_ID, 1, 1, phase, message) for (name, message), phase in envelopes}


def _positions(entries: list[dict[str, Any]], name: str) -> Any:
    return np.array([entry[name] for entry in entries], dtype=np.int64)


def as_json(value: Any, *, tagged: bool = True) -> Any:
    """A message, or a value in it, for the vectors; tagged where nothing but its tag tells its type."""
    if is_dataclass(value) and not isinstance(value, type):
        tag = next((kind.tag for kind in KINDS.values() if kind.message is type(value)), None)
        hints = typing.get_type_hints(type(value))
        head = {"type": tag} if tagged and tag is not None else {}
        return head | {name: as_json(getattr(value, name), tagged=hints[name] is Any) for name in hints}
    if isinstance(value, np.ndarray):
        name = "uint32" if np.issubdtype(value.dtype, np.integer) else "float32"
        width = {} if value.ndim == 1 else {"width": value.shape[1]}
        return width | {name: value.ravel().tolist()}
    if isinstance(value, tuple):
        return [as_json(entry, tagged=False) for entry in value]
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def refused() -> list[dict[str, Any]]:
    """Bodies that no side takes as a report, with what is wrong and the code."""
    good = wire.encode(messages()["report"])
    fields_of = msgspec.msgpack.decode(good)
    inner = fields_of["message"]
    bodies = {
        "one byte more": good + b"\0",
        "one byte less": good[:-1],
        "an unknown field": msgspec.msgpack.encode(fields_of | {"more": 1}),
        "version 1": msgspec.msgpack.encode(fields_of | {"version": 1}),
        "an unknown type": msgspec.msgpack.encode(fields_of | {"message": inner | {"type": "gradient.nothing"}}),
        "a receipt": wire.encode(messages()["receipt"]),
        "no finite number": msgspec.msgpack.encode(
            fields_of | {"message": inner | {"gradients": [2, bytes(12) + b"\x00\x00\xc0\x7f"]}}
        ),
        "a table that is not full": msgspec.msgpack.encode(
            fields_of | {"message": inner | {"gradients": [3, bytes(16)]}}
        ),
        "items that do not rise": msgspec.msgpack.encode(fields_of | {"message": inner | {"items": bytes(8)}}),
    }
    found = []
    for what, body in bodies.items():
        try:
            wire.decode(body, Envelope)
        except RemoteProtocolError as error:
            found.append({"what": what, "hex": body.hex(), "code": error.code})
    assert len(found) == len(bodies)
    return found


def signatures() -> list[dict[str, Any]]:
    """Signed requests with and without a body."""
    key = DeviceKey.from_bytes(SECRET)
    device = device_id_of(key.public_key)
    bodies = [("GET", "/v1/inbox?after=6&wait=30", b""), ("POST", "/v1/reports", wire.encode(messages()["report"]))]
    found = []
    for method, target, body in bodies:
        request, nonce = Request(method, target, body), 1_700_000_000_000_000_000
        signed = key.sign(request, run_id=RUN_ID, device=device, nonce=nonce)
        found.append(
            {"method": method, "target": target, "body": {"hex": body.hex()}, "run_id": RUN_ID, "nonce": str(nonce)}
            | {"text": request.signed_text(RUN_ID, device, nonce).decode(), "authorization": header_of(signed)}
        )
    return found


def sdcf() -> dict[str, Any]:
    """Calibrations, bounds of fake errors, and one round of `mf` without its noise, computed by the library."""
    budgets = [(600, 1682, 84.1, 4.0, 8.0), (12, 60, 3.0, 1.0, 2.0), (2, 4, 1.5, 4.0, 8.0)]
    names = ("profile_cap", "n_items", "reports_per_client", "epsilon_i", "epsilon_p")
    selections = []
    for budget in budgets:
        found = calibrate_selection(*budget)
        given = dict(zip(names, budget, strict=True))
        selections.append(given | {"f": found.prob_randomize, "p": found.prob_send_zero, "q": found.prob_send_one})
    bounds = [
        {
            "mean": mean,
            "deviation": deviation,
            "epsilon_g": epsilon,
            "alpha": fake_error_bound(mean, deviation, epsilon),
        }
        for mean, deviation, epsilon in ((0.0, 1.0, 4.0), (-0.75, 0.5, 1.0), (2.0, 0.25, 4.0))
    ]
    return {"selections": selections, "fake_error_bounds": bounds, "round": _round()}


def _round() -> dict[str, Any]:
    """Items 0 and 2 are rated, 0 and 1 selected, the error of item 1 is a fake of 0.25."""
    model, user, number = MatrixFactorization(2), np.array([1.0, 0.5]), 7
    rated, ratings, selected, fake = np.array([0, 2]), np.array([5.0, 2.0]), np.array([0, 1]), 0.25
    eta = TERMS.step_size(number)
    errors = ratings - TABLE[rated] @ user
    rows = eta * model.item_gradients(
        np.array([errors[0], fake]), user, TABLE[selected], TERMS.item_regularization, data_weight=TERMS.data_weight
    )
    step = eta * model.user_gradient(
        errors, user, TABLE[rated], TERMS.user_regularization, data_weight=TERMS.data_weight
    )
    return {
        "terms": as_json(TERMS, tagged=False),
        "item_vectors": as_json(TABLE),
        "round_number": number,
        "user_vector": user.tolist(),
        "rated": rated.tolist(),
        "ratings": ratings.tolist(),
        "selected": selected.tolist(),
        "fake_error": fake,
        "eta": eta,
        "errors": errors.tolist(),
        "rows_without_noise": rows.tolist(),
        "max_report_norm": 0.25,
        "scaled_rows": (rows * (0.25 / np.linalg.norm(rows))).tolist(),
        "user_vector_without_noise": (user + step).tolist(),
    }


def vectors() -> dict[str, Any]:
    """All of them."""
    key = DeviceKey.from_bytes(SECRET)
    sent = {
        name: {"message": as_json(message), "hex": wire.encode(message).hex()} for name, message in messages().items()
    }
    return {
        "version": PROTOCOL_VERSION,
        "device": {
            "secret_key": SECRET.hex(),
            "public_key": key.public_key.hex(),
            "id": device_id_of(key.public_key),
            "sha256_of_no_bytes": hashlib.sha256(b"").hexdigest(),
        },
        "signatures": signatures(),
        "messages": sent,
        "refused": refused(),
        "hashes": {
            "terms of the masked offer": masked_terms().digest.hex(),
            "table of the public message": published_digest({"item_vectors": TABLE}).hex(),
        },
        "sdcf": sdcf(),
    }


def as_text() -> str:
    """The whole file."""
    return json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n"
