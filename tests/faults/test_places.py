"""Places at the other end that cannot be used: said at once, in a line that names that end."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support import btrfs
from tests.support.remote import MIB, Remote, content, one_error
from tests.support.sshd import make_key


def forced(site: Remote, *arguments: str) -> None:
    """Our key may do nothing but run the agent with these arguments."""
    command = " ".join([*site.command, *arguments])
    site.sshd.authorize(f'command="{command}",restrict')


def create(site: Remote, destination: str) -> tuple[str, str]:
    """What `create` says to a destination that cannot be."""
    source = site.folder / "v"
    if not source.exists():
        site.volume(data_bytes=MIB)
    done = site.cli("create", "home", f"block:{source}", destination)
    assert done.returncode in (1, 2), done.stdout
    return one_error(done.stderr)


def test_outside_of_the_subtree(site: Remote) -> None:
    allowed = site.folder / "allowed"
    allowed.mkdir()
    (allowed / "out").symlink_to(site.folder)
    forced(site, "--allow", f"receive={allowed}")
    for path, why in [
        (site.folder / "copy", f"it may use: receive={allowed}"),
        (allowed / "out/copy", "may not use that path"),
        (f"{allowed}/../copy", "'..'"),
        (allowed / ".mirrord/copy", ".mirrord"),
        ("/etc", "may not use that path"),
    ]:
        error, hint = create(site, f"block://dr{path}")
        assert why in error and "dr" in error, error
        assert any(one in hint for one in ("--allow", "without '..'", "path of the volume")), hint
        assert not (site.folder / "copy").exists()
    done = site.cli("create", "home", f"block:{site.folder}/v", f"block://dr{allowed}/copy")
    assert done.returncode == 0, done.stderr
    assert site.cli("initialize", "home").returncode == 0
    assert content(allowed / "copy") == content(site.folder / "v")
    # A verb that was not given: nothing may be read there.
    pulled = f"block:{site.folder}/pulled"
    assert site.cli("create", "back", f"block://dr{allowed}/copy", pulled).returncode == 0
    done = site.cli("initialize", "back")
    assert done.returncode == 1
    error, hint = one_error(done.stderr)
    assert "this peer may not" in error and "dr" in error and "--allow send=" in hint


def test_a_link_that_is_put_there_later_does_not_lead_out(site: Remote) -> None:
    allowed, outside = site.folder / "allowed", site.folder / "outside"
    allowed.mkdir()
    forced(site, "--allow", f"receive={allowed}")
    source = site.volume(data_bytes=MIB)
    site.create(f"block:{source}", f"block://dr{allowed}/copy")
    site.service.initialize("home")
    site.close_links()
    (allowed / "copy").rename(outside)
    (allowed / "copy").symlink_to(outside)
    site.change(source, MIB, seed=7)
    before = content(outside)
    done = site.cli("update", "home")
    error, _hint = one_error(done.stderr)
    assert done.returncode == 1 and "may not use that path" in error
    assert content(outside) == before


def test_another_key_than_the_one_that_is_let_in(site: Remote) -> None:
    make_key(site.folder / "other")
    site.set_host(key=str(site.folder / "other"))
    error, hint = create(site, f"block://dr{site.folder}/copy")
    assert error.startswith("error: dr: the login as") and "authorized_keys" in hint


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_no_btrfs_there(site: Remote, kind: str) -> None:
    place = site.folder / "place"
    place.mkdir()
    what = ["none"]
    if kind == "ext4":
        image = site.folder / "image"
        with image.open("wb") as file:
            file.truncate(32 * MIB)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        what = ["-o", "loop", str(image)]
    subprocess.run(["mount", "-t", kind, *what, place], check=True)
    try:
        with btrfs.filesystem() as one:
            home = btrfs.make_subvolume(one / "home")
            done = site.cli("create", "home", f"btrfs:{home}", f"btrfs://dr{place}/copy")
            assert done.returncode == 1
            error, hint = one_error(done.stderr)
            assert error.startswith(f"error: btrfs://dr{place}") and "btrfs" in error[20:]
            assert kind in error or kind in hint or "mkfs.btrfs" in hint, (error, hint)
    finally:
        btrfs.unmount(place)


def test_a_host_without_btrfs_programs_or_rights(site: Remote) -> None:
    """The agent runs, but as somebody who may not do what btrfs needs."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    os.chmod(site.folder, 0o755)
    site.there_home.mkdir()
    os.chown(site.there_home, 65534, 65534)
    agent = (*site.prefix, *nobody, *site.command[len(site.prefix) :])
    site.set_host(command=agent)
    with btrfs.filesystem() as one, btrfs.filesystem() as two:
        home = btrfs.make_subvolume(one / "home")
        done = site.cli("create", "home", f"btrfs:{home}", f"btrfs://dr{two}/copy")
        if done.returncode == 0:
            done = site.cli("initialize", "home")
        assert done.returncode == 1
        error, hint = one_error(done.stderr)
        assert "dr" in error, (error, hint)


