"""Values and errors between nodes, as msgpack.

A value is a tagged msgspec struct of a registered type; nothing else is ever decoded. The reply to a
`Request[R]` is decoded as R, the reply to any other value as a registered type or None. An AlpacaError is
sent as the name of its class, its text and the attributes listed here, also where it is a field of a value.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from alpacamq.model import errors as e
from alpacamq.model.ports import Buffer
from alpacamq.model.state_machine import Request
from alpacamq.registry import errors as registry_errors
from alpacamq.registry.schema import Incompatibility, InvalidSchema

MAX_ERROR_TEXT = 4000


class InvalidValue(Exception):
    """The bytes are no value of a registered type."""


class Values:
    """The types that nodes may send each other.

    `bootstrap` lists those that may be sent before both sides know their cluster id.
    """

    def __init__(
        self, registered: Iterable[type[msgspec.Struct]], bootstrap: Iterable[type[msgspec.Struct]] = ()
    ) -> None:
        self._bootstrap = frozenset(bootstrap)
        self._types = frozenset(registered) | self._bootstrap
        for kind in self._types:
            if kind.__struct_config__.tag is None:
                raise TypeError(f"{kind.__name__} has no tag, so it cannot be told from other values")
        union: Any = Union[tuple(sorted(self._types, key=lambda kind: kind.__name__))]  # noqa: UP007
        self._encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
        self._decode: Callable[[Buffer], Any] = msgspec.msgpack.Decoder(union, dec_hook=decode_hook).decode
        any_reply: Callable[[Buffer], Any] = msgspec.msgpack.Decoder(
            union | None, dec_hook=decode_hook
        ).decode
        self._reply_decoders = {kind: reply_decoder(kind) or any_reply for kind in self._types}

    def encode(self, value: msgspec.Struct) -> bytes:
        """Encode a value of a registered type. Anything else is a bug of the caller."""
        if type(value) not in self._types:
            raise TypeError(f"{type(value).__name__} is not registered as a value between nodes")
        return self._encode(value)

    def decode(self, data: Buffer) -> Any:
        """Return the value. Raises InvalidValue."""
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidValue(str(error)) from error

    def encode_reply(self, reply: object) -> bytes:
        return self._encode(reply)

    def decode_reply(self, request: type, data: Buffer) -> Any:
        """Return the reply to a value of type `request`. Raises InvalidValue."""
        try:
            return self._reply_decoders[request](data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidValue(str(error)) from error

    def may_be_sent_without_cluster(self, kind: type) -> bool:
        """Return whether a value may pass a connection whose sides have not agreed on a cluster id."""
        return kind in self._bootstrap


def reply_type(kind: type) -> Any:
    """Return R if a type derives from `Request[R]`, or from a subclass with R as parameter.

    Returns Ellipsis if it does not; NoneType if there is no reply, or an empty one.
    """
    for owner in kind.__mro__:
        for base in owner.__dict__.get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Request):
                (found,) = get_args(base)
                if not isinstance(found, TypeVar):
                    return found
    return ...


def reply_decoder(kind: type) -> Callable[[Buffer], Any] | None:
    """Return the decoder of R if a type derives from `Request[R]`."""
    found = reply_type(kind)
    return None if found is ... else msgspec.msgpack.Decoder(found, dec_hook=decode_hook).decode


def encode_hook(value: object) -> object:
    """Convert a field that msgpack does not know: an AlpacaError."""
    if isinstance(value, e.AlpacaError):
        return encode_error(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to another node")


def decode_hook(kind: type, value: object) -> object:
    """Convert a field back that `encode_hook` has converted."""
    if issubclass(kind, e.AlpacaError):
        return decode_error(msgspec.convert(value, RemoteError))
    raise NotImplementedError(f"{kind.__name__} cannot be received from another node")


class RemoteError(msgspec.Struct, frozen=True, array_like=True):
    """An AlpacaError as a value."""

    name: str
    text: str
    attributes: dict[str, Any] = {}


# Attributes that survive the way between nodes, with the function that restores them from msgpack.
ATTRIBUTES: Mapping[type[e.AlpacaError], Mapping[str, Callable[[Any], object]]] = {
    e.NotLeader: {
        "leader": lambda value: msgspec.convert(value, int | None),
        "leader_epoch": lambda value: msgspec.convert(value, int),
    },
    e.NotCoordinator: {
        "coordinator": lambda value: msgspec.convert(value, int | None),
        "has_begun": lambda value: msgspec.convert(value, bool),
    },
    e.NotController: {"controller": lambda value: msgspec.convert(value, int | None)},
    e.MemberIdRequired: {"member_id": lambda value: msgspec.convert(value, str)},
    e.QuotaExceeded: {"retry_after_ms": lambda value: msgspec.convert(value, int)},
    e.StaleReceipt: {"is_done": lambda value: msgspec.convert(value, bool)},
    registry_errors.IncompatibleSchema: {
        "reasons": lambda value: msgspec.convert(value, tuple[Incompatibility, ...])
    },
    e.DamagedLog: {
        "path": lambda value: Path(msgspec.convert(value, str)),
        "position": lambda value: msgspec.convert(value, int),
        "offsets": lambda value: msgspec.convert(value, tuple[int, int] | None),
    },
}
_CLASSES: Mapping[str, type[e.AlpacaError]] = {
    kind.__name__: kind
    for module in (e, registry_errors)
    for kind in (*vars(module).values(), InvalidSchema)
    if isinstance(kind, type) and issubclass(kind, e.AlpacaError) and kind is not e.AlpacaError
}
_RECORD_ERRORS = "record_errors"


def encode_error(error: e.AlpacaError) -> RemoteError:
    """Convert an error to a value."""
    attributes: dict[str, Any] = {}
    for name in ATTRIBUTES.get(type(error), ()):
        found = getattr(error, name)
        attributes[name] = str(found) if isinstance(found, Path) else found
    if error.record_errors:
        attributes[_RECORD_ERRORS] = list(error.record_errors)
    return RemoteError(type(error).__name__, str(error)[:MAX_ERROR_TEXT], attributes)


def decode_error(value: RemoteError) -> e.AlpacaError:
    """Convert a value back to an error; PeerFailed if this version does not know its class."""
    kind = _CLASSES.get(value.name)
    if kind is None:
        return e.PeerFailed(f"{value.name}: {value.text}")
    # Past the constructor: constructors build the text, and here it is known.
    error = kind.__new__(kind, value.text)
    restore = ATTRIBUTES.get(kind, {})
    try:
        for name, restored in restore.items():
            setattr(error, name, restored(value.attributes[name]))
        if _RECORD_ERRORS in value.attributes:
            error.naming(msgspec.convert(value.attributes[_RECORD_ERRORS], list[e.RecordError]))
    except (KeyError, msgspec.ValidationError):
        return e.PeerFailed(f"{value.name}: {value.text}")
    return error


_encode_error = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(RemoteError).decode


def error_to_bytes(error: e.AlpacaError) -> bytes:
    return _encode_error(encode_error(error))


def error_from_bytes(data: Buffer) -> e.AlpacaError:
    try:
        return decode_error(_decode_error(data))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return e.PeerFailed(f"the error cannot be read: {error}")
