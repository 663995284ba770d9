"""The native code (native/, Rust), with types. The only importer of `mirrord._native`."""

from __future__ import annotations

from mirrord._native import StreamChecksum, bitmap_runs, block_checksums

__all__ = ["StreamChecksum", "bitmap_runs", "block_checksums"]
