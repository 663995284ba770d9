"""Errors of the operating system, as they are told."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from mirrord.core.errors import IoFailed
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
