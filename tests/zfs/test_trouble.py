"""What goes wrong with OpenZFS, on real pools: each time a person learns what, where and what to
do, nothing is lost, and the mirror goes on when it is mended.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME
from tests.zfs.conftest import Trouble
from tests.zfsvm.pools import sick_pool, small_pool

pytestmark = pytest.mark.zfs


def said(work: Callable[[], object]) -> str:
    """What a person reads when it fails."""
    with pytest.raises(MirrordError) as caught:
        work()
    text = f"{caught.value}\n{caught.value.hint}"
    assert "unexpected" not in text and "Traceback" not in text, text
    assert caught.value.hint, text
    return text


def test_a_suspended_pool_is_named_and_goes_on_when_it_is_back(trouble: Trouble) -> None:
    with sick_pool(trouble.lab.guest) as pool:
        trouble.mirrored(f"{pool.name}/backup")
        trouble.change()
        pool.fail()
        for _ in range(2):
            text = said(trouble.update)
            assert f"pool '{pool.name}' is suspended" in text and "zpool clear" in text
        assert not trouble.status()["healthy"]
        pool.heal()
        trouble.goes_on()
        trouble.service.close()


def test_a_full_pool_is_told_with_figures_and_the_view_stays(trouble: Trouble) -> None:
    with small_pool(trouble.lab.guest, 128) as pool:
        trouble.mirrored(f"{pool}/backup")
        before = trouble.shown()
        trouble.lab.guest.user("write_random", f"/{trouble.source}/large", 150 << 20)
        text = said(trouble.update)
        assert "space" in text or "free" in text, text
        assert trouble.shown() == before
        trouble.run("rm", f"/{trouble.source}/large")
        trouble.goes_on()
        trouble.service.close()


def test_a_quota_is_named(trouble: Trouble) -> None:
    trouble.mirrored()
    parent = trouble.place.rpartition("/")[0]
    before = trouble.shown()
    trouble.run("zfs", "set", "quota=20M", parent)
    trouble.lab.guest.user("write_random", f"/{trouble.source}/large", 40 << 20)
    text = said(trouble.update)
    assert "quota" in text or "free" in text, text
    assert trouble.shown() == before
    trouble.run("zfs", "set", "quota=none", parent)
    trouble.goes_on()


def test_a_file_that_is_open_in_the_view_hinders_no_update(trouble: Trouble) -> None:
    trouble.mirrored()
    trouble.change()
    trouble.lab.guest.user("hold_open", f"/{trouble.place}/big")
    try:
        trouble.goes_on()
    finally:
        trouble.lab.guest.user("let_go")


def test_a_busy_destination_is_named_before_anything_is_lost(trouble: Trouble) -> None:
    """Going back needs the dataset's mountpoint, in which somebody is."""
    trouble.mirrored()
    trouble.service.break_off(NAME)
    trouble.lab.change(trouble.lab.destination(), 5)
    trouble.change()
    losing = trouble.shown()
    trouble.lab.guest.user("hold_open", f"/{trouble.place}")
    try:
        text = said(lambda: trouble.service.resync(NAME, yes=True))
        assert "in use" in text or "busy" in text, text
        assert "fuser" in text, text
    finally:
        trouble.lab.guest.user("let_go")
    assert losing in (trouble.shown(), trouble.lab.content(trouble.lab.destination()))
    trouble.service.resync(NAME, yes=True)
    assert trouble.shown() == trouble.source_content()


def test_a_snapshot_that_somebody_else_holds_is_not_taken_from_them(trouble: Trouble) -> None:
    trouble.mirrored()
    first = trouble.lab.source().snapshots()[0]
    full = f"{trouble.source}@{first.name}"
    trouble.run("zfs", "hold", "theirs", full)
    trouble.change()
    trouble.goes_on()
    try:
        text = said(lambda: delete_by_force(trouble.lab.source(), first.guid))
        assert "theirs" in text and "zfs release" in text, text
        assert "theirs" in trouble.run("zfs", "holds", "-H", full)
    finally:
        trouble.run("zfs", "release", "theirs", full)


def test_a_source_that_was_made_anew_under_its_name_is_not_taken_for_the_old_one(
    trouble: Trouble,
) -> None:
    trouble.mirrored()
    before = trouble.shown()
    trouble.lab.guest.user("clean", trouble.source)
    trouble.run("zfs", "create", trouble.source)
    trouble.lab.guest.user("fill", f"/{trouble.source}", 77)
    text = said(trouble.update)
    assert "in common" in text or "does not exist" in text or "another" in text, text
    assert trouble.shown() == before, "nothing was sent silently"


def test_a_source_that_was_renamed_is_missed_and_found_again(trouble: Trouble) -> None:
    trouble.mirrored()
    trouble.run("zfs", "rename", trouble.source, f"{trouble.source}-other")
    text = said(trouble.update)
    assert "no volume at the source" in text or "not there" in text, text
    trouble.run("zfs", "rename", f"{trouble.source}-other", trouble.source)
    trouble.change()
    trouble.goes_on()


KEY = "0123456789abcdef0123456789abcdef"


