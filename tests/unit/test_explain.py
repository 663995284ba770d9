"""Errors of the operating system, as they are told."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mirrord.core.errors import IoFailed, MirrordError
from mirrord.drivers.block.store import io_error
from mirrord.drivers.btrfs.ioctl import as_mirrord_error
from mirrord.engine.mirror import one_line
from mirrord.system.explain import explained


def test_too_many_open_files_is_not_told_as_a_fault_of_the_disk(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(IoFailed, match="too many files are open") as caught, explained():
            os.open(tmp_path, os.O_RDONLY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in caught.value.hint


@pytest.mark.parametrize("told", [as_mirrord_error, partial(io_error, doing="reading")])
def test_what_is_not_a_fault_of_the_disk_has_a_hint_of_its_own(
    told: Callable[..., MirrordError],
) -> None:
    hints = {
        errno.EIO: "dmesg",
        errno.ENOENT: "file system is mounted",
        errno.ENAMETOOLONG: "shorter path",
    }
    for number, part in hints.items():
        assert part in told(error=OSError(number, os.strerror(number)), where="/x").hint


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EIO, "Input/output error", "/srv/x"), "/srv/x: Input/output error"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(), "OSError"),
    ],
)
def test_the_history_has_the_systems_words(error: OSError, line: str) -> None:
    assert one_line(error) == line
