"""What happens to the other host: killed agents, restarts, full disks, other users."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.config.definitions import Definitions
from tests.support import btrfs
from tests.support.remote import MIB, Remote, content, one_error
from tests.support.service import PATIENCE_S


def test_an_agent_that_is_killed_is_started_again(site: Remote) -> None:
    source, copy, process = site.under_way()
    site.kill_agents()
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert site.proxy.connections == 3
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < 49 * MIB + 24 * MIB


def test_a_host_that_restarts_is_waited_for(site: Remote) -> None:
    source, copy, process = site.under_way()
    site.sshd.stop()
    site.kill_agents()
    site.proxy.cut()
    site.proxy.refuse()
    time.sleep(2)
    assert process.poll() is None
    site.sshd.start()
    site.proxy.go_on()
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert content(copy) == content(source)


def test_a_host_that_does_not_come_back_is_given_up(
    site: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrord.core.errors import MirrordError
    from mirrord.engine import transfer

    monkeypatch.setattr(transfer, "_PATIENCE_S", 3.0)
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.proxy.cut_at(20 * MIB)
    site.proxy.refuse()
    began_s = time.monotonic()
    with pytest.raises(MirrordError) as caught:
        site.service.initialize("home")
    assert time.monotonic() - began_s < 45
    assert "dr" in caught.value.where and caught.value.hint and caught.value.retryable
    assert any("dr" in problem for problem in site.status()["problems"])
    site.proxy.go_on()
    before = site.proxy.passed["up"]
    done = site.service.initialize("home")
    assert done.data["resumed_bytes"] > 0
    assert site.proxy.passed["up"] - before < 49 * MIB - done.data["resumed_bytes"] + MIB
    assert content(copy) == content(source)


@contextmanager
def tmpfs(folder: Path, size_mib: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", folder], check=True)
    try:
        yield folder
    finally:
        btrfs.unmount(folder)


def fill(site: Remote, ballast: Path) -> None:
    """Fill the file system of that file, while nothing arrives there."""
    site.proxy.stall()
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
    site.proxy.go_on()


def test_a_full_disk_there_is_named_and_the_transfer_goes_on_after_it(site: Remote) -> None:
    """Full from the first, and full in the middle, because somebody else fills it."""
    source = site.volume()
    with tmpfs(site.folder / "small", 100) as small:
        ballast, copy = small / "ballast", small / "copy"
        ballast.write_bytes(bytes(70 * MIB))
        site.create(f"block:{source}", f"block://dr{copy}")
        done = site.cli("initialize", "home")
        error, _hint = one_error(done.stderr)
        assert done.returncode == 1
        assert error.startswith(f"error: block://dr{copy}: the destination is too small")
        ballast.unlink()
        process = site.start("initialize", "home")
        site.await_passed(20 * MIB)
        fill(site, ballast)
        _out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        error, hint = one_error(errors)
        assert error.startswith("error: ") and "dr" in error and "no space" in error, error
        assert "dr" in hint or "pace" in hint
        ballast.unlink(missing_ok=True)
        done = site.cli("initialize", "home")
        assert done.returncode == 0, done.stderr
        assert content(copy) == content(source)
        site.close_links()


def test_a_full_btrfs_there(site: Remote) -> None:
    with btrfs.filesystem(size_mib=256) as one, btrfs.filesystem(size_mib=200) as two:
        home = btrfs.make_subvolume(one / "home")
        (home / "big").write_bytes(os.urandom(60 * MIB))
        site.create(f"btrfs:{home}", f"btrfs://dr{two}/copy")
        process = site.start("initialize", "home")
        site.await_passed(8 * MIB)
        fill(site, two / "ballast")
        _out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        error, hint = one_error(errors)
        assert "dr" in error and "space" in error.lower(), error
        assert hint
        (two / "ballast").unlink()
        subprocess.run(["btrfs", "filesystem", "sync", two], check=True)
        done = site.cli("initialize", "home")
        assert done.returncode == 0, done.stderr
        assert btrfs.digest(two / "copy/current") == btrfs.digest(home)
        site.close_links()


def test_two_hosts_at_one_destination(site: Remote) -> None:
    """The second is told who is there; afterwards that it is another mirror's. Nothing is mixed."""
    source, copy, process = site.under_way(8 * MIB)
    site.proxy.slow_at(0, MIB / 2)
    other_home = site.folder / "other"
    site.set_host(home=other_home)
    foreign = site.volume("foreign")
    words = ["create", "home", f"block:{foreign}", f"block://dr{copy}"]
    second = site.cli(*words, home=other_home)
    assert second.returncode == 1
    error, _hint = one_error(second.stderr)
    assert f"block://dr{copy}" in error
    # Created before there was anything to see, it is refused when it begins.
    spare = site.folder / "spare"
    made = site.cli("create", "home", f"block:{foreign}", f"block://dr{spare}", home=other_home)
    assert made.returncode == 0, made.stderr
    file = Definitions(other_home / "etc/mirrors.d").folder / "home.toml"
    file.write_text(file.read_text().replace(str(spare), str(copy)))
    second = site.cli("initialize", "home", home=other_home)
    assert second.returncode == 1 and process.poll() is None
    error, _hint = one_error(second.stderr)
    assert "dr" in error and "in use by process" in error and "initialize home" in error, error
    site.proxy.go_on()
    _out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    second = site.cli("initialize", "home", home=other_home)
    error, _hint = one_error(second.stderr)
    assert second.returncode == 1 and f"block://dr{copy}" in error and "another mirror" in error
    assert content(copy) == content(source)
