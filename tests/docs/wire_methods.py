"""The table of methods in docs/wire.md, made from `mirrord.wire.methods`.

`python -m tests.docs.wire_methods` writes it there.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

from mirrord.core.model import Name
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.wire.methods import METHODS, Method
from tests.support.unit import ROOT

DOCUMENT = ROOT / "docs/wire.md"
_HEAD = "| method | words | returns | right | under the lock |"
_NAMES = {str: "string", int: "integer", bool: "boolean", None: "nil", types.NoneType: "nil"}
_STREAMS = {
    SendStream: "OPENED, the stream, then nil",
    Receiver: "OPENED; takes the stream; then Staging",
}


def type_of(kind: Any) -> str:
    if kind == Name:
        return "name"
    if kind in _NAMES or kind in _STREAMS:
        return _NAMES.get(kind) or _STREAMS[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return " or ".join(type_of(one) for one in inner)
    if origin in (list, tuple, Sequence):
        return f"list of {type_of(inner[0])}"
    if origin is dict:
        return f"map of {type_of(inner[0])} to {type_of(inner[1])}"
    return str(kind.__name__)


def row(method: Method) -> str:
    words = ", ".join(f"{name} ({type_of(kind)})" for name, kind in method.kinds.items())
    rights = " or ".join(str(right.name).lower() for right in method.rights)
    lock = "yes" if method.changes else ""
    return f"| `{method.name}` | {words} | {type_of(method.result)} | {rights} | {lock} |"


def table() -> str:
    return "\n".join([_HEAD, "|---|---|---|---|---|", *map(row, METHODS.values())])


def documented() -> str:
    """The table as the document has it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return _HEAD + text.partition(_HEAD)[2].partition("\n\n")[0]


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(text.replace(documented(), table()), encoding="utf-8")
