"""Operating-system errors as mirrord errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from mirrord.core.errors import IoFailed, NoSpace, PermissionMissing
from mirrord.system.descriptors import are_exhausted

#: What shows the quotas of a file system of any kind.
_QUOTAS = "'btrfs qgroup show -re PATH', 'zfs get quota,refquota DATASET' or 'repquota -a'"


def quota_exceeded(where: str, why: str, shown_by: str = _QUOTAS) -> NoSpace:
    """The error for EDQUOT. shown_by: the command that shows the quota, in quotes."""
    return NoSpace(
        "the quota is exceeded",
        where=where,
        why=why,
        hint=f"{shown_by} shows it. Raise it, or free space, and run the same command again; no "
        "committed data is lost.",
    )


def read_only(where: str, why: str = "") -> IoFailed:
    """The error for EROFS."""
    return IoFailed(
        "the file system is read-only",
        where=where,
        why=why,
        hint="Mount it writable; if the kernel made it read-only, check 'dmesg' first.",
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn remaining operating-system errors into `MirrordError`."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or "")
        why = error.strerror or str(error)
        if error.errno == errno.EDQUOT:
            raise quota_exceeded(where, why) from error
        if error.errno == errno.ENOSPC:
            raise NoSpace(
                "no space is left",
                where=where,
                why=why,
                hint="Free space and run the same command again; no committed data is lost.",
            ) from error
        if error.errno in (errno.EPERM, errno.EACCES):
            raise PermissionMissing(
                "permission denied",
                where=where,
                why=why,
                hint="Run it as root (or with sudo).",
            ) from error
        if error.errno == errno.EROFS:
            raise read_only(where) from error
        if are_exhausted(error):
            raise IoFailed(
                "too many files are open",
                where=where,
                why=why,
                hint="Raise the limit of that process (ulimit -n, or LimitNOFILE= in its unit), "
                "then run the same command again.",
            ) from error
        raise IoFailed(
            "a file operation failed",
            where=where,
            why=why,
            hint="Check that path and the kernel log ('dmesg'), then run the same command again.",
        ) from error
