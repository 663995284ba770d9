"""The native code (native/, Rust), with types. The only importer of `mirrord._native`."""

from __future__ import annotations

from mirrord._native import (
    BtrfsBlocks,
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
    ZfsStreamScanner,
    bitmap_runs,
    block_checksums,
    block_events,
    btrfs_rewrite_beginning,
)

__all__ = [
    "BtrfsBlocks",
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
    "ZfsStreamScanner",
    "bitmap_runs",
    "block_checksums",
    "block_events",
    "btrfs_rewrite_beginning",
]
