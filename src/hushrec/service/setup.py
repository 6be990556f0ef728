"""Set-up at the start of a server: create the first run, begin the next one, or check that the settings still match."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, require
from hushrec.messages import Offer
from hushrec.models.titles import own_titles
from hushrec.offers import make_run_model, protocol_of
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.protocols.configured import Fleet
from hushrec.server import Server
from hushrec.service.catalogue import insert_items, read_attributes, read_entries
from hushrec.service.registry import ask_everybody, digest_of
from hushrec.service.reports import delete_reports
from hushrec.service.schema import history, rounds, run
from hushrec.service.schema import items as items_table
from hushrec.service.settings import TermsSettings
from hushrec.service.storage import Storage, lock_setup
from hushrec.service.stored import insert_run, lock_run, update_run
from hushrec.signing import DeviceKey
from hushrec.wire import as_sent, decode

MOST_CHANGED = 0.25  # the largest change of a known item's attribute when the catalogue grows
_NEXT_RUN = "begin a next run: increase `run` in [terms] of the settings file, or --run, by 1."
_EARLIER_RUNS = "Leave run out, or give the database of the earlier runs as --database."


@dataclass(frozen=True, eq=False)
class Items:
    """The operator's catalogue: ids, titles, and numeric columns, from which some models learn."""

    ids: list[str]
    titles: list[str]
    attributes: FloatArray | None = field(default=None, repr=False)  # sent to devices with the items
    details: FloatArray | None = field(default=None, repr=False)  # used by the server only

    @classmethod
    def of(cls, ids: list[str], titles: list[str], facts: Mapping[str, Any]) -> "Items":
        """Return the catalogue with the columns from which a model learns.

        `facts` has either `attributes`, an array that devices receive, or `columns`, an `ItemColumns`: devices receive
        its taste columns (array `taste`), and only the server uses its detail columns (array `details`).
        """
        columns = facts.get("columns")
        if columns is None:
            return cls(ids, titles, facts.get("attributes"))
        return cls(ids, titles, columns.taste if columns.taste.shape[1] else None, columns.details)

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.ids) or not self.ids:
            raise ParameterError("ids must hold at least one id, and no id twice. Correct the item file.")
        if self.attributes is not None:  # rounded to float32, as devices will receive them
            object.__setattr__(self, "attributes", self.attributes.astype("<f4").astype(np.float64))


def prepare_run(storage: Storage, settings: TermsSettings, items: Items) -> str | None:
    """Create the run in an empty database and return its admin token; return None if the database holds a run.

    The database stores only a hash of the token. If the database holds a run, `settings.run` decides what happens. The
    run's own number, or None, continues the run and appends new items to its catalogue. That number plus one replaces
    the run by the next run, which keeps the token. Raise `ParameterError` for any other number, and for settings that
    differ from the terms of the continued run.
    """
    token = secrets.token_urlsafe(32)

    def write(connection: sa.Connection) -> str | None:
        lock_setup(connection)  # of several servers that start at the same time, one makes the run
        before = connection.execute(sa.select(run)).first()
        if before is None:
            require(settings.run in (None, 1), "run", "1 in a database without a run", settings.run, _EARLIER_RUNS)
            offer, server = make_run(settings, items)
            insert_items(connection, items.ids, items.titles, items.attributes)
            insert_run(connection, offer, server, digest_of(token), settings.run or 1)
            return token
        if settings.run in (None, before.id):
            _go_on(connection, settings, decode(bytes(before.offer), Offer), items)
        else:
            _begin_next(connection, settings, items, before)
        return None

    made = storage.at_once(write)
    storage.scrub()
    return made


def _begin_next(connection: sa.Connection, settings: TermsSettings, items: Items, before: sa.Row[Any]) -> None:
    """Replace the stored run, whose row is `before`, by the next run, with the same server key and admin token.

    Devices of the stored run are asked to agree to the next run. Worker processes that serve the stored run end.
    """
    if settings.run != before.id + 1:
        raise ParameterError(
            f"run must be {before.id} to continue the run in this database, or {before.id + 1} to begin the next run,"
            f" got {settings.run}."
        )
    key = DeviceKey.from_bytes(bytes(before.secret))
    offer, server = make_run(settings, items, key)
    version = lock_run(connection) + 1
    for table in (run, items_table, rounds, history):
        connection.execute(table.delete())
    delete_reports(connection)
    insert_items(connection, items.ids, items.titles, items.attributes)
    insert_run(connection, offer, server, bytes(before.admin_digest), before.id + 1, version)
    ask_everybody(connection)


