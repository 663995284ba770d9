"""Trees again: brought back whole, encrypted, and by a user who is not root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.model import Endpoint
from mirrord.drivers.zfs.dataset.delegation import allow_command
from mirrord.link.driver import RemoteDriver
from tests.contract.flows import MIRROR, mirror
from tests.support.world import NAME
from tests.zfs.conftest import Trees
from tests.zfsvm.agents import guest_agents
from tests.zfsvm.guest import Guest

pytestmark = [pytest.mark.zfs, pytest.mark.nightly]

KEY = "0123456789abcdef0123456789abcdef"
USER = "tester"


def test_a_tree_goes_back_whole_and_keeps_what_it_had(trees: Trees) -> None:
    trees.mirrored()
    trees.write("a/deep/file", "good")
    trees.update()
    wanted = trees.digests(trees.source)
    trees.write("a/deep/file", "a mistake")
    trees.run("zfs", "create", f"{trees.source}/own")
    trees.write("own/file", "a child made since")
    trees.change_disk(3)
    asked = trees.service.restore_all(NAME, snapshot=None, yes=False)
    assert asked.status == "confirmation-required" and "a/deep/file" in asked.text, asked.text
    assert trees.read("a/deep/file", trees.source) == "a mistake"
    assert trees.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert trees.digests(trees.source) == wanted
    assert trees.children(trees.source) == trees.children(trees.place)
    aside = f"/{trees.source}.mirrord-*"
    kept = trees.run("sh", "-c", f"cat {aside}/file; echo; cat {aside}/own/file")
    assert kept.split("\n") == ["a mistake", "a child made since"]
    trees.write("b/file", "after it")
    trees.update()
    trees.the_same()


def test_a_child_that_the_source_lost_comes_back_by_the_two_ways_that_are_named(
    trees: Trees,
) -> None:
    trees.mirrored()
    wanted = trees.digests(trees.source)
    trees.destroy("a/deep")
    with pytest.raises(Refused, match="missing there: a/deep") as caught:
        trees.service.restore_all(NAME, snapshot=None, yes=True)
    assert trees.read("b/file", trees.source) == "b"
    by_hand, away = caught.value.hint.removeprefix("Recover each: ").split("; or ")
    trees.run("sh", "-c", by_hand)
    assert trees.read("a/deep/file", trees.source) == "a/deep"
    trees.write("a/deep/file", "goes on")
    trees.update()
    trees.the_same()
    trees.write("a/deep/file", "a/deep")
    trees.update()
    trees.destroy("b")
    trees.run(*away.split("'")[1].split())
    assert trees.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    trees.the_same()
    assert trees.digests(trees.source)[1] == wanted[1]
    assert trees.read("b/file", trees.source) == "b"


def test_a_child_that_the_destination_lost_is_sent_whole(trees: Trees) -> None:
    """Broken off, destroyed there, and resynchronized; and behind the mirror's back."""
    trees.mirrored()
    trees.service.break_off(NAME)
    trees.destroy("a/deep", trees.place)
    trees.write("b/file", "meanwhile")
    trees.service.resync(NAME, yes=True)
    trees.the_same()
    trees.destroy("b", trees.place)
    trees.write("a/file", "one more")
    assert trees.update().status == "done"
    trees.the_same()
    said = [one.text for one in trees.service.history(NAME, limit=20).events]
    assert any("destination lost b: a full transfer is needed" in text for text in said), said


def test_restore_all_creates_a_lost_tree_again(trees: Trees) -> None:
    trees.mirrored()
    wanted = trees.digests(trees.source)
    for child in ("a/deep", "a", "b", "disk", ""):
        trees.destroy(child)
    with pytest.raises(MirrordError):
        trees.update()
    assert trees.service.restore_all(NAME, snapshot=None, yes=True).status == "done"
    assert trees.digests(trees.source) == wanted
    trees.write("b/file", "after it")
    trees.update()
    trees.the_same()


def test_an_encrypted_tree_goes_raw_and_comes_back_with_its_key(trees: Trees) -> None:
    """The root has the key and a child inherits it; another child has none."""
    key = f"/var/tmp/{trees.lab.name}.key"
    trees.guest.user("write_text", key, KEY)
    options = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}"]
    secret = f"{trees.source}/secret"
    trees.run("zfs", "create", *options, secret)
    trees.run("zfs", "create", f"{secret}/below")
    trees.write("secret/file", "one")
    trees.write("secret/below/file", "two")
    trees.mirrored()
    trees.write("secret/below/file", "three")
    trees.run("zfs", "unmount", secret)
    trees.run("zfs", "unload-key", "-r", secret)
    trees.write("b/file", "in the clear")
    trees.update()
    assert trees.read("b/file") == "in the clear"
    assert trees.update().status == "unchanged"
    words = ["zfs", "get", "-Hr", "-t", "filesystem", "-o", "value", "keystatus"]
    assert trees.run(*words, f"{trees.place}/secret").split() == ["unavailable", "unavailable"]
    [note] = [note for note in trees.status()["notes"] if "key" in note]
    assert f"{trees.place}/secret/below" in note
    trees.service.break_off(NAME)
    for one in ("secret", "secret/below"):  # each was received by itself: it has a key of its own
        trees.run("zfs", "load-key", "-L", f"file://{key}", f"{trees.place}/{one}")
        trees.run("zfs", "mount", f"{trees.place}/{one}")
    assert trees.read("secret/file") == "one"
    assert trees.read("secret/below/file") == "three"


@pytest.fixture
def delegated(zfs_guest: Guest) -> Iterator[tuple[Guest, RemoteDriver, RemoteDriver]]:
    """Both ends of a tree, as a user with the permissions of the guide."""
    with zfs_guest.datasets() as name, guest_agents(zfs_guest, user=USER) as others:
        home, backup = f"here/{name}/home", f"there/{name}/backup"
        for one in (home, f"{home}/a", f"{home}/a/deep"):
            zfs_guest.run("zfs", "create", one)
            zfs_guest.user("write_text", f"/{one}/file", one)
        zfs_guest.run(*allow_command(home, "source", USER).split())
        zfs_guest.run(*allow_command(backup, "destination", USER, failover=True).split())

        def driver(location: str) -> RemoteDriver:
            return RemoteDriver.of(Endpoint("zfs-tree", location, "there"), others)

        yield zfs_guest, driver(home), driver(backup)


def test_a_user_mirrors_a_tree_with_the_same_permissions(
    delegated: tuple[Guest, RemoteDriver, RemoteDriver],
) -> None:
    guest, source, destination = delegated
    home, backup = (one.location for one in (source, destination))
    destination.prepare(MIRROR)
    first = mirror(source, destination, None, "one")
    guest.user("write_text", f"/{home}/a/deep/file", "changed")
    guest.run("zfs", "create", f"{home}/new")
    guest.user("write_text", f"/{home}/new/file", "new")
    second = mirror(source, destination, first, "two")
    assert [each.guid for each in destination.snapshots()] == [first.guid, second.guid]
    source.delete_snapshot(first.guid)
    destination.delete_snapshot(first.guid)
    guest.run("sh", "-c", f"for d in $(zfs list -Hro name {backup}); do zfs mount $d; done")
    for one, text in (("a", f"{home}/a"), ("a/deep", "changed"), ("new", "new")):
        assert guest.user("read_text", f"/{backup}/{one}/file") == text
