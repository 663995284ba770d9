"""The number of files that this process may have open at the same time."""

from __future__ import annotations

import errno
import resource

#: More is of no use, and some programs that are started close every number up to the limit.
_WANTED = 1 << 16


def raise_limit() -> None:
    """Raise the soft limit to the hard one: the usual 1024 is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def in_share(wanted: int, share: int) -> int:
    """`wanted`, but at most one in `share` of the files that this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft // share)


def are_exhausted(error: OSError) -> bool:
    """Whether an operation failed because this process, or the system, has too many open files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
