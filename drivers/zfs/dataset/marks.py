"""What mirrord stores about a volume, in user properties of its dataset and snapshots.

| property | of | content |
|---|---|---|
| mirrord:mark | the dataset, locally | role, mirror, what is shown, what was set aside (`Mark`) |
| mirrord:staging | the dataset, locally | the last transfer (`ReceiveRequest`) |
| mirrord:frozen | the dataset, locally | owner of a freeze, state before it (`Frozen`) |
| mirrord:pins | the dataset, locally | which snapshots each mirror needs (drivers/pins.py) |
| mirrord:prepared:… | the parent | the mirror for which a dataset is going to be created |
| mirrord:snapshot | a snapshot | kind, transfer, when it was taken (`SnapshotMark`) |

Properties are inherited by descendants, so a mark counts only where `zfs get` shows it as local.
They are not part of streams: mirrord sends streams without properties.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.pins import Pins

MARK = "mirrord:mark"
STAGING = "mirrord:staging"
FROZEN = "mirrord:frozen"
PINS = "mirrord:pins"
SNAPSHOT = "mirrord:snapshot"
#: The tag of the holds on snapshots that mirrord needs.
HOLD = "mirrord"
_VERSION = 1
_VALUE_BYTES_MAX = 8191


class Mark(NamedTuple):
    """role: "mirror", "live" (promoted), "forgotten" (its mirror was deleted), "kept" (set aside),
    "copy" (a writable one).

    pin: guid of the shown snapshot when it is not the newest received; "": none is shown. None: the
    newest. origin: guid of the snapshot that a promoted volume was made from. kept: datasets that
    were set aside for this one and still have snapshots. keep_as: name of the snapshot by which an
    unfinished rollback keeps the old volume. of: the original of a kept dataset or copy. copy: the
    dataset that is a writable copy of it.
    """

    role: str = ""
    mirror_id: str = ""
    pin: str | None = None
    origin: str | None = None
    kept: tuple[str, ...] = ()
    keep_as: str | None = None
    of: str = ""
    copy: str = ""

    def text(self) -> str:
        """As the property's value."""
        filled = {
            key: value
            for key, value in self._asdict().items()
            if value is not None and value not in ("", ())
        }
        if self.pin is not None:
            filled["pin"] = self.pin
        return _text({"v": _VERSION, **filled})


def parse_mark(value: str | None) -> Mark | None:
    """The mark, or None when it is missing or malformed."""
    found = _read(value)
    if found is None:
        return None
    words = {key: found.get(key) for key in ("role", "mirror_id", "of", "copy")}
    maybe = {key: found.get(key) for key in ("pin", "origin", "keep_as")}
    kept = found.get("kept", [])
    fits = all(isinstance(word, str | None) for word in (*words.values(), *maybe.values()))
    if not fits or not isinstance(kept, list) or not all(isinstance(one, str) for one in kept):
        return None
    return Mark(
        role=words["role"] or "",
        mirror_id=words["mirror_id"] or "",
        of=words["of"] or "",
        copy=words["copy"] or "",
        kept=tuple(kept),
        **maybe,
    )


def pins_text(pins: Pins) -> str | None:
    """All pins of a volume as the property's value; None: they do not fit."""
    text = json.dumps({"v": _VERSION, "pins": dict(pins)}, separators=(",", ":"))
    return text if len(text) <= _VALUE_BYTES_MAX else None


def parse_pins(value: str | None) -> Pins:
    """The pins; empty when they are missing or malformed."""
    found = _read(value)
    pins = found.get("pins") if found is not None else None
    if not isinstance(pins, dict):
        return {}
    return {
        name: tuple(guid for guid in guids if isinstance(guid, str))
        for name, guids in pins.items()
        if isinstance(guids, list)
    }


def staging_text(request: ReceiveRequest) -> str:
    """A started transfer, as a property's value."""
    snapshot = request.snapshot
    return _text(
        {
            "v": _VERSION,
            "transfer": request.transfer_id,
            "mirror": request.mirror_id,
            "base": request.base,
            "guid": snapshot.guid,
            "name": snapshot.name,
            "kind": snapshot.kind.value,
            "order": snapshot.order,
            "taken": snapshot.taken_at_ns,
        }
    )


def parse_staging(value: str | None) -> ReceiveRequest | None:
    """The transfer, or None when it is missing or malformed."""
    found = _read(value)
    if found is None:
        return None
    try:
        snapshot = Snapshot(
            str(found["guid"]),
            str(found["name"]),
            SnapshotKind(found["kind"]),
            int(found["order"]),
            int(found["taken"]),
        )
        base = found["base"]
        return ReceiveRequest(
            str(found["transfer"]),
            str(found["mirror"]),
            None if base is None else str(base),
            snapshot,
            resumable=True,
        )
    except (KeyError, ValueError, TypeError):
        return None


class SnapshotMark(NamedTuple):
    """transfer: the one by which it was received, "" when it was taken here."""

    kind: SnapshotKind
    transfer: str
    taken_at_ns: int

    def text(self) -> str:
        """As the property's value."""
        return f"{self.kind.value} {self.transfer or '-'} {self.taken_at_ns}"


def parse_snapshot(value: str) -> SnapshotMark | None:
    """The mark of a snapshot; None: it has no valid mark of mirrord."""
    try:
        kind, _, rest = value.partition(" ")
        transfer, _, taken = rest.rpartition(" ")
        return SnapshotMark(SnapshotKind(kind), "" if transfer == "-" else transfer, int(taken))
    except ValueError:
        return None


def _text(values: Mapping[str, object]) -> str:
    text = json.dumps(values, separators=(",", ":"))
    assert len(text) <= _VALUE_BYTES_MAX
    return text


def _read(value: str | None) -> dict[str, Any] | None:
    if value is None or not value.startswith("{"):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("v") == _VERSION else None
