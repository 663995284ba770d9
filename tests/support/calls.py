"""Every method that an agent has, with words that fit (`mirrord.wire.methods`)."""

from __future__ import annotations

from mirrord.core.live import LiveSetup
from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.core.relationship import Relationship, SiteRecord
from mirrord.core.verification import VerifyRequest
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
_SETUP = LiveSetup("m1", "home", "one", "0" * 32, True, 1 << 20)
#: Every method with words that fit.
CALLS: dict[str, tuple[object, ...]] = {
    "facts": (), "lock": ("x",), "unlock": (), "snapshots": (), "own_snapshots": (["*"],),
    "pause_host": (), "pause_left": (["cgroup:x"],),
    "pause_open": (["cgroup:x"], 1.0), "pause_begin": (), "pause_end": (), "pause_close": (),
    "make_ready": ("s1",), "take_snapshot": ("s1",), "take_together": ("s1", []),
    "delete_snapshot": (GUID,), "in_use": (GUID,), "reclaim": (), "changed_since": (GUID,),
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
    "verify_step": (pack(VerifyRequest(GUID)), 0.1), "verify_end": (),
    "verify_nodes": (pack(VerifyRequest(GUID)), b"", b"", 9),
    "verify_blocks": (pack(VerifyRequest(GUID)), b"x", 0, 9),
    "verify_read": (GUID, b"x", 0, 9), "repair_begin": (GUID,),
    "repair_write": (GUID, b"x", 0, b"y"), "repair_finish": (GUID, "00"),
    "image_facts": (), "live_create": (pack(_SETUP),), "live_start": ("", ""), "live_status": (),
    "live_serve": ("", []), "live_unserve": (), "live_mode": ("sync",), "live_resync": (),
    "live_copy_rate": (0,), "live_window": ("1048576",), "live_answer_within": (4000, None),
    "live_control": ("host",),
    "live_merge": (True,), "live_traffic": (1 << 20, False, True),
    "live_await_full": (0.0,), "live_record": (True,), "live_recorded": (),
    "live_verify": (0,), "live_verify_stop": (), "live_repair": (),
    "live_break": (), "live_rejoin": (), "live_reclaim": (), "live_remove": (),
}  # fmt: skip
