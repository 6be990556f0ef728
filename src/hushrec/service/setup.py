"""From a list of items and settings to a run in a database, on the first start; on later ones, a check."""

import secrets

import sqlalchemy as sa

from hushrec.errors import ParameterError
from hushrec.messages import Offer, Terms
from hushrec.models import make_model
from hushrec.randomness import Purpose, SystemRandomness
from hushrec.service.catalogue import insert_items
from hushrec.service.registry import digest_of
from hushrec.service.schema import run
from hushrec.service.settings import TermsSettings
from hushrec.service.storage import Storage
from hushrec.wire import as_sent, decode, encode

DECAY = 0.6  # γ of [SDCF], section 4.1
USUAL_CAP = 600
USUAL_SHARE = 0.05  # of the catalogue, reported by a device in a round


def prepare_run(
    storage: Storage, settings: TermsSettings, ids: list[str], titles: list[str], *, run_id: str | None = None
) -> str | None:
    """Makes the run on the first start and returns the admin's token, which exists nowhere else.

    Later starts append items that are new, and refuse settings that break the terms devices have accepted.
    `run_id` is drawn at random unless it is given.
    """
    if len(set(ids)) != len(ids) or not ids:
        raise ParameterError("the items must be a list of at least one id, each once.")
    stored = storage.read(lambda connection: connection.execute(sa.select(run.c.offer)).scalar())
    if stored is not None:
        _check_same(settings, decode(bytes(stored), Offer))
        storage.read(lambda connection: insert_items(connection, ids, titles))
        return None
    offer = make_offer(settings, len(ids), run_id or secrets.token_hex(16))
    model = make_model(settings.model, settings.factors)
    vectors = model.initial_vectors(len(ids), rng=SystemRandomness().stream(Purpose.ITEM_VECTORS))
    token = secrets.token_urlsafe(32)

    def write(connection: sa.Connection) -> None:
        insert_items(connection, ids, titles)
        connection.execute(
            run.insert().values(
                id=1,
                offer=encode(offer),
                item_vectors=vectors.tobytes(),
                round=0,
                is_open=False,
                is_paused=False,
                opened_at=0.0,
                admin_digest=digest_of(token),
            )
        )

    storage.read(write)
    return token


def has_run(storage: Storage) -> bool:
    """Whether this database holds a run already."""
    return storage.read(lambda connection: connection.execute(sa.select(run.c.id)).first()) is not None


def renew_admin_token(storage: Storage) -> str:
    """Another token for the admin; the old one is worth nothing from now on."""
    token = secrets.token_urlsafe(32)
    storage.read(lambda connection: connection.execute(run.update().values(admin_digest=digest_of(token))))
    return token


def make_offer(settings: TermsSettings, n_items: int, run_id: str) -> Offer:
    """What devices will be asked to accept."""
    model = make_model(settings.model, settings.factors)
    reports_per_client = settings.reports_per_client or max(1.0, USUAL_SHARE * n_items)
    rng = SystemRandomness().stream(Purpose.REGULARIZATION)
    if not reports_per_client < n_items:
        raise ParameterError(
            f"reports_per_client must be below the number of items, {n_items}, got {reports_per_client:g}."
        )
    cap = settings.profile_cap or min(USUAL_CAP, max(1, n_items // 2))
    if not cap < n_items:
        raise ParameterError(f"profile_cap must be below the number of items, {n_items}, got {cap}.")
    terms = Terms(
        model=model.name,
        n_factors=model.n_factors,
        n_items=n_items,
        reports_per_client=reports_per_client,
        data_weight=settings.expected_devices * reports_per_client,
        step=settings.step,
        decay=DECAY,
        max_rounds=settings.rounds,
        epoch_rounds=settings.epoch_rounds,
        user_regularization=model.draw_regularization(rng=rng),
        item_regularization=model.draw_regularization(rng=rng),
    )
    return as_sent(Offer(run_id, "sdcf", cap, terms))


def _check_same(settings: TermsSettings, offer: Offer) -> None:
    terms = offer.terms
    stored = {
        "model": terms.model,
        "factors": terms.n_factors,
        "rounds": terms.max_rounds,
        "step": terms.step,
        "epoch_rounds": terms.epoch_rounds,
        "reports_per_client": terms.reports_per_client,
        "profile_cap": offer.profile_cap,
    }
    for name, value in stored.items():
        given = getattr(settings, name)
        if name == "rounds" and given < value:
            continue  # the run was extended
        if given != value and not (given is None and name in ("reports_per_client", "profile_cap")):
            raise ParameterError(
                f"terms.{name} of this database's run is {value}, got {given}: devices accepted the first. "
                "Keep it, or start a new run with another database."
            )
