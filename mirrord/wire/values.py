"""Conversion of model values to msgpack or JSON and back; what comes in is checked by field."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from mirrord.core.errors import ProtocolError
from mirrord.core.model import FileChange, FileName, OpenWriter
from mirrord.core.verification import VerifyNode

Reader = Callable[[Any], Any]


def pack(value: Any) -> Any:
    """A model value (NamedTuples, enumerations, tuples, mappings) as plain lists and maps."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, FileChange | OpenWriter | VerifyNode):
        # Sent as bytes: all other text of a peer is made printable.
        path = value.path.encode(errors="surrogateescape")
        value = tuple({**value._asdict(), "path": path}.values())
    if isinstance(value, tuple | list):
        return [pack(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): pack(one) for key, one in value.items()}
    return value


def as_json(value: Any) -> Any:
    """A value as JSON has it: a NamedTuple is an object. A path is absolute."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: as_json(one) for key, one in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [as_json(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    return value


#: C0 and C1 control characters, which can move a terminal's cursor. Line breaks are not replaced.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "�")
del _CONTROLS[ord("\n")]


def printable(value: Any) -> Any:
    """The same value without control characters: text of another host is shown to users."""
    if isinstance(value, str):
        return value if value.isprintable() else value.translate(_CONTROLS)
    if isinstance(value, list):
        return [printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    return value


def unpack(kind: Any, packed: Any) -> Any:
    """`packed` as a value of the type `kind`; `ProtocolError` when it is not one.

    A NamedTuple may have fewer fields than ours if the missing ones have defaults (an older peer),
    and more (a newer one): unknown fields are ignored.
    """
    try:
        return _reader(kind)(packed)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise ProtocolError(
            f"malformed {name} from the other end",
            why=str(error)[:200],
            hint="Install the same version of mirrord at both ends.",
        ) from error


@functools.cache
def _reader(kind: Any) -> Reader:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or kind is type(None):
        return _nothing
    if kind in (int, str, bool, bytes):
        return functools.partial(_exactly, kind)
    if kind is float:
        return _real
    if kind is Path:
        return _path
    if kind is Any:
        return lambda packed: packed
    if kind == FileName:
        return _file_name
    if origin is Annotated:
        return _reader(inner[0])
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_one_of, tuple(_reader(one) for one in inner))
    if origin in (tuple, list, Sequence):
        made = list if origin is list else tuple
        return functools.partial(_many, made, _reader(inner[0]))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return functools.partial(_mapping, _reader(inner[1]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named(kind)
    raise AssertionError(f"{kind} cannot be sent")


def _nothing(packed: Any) -> None:
    if packed is not None:
        raise TypeError(f"{packed!r} is not null")


def _exactly(kind: type, packed: Any) -> Any:
    if type(packed) is not kind:
        raise TypeError(f"{packed!r} is not of the type {kind.__name__}")
    return packed


def _path(packed: Any) -> Path:
    return Path(_exactly(str, packed))


def _file_name(packed: Any) -> str:
    if type(packed) is bytes:
        return packed.decode(errors="surrogateescape")
    return str(_exactly(str, packed))


def _real(packed: Any) -> float:
    if type(packed) not in (int, float):
        raise TypeError(f"{packed!r} is not a number")
    return float(packed)


def _one_of(readers: tuple[Reader, ...], packed: Any) -> Any:
    why: Exception | None = None
    for read in readers:
        try:
            return read(packed)
        except (TypeError, ValueError, KeyError) as error:
            why = error
    raise TypeError(f"{packed!r} is of none of the allowed types") from why


def _many(made: type, read: Reader, packed: Any) -> Any:
    if not isinstance(packed, list):
        raise TypeError(f"{packed!r} is not a list")
    return made(read(one) for one in packed)


def _mapping(read: Reader, packed: Any) -> dict[str, Any]:
    if not isinstance(packed, dict) or not all(isinstance(key, str) for key in packed):
        raise TypeError(f"{packed!r} is not a map")
    return {key: read(one) for key, one in packed.items()}


def _named(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = [_reader(hints[name]) for name in kind._fields]
    least = len(kind._fields) - len(kind._field_defaults)

    def read(packed: Any) -> Any:
        if isinstance(packed, dict):  # from JSON
            own = zip(kind._fields, readers, strict=True)
            return kind(**{name: one(packed[name]) for name, one in own if name in packed})
        if not isinstance(packed, list) or len(packed) < least:
            raise TypeError(
                f"it has {len(packed)} fields" if isinstance(packed, list) else "it is not a list"
            )
        return kind(*(one(part) for one, part in zip(readers, packed, strict=False)))

    return read
