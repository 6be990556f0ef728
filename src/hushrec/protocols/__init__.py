"""The protocols by name. A protocol is one folder: its declaration is registered here, and nothing else names it."""

from dataclasses import replace

from hushrec.errors import ParameterError
from hushrec.models import MODELS
from hushrec.plugins import Registry
from hushrec.protocols.gradient import ISGLD, PLAIN, SDCF
from hushrec.protocols.masked import MASKED
from hushrec.protocols.protocol import Protocol

DEFAULTS = (MASKED, SDCF)  # what a run without a choice speaks: the first that its model allows


def _with_plugged_models(protocol: Protocol) -> Protocol:
    """Return the protocol with the models of plug-ins that name it in `spoken_by`, after its own."""
    others = [name for name, model in MODELS.items() if protocol.name in model.spoken_by]
    return replace(protocol, models=tuple(dict.fromkeys([*protocol.models, *others])))


PROTOCOLS: Registry[Protocol] = Registry(
    "protocols", ((protocol.name, protocol) for protocol in (PLAIN, ISGLD, SDCF, MASKED)), _with_plugged_models
)


def find_protocol(name: str) -> Protocol:
    """Return the declaration of the protocol of that name."""
    if name not in PROTOCOLS:
        raise ParameterError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name}.")
    return PROTOCOLS[name]


def default_protocol(model: str | None) -> str:
    """The protocol of a run that does not choose one: `masked`, or `sdcf` for a model that only that speaks."""
    speaks = [protocol.name for protocol in DEFAULTS if model is None or model in protocol.models]
    return (speaks or [DEFAULTS[0].name])[0]


def protocols_of(model: str) -> list[str]:
    """The names of the protocols that speak a model."""
    return [name for name, protocol in PROTOCOLS.items() if model in protocol.models]


def server_knowledge() -> str:
    """What a server of a network run can and cannot know under each protocol: a section of docs/privacy.md."""
    sections = [entry.knowledge.as_markdown(name) for name, entry in PROTOCOLS.items() if entry.knowledge.can]
    return "\n\n".join(["## What the server of a network run can and cannot know", *sections])
