"""`mirrord verify` with real OpenZFS: what is equal is proven, what differs is named."""

from __future__ import annotations

from typing import Any

import pytest

from mirrord.core.errors import Refused, Unsupported
from mirrord.core.results import Result
from mirrord.core.verification import VerifyRequest
from mirrord.drivers.verification import verification_of
from tests.support.world import NAME
from tests.zfs.conftest import DISK_BYTES, Trees, Trouble
from tests.zfsvm.bridge import Bridged
from tests.zfsvm.pools import small_pool

pytestmark = pytest.mark.zfs

KIB, MIB = 1 << 10, 1 << 20
MARKER = "a marker that occurs only once, here"


def verify(world: Bridged, **options: Any) -> Result:
    return world.service.verify(NAME, **options)


def differences(result: Result) -> list[tuple[str, str, str, list[list[int]]]]:
    return [
        (one["path"], one["what"], one["end"], one["ranges"]) for one in result.data["differences"]
    ]


def shell(world: Bridged, words: str) -> str:
    return world.guest.run("sh", "-ec", words)


def marked(world: Bridged, path: str, size: int, at: int) -> None:
    """Random content, with the marker somewhere in it."""
    world.guest.user("write_random", path, size)
    shell(world, f"printf '{MARKER}' | dd of={path} bs=1 seek={at} conv=notrunc,fsync status=none")


def damage(world: Bridged, pool: str) -> None:
    """Overwrite the marker on the disk of a pool, which is not imported meanwhile."""
    file = f"/var/tmp/{pool}"
    world.run("zpool", "export", pool)
    shell(
        world,
        f"found=$(grep -abo '{MARKER}' {file} | cut -d: -f1); test -n \"$found\";"
        f"for at in $found; do printf xxx | dd of={file} bs=1 seek=$at conv=notrunc,fsync; done;"
        f"zpool import -o cachefile=none -d /var/tmp {pool}",
    )


def mounts(world: Trouble | Trees) -> list[str]:
    """This test's snapshots that any process of the machine sees mounted, and clones of them."""
    said = shell(world, "cat /proc/[0-9]*/mounts 2>/dev/null || true; zfs list -Ho origin")
    own = tuple(one.rpartition("/")[0] for one in (world.source, world.place))
    return [line for line in said.splitlines() if line.startswith(own) and "@" in line]


def test_an_equal_replica_is_proven_from_snapshots_that_nobody_sees_mounted(
    trouble: Trouble,
) -> None:
    trouble.mirrored()
    done = verify(trouble)
    assert done.status == "verified" and done.data["equal"] and not done.data["unproven"]
    assert done.data["read_bytes"]["source"] == done.data["read_bytes"]["destination"] > 0
    before = done.data["root"]
    trouble.change()
    trouble.update()
    done = verify(trouble, changed=True)
    assert done.data["mode"] == "changed" and done.data["equal"] and done.data["root"] != before
    read, seen = done.data["read_bytes"]["destination"], done.data["root"]
    # Neither needs to be mounted, and what was not read again is the same.
    for one in (trouble.source, trouble.place):
        trouble.run("zfs", "unmount", one)
    whole = verify(trouble)
    assert whole.data["mode"] == "full" and whole.data["equal"] and whole.data["root"] == seen
    assert read < whole.data["read_bytes"]["destination"]
    assert mounts(trouble) == []
    assert trouble.run("zfs", "get", "-H", "-o", "value", "mounted", trouble.place) == "no\n"
    with pytest.raises(Unsupported, match="cannot be repaired") as caught:
        verify(trouble, repair=True)
    assert "zpool scrub" in caught.value.hint


@pytest.mark.parametrize("checksum", ["off", "on"])
def test_a_damaged_block_is_named(trouble: Trouble, checksum: str) -> None:
    """Without checksums its content differs; with them it cannot be read."""
    options = ["-O", f"checksum={checksum}", "-O", "recordsize=128K"]
    with small_pool(trouble.guest, 256, *options) as pool:
        marked(trouble, f"/{trouble.source}/dir.file", 2 * MIB, MIB + 5)
        trouble.mirrored(f"{pool}/backup")
        done = verify(trouble)
        assert done.data["equal"] and done.data["pools"][1]["data_errors"] == 0
        damage(trouble, pool)
        done = verify(trouble)
        what = ("content", "") if checksum == "off" else ("unreadable", "destination")
        assert done.status == "different"
        assert differences(done) == [("dir.file", *what, [[MIB, 128 * KIB]])]
        assert done.data["pools"][1]["name"] == pool
        if checksum == "on":
            assert done.data["pools"][1]["data_errors"] >= 1
        [fault] = trouble.status()["faults"]
        assert fault["kind"] == "verify"
        trouble.service.close()