def test_a_source_that_is_not_there(site: Remote) -> None:
    done = site.cli("create", "home", f"block://dr{site.folder}/no", f"block:{site.folder}/copy")
    assert done.returncode == 1
    error, _hint = one_error(done.stderr)
    assert error.startswith(f"error: block://dr{site.folder}/no: there is no volume at the source")


def test_a_destination_that_went_away(site: Remote) -> None:
    source, copy = site.volume(data_bytes=MIB), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.service.initialize("home")
    copy.rename(site.folder / "elsewhere")
    done = site.cli("update", "home")
    error, _hint = one_error(done.stderr)
    assert error.startswith(f"error: block://dr{copy}: the destination is missing")
    (site.folder / "elsewhere").rename(copy)
    assert site.cli("update", "home").returncode == 0


@pytest.mark.parametrize("pulled", [False, True], ids=["receive", "send"])
def test_a_reverse_without_the_rights_for_it_is_refused_before_it_begins(
    site: Remote, *, pulled: bool
) -> None:
    """The host of either end permits only what the mirror needs in its present direction."""
    allowed = site.folder / "allowed"
    allowed.mkdir()
    forced(site, "--allow", f"{'send' if pulled else 'receive'}={allowed}")
    source = site.volume("allowed/v" if pulled else "v", data_bytes=MIB)
    copy = site.folder / "copy" if pulled else allowed / "copy"
    there, missing = ("source", "receive") if pulled else ("destination", "send")
    ends = (f"block://dr{source}", f"block:{copy}") if pulled else (
        f"block:{source}", f"block://dr{copy}",
    )  # fmt: skip
    site.create(*ends)
    site.service.initialize("home")
    site.change(source, MIB, seed=7)
    before, shown = site.status(), content(copy)
    done = site.cli("reverse", "home", "--yes")
    error, hint = one_error(done.stderr)
    assert done.returncode == 1
    assert f"the {there} cannot become the {'destination' if pulled else 'source'}" in error
    assert f"it may use: {'send' if pulled else 'receive'}={allowed}" in error
    assert f"--allow {missing}=" in hint
    assert site.status()["source"] == before["source"]
    assert content(copy) == shown, "not even the update before the switch was made"
    site.service.update("home")
    assert content(copy) == content(source)


def test_a_reverse_of_an_append_only_copy_is_refused_before_it_begins(site: Remote) -> None:
    """What was committed there stays: this host may not make it the source."""
    forced(site, "--append-only")
    with btrfs.folders() as (here, there):
        source, copy = btrfs.make_subvolume(here / "home"), there / "copy"
        (source / "file").write_text("first")
        site.create(f"btrfs:{source}", f"btrfs://dr{copy}")
        site.service.initialize("home")
        (source / "file").write_text("second")
        done = site.cli("reverse", "home", "--yes")
        error, hint = one_error(done.stderr)
        assert done.returncode == 1
        assert "the destination cannot become the source: this host has append-only access" in error
        assert "Run the command on that host." in hint
        assert (copy / "current/file").read_text() == "first", "it was not even updated before"
        site.service.update("home")
        assert (copy / "current/file").read_text() == "second"


def test_a_full_append_only_copy_is_too_small(site: Remote) -> None:
    """Nothing is pruned there, so what would be pruned elsewhere is not asked for."""
    forced(site, "--append-only")
    with btrfs.folders() as (here, _), btrfs.filesystem(size_mib=256) as there:
        source, copy = btrfs.make_subvolume(here / "home"), there / "copy"
        site.service.create("home", f"btrfs:{source}", f"btrfs://dr{copy}", keep_destination=1)
        for number in range(3):
            (source / "file").write_text(f"{number}")
            site.service.update("home") if number else site.service.initialize("home")
        with (there / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, os.statvfs(there).f_bavail * 4096 - 8 * MIB)
        subprocess.run(["sync", "-f", there], check=True)
        (source / "file").write_bytes(os.urandom(32 * MIB))
        done = site.cli("update", "home")
        error, hint = one_error(done.stderr)
        assert done.returncode == 1
        assert "the destination is too small for this transfer" in error and "Free space" in hint
