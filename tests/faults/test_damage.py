"""A byte that changes on its way is never applied: before the encryption, in it, and behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from tests.support import liar
from tests.support.remote import AGENT, MIB, Remote, content

#: A transfer of a block volume has no checkpoint before.
CHECKPOINTED_BYTES = 6 * MIB


def in_the_middle(site: Remote, way: str, at: int) -> tuple[str, ...]:
    """The agent's command, spoilt once."""
    liar_there = (sys.executable, str(Path(liar.__file__)))
    return (*site.prefix, *liar_there, "flip", way, str(at), *AGENT)


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("at", [2_000, 5 * MIB + 3])
def test_a_byte_that_the_network_turns(site: Remote, way: str, at: int) -> None:
    source, copy = site.volume(data_bytes=12 * MIB), site.folder / "copy"
    places = [f"block:{source}", f"block://dr{copy}"]
    if way == "down":
        places = [f"block://dr{source}", f"block:{copy}"]
    site.create(*places)
    site.proxy.flip_at(at, way)
    site.service.initialize("home")  # by itself: SSH ends the connection, and there is a new one
    assert site.proxy.flips == 1 and site.proxy.connections == 2
    assert content(copy) == content(source)


@pytest.mark.parametrize(
    ("way", "at"),
    [
        ("up", 5),
        ("up", 301),
        ("up", 3 * MIB + 3),
        ("up", 11 * MIB),
        ("down", 7),
        ("down", 150),
        ("down", 1_200),
    ],
)
def test_a_byte_that_turns_beneath_the_encryption(site: Remote, way: str, at: int) -> None:
    source, copy = site.volume(data_bytes=12 * MIB), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.close_links()
    site.set_host(command=in_the_middle(site, way, at))
    before = site.proxy.connections
    try:
        site.service.initialize("home")
    except MirrordError as error:
        assert str(error).startswith("dr: ") and error.hint, error
        assert "unexpected" not in str(error) and "not mirrord's agent" not in str(error)
    else:  # there was a checkpoint, from which it went on by itself
        assert way == "up" and at >= CHECKPOINTED_BYTES
        assert site.proxy.connections == before + 2
    site.set_host()
    # (It had all arrived and was committed when the answer was spoilt.)
    verb = site.service.update if site.status()["shown"] else site.service.initialize
    verb("home")
    assert content(copy) == content(source)


@pytest.mark.parametrize("at", [3 * MIB + 3, 11 * MIB])
def test_a_byte_that_turns_in_a_pull(site: Remote, at: int) -> None:
    source, copy = site.volume(data_bytes=12 * MIB), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    site.close_links()
    site.set_host(command=in_the_middle(site, "down", at))
    with pytest.raises(MirrordError) as caught:
        site.service.initialize("home")
    assert str(caught.value).startswith("dr: ") and caught.value.hint, caught.value
    assert site.status()["shown"] == ""
    site.set_host()
    site.service.initialize("home")
    assert content(copy) == content(source)
