"""A connection that is cut anywhere: the transfer goes on by itself, and little is sent twice."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mirrord.link.exchange import WINDOW_BYTES
from mirrord.transport import tls, tlsstream
from tests.support import btrfs
from tests.support.proxy import Proxy
from tests.support.remote import MIB, Remote, content, one_error

#: What a cut may cost: a checkpoint's distance, and what was under way.
RESENT_MAX = 16 * MIB + WINDOW_BYTES
WHOLE = 49 * MIB

#: Offsets in what is sent: in a call, in a frame's header, in data near the start, between
#: checkpoints, near the end.
OFFSETS = [10, 6_000, 9_001, 3 * MIB + 17, 20 * MIB + 1, 48 * MIB - 9]


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_update_goes_on_by_itself(site: Remote, offset: int) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.proxy.cut_at(offset)
    done = site.service.initialize("home")
    assert site.proxy.cuts == 1 and site.proxy.connections == 2
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < WHOLE + RESENT_MAX
    assert done.data["stream_bytes"] < WHOLE + RESENT_MAX


@pytest.mark.parametrize("offset", [9_001, 20 * MIB + 1])
def test_a_pull_goes_on_by_itself(site: Remote, offset: int) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    site.proxy.cut_at(offset, "down")
    site.service.initialize("home")
    assert site.proxy.cuts == 1
    assert content(copy) == content(source)
    assert site.proxy.passed["down"] < WHOLE + RESENT_MAX


def test_a_relay_goes_on_by_itself_whichever_end_is_cut(site: Remote) -> None:
    other = Proxy((site.sshd.address, site.sshd.port))
    try:
        site.set_host("third", port=other.port)
        source, copy = site.volume(), site.folder / "copy"
        site.create(f"block://dr{source}", f"block://third{copy}")
        site.proxy.cut_at(14 * MIB, "down")
        other.cut_at(35 * MIB, "up")
        site.service.initialize("home")
        assert site.proxy.cuts == other.cuts == 1
        assert content(copy) == content(source)
    finally:
        site.proxy.cut()
        other.close()


def test_three_cuts_one_after_another(site: Remote) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    for offset in (40 * MIB, 28 * MIB, 14 * MIB):
        site.proxy.cut_at(offset)
    site.service.initialize("home")
    assert site.proxy.cuts == 3
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < WHOLE + 3 * RESENT_MAX


def test_a_first_connection_that_is_cut_is_told_in_one_line(site: Remote) -> None:
    source, copy = site.volume(data_bytes=MIB), site.folder / "copy"
    site.proxy.cut_at(10)
    done = site.cli("create", "home", f"block:{source}", f"block://dr{copy}")
    assert done.returncode == 1
    error, _hint = one_error(done.stderr)
    assert error.startswith("error: dr: ")
    assert site.cli("create", "home", f"block:{source}", f"block://dr{copy}").returncode == 0
    assert site.cli("initialize", "home").returncode == 0
    assert content(copy) == content(source)


def test_a_connection_that_died_while_idle_is_opened_again(site: Remote) -> None:
    source, copy = site.volume(data_bytes=MIB), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.service.initialize("home")
    site.change(source, MIB)
    site.proxy.cut()  # as when the firewall forgot it over the weekend
    assert site.service.update("home").status == "done"
    assert content(copy) == content(source)


@pytest.fixture
def data_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Proxy]]:
    """The data channel's connections lead through proxies, too."""
    made: list[Proxy] = []
    straight = tls.connect

    def through(address: str, port: int, *words: object, **more: object) -> tlsstream.TlsStream:
        made.append(Proxy((address, port)))
        return straight(address, made[-1].port, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(tls, "connect", through)
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize(("offset", "sockets"), [(500, 1), (20 * MIB + 1, 1), (5 * MIB, 3)])
def test_a_data_channel_that_is_cut(
    site: Remote, data_proxy: list[Proxy], offset: int, sockets: int
) -> None:
    site.set_host(data="auto", sockets=sockets)
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    assert len(data_proxy) == sockets
    data_proxy[-1].cut_at(offset)
    site.service.initialize("home")
    assert data_proxy[sockets - 1].cuts == 1 and len(data_proxy) == 2 * sockets
    assert content(copy) == content(source)
    assert sum(one.passed["up"] for one in data_proxy) < WHOLE + RESENT_MAX
    assert site.proxy.passed["up"] < MIB


@pytest.mark.parametrize("offset", [9_001, 10 * MIB])
def test_btrfs_over_a_link_that_is_cut(site: Remote, offset: int) -> None:
    with btrfs.filesystem() as one, btrfs.filesystem() as two:
        home = btrfs.make_subvolume(one / "home")
        btrfs.fill(home)
        (home / "big").write_bytes(os.urandom(24 * MIB))
        site.create(f"btrfs:{home}", f"btrfs://dr{two}/copy")
        site.proxy.cut_at(offset)
        site.service.initialize("home")
        assert site.proxy.cuts == 1
        assert btrfs.digest(two / "copy/current") == btrfs.digest(home)
        btrfs.change(home, 1)
        site.service.update("home")
        assert btrfs.digest(two / "copy/current") == btrfs.digest(home)
        site.close_links()
