"""The registry of protocols, `PROTOCOLS`: the declaration of each protocol by name, including those of plug-ins."""

from dataclasses import replace

from hushrec.errors import ParameterError
from hushrec.models import MODELS
from hushrec.plugins import Registry
from hushrec.protocols.gradient import ISGLD, PLAIN, SDCF
from hushrec.protocols.masked import MASKED
from hushrec.protocols.protocol import Protocol

DEFAULTS = (MASKED, SDCF)  # a run that names no protocol uses the first of these that supports its model


def _with_plugged_models(protocol: Protocol) -> Protocol:
    """Return the protocol with plug-in models added to `models`: all whose `spoken_by` contains this protocol."""
    plugged = [name for name, model in MODELS.items() if protocol.name in model.spoken_by]
    return replace(protocol, models=tuple(dict.fromkeys([*protocol.models, *plugged])))


PROTOCOLS: Registry[Protocol] = Registry(
    "protocols", ((protocol.name, protocol) for protocol in (PLAIN, ISGLD, SDCF, MASKED)), _with_plugged_models
)


def find_protocol(name: str) -> Protocol:
    """Return the declaration of the protocol called `name`; raise `ParameterError` if there is none."""
    if name not in PROTOCOLS:
        raise ParameterError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name}.")
    return PROTOCOLS[name]


def default_protocol(model: str | None) -> str:
    """Return the name of the protocol to use if none is given: the first of `DEFAULTS` that supports the model.

    If `model` is None, or if no protocol of `DEFAULTS` supports it, return the first of `DEFAULTS`.
    """
    supporting = [protocol.name for protocol in DEFAULTS if model is None or model in protocol.models]
    return (supporting or [DEFAULTS[0].name])[0]


def by_usual() -> list[Protocol]:
    """Return all protocols, sorted: the default protocol, then other protocols with `usual` options, then the rest.

    `Protocol.usual` has the options that a device uses if the person chose none; it is None if the
    person must choose.
    """
    return sorted(PROTOCOLS.values(), key=lambda one: (one.name != default_protocol(None), one.usual is None))


def protocols_of(model: str) -> list[str]:
    """Return the names of the protocols that support the model."""
    return [name for name, protocol in PROTOCOLS.items() if model in protocol.models]
