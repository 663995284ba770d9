"""Every method that an agent has, with words that fit (`mirrord.wire.methods`)."""

from __future__ import annotations

from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.core.relationship import Relationship, SiteRecord
from mirrord.wire.values import pack

GUID = "0" * 32
_SNAPSHOT = Snapshot(GUID, "s1", SnapshotKind.REFERENCE, 1, 1)
_RECORD = Relationship(
    "m1",
    "home",
    1,
    "one",
    (SiteRecord("one", ("block:/a",)), SiteRecord("two", ("block:/b",))),
    "c",
)
#: Every method with words that fit.
CALLS: dict[str, tuple[object, ...]] = {
    "facts": (), "lock": ("x",), "unlock": (), "snapshots": (), "own_snapshots": (["*"],),
    "take_snapshot": ("s1",), "take_together": ("s1", []),
    "delete_snapshot": (GUID,), "reclaim": (), "changed_since": (GUID,),
    "base_left": (GUID,), "members": (GUID,),
    "changes": (GUID, "h"), "delta": (None, GUID, False, True),
    "send": (None, GUID, None), "prepare": ("m1", False),
    "receive": (pack(ReceiveRequest("t1", "m1", None, _SNAPSHOT)),), "stagings": (),
    "commit": ("t1", True), "discard": ("t1",), "promote": (None,), "divergence": (GUID, 9),
    "rollback": (GUID, "m1", "kept"), "forget": (), "begin_test": ("",), "end_test": (),
    "writers": ("", 9), "freeze": (), "thaw": (), "mark": (), "is_marked": ("m",),
    "reinstate": ("kept",), "pin": ("m1", [GUID]),
    "set_fence": ("m1", 1), "relationships": (), "relationship": ("m1",),
    "relate": (pack(_RECORD), 0), "unrelate": ("m1",),
}  # fmt: skip
