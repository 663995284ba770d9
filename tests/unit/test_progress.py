"""The files by which a running verb and other processes speak with each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted
from mirrord.engine.progress import RunFiles


def test_a_verb_that_sees_a_request_knows_who_made_it(tmp_path: Path) -> None:
    """It looks at any moment, also while the request is written."""
    verb, other = RunFiles(tmp_path, "home"), RunFiles(tmp_path, "home")

    def seen() -> str:
        while True:
            try:
                verb.check_abort()
            except Aborted as error:
                return error.why

    with ThreadPoolExecutor(1) as thread:
        for _ in range(1000):
            found = thread.submit(seen)
            other.request_abort("the test")
            assert found.result(60) == "by the test"
            verb.end()


def test_a_request_is_made_although_no_byte_can_be_written(tmp_path: Path) -> None:
    verb = RunFiles(tmp_path, "home")
    (tmp_path / "home.abort.new").mkdir()  # (root may write to any file)
    verb.request_abort("the test")
    with pytest.raises(Aborted, match="unknown process"):
        verb.check_abort()
