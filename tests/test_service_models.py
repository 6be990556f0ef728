"""`bpr` and `fm` run over the network as `mf` does: the offer names protocol, model and options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_kit import OPEN_SOCKETS, get, live_server, play, small_settings

from hushrec import Device, wire
from hushrec.device import joining
from hushrec.device.calls import Reply
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import Address, Catalogue, Offer
from hushrec.offers import make_run_model
from hushrec.protocols.gradient.messages import REPORT
from hushrec.protocols.gradient.plausible import LEAST_REPORTS
from hushrec.protocols.gradient.server import GradientServer
from hushrec.service.settings import TermsSettings
from hushrec.service.setup import Items, make_run

pytestmark = OPEN_SOCKETS

N_ITEMS = 40
KINDS = np.repeat([[1.0, 0.0], [0.0, 1.0]], N_ITEMS // 2, axis=0)  # two kinds of items, in halves


def rated(folder: Path, n: int) -> Device:
    """Return a device whose person likes one half of the items."""
    device = Device.create(folder / f"device-{n}", epsilon_i=40.0)
    half = range(n % 2 * N_ITEMS // 2, (n % 2 + 1) * N_ITEMS // 2)
    device.add_ratings({f"item-{item}": float(1 + item % 5) for item in list(half)[::2]})
    return device


@pytest.mark.parametrize(("model", "width", "n_rows"), [("bpr", 4, N_ITEMS), ("fm", 5, N_ITEMS + 3)])
def test_rounds_over_the_network_are_those_of_the_protocol(tmp_path: Path, model: str, width: int, n_rows: int) -> None:
    """The reports that devices kept, added up by the protocol's own server, give the server's table bit for bit.

    `fm` has a row for each of two attributes and one for w₀; devices get the attributes with the catalogue.
    """
    attributes = KINDS if model == "fm" else None
    settings = small_settings(terms={"model": model, "rounds": 2, "step": 0.4, "reports_per_client": 20})
    with (
        live_server(tmp_path, settings, n_items=N_ITEMS, attributes=attributes) as live,
        rated(tmp_path, 0) as one,
        rated(tmp_path, 1) as two,
    ):
        start, offer = live.rounds.public["item_vectors"], live.rounds.offer
        for device in (one, two):
            device.join(live.url)
        play([one, two])
        made = make_run_model(model, offer.options, attributes)
        side = GradientServer(offer.terms, made, start, least_reports=LEAST_REPORTS)
        reports = {device._session.name: device._session.store.shown() for device in (one, two)}
        for number in (1, 2):
            answers = [(name, own[number - 1].report) for name, own in sorted(reports.items())]
            assert {report.gradients.shape[1] for _, report in answers} == {width}
            side.close(Address(number, 1, REPORT), answers)
        assert live.rounds.public["item_vectors"].shape == (n_rows, width)
        assert np.array_equal(live.rounds.public["item_vectors"], side.item_vectors)
        public = live.rounds.public["item_vectors"].astype(np.float32).astype(float)
        user_vector = one._session.store.private_state()["user_vector"]
        scores = made.predict(np.asarray(user_vector), made.item_rows(public))
        best = max((n for n in range(N_ITEMS) if f"item-{n}" not in one._store.ratings()), key=lambda n: scores[n])
        assert one.recommend(1)[0].item == f"item-{best}"
        assert one.budget()["rounds"] == 2
        found = one._store.attributes()
        assert found is None if attributes is None else np.array_equal(found, attributes)


def test_a_server_of_fm_starts_again_and_lets_no_item_join(tmp_path: Path) -> None:
    """Its model is made from the stored attributes, which exist only for the first items."""
    settings = small_settings(terms={"model": "fm", "rounds": 3})
    with live_server(tmp_path, settings, n_items=N_ITEMS, attributes=KINDS) as live:
        start, token = live.rounds.public["item_vectors"].copy(), live.admin_token
    with live_server(tmp_path, settings, n_items=N_ITEMS, attributes=KINDS, admin_token=token) as live:
        assert np.array_equal(live.rounds.public["item_vectors"], start)
        page = wire.decode(get(f"{live.url}/v1/items?first=39").content, Catalogue)
        assert np.array_equal(page.attributes, KINDS[39:])
        refused = live.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["new"]})
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:hushrec:problem:bad-items")
    with (
        pytest.raises(ParameterError, match="items"),
        live_server(tmp_path, settings, n_items=N_ITEMS + 1, attributes=np.vstack([KINDS, KINDS[:1]])),
    ):
        pass


def made_offer(**terms: Any) -> Offer:
    """Return the offer of a server with these settings."""
    names = [f"item-{n}" for n in range(N_ITEMS)]
    return make_run(TermsSettings(**{"protocol": "sdcf", **terms}), Items(names, names))[0]


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        ({"protocol": "nothing"}, "protocol"),
        ({"model": "nothing"}, "model"),
        ({"protocol": "isgld", "model": "bpr"}, "model"),
        ({"epsilon_i": 4.0}, "epsilon_i"),
        ({"facters": 4}, "facters"),
        ({"factors": "many"}, "factors"),
        ({"rounds": 1.5}, "rounds"),
    ],
)
def test_settings_are_held_to_what_protocol_and_model_declare(terms: dict[str, Any], name: str) -> None:
    """The operator cannot set a person's own budgets."""
    with pytest.raises(ParameterError, match=name):
        made_offer(**terms)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"protocol": "nothing"}, "protocol"),
        ({"model": "nothing"}, "model"),
        ({"model": "bpr"}, "no_fallback"),
        ({"options": {"epsilon_i": 9.0}}, "epsilon_i"),
        ({"options": {"factors": 5}}, "model mf with"),
        ({"options": {"factors": "many"}}, "factors"),
        ({"options": {"profile_cap": 0}}, "profile_cap"),
    ],
)
def test_a_device_does_not_join_what_it_does_not_know(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    """It also refuses options and terms that do not fit together; it does not enrol."""
    offer = made_offer(factors=4)
    changed = Offer(
        offer.run_id,
        changes.get("protocol", offer.protocol),
        changes.get("model", offer.model),
        offer.options | changes.get("options", {}),
        offer.terms,
        offer.server_key,
    )
    with Device.create(tmp_path / "device") as device:
        job = joining.join(device._session)
        next(job)
        with pytest.raises(RemoteProtocolError, match=name):
            job.send(Reply(200, wire.encode(changed)))


def test_a_device_does_not_join_a_protocol_that_protects_nothing(tmp_path: Path) -> None:
    """`plain` is for comparison."""
    with (
        live_server(tmp_path, small_settings(terms={"protocol": "plain"})) as live,
        Device.create(tmp_path / "device") as device,
        pytest.raises(RemoteProtocolError, match="protocol"),
    ):
        device.join(live.url)