def test_an_encrypted_source_goes_raw_and_its_key_is_needed_at_no_end(trouble: Trouble) -> None:
    """The destination never sees the key: its view cannot be read there, and that is said."""
    encrypted = f"{trouble.source}-secret"
    key = f"/var/tmp/{trouble.lab.name}.key"
    trouble.lab.guest.user("write_text", key, KEY)
    options = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}"]
    trouble.run("zfs", "create", *options, encrypted)
    trouble.lab.guest.user("write_text", f"/{encrypted}/file", "a secret")
    trouble.source = encrypted
    trouble.mirrored()
    trouble.lab.guest.user("write_text", f"/{encrypted}/file", "another secret")
    trouble.run("zfs", "unmount", encrypted)
    trouble.run("zfs", "unload-key", encrypted)
    trouble.update()
    facts = trouble.lab.destination().facts()
    assert facts.role is Role.MIRROR and facts.view == ""
    assert any("key" in note for note in facts.notes), facts.notes
    keystatus = trouble.run("zfs", "get", "-Ho", "value", "keystatus", trouble.place)
    assert keystatus.strip() == "unavailable"
    trouble.service.break_off(NAME)
    assert trouble.status()["state"] == "broken-off"
    trouble.run("zfs", "load-key", "-L", f"file://{key}", trouble.place)
    trouble.run("zfs", "mount", trouble.place)
    assert trouble.lab.guest.user("read_text", f"/{trouble.place}/file") == "another secret"


def test_a_pool_without_the_streams_features_is_named_with_them(trouble: Trouble) -> None:
    """Blocks of 1 MiB, to a pool that knows no large blocks."""
    with small_pool(trouble.lab.guest, 256, "-d") as pool:
        trouble.run("zfs", "set", "recordsize=1M", trouble.source)
        trouble.lab.guest.user("write_random", f"/{trouble.source}/large", 8 << 20)
        place = f"{pool}/backup"
        trouble.service.create(NAME, f"zfs://there/{trouble.source}", f"zfs://there/{place}")
        text = said(lambda: trouble.service.initialize(NAME))
        assert ("feature" in text and "zpool upgrade" in text) or "zpool set" in text, text
        for feature in ("large_blocks", "extensible_dataset", "lz4_compress", "embedded_data"):
            trouble.run("zpool", "set", f"feature@{feature}=enabled", pool)
        trouble.run("zpool", "upgrade", pool)
        trouble.service.initialize(NAME)
        trouble.place = place
        trouble.goes_on()
        trouble.service.close()


def test_a_mountpoint_that_is_in_use_is_not_mounted_over(trouble: Trouble) -> None:
    """Somebody's files are where the destination would be mounted."""
    place = trouble.lab.destination().location
    trouble.lab.guest.user("write_text", f"/{place}/somebodys", "data")
    trouble.mirrored()
    assert trouble.lab.guest.user("read_text", f"/{place}/somebodys") == "data"
    facts = trouble.lab.destination().facts()
    assert facts.view != f"/{place}"
    assert facts.view or any("mount" in note for note in facts.notes), facts
    trouble.change()
    trouble.update()
    assert trouble.status()["healthy"]


def test_snapshots_that_vanish_between_listing_and_sending(trouble: Trouble) -> None:
    trouble.mirrored()
    source = trouble.lab.source()
    base = source.snapshots()[0]
    trouble.change()
    newer = source.take_snapshot("newer")
    for gone in (newer, base):
        trouble.lab.guest.user("destroy_snapshot", f"{trouble.source}@{gone.name}")

        def send() -> None:
            with source.send(base.guid, newer.guid) as stream:
                while stream.read():
                    pass

        text = said(send)
        assert "does not exist" in text and "newer" in text, text
    trouble.goes_on()


def test_a_base_that_somebody_destroyed_at_the_source_is_no_reason_to_send_all(
    trouble: Trouble,
) -> None:
    """Its bookmark is left: an incremental goes on from that."""
    trouble.mirrored()
    base = trouble.lab.source().snapshots()[0]
    trouble.lab.guest.user("destroy_snapshot", f"{trouble.source}@{base.name}")
    trouble.change()
    trouble.goes_on()
    row = trouble.service.history(NAME, limit=1).transfers[0]
    assert row.base and row.stream_bytes < 4 << 20


def test_a_source_that_another_mirror_took_back_is_said_before_a_snapshot_is_taken(
    trouble: Trouble,
) -> None:
    trouble.mirrored()
    place = f"zfs://there/{trouble.place}-other"
    trouble.service.create("other", f"zfs://there/{trouble.source}", place)
    trouble.change(1)
    trouble.service.initialize("other")
    trouble.change(2)
    trouble.service.update("other")
    trouble.service.restore_all(NAME, snapshot=None, yes=True)
    before = trouble.run("zfs", "list", "-Ht", "snapshot", "-o", "name", trouble.source)
    text = said(lambda: trouble.service.update("other"))
    assert "was rolled back to before the base" in text, text
    assert "'mirrord break other'" in text and "'mirrord delete other'" in text, text
    assert trouble.run("zfs", "list", "-Ht", "snapshot", "-o", "name", trouble.source) == before
    trouble.goes_on()
