"""The native code (native/, Rust), with types. The only importer of `mirrord._native`.

`Panic` is raised when the native code has a bug. It is not an `Exception`: code that passes on the
error of a thread to a waiting one must name it as well.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mirrord._native import (
    BtrfsBlocks,
    BtrfsChanges,
    BtrfsExtents,
    BtrfsStreamScanner,
    FrameFault,
    FrameSplitter,
    Inlet,
    ModeSimulator,
    Outlet,
    Panic,
    Replayer,
    Routes,
    SnapshotTree,
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
    VolumeTree,
    WriteGate,
    ZfsStreamScanner,
    bitmap_runs,
    block_checksums,
    block_events,
    btrfs_rewrite_beginning,
    drain_to,
    fill_from,
    frame_header,
    mount_detached,
    msgpack_weight,
    pass_on,
    pointer_runs,
    tree_blocks,
    tree_children,
    tree_root,
)
from mirrord.core.errors import Unsupported

__all__ = [
    "BtrfsBlocks",
    "BtrfsChanges",
    "BtrfsExtents",
    "BtrfsStreamScanner",
    "FrameFault",
    "FrameSplitter",
    "Inlet",
    "ModeSimulator",
    "Outlet",
    "Panic",
    "Replayer",
    "Routes",
    "SnapshotTree",
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
    "VolumeTree",
    "WriteGate",
    "ZfsStreamScanner",
    "bitmap_runs",
    "block_checksums",
    "block_events",
    "btrfs_rewrite_beginning",
    "drain_to",
    "errno_of",
    "fill_from",
    "frame_header",
    "live_program",
    "mount_detached",
    "msgpack_weight",
    "pass_on",
    "pointer_runs",
    "receive_program",
    "tree_blocks",
    "tree_children",
    "tree_root",
]


_AGAIN = "Install mirrord again (in a checkout: ./setup.sh)"


def errno_of(error: OSError) -> int | None:
    """The number of an error; that of the native code has it in its text alone."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if error.errno is None and found is not None else error.errno


def receive_program() -> str:
    """The path of `mirrord-receive` (native/receive), which is installed next to the module."""
    hint = f'{_AGAIN}, or set receiver = "btrfs-progs" in mirrord.toml.'
    return _program("_receive", "the program that applies btrfs streams is not installed", hint)


def live_program() -> str:
    """The path of `mirrord-live` (native/live), which is installed next to the module."""
    return _program("_live", "the program for live mirrors is not installed", f"{_AGAIN}.")


def _program(name: str, what: str, hint: str) -> str:
    path = Path(__file__).parents[1] / name
    if not os.access(path, os.X_OK):
        raise Unsupported(what, where=str(path), hint=hint)
    return str(path)
