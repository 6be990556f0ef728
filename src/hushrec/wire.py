"""The wire format, one codec for both sides: MessagePack maps whose arrays are raw little-endian buffers.

    {"type": TAG, "version": 2, …one entry per field of the message…}

The encoding of a message follows from its class, which `@crosses` declares in `messages.py` or in a protocol's module:
numbers, text, bytes and lists are encoded as in MessagePack; an array of numbers as a buffer of float32 or uint32; a
table as [width, buffer]; another message as a map. Decoding checks version, tag, length and form here, and the message
checks its content when it is built. The result of decoding is a valid message or a `RemoteProtocolError` with a code.
`docs/wire.md` lists every field.
"""

import dataclasses
import functools
import importlib
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import KINDS, PROTOCOL_VERSION, Kind, RoundMessage, Row, RunTerms, Table
from hushrec.protocols import PROTOCOLS

MEDIA_TYPE = "application/msgpack"
MOST_COLUMNS = 1_000_000
_FIELD = re.compile(r"at `\$((?:\.[a-z_]+)+)")

Message = TypeVar("Message")
Convert = Callable[[Any], Any]
_Array = npt.NDArray[Any]


class _Version(msgspec.Struct):
    version: int


class _Tag(msgspec.Struct):
    type: str


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class _Part:
    """The encoding of one field: its type in MessagePack, and functions that convert its value."""

    wire: Any
    pack: Convert = _same
    unpack: Convert = _same


@dataclasses.dataclass(frozen=True)
class _Form:
    """The encoding of one class of messages: its msgspec struct, and the encodings of its fields."""

    message: type
    struct: type[msgspec.Struct]
    parts: dict[str, _Part]  # by field name

    def pack(self, message: Any) -> Any:
        return self.struct(**{name: part.pack(getattr(message, name)) for name, part in self.parts.items()})

    def unpack(self, packed: Any) -> Any:
        return self.message(**{name: part.unpack(getattr(packed, name)) for name, part in self.parts.items()})


def encode(message: Any) -> bytes:
    """Return a message encoded as bytes; floating-point arrays are rounded to float32."""
    kind = _kind_of(type(message))
    packed = _form(kind.message, kind.tag, top=True).pack(message)
    packed.version = PROTOCOL_VERSION
    body = msgspec.msgpack.encode(packed)
    if len(body) > kind.largest:
        raise LocalProtocolError(
            f"a message of type {kind.tag} must have at most {kind.largest} bytes, got {len(body)}."
        )
    return body


def decode(body: bytes, expected: type[Message]) -> Message:
    """Return the message in these bytes; raise `RemoteProtocolError` unless it is valid and of the expected class.

    The format's version is checked first, so that a peer with another version gets an error about the version.
    """
    version = _decoded(body, _Version, "message").version
    if version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"the wire format's version must be {PROTOCOL_VERSION}, got {version}. Update hushrec on the older side.",
            code="wrong-version",
        )
    kind, wanted = _kind_in(body), _kind_of(expected).tag
    if kind.tag != wanted:
        raise RemoteProtocolError(f"the message must have type {wanted}, got {kind.tag}.", code="wrong-type")
    form = _form(kind.message, kind.tag, top=True)
    try:
        message: Message = form.unpack(_decoded(body, form.struct, kind.tag))
    except ParameterError as error:  # a message may contain settings, which here the peer chose
        raise RemoteProtocolError(str(error)) from None
    return message


def as_sent(message: Message) -> Message:
    """Return the message as the peer will decode it, so that both sides compute with the same rounded numbers."""
    return decode(encode(message), type(message))


def _kind_of(message: type) -> Kind:
    for kind in KINDS.values():
        if kind.message is message:
            return kind
    raise LocalProtocolError(f"{message.__name__} must be declared as a message with @crosses before it is sent.")


def find_kind(tag: str) -> Kind | None:
    """Return the declared type of message with this tag; None if no protocol declares the tag.

    Modules that declare messages (`Protocol.messages`) are imported until one of them declares the tag.
    """
    if tag not in KINDS:
        for protocol in PROTOCOLS.values():
            importlib.import_module(protocol.messages)
            if tag in KINDS:
                break
    return KINDS.get(tag)


def _kind_in(body: bytes | msgspec.Raw) -> Kind:
    """Return the type of the message in these bytes.

    Raise `RemoteProtocolError` if the type is unknown or the message is too long.
    """
    tag = _decoded(body, _Tag, "message").type
    kind = find_kind(tag)
    if kind is None:
        raise RemoteProtocolError(
            "the message must have a known type, but its type is unknown. docs/wire.md lists all types.",
            code="unknown-type",
        )
    length = memoryview(body).nbytes
    if length > kind.largest:
        raise RemoteProtocolError(
            f"a message of type {tag} must have at most {kind.largest} bytes, got {length}.", code="too-large"
        )
    return kind


def _decoded(body: bytes | msgspec.Raw, form: type[Any], name: str) -> Any:
    """Return the bytes decoded as an instance of `form`, a msgspec struct.

    The message of an error calls the bytes `name`, and names the invalid field, but does not show its content.
    """
    try:
        return msgspec.msgpack.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        place = _FIELD.search(str(error))
        field = f" Check its field {place[1][1:]}." if place else ""
        raise RemoteProtocolError(
            f"the {name} must be a well-formed MessagePack map as described in docs/wire.md.{field}"
        ) from None


