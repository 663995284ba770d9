"""Another host behind a proxy that spoils connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.remote import Remote, remote


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Remote]:
    with remote(tmp_path) as made:
        yield made