@pytest.mark.parametrize("checksum", ["off", "on"])
def test_a_tree_is_compared_dataset_by_dataset_and_a_volume_block_by_block(
    trees: Trees, checksum: str
) -> None:
    options = ["-O", f"checksum={checksum}"]
    with small_pool(trees.guest, 256, *options) as pool:
        trees.place = f"{pool}/backup"
        disk = f"/dev/zvol/{trees.source}/disk"
        at = 5 * MIB + 128 * KIB
        shell(
            trees,  # (holes before it would count as unreadable, too)
            f"head -c 512K /dev/urandom | dd of={disk} bs=128K seek={at // (128 * KIB) - 2}"
            f" conv=notrunc iflag=fullblock; printf '{MARKER}' | dd of={disk} bs=1 seek={at}"
            " conv=notrunc,fsync",
        )
        trees.mirrored()
        done = verify(trees)
        assert done.status == "verified" and done.data["root"].count("+") == 4, done.text
        assert done.data["blocks"] > DISK_BYTES // (128 * KIB)
        assert verify(trees, sample="30 %").data["equal"]
        damage(trees, pool)
        done = verify(trees)
        what = ("content", "") if checksum == "off" else ("unreadable", "destination")
        assert differences(done) == [("disk", *what, [[at, 128 * KIB]])], done.text
        assert mounts(trees) == []
        trees.service.close()


def test_a_dataset_that_one_end_lacks_is_a_difference(trees: Trees) -> None:
    trees.mirrored()
    trees.destroy("a/deep", trees.place)
    done = verify(trees)
    assert done.status == "different"
    assert differences(done) == [("a/deep", "missing", "", [])]


def test_without_its_key_nothing_is_proven_and_that_is_said(trouble: Trouble) -> None:
    secret = f"{trouble.source}.secret"
    shell(
        trouble,
        "head -c 32 /dev/urandom > /tmp/verify.key; zfs create -o encryption=on -o keyformat=raw "
        f"-o keylocation=file:///tmp/verify.key {secret}; seq 1 9000 > /{secret}/text",
    )
    trouble.source = secret
    trouble.mirrored()
    done = verify(trouble)
    assert done.status == "unproven" and not done.data["equal"] and not done.data["differences"]
    [one] = done.data["unproven"]
    assert one["end"] == "destination" and f"zfs load-key {trouble.place}" in one["why"]
    assert done.data["read_bytes"] == {"source": 0, "destination": 0}
    assert [one["name"] for one in done.data["pools"]] == ["here", "there"]
    assert trouble.status()["verified"] is None
    shell(trouble, f"zfs load-key -L file:///tmp/verify.key {trouble.place}")
    assert verify(trouble).data["equal"]


def test_the_last_scrub_belongs_to_the_result(trouble: Trouble) -> None:
    with small_pool(trouble.guest, 128) as pool:
        trouble.mirrored(f"{pool}/backup")
        now = int(trouble.run("date", "+%s"))
        assert "never scrubbed" in verify(trouble).text
        trouble.run("zpool", "scrub", "-w", pool)
        done = verify(trouble)
        there = done.data["pools"][1]
        assert (there["end"], there["name"], there["health"]) == ("destination", pool, "ONLINE")
        assert there["scrub_errors"] == there["data_errors"] == 0
        assert abs(there["scrubbed_at_s"] - now) < 600 and "scrub repaired" in done.text
        trouble.service.close()


def test_a_verification_that_is_killed_leaves_nothing_in_the_pool(trouble: Trouble) -> None:
    trouble.mirrored()
    driver = trouble.lab.driver(trouble.source)
    spare = driver.take_snapshot("spare")
    slow = VerifyRequest(spare.guid, rate=1)
    assert not verification_of(driver).verify_step(slow, 0.5).done
    assert mounts(trouble) == []
    said = trouble.guest.fails("zfs", "destroy", f"{trouble.source}@{spare.name}")
    assert "busy" in said or "held" in said, said
    with pytest.raises(Refused, match="is being verified"):
        driver.delete_snapshot(spare.guid)
    trouble.lab.others.kill()
    assert verify(trouble).data["equal"]
    driver.delete_snapshot(spare.guid)
    assert mounts(trouble) == []
    trouble.change()
    trouble.goes_on()
