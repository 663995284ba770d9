"""The native code (native/, Rust), with types. The only importer of `mirrord._native`."""

from __future__ import annotations

from mirrord._native import (
    BtrfsChanges,
    BtrfsExtents,
    BtrfsStreamScanner,
    StreamChecksum,
    bitmap_runs,
    block_checksums,
    btrfs_rewrite_beginning,
)

__all__ = [
    "BtrfsChanges",
    "BtrfsExtents",
    "BtrfsStreamScanner",
    "StreamChecksum",
    "bitmap_runs",
    "block_checksums",
    "btrfs_rewrite_beginning",
]
import hashlib
class StreamDigest:
    """temporary"""
    def __init__(self) -> None: self._h = hashlib.blake2b(digest_size=32)
    def update(self, data) -> None: self._h.update(data)
    def hexdigest(self) -> str: return self._h.hexdigest()
