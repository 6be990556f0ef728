"""From an offer to what takes part in its run, on either side: the model, and the protocol with its options."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import Offer
from hushrec.models import find_model
from hushrec.options import Option, imported, with_defaults
from hushrec.protocols import find_protocol
from hushrec.protocols.configured import ConfiguredProtocol


def run_options(protocol: str, model: str) -> dict[str, Option]:
    """Return the options that are the same for every device of a run, by name: the operator chooses them."""
    declared = (*find_model(model).options, *find_protocol(protocol).options_for(model))
    return {option.name: option for option in declared if not option.personal}


def personal_options(protocol: str, model: str) -> dict[str, Option]:
    """Return the options that each person chooses and does not tell, by name."""
    return {option.name: option for option in find_protocol(protocol).options_for(model) if option.personal}


def make_run_model(
    model: str,
    options: Mapping[str, Any],
    attributes: FloatArray | None,
    titles: Sequence[str] = (),
    details: FloatArray | None = None,
) -> Any:
    """Return the model of a run; `attributes` are the columns of its items, where the model has some.

    `details` are columns that only a server before its first round has: later they are in its state.
    """
    declared = find_model(model)
    facts = {} if declared.sent_facts is None else imported(declared.sent_facts)(attributes, titles, details)
    return imported(declared.implementation).from_options(with_defaults(declared.options, options), **facts)


def make_run_protocol(
    protocol: str, model: str, options: Mapping[str, Any], own: Mapping[str, Any] | None = None
) -> ConfiguredProtocol:
    """Return the protocol of a run, with a person's `own` options on their device and with none on the server."""
    configured: ConfiguredProtocol = find_protocol(protocol).configure({**(own or {}), **options}, model)
    return configured


def expected_devices(offer: Offer) -> int | None:
    """Return how many devices the terms of a run are made for; None where they do not say."""
    return make_run_protocol(offer.protocol, offer.model, offer.options).expected_devices(offer.terms)


def expectation(offer: Offer, n_devices: float | None = None) -> str | None:
    """Return what a run has been measured to reach with so many devices, or with those that it expects.

    One sentence for operators and for people who think about joining; None where nobody measured it.
    """
    count = expected_devices(offer) if n_devices is None else n_devices
    protocol = make_run_protocol(offer.protocol, offer.model, offer.options)
    return None if count is None else protocol.expectation(offer.terms, offer.model, count)


def check_offer(offer: Offer) -> None:
    """Refuse an offer of a protocol, a model or an option that this side does not know."""
    with offered():
        if offer.model not in find_protocol(offer.protocol).models:
            raise ParameterError(f"protocol {offer.protocol} does not speak model {offer.model}.")
        known = run_options(offer.protocol, offer.model)
        unknown = sorted(offer.options.keys() - known.keys())
        if unknown:
            raise ParameterError(f"options of the offer must be known, got {', '.join(unknown)[:100]}.")
        for name, value in offer.options.items():
            known[name].checked(value)


@contextlib.contextmanager
def offered() -> Iterator[None]:
    """Turn parameter errors inside into errors of the server that made the offer."""
    try:
        yield
    except ParameterError as error:
        raise RemoteProtocolError(f"the server's offer cannot be accepted: {error}") from None
