"""The native code (native/, Rust), with types. The only importer of `mirrord._native`."""

from __future__ import annotations

from mirrord._native import (
    BtrfsChanges,
    BtrfsExtents,
    BtrfsStreamScanner,
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
    btrfs_rewrite_beginning,
)

__all__ = [
    "BtrfsChanges",
    "BtrfsExtents",
    "BtrfsStreamScanner",
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
    "btrfs_rewrite_beginning",
]
