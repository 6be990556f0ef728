"""The OpenAPI description is true: generated requests, properly signed, never crash the server or break its word."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from service_kit import OPEN_SOCKETS, PATIENCE, Live, RawDevice, keep_record, live_server, make_body, small_settings

from hushrec import wire
from hushrec.messages import Enrolment
from hushrec.signing import DeviceKey, Request

pytestmark = OPEN_SOCKETS

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

maps = st.fixed_dictionaries(
    {"version": st.sampled_from([1, 1, 1, 2]), "round_number": st.integers(0, 5)},
    optional={
        "items": st.binary(max_size=40),
        "gradients": st.binary(max_size=80),
        "public_key": st.binary(min_size=31, max_size=33),
        "invitation": st.none() | st.text(max_size=10),
    },
).map(msgspec.msgpack.encode)
valid = st.integers(1, 5).map(make_body) | st.just(wire.encode(Enrolment(DeviceKey.generate().public_key)))
schemathesis.openapi.media_type("application/msgpack", valid | maps | st.binary(max_size=100))


class Signed(requests.auth.AuthBase):
    """Authentication that signs every generated request, or adds the admin token where an operation needs it."""

    def __init__(self, live: Live, device: RawDevice) -> None:
        self.live = live
        self.device = device

    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        target, body = prepared.path_url, prepared.body or b""
        if "/admin/" in target:
            prepared.headers["Authorization"] = f"Bearer {self.live.admin_token}"
            return prepared
        request = Request(
            str(prepared.method),
            target,
            body.encode() if isinstance(body, str) else bytes(body),
        )
        prepared.headers["Authorization"] = self.device.sign(request, nonce=time.time_ns())
        return prepared


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for all generated requests; a round closes as soon as the one device reports."""
    limits = {"requests_per_second": 100_000, "burst": 100_000, "body_seconds": PATIENCE}
    settings = small_settings(terms={"rounds": 1_000_000}, rounds={"min_devices": 1}, limits=limits)
    with live_server(tmp_path_factory.mktemp("openapi"), settings) as server:
        yield server


def run_generated(live: Live, examples: int) -> Counter[int]:
    """Send generated requests to every operation, check each reply against the description, and count the statuses."""
    statuses: Counter[int] = Counter()
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    for result in schema.get_all_operations():
        with requests.Session() as session, RawDevice(live) as device:  # one that leaves does not end the others' test
            run_operation(result.ok(), session, Signed(live, device), examples, statuses)
    return statuses


def run_operation(operation: Any, session: Any, signed: Signed, examples: int, statuses: Counter[int]) -> None:
    """Send generated requests to one operation."""

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if case.query and "wait" in case.query:
            case.query["wait"] = 0
        reply = case.call_and_validate(session=session, auth=signed, checks=CHECKS, timeout=PATIENCE)
        statuses[reply.status_code] += 1

    check()


def test_generated_requests_with_signatures_are_answered_as_described(live: Live) -> None:
    """Every operation: no 5xx, no undescribed status, content type or body; some requests pass authentication."""
    statuses = run_generated(live, examples=12)
    assert statuses[200] > 10
    assert statuses[422] > 0
    assert statuses.total() >= 12 * 10


@pytest.mark.soak
def test_thousands_of_generated_requests_are_answered_as_described(live: Live) -> None:
    """The long form."""
    statuses = run_generated(live, examples=400)
    assert statuses.total() >= 5000
    counted = {str(status): statuses[status] for status in sorted(statuses)}
    keep_record("service-openapi", {"requests": statuses.total(), "statuses": counted, "not_as_described": 0})


def test_every_operation_says_who_may_call_it(live: Live) -> None:
    """Operations of devices and of the operator name their security scheme; the others are public on purpose."""
    paths = requests.get(f"{live.url}/openapi.json", timeout=PATIENCE).json()["paths"]
    public = {path for path, methods in paths.items() for method in methods.values() if "security" not in method}
    assert public == {"/v1/run", "/v1/items", "/v1/public", "/healthz", "/metrics"}
