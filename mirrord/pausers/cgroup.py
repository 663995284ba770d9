"""`cgroup`: freezes a control group by the freezer of cgroup v2: a systemd unit, a slice, a
container. Its processes are stopped by the kernel at the end of their present system call.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from mirrord.pausers.contract import Pauser
from mirrord.system import clock, mounts

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_NAMED = 3


class CgroupPauser(Pauser):
    """argument: the path of a cgroup below the mount point of cgroup v2, such as
    `/system.slice/db.service`, or the name of one that exists once, such as `db.service`.
    """

    def __init__(self, kind: str, argument: str) -> None:
        super().__init__(kind, argument)
        parts = PurePosixPath(argument).parts
        if not argument or ".." in parts or ("/" in argument and not argument.startswith("/")):
            raise ValueError(
                "expected the name of a systemd unit, such as cgroup:db.service, or the path of a "
                "cgroup, such as cgroup:/system.slice/db.service"
            )
        self._files = ExitStack()
        self._freeze = self._events = -1
        #: That of the cgroup that was found first.
        self._found: Path | None = None

    def lock_path(self) -> Path | None:
        """See `Pauser.lock_path`: a file of the cgroup that only its owner can open (Linux 5.14),
        or the cgroup itself, which every user can lock.
        """
        folder = self._folder()
        private = folder / "cgroup.kill"
        return private if private.exists() else folder

    def mark(self) -> str:
        """See `Pauser.mark`: the kernel uses an inode number of cgroup v2 once in a boot."""
        folder = self._folder()
        return f"{clock.boot_id()} {folder.stat().st_ino} {folder}"

    def find(self, mark: str) -> bool:
        """See `Pauser.find`. A unit that was restarted has a new cgroup at the same path."""
        boot, inode, path = mark.split(" ", 2)
        self._found = Path(path)
        try:
            self._open(self._found)
            return (boot, int(inode)) == (clock.boot_id(), self._found.stat().st_ino)
        except FileNotFoundError:
            return False

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`."""
        folder = self._folder()
        inside = f"/{folder.relative_to(_mount_point(self))}".rstrip(".")
        own = _own_cgroup()
        if inside == "/":
            raise self.failed("the root cgroup cannot be frozen", hint=_NAME_A_UNIT)
        if own == inside or own.startswith(f"{inside}/"):
            raise self.failed(
                "the cgroup cannot be frozen: mirrord itself runs in it",
                why=f"mirrord is in {own}",
                hint="Name the unit of the application only, not a slice that also has mirrord.",
            )
        self._open(folder)
        if os.pread(self._freeze, 8, 0).strip() == b"1":
            raise self.failed(
                "the cgroup is frozen already",
                why="mirrord did not freeze it",
                hint=f"Thaw it: echo 0 > {shlex.quote(f'{folder}/cgroup.freeze')} (or 'systemctl "
                "thaw UNIT').",
            )

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`."""
        until_s = clock.monotonic_s() + timeout_s
        watch = select.poll()
        watch.register(self._events, select.POLLPRI | select.POLLERR)
        try:
            os.pwrite(self._freeze, b"1", 0)
            while not self.is_paused():
                left_s = until_s - clock.monotonic_s()
                if left_s <= 0:
                    raise self._not_frozen()
                watch.poll(left_s * 1000)
        except OSError as error:
            why = _gone(error) or error.strerror or str(error)
            raise self.failed("the cgroup cannot be frozen", why=why) from None

    def is_paused(self) -> bool:
        """See `Pauser.is_paused`. A removed cgroup is not: a service that systemd restarts gets
        another one, which is not frozen.
        """
        try:
            return b"frozen 1" in os.pread(self._events, 256, 0)
        except OSError as error:
            if _gone(error):
                return False
            raise

    def resume(self) -> None:
        """See `Pauser.resume`."""
        try:
            if self._freeze < 0:
                self._open(self._folder())
            os.pwrite(self._freeze, b"0", 0)
        except OSError as error:
            if not _gone(error):
                raise

    def _open(self, folder: Path) -> None:
        try:
            self._freeze = self._opened(folder / "cgroup.freeze", os.O_RDWR)
            self._events = self._opened(folder / "cgroup.events", os.O_RDONLY)
        except PermissionError:
            raise self.failed(
                "the cgroup cannot be frozen", why="permission denied", hint="This needs root."
            ) from None

    def _opened(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        self._files.callback(os.close, descriptor)
        return descriptor

    def close(self) -> None:
        """See `Pauser.close`."""
        self._files.close()
        self._freeze = self._events = -1

    def _folder(self) -> Path:
        """The folder of the cgroup; `PauseFailed` when there is none, or several of that name."""
        if self._found is None:
            self._found = self._search()
        return self._found

    def _search(self) -> Path:
        top = _mount_point(self)
        if self.argument.startswith("/"):
            found = [top / self.argument.strip("/")]
            found = [one for one in found if one.is_dir()]
        else:
            found = list(_named(top, self.argument))
        if not found:
            raise self.failed(
                "the cgroup does not exist",
                why=f"there is no such folder below {top}: a unit that is not running has none",
                hint="Start the service, or correct the name: 'systemd-cgls' shows all cgroups.",
            )
        if len(found) > 1:
            paths = ", ".join(f"/{one.relative_to(top)}" for one in found)
            raise self.failed(
                "several cgroups have this name", why=paths, hint="Write the path of one of them."
            )
        return found[0]

    def _not_frozen(self) -> Exception:
        found = list(_unfrozen(self._folder()))
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return self.failed(
            "the cgroup was not frozen in time",
            why=", ".join(found[:_NAMED]) + more if found else "its processes are still running",
            hint="A process that waits for a disk, or a kernel thread, cannot be frozen. Check the "
            "disk, move kernel threads out of the cgroup, or set a greater 'pause_max'.",
        )


_NAME_A_UNIT = "Name a systemd unit, such as cgroup:db.service."


def _mount_point(pauser: Pauser) -> Path:
    """Where cgroup v2 is mounted: also next to version 1 (`hybrid`)."""
    found = mounts.of_type("cgroup2")
    if not found:
        raise pauser.failed(
            "cgroup version 2 is not mounted",
            why="/proc/mounts has no file system of the type cgroup2",
            hint="Mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified. It can be mounted "
            "next to version 1.",
        )
    return Path(found[0])


def _own_cgroup() -> str:
    lines = Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _named(top: Path, name: str) -> Iterator[Path]:
    for folder, below, _files in os.walk(top):
        if name in below:
            yield Path(folder, name)


def _unfrozen(folder: Path) -> Iterator[str]:
    """The processes that keep a cgroup from being frozen, for people."""
    for place, _below, _files in os.walk(folder):
        for pid in Path(place, "cgroup.procs").read_text().split():
            try:
                before, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            state, name = fields.split()[0], before.partition("(")[2]
            if int(fields.split()[6]) & _KERNEL_THREAD:
                yield f"process {pid} ({name}) is a kernel thread"
            elif state == "D":
                yield f"process {pid} ({name}) waits for a disk (state D)"


def _gone(error: OSError) -> str:
    """That the cgroup was removed, or ""."""
    return "it was removed" if error.errno in (errno.ENODEV, errno.ENOENT) else ""
