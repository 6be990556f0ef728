"""Functions that turn an offer, as a server sends it, into the model and the protocol of the run; for both sides."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import KINDS, Offer
from hushrec.models import find_model
from hushrec.options import Option, imported, with_defaults
from hushrec.protocols import find_protocol
from hushrec.protocols.configured import ConfiguredProtocol


def run_options(protocol: str, model: str) -> dict[str, Option]:
    """Return the options that the operator chooses, by name; they are the same for every device of a run."""
    declared = (*find_model(model).options, *find_protocol(protocol).options_for(model))
    return {option.name: option for option in declared if not option.personal}


def personal_options(protocol: str, model: str) -> dict[str, Option]:
    """Return the options that each person chooses for their own device, by name. Their values are never sent."""
    return {option.name: option for option in find_protocol(protocol).options_for(model) if option.personal}


def make_run_model(
    model: str,
    options: Mapping[str, Any],
    attributes: FloatArray | None,
    titles: Sequence[str] = (),
    details: FloatArray | None = None,
) -> Any:
    """Return the model of a run. `attributes` and `titles` describe its items, and every device gets them.

    `details` are the detail columns of the items (`models.item_columns`): numbers from which the server alone predicts
    how popular and how good an item is. A device passes None, and so does a server that restores a stored run, because
    the stored state contains them.
    """
    declared = find_model(model)
    facts = {} if declared.sent_facts is None else imported(declared.sent_facts)(attributes, titles, details)
    return imported(declared.implementation).from_options(with_defaults(declared.options, options), **facts)


def protocol_of(offer: Offer, own: Mapping[str, Any] | None = None) -> ConfiguredProtocol:
    """Return the protocol of an offered run with its options and, on a device, with the person's `own` options."""
    options = {**(own or {}), **offer.options}
    configured: ConfiguredProtocol = find_protocol(offer.protocol).configure(options, offer.model)
    return configured


def expectation(offer: Offer, n_devices: float | None = None) -> str | None:
    """Return sentences about the accuracy to expect with `n_devices` devices, or None if nothing was measured.

    By default, `n_devices` is the number of devices for which the run's noise or step size is calibrated; the result is
    None if the terms do not contain this number.
    """
    protocol = protocol_of(offer)
    count = protocol.expected_devices(offer.terms) if n_devices is None else n_devices
    return None if count is None else protocol.expectation(offer.terms, offer.model, count)


def check_offer(offer: Offer) -> None:
    """Raise `RemoteProtocolError` if this side does not support the offer's protocol, model or one of its options."""
    with offered():
        protocol = find_protocol(offer.protocol)
        if offer.model not in protocol.models:
            raise ParameterError(f"model must be one that protocol {offer.protocol} supports, got {offer.model}.")
        if type(offer.terms) is not KINDS[protocol.terms].message:
            raise ParameterError(f"terms must be those of protocol {offer.protocol}, but are of another protocol.")
        known = run_options(offer.protocol, offer.model)
        unknown = sorted(offer.options.keys() - known.keys())
        if unknown:
            raise ParameterError(
                f"options of the offer must be known to this version of hushrec, got {', '.join(unknown)[:100]}."
                " Update hushrec on the device or on the server, whichever is older."
            )
        for name, value in offer.options.items():
            known[name].checked(value)


@contextlib.contextmanager
def offered() -> Iterator[None]:
    """Return a context manager that converts a `ParameterError` to a `RemoteProtocolError` about the server's offer."""
    try:
        yield
    except ParameterError as error:
        raise RemoteProtocolError(f"the server's offer cannot be accepted: {error}") from None