# From a class to its form ----------------------------------------------------------------------------------------


@functools.cache
def _form(message: type, tag: str | None, *, top: bool = False) -> _Form:
    """Return the encoding of a message class.

    `tag` is None for a class whose messages are always a field of another message. `top` adds the version of the wire
    format, which only the outermost message has.
    """
    hints = typing.get_type_hints(message, include_extras=True)
    parts = {field.name: _part(hints[field.name]) for field in dataclasses.fields(message)}
    fields: list[Any] = [("version", int, 0)] if top else []
    fields += [(name, part.wire) for name, part in parts.items()]
    struct = msgspec.defstruct(
        message.__name__,
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        tag=tag,
        tag_field=None if tag is None else "type",
    )
    return _Form(message, struct, parts)


def _part(hint: Any) -> _Part:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == RunTerms:
        return _Part(msgspec.Raw, _pack_any, _unpack_terms)
    if hint == RoundMessage:
        return _Part(msgspec.Raw, _pack_any, _unpack_message)
    if origin is typing.Annotated:
        return _array(typing.get_args(arguments[0])[1], arguments[1])
    if dataclasses.is_dataclass(hint):
        form = _form(typing.cast(type, hint), None)
        return _Part(form.struct, form.pack, form.unpack)
    if origin in (types.UnionType, typing.Union):
        return _optional(arguments)
    if origin in (list, tuple):
        inner = _part(arguments[0])
        several = types.GenericAlias(list, (inner.wire,))
        return _Part(several, lambda some: list(map(inner.pack, some)), lambda some: origin(map(inner.unpack, some)))
    return _Part(hint)


def _optional(arguments: tuple[Any, ...]) -> _Part:
    (inner,) = (_part(argument) for argument in arguments if argument is not types.NoneType)
    return _Part(
        inner.wire | None,
        lambda value: None if value is None else inner.pack(value),
        lambda value: None if value is None else inner.unpack(value),
    )


def _pack_any(message: Any) -> msgspec.Raw:
    kind = _kind_of(type(message))
    return msgspec.Raw(msgspec.msgpack.encode(_form(kind.message, kind.tag).pack(message)))


def _unpack_terms(body: msgspec.Raw) -> Any:
    kind = _kind_in(body)
    if not _is_terms(kind):
        raise RemoteProtocolError(f"terms must be those of a protocol, got a {kind.tag}.", code="wrong-type")
    return _unpack_any(body, kind)


def _unpack_message(body: msgspec.Raw) -> Any:
    kind = _kind_in(body)
    if _is_terms(kind) or "." not in kind.tag:  # terms in a report would make the server compute a whole price
        raise RemoteProtocolError(
            f"a message of type {kind.tag} must not be inside an envelope, which is for messages of rounds.",
            code="wrong-type",
        )
    return _unpack_any(body, kind)


def _is_terms(kind: Kind) -> bool:
    return any(protocol.terms == kind.tag for protocol in PROTOCOLS.values())


def _unpack_any(body: msgspec.Raw, kind: Kind) -> Any:
    form = _form(kind.message, kind.tag)
    return form.unpack(_decoded(body, form.struct, kind.tag))


# Arrays ----------------------------------------------------------------------------------------------------------


def _array(dtype: Any, dimensions: str) -> _Part:
    """Return the encoding of an array (`dimensions` is Row or Table): whole numbers as uint32, others as float32."""
    (number,) = typing.get_args(dtype)
    word = np.dtype("<u4" if issubclass(number, np.integer) else "<f4")
    if dimensions == Row:
        return _Part(bytes, lambda row: _pack_array(row, word), lambda buffer: _unpack_array(buffer, word, number))
    assert dimensions == Table
    return _Part(
        tuple[int, bytes],
        lambda table: (table.shape[1], _pack_array(table, word)),
        lambda packed: _as_table(packed[0], _unpack_array(packed[1], word, number)),
    )


def _as_table(width: int, numbers: _Array) -> _Array:
    if not 1 <= width <= MOST_COLUMNS or len(numbers) % width:
        raise RemoteProtocolError("a table must be [width, buffer], with a whole number of rows in the buffer.")
    return numbers.reshape(-1, width)


def _pack_array(array: _Array, word: np.dtype[Any]) -> bytes:
    if word.kind == "u" and array.size and not 0 <= array.min() <= array.max() < 2**32:
        raise LocalProtocolError(
            "whole numbers on the wire must be from 0 to 4294967295, because they are sent as uint32."
        )
    with np.errstate(over="ignore"):
        packed = array.astype(word)
    if word.kind == "f" and not np.all(np.isfinite(packed)):
        raise LocalProtocolError("numbers on the wire must be finite when rounded to float32.")
    return packed.tobytes()


def _unpack_array(buffer: bytes, word: np.dtype[Any], number: type[np.generic]) -> _Array:
    if len(buffer) % 4:
        raise RemoteProtocolError(f"a buffer of {word.name} must have a multiple of 4 bytes, got {len(buffer)}.")
    numbers = np.frombuffer(buffer, dtype=word)
    if word.kind == "f" and not np.all(np.isfinite(numbers)):  # checked before the cast, which would warn
        raise RemoteProtocolError("numbers on the wire must be finite when rounded to float32.")
    return numbers.astype(number, copy=False)
