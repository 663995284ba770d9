"""Trees of digests of snapshots, in files beside the volume.

A tree is written to a temporary file and renamed when it is complete; each has a digest of itself.
While one is computed its lock file is locked: the snapshot is not deleted meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from mirrord.core.errors import Busy, Damaged, IoFailed, MirrordError, NoSpace, NotFound
from mirrord.core.verification import (
    BLOCKS_MAX,
    NODES_MAX,
    STEP_S_MAX,
    VerifyMode,
    VerifyNode,
    VerifyProgress,
    VerifyRequest,
)
from mirrord.drivers.pins import VERIFYING, Pins
from mirrord.drivers.verification import Verification
from mirrord.system import clock, files, locks, steps
from mirrord.system.explain import quota_exceeded, read_only
from mirrord.system.native import (
    SnapshotTree,
    VolumeTree,
    errno_of,
    tree_blocks,
    tree_children,
    tree_root,
)

NAME = "verify"
_LOCK, _PART, _TREE, _SAMPLE = ".lock", ".part", ".tree", ".sample"
#: The newest trees that are kept for each volume, beside those that mirrors need.
_KEPT = 4


class Changed(NamedTuple):
    """What changed since a base. paths: of everything. ranges: where data changed, (offset, length)
    by the number of the inode; of everything else nothing, ().
    """

    paths: list[bytes]
    ranges: Mapping[int, Sequence[tuple[int, int]]]


#: The tree of a base, and the fields of `Changed`.
_Base = tuple[str, list[bytes], Mapping[int, Sequence[tuple[int, int]]]]


class VolumeTrees(abc.ABC):
    """Computes the tree of a volume that is one piece of `size` bytes, block by block, as
    `SnapshotTree` does that of a folder.
    """

    _tree: VolumeTree

    def __init__(self, request: VerifyRequest, size: int) -> None:
        #: The root's node, and whether anything is unreadable; None until it is done.
        self.root: tuple[bytes, bool] | None = None
        self._request, self._size = request, size
        self._seen = self._read_blocks = self._read_bytes = self._unreadable = 0
        self._free_s = 0.0

    def begin(self, out: str) -> Self:
        """Begin, and write the tree to that file."""
        request = self._request
        sample = (request.seed, request.parts) if request.mode is VerifyMode.SAMPLE else None
        self._tree = VolumeTree(out, self._size, sample=sample)
        return self

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Files, blocks, blocks read, bytes read, unreadable."""
        return 1, self._seen, self._read_blocks, self._read_bytes, self._unreadable

    def step(self, seconds: float) -> bool:
        """Work for about that long; whether it is done."""
        until_s = clock.monotonic_s() + seconds
        while self.root is None:
            now_s = clock.monotonic_s()
            if now_s >= until_s:
                return False
            if now_s < self._free_s:
                clock.sleep_s(min(self._free_s, until_s) - now_s)
                continue
            number = self._tree.next()
            if number is None:
                self.root = self._tree.finish(), self._unreadable > 0
                return True
            before = self._read_bytes
            self._seen += 1
            self._take(number)
            if self._request.rate:
                self._free_s = now_s + (self._read_bytes - before) / self._request.rate
        return True

    @abc.abstractmethod
    def _take(self, number: int) -> None:
        """Add the block of that number to the tree."""


class Subject(NamedTuple):
    """A snapshot to be read. guid: that of the snapshot of the whole volume, which is not deleted
    meanwhile. changed: what changed since the request's base; None when that is not
    known, `OSError` when it cannot be found out. tree: of what is no folder: makes its tree, which
    is written to the given file; changes are not known then. parts: how many snapshots one of the
    volume consists of. close: called when the tree is done, or given up.
    """

    guid: str
    path: str
    changed: Callable[[], Changed | None] = lambda: None
    tree: Callable[[str], VolumeTrees] | None = None
    parts: int = 1
    close: Callable[[], None] = lambda: None


class _Run(NamedTuple):
    request: VerifyRequest
    tree: SnapshotTree | VolumeTrees
    mode: VerifyMode
    why: str
    lock: int
    subject: Subject


