"""A server for the module, and a home without anybody's own SSH settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sshd import Sshd, running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME, with an empty .ssh in it, and no agent."""
    made = tmp_path / "home"
    (made / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that lets its key in."""
    with running(tmp_path_factory.mktemp("sshd") / "server") as made:
        yield made


@pytest.fixture
def sshd(server: Sshd) -> Iterator[Sshd]:
    """The same, with what a test changed put back."""
    server.authorize()
    yield server
    server.authorize()