def _go_on(connection: sa.Connection, settings: TermsSettings, offer: Offer, items: Items) -> None:
    _check_same(settings, offer)
    known = [name for _, name, _ in read_entries(connection, 0)]
    attributes, has_new = items.attributes, not set(known).issuperset(items.ids)
    if attributes is not None and has_new:
        if not protocol_of(offer).predicts_new_items(offer.model):
            raise ParameterError(
                f"items with attributes must not be added to a run of model {offer.model}, whose devices cannot predict"
                f" such items. Remove the new items, or {_NEXT_RUN}"
            )
        attributes = _in_columns_of(known, read_attributes(connection), items)
    lock_run(connection)
    if insert_items(connection, items.ids, items.titles, attributes):
        update_run(connection)


def _in_columns_of(known: list[str], stored: FloatArray | None, items: Items) -> FloatArray:
    """Return the attributes of the new catalogue `items` on the scale of the `stored` attributes.

    Attributes are centred and scaled over all items of a catalogue, so that adding items changes every value. The
    map back to the stored scale is affine, and fitted by least squares to the items that are in both catalogues.
    `known` are the ids of the stored catalogue, in the order of `stored`.
    """
    if stored is None or items.attributes is None:
        raise ParameterError(
            "items must have no attributes, because the items of this run have none. Remove the attributes, or"
            f" {_NEXT_RUN}"
        )
    places = {name: place for place, name in enumerate(known)}
    both = [place for place, name in enumerate(items.ids) if name in places]
    longer = np.concatenate([np.ones((len(items.ids), 1)), items.attributes], axis=1)
    wanted = stored[[places[items.ids[place]] for place in both]]
    found = np.linalg.lstsq(longer[both], wanted, rcond=None)[0]
    if not np.all(np.abs(longer[both] @ found - wanted) <= MOST_CHANGED):
        raise ParameterError(
            "attributes of items that the run already has must not change, but the item file has other values. Restore"
            f" the old values in the file, or {_NEXT_RUN}"
        )
    return np.asarray(longer @ found)


def stored_number(storage: Storage) -> int | None:
    """Return the number of the run in this database, counted from 1, or None if there is no run yet."""
    return storage.at_once(lambda connection: connection.execute(sa.select(run.c.id)).scalar())


def renew_admin_token(storage: Storage) -> str:
    """Replace the admin token and return the new one; the old token is no longer accepted."""
    token = secrets.token_urlsafe(32)
    storage.at_once(lambda connection: update_run(connection, admin_digest=digest_of(token)))
    return token


def make_run(settings: TermsSettings, items: Items, key: DeviceKey | None = None) -> tuple[Offer, Server]:
    """Return the offer that devices are asked to accept, and the server before its first round.

    The server cannot know how many devices will join or how many items each rated: the terms assume `expected_devices`
    devices that rated a twentieth of the items each. `key` is the server's signing key, whose public half is in the
    offer; by default, a new key is generated.
    """
    run_id, n_items = secrets.token_hex(16), len(items.ids)
    protocol = find_protocol(settings.protocol)
    network_options = imported(protocol.implementation).network_options
    options = network_options(settings.options, n_items, settings.expected_devices)
    titles = own_titles(zip(items.ids, items.titles, strict=True))
    model = make_run_model(settings.model_name, options, items.attributes, titles, items.details)
    configured = protocol.configure(options, settings.model_name)
    seed = secrets.randbits(62)
    counts = np.full(settings.expected_devices, max(1, n_items // 20))
    terms = configured.make_terms(Fleet(n_items, int(counts.sum()), counts, [configured], model, seed), options)
    offered = {name: value for name, value in options.items() if value is not None}
    key = DeviceKey.generate() if key is None else key
    offer = as_sent(Offer(run_id, settings.protocol, settings.model_name, offered, terms, key.public_key))
    configured.make_device(offer.terms, model)  # raises if no device could accept the terms
    side = configured.make_server(offer.terms, model, seed)
    side.sign_as(run_id, key.to_bytes())
    return offer, Server(side, (), most_attempts=None)


def _check_same(settings: TermsSettings, offer: Offer) -> None:
    stored: dict[str, Any] = {"protocol": offer.protocol, "model": offer.model, **offer.options}
    given = {"protocol": settings.protocol, "model": settings.model_name, **settings.given}
    if "expected_devices" in settings.model_fields_set:
        stored["expected_devices"] = protocol_of(offer).expected_devices(offer.terms)
        given["expected_devices"] = settings.expected_devices
    for name, value in given.items():
        if value != stored.get(name):
            raise ParameterError(
                f"terms.{name} must stay {stored.get(name)}, which devices of this run have accepted, got {value}."
                f" Keep it, give a --database and --state-dir of its own to another run, or {_NEXT_RUN}"
            )
