"""The native code (native/, Rust), with types. The only importer of `mirrord._native`.

`Panic` is raised when the native code has a bug. It is not an `Exception`: code that passes on the
error of a thread to a waiting one must name it as well.
"""

from __future__ import annotations

from mirrord._native import (
    BtrfsBlocks,
    BtrfsChanges,
    BtrfsExtents,
    BtrfsStreamScanner,
    Panic,
    Replayer,
    StreamChecksum,
    StreamDigest,
    TlsAlert,
    TlsConfig,
    TlsError,
    TlsSession,
    TlsUntrusted,
    TraceDedup,
    TraceFault,
    TraceParser,
    TraceSurvey,
    ZfsStreamScanner,
    bitmap_runs,
    block_checksums,
    block_events,
    btrfs_rewrite_beginning,
    msgpack_weight,
)

__all__ = [
    "BtrfsBlocks",
    "BtrfsChanges",
    "BtrfsExtents",
    "BtrfsStreamScanner",
    "Panic",
    "Replayer",
    "StreamChecksum",
    "StreamDigest",
    "TlsAlert",
    "TlsConfig",
    "TlsError",
    "TlsSession",
    "TlsUntrusted",
    "TraceDedup",
    "TraceFault",
    "TraceParser",
    "TraceSurvey",
    "ZfsStreamScanner",
    "bitmap_runs",
    "block_checksums",
    "block_events",
    "btrfs_rewrite_beginning",
    "msgpack_weight",
]
