"""The fields of a message class in words, as docs/wire.md lists them."""

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from hushrec.messages import RoundMessage, Row, RunTerms

_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bytes: "bytes",
    bool: "true or false",
    types.NoneType: "nil",
    Any: "message with its type",
}


def describe(message: type) -> list[tuple[str, str]]:
    """Pairs (field name, its type on the wire in words) for a class of messages."""
    return [(name, _words(hint)) for name, hint in typing.get_type_hints(message, include_extras=True).items()]


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (RunTerms, RoundMessage):
        return _WORDS[Any]
    if origin is typing.Annotated:
        (number,) = typing.get_args(typing.get_args(arguments[0])[1])
        name = "uint32" if issubclass(number, np.integer) else "float32"
        return f"{name} buffer" if arguments[1] == Row else f"[width, {name} buffer]"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(argument) for argument in arguments)
    if origin in (list, tuple):
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"map from {_words(arguments[0])} to {_words(arguments[1])}"
    if dataclasses.is_dataclass(hint):
        return f"map: {typing.cast(type, hint).__name__}"
    return _WORDS[hint]