class TreeStore:
    """The trees of one volume. where: the volume, for messages. pinned: the snapshots that mirrors
    have pinned, whose trees their next updates are verified with.
    """

    def __init__(
        self, folder: Path, where: str, pinned: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._folder = folder
        self._where = where
        self._pinned = pinned
        self._run: _Run | None = None

    def _file(self, guid: str, suffix: str) -> Path:
        return self._folder / (hashlib.sha256(guid.encode()).hexdigest()[:32] + suffix)

    def _tree(self, request: VerifyRequest) -> Path:
        sampled = request.mode is VerifyMode.SAMPLE
        return self._file(request.guid, _SAMPLE if sampled else _TREE)

    def runs(self, request: VerifyRequest) -> bool:
        """Whether the tree has been begun, and is not done."""
        return self._run is not None and self._run.request == request

    def step(
        self, request: VerifyRequest, find: Callable[[], Subject], seconds: float
    ) -> VerifyProgress:
        """See `Verification.verify_step`. find: the snapshot, when it is begun."""
        run, path = self._run, ""
        try:
            if run is None or run.request != request:
                self.end()
                subject = find()
                path = subject.path
                run = self._run = self._begin(request, subject)
            path = run.subject.path
            if not run.tree.step(max(0.0, min(seconds, STEP_S_MAX))):
                return _progress(run)
            steps.reached("VERIFY:TREE")
            self._file(request.guid, _PART).rename(self._tree(request))
            self.end()
            self._forget_old(_KEPT * run.subject.parts)
            return _progress(run)
        except OSError as error:
            self.end()
            raise self._failure(error, path) from error

    def end(self) -> None:
        """See `Verification.verify_end`."""
        run, self._run = self._run, None
        if run is not None:
            for suffix in (_PART, _LOCK):
                with contextlib.suppress(OSError):  # a later one replaces it
                    self._file(run.request.guid, suffix).unlink()
            run.subject.close()
            os.close(run.lock)

    def _begin(self, request: VerifyRequest, subject: Subject) -> _Run:
        lock = -1
        try:
            files.make_directory("VERIFY:FOLDER", self._folder, mode=0o700)
            lock = self._locked(request.guid, subject.guid)
            base, why = self._base(request, subject)
            mode = request.mode
            if mode is VerifyMode.CHANGED and base is None:
                mode = VerifyMode.FULL
            sample = (request.seed, request.parts) if mode is VerifyMode.SAMPLE else None
            out = str(self._file(request.guid, _PART))
            make = subject.tree or partial(
                SnapshotTree, subject.path, rate=request.rate or None, sample=sample, base=base
            )
            tree = make(out)
            return _Run(request, tree, mode, why, lock, subject)
        except BaseException:
            subject.close()
            if lock >= 0:
                os.close(lock)
            raise

    def _locked(self, guid: str, kept: str) -> int:
        """kept: the snapshot that is not deleted meanwhile."""
        path = self._file(guid, _LOCK)
        steps.reached("VERIFY:LOCK")
        with contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            if not locks.try_lock(descriptor):
                raise Busy(
                    "this snapshot is being verified",
                    where=self._where,
                    hint="Try again when that is done.",
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, kept.encode(), 0)
            stack.pop_all()
            return descriptor

    def _base(self, request: VerifyRequest, subject: Subject) -> tuple[_Base | None, str]:
        """The base's tree with what changed since, or why everything is read."""
        if request.mode is not VerifyMode.CHANGED:
            return None, ""
        if subject.tree is not None:
            return None, "volumes of this kind are always read completely"
        tree = self._file(request.base, _TREE)
        if not request.base or not tree.exists():
            return None, "there are no digests of an older snapshot"
        try:
            changed = subject.changed()
        except (MirrordError, OSError) as error:
            return None, f"what changed since the older snapshot is not known ({error})"
        if changed is None:
            return None, "the older snapshot no longer exists"
        try:
            tree_root(str(tree))
        except OSError:
            return None, "the digests of the base are damaged"
        return (str(tree), *changed), ""

    def _failure(self, error: OSError, path: str) -> MirrordError:
        number = errno_of(error)
        if number in (errno.ENOENT, errno.ESTALE):
            return NotFound(
                "the snapshot was deleted while it was verified",
                where=self._where,
                why=path,
                hint="Run the same command again.",
            )
        if number == errno.EROFS:
            return read_only(str(self._folder), "a verification stores digests there")
        if number == errno.EDQUOT:
            return quota_exceeded(str(self._folder), "the digests of the snapshot are not stored")
        if number == errno.ENOSPC:
            return NoSpace(
                "the digests of the snapshot cannot be stored: no space is left",
                where=str(self._folder),
                hint="Free space there and run the same command again. They need 32 bytes for each "
                "128 KiB and about 200 for each file; no snapshot is affected.",
            )
        return IoFailed("the snapshot cannot be verified", where=self._where, why=str(error))

    def _forget_old(self, kept: int) -> None:
        """Delete the oldest trees; one that is needed again is computed again."""
        trees = [path for path in self._folder.iterdir() if path.suffix in (_TREE, _SAMPLE)]
        trees.sort(key=lambda path: path.stat().st_mtime_ns)
        needed = {self._file(guid, _TREE) for guid in self._pinned()}
        for path in trees[:-kept]:
            if path not in needed:
                steps.reached("VERIFY:FORGET")
                path.unlink()

    def remove(self) -> None:
        """Delete all trees: the volume is no longer a destination."""
        self.end()
        for path in files.paths_in(self._folder):
            files.remove_file("VERIFY:REMOVE", path)

    def nodes(
        self, request: VerifyRequest, folder: str, after: str, limit: int
    ) -> list[VerifyNode]:
        """See `Verification.verify_nodes`."""
        path = str(self._complete(request))
        names = os.fsencode(folder), os.fsencode(after)
        with self._reading(path):
            found = tree_children(path, *names, max(1, min(limit, NODES_MAX)))
        return [VerifyNode(os.fsdecode(one[0]), *one[1:]) for one in found]

    def blocks(self, request: VerifyRequest, path: str, first: int, limit: int) -> bytes:
        """See `Verification.verify_blocks`."""
        tree, most = str(self._complete(request)), max(1, min(limit, BLOCKS_MAX))
        with self._reading(tree):
            found = tree_blocks(tree, os.fsencode(path), max(0, first), most)
        if found is None:
            raise NotFound("no such file in the snapshot", where=self._where, why=path)
        return found

    def _complete(self, request: VerifyRequest) -> Path:
        path = self._tree(request)
        if not path.exists():
            raise NotFound("there are no digests of this snapshot", where=self._where)
        return path

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise Damaged(
                "the digests of a snapshot are damaged",
                where=path,
                why=str(error),
                hint="They were deleted. Run 'mirrord verify' with --full.",
            ) from error


class StoredTrees(Verification):
    """The role `Verification` of a volume that has its trees in a `TreeStore`."""

    _tree_store: TreeStore | None = None

    @abc.abstractmethod
    def _trees_folder(self) -> Path: ...

    def _pinned_guids(self) -> Collection[str]:
        """The snapshots that mirrors have pinned, where updates are verified."""
        return ()

    def _trees(self) -> TreeStore:
        if self._tree_store is None:
            self._tree_store = TreeStore(self._trees_folder(), str(self), self._pinned_guids)
        return self._tree_store

    def detach(self) -> None:
        """See `Volume.detach`."""
        self.verify_end()
        super().detach()

    def verify_end(self) -> None:
        """See `Verification.verify_end`."""
        if self._tree_store is not None:
            self._tree_store.end()

    def verify_nodes(
        self, request: VerifyRequest, folder: str, after: str, limit: int
    ) -> list[VerifyNode]:
        """See `Verification.verify_nodes`."""
        return self._trees().nodes(request, folder, after, limit)

    def verify_blocks(self, request: VerifyRequest, path: str, first: int, limit: int) -> bytes:
        """See `Verification.verify_blocks`."""
        return self._trees().blocks(request, path, first, limit)


def _progress(run: _Run) -> VerifyProgress:
    root = run.tree.root
    return VerifyProgress(
        root is not None, run.mode, run.why, *run.tree.counts, root[0].hex() if root else ""
    )


def in_use(folder: Path) -> set[str]:
    """The snapshots that are being verified."""
    found: set[str] = set()
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return found
    for name in names:
        if not name.endswith(_LOCK):
            continue
        with contextlib.suppress(OSError), files.opened(folder / name, os.O_RDWR) as descriptor:
            if not locks.try_lock(descriptor, fcntl.LOCK_SH):
                found.add(os.pread(descriptor, 4096, 0).decode(errors="replace"))
    return found


def pinned(folder: Path, pins: Pins) -> Pins:
    """The pins of a volume that has its trees in that folder, with what is being verified."""
    used = in_use(folder)
    return {**pins, VERIFYING: tuple(used)} if used else pins
