"""Mistakes of an administrator, and damaged records: what the messages say, and what they leave."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from mirrord.core.errors import IoFailed
from mirrord.core.sealed import unsealed
from mirrord.drivers.image.driver import ImageDriver
from mirrord.system import native
from tests.live.command import Mirror, qemu_io
from tests.live.lab import wait_until
from tests.support.ports import free_port


def test_a_command_that_live_mirrors_do_not_have_is_no_problem_of_the_mirror(
    mirror: Mirror,
) -> None:
    mirror.initialize("--policy", "sync")
    for words in (("takeover", "db"), ("update", "db"), ("prune", "db")):
        assert "is for mirrors by snapshots" in mirror.home.refused(*words)
    assert "problem" not in mirror.home.run("status", "db")


def test_a_lost_definition_is_written_again_by_hand(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    definition = mirror.home.folder / "etc/mirrors.d/db.toml"
    mirror_id = str(mirror.home.status()["id"])
    definition.unlink()
    for words in (("create", "db", *mirror.ends), ("adopt", mirror.ends[0])):
        said = mirror.home.run(*words, status=1)
        assert "hint: If its definition was lost, write it by hand" in said
        assert f'id = "{mirror_id}"' in said
    sites = zip(("primary", "secondary"), mirror.ends, strict=True)
    text = "".join(f'[site.{site}]\nendpoint = "{end}"\n' for site, end in sites)
    definition.write_text(f'id = "{mirror_id}"\npolicy = "sync"\n{text}')
    assert mirror.home.is_in_sync()
    mirror.home.run("resync", "db")


def test_a_wrong_window_or_socket(mirror: Mirror) -> None:
    words = ("create", "db", *mirror.ends, "--policy", "semi-sync", "--window", "16MB5")
    assert "'16MB5' is neither a size nor a duration" in mirror.home.run(*words, status=2)
    mirror.initialize("--policy", "sync")
    said = mirror.home.refused("serve", "db", "--socket", "/tmp/" + "x" * 120)
    assert "the path of the socket is too long" in said


@pytest.mark.parametrize("damaged", [False, True])
def test_the_mode_can_be_set_without_the_records_of_the_destination(
    mirror: Mirror, damaged: bool
) -> None:
    mirror.initialize("--policy", "sync")
    mirror.destination.kill()
    if damaged:
        (mirror.destination.store / "end.json").write_text("{")
    else:
        shutil.rmtree(mirror.destination.store)
    assert "The mode of 'db' is semi-sync" in mirror.home.run("mode", "db", "semi-sync")
    assert mirror.source.status()["mode"] == "semi-sync"


@pytest.mark.parametrize("damage", ['{"name": "d', "[]", '{"served": [], "allowed": [], "x": 1}'])
def test_a_malformed_record_of_an_end_is_named_and_can_be_deleted(
    mirror: Mirror, damage: str
) -> None:
    mirror.initialize("--policy", "sync")
    mirror.source.kill()
    record = mirror.source.store / "end.json"
    record.write_text(damage)
    said = mirror.home.refused("resync", "db")
    assert f"{record}: the record of this end is malformed" in said
    assert f"{record}: the record of this end is malformed" in mirror.home.run("status", "db")
    assert f"{record}: the record of this end is malformed" in mirror.home.refused("serve", "db")
    mirror.home.run("break", "db")
    mirror.home.run("delete", "db", "--yes")
    assert not record.exists()


@pytest.mark.parametrize(("key", "value"), [("served", [1]), ("name", 2), ("encrypted", "yes")])
def test_a_value_of_another_type_in_the_record_of_an_end_is_named(
    mirror: Mirror, key: str, value: object
) -> None:
    mirror.initialize("--policy", "sync")
    record = mirror.source.store / "end.json"
    record.write_text(json.dumps({**unsealed(record.read_text()), key: value}))
    said = mirror.home.refused("serve", "db")
    assert f"{record}: the record of this end is malformed: {key} is" in said


def test_a_process_that_is_killed_at_its_start_is_noticed_with_its_last_words(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.initialize("--policy", "sync")
    mirror.source.kill()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho first >&2; echo last >&2; kill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(native, "live_program", lambda: str(program))
    began_s = time.monotonic()
    with pytest.raises(IoFailed, match="did not start: it ended: first / last") as caught:
        ImageDriver.at(str(mirror.source.path)).live_start("", "")
    assert time.monotonic() - began_s < 30
    assert str(mirror.source.store / "log") in caught.value.hint


def test_a_port_that_another_program_has_is_replaced(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    record = mirror.source.store / "end.json"

    def port() -> int:
        return int(json.loads(record.read_text())["link"].rpartition(":")[2])

    mirror.source.kill()
    with closing(socket.create_server(("127.0.0.1", port()))):
        said = mirror.home.run("serve", "db", status=1)
        assert "is in use by another program" in said and "set 'link_address' of that site" in said
        mirror.home.run("resync", "db")
    mirror.home.run("reverse", "db", "--yes")
    # The definition says one; the process has it once it is started again.
    file, given = mirror.home.folder / "etc/mirrors.d/db.toml", free_port()
    line = f'endpoint = "{mirror.ends[0]}"'
    file.write_text(file.read_text().replace(line, f'{line}\nlink_address = "127.0.0.1:{given}"'))
    mirror.source.kill()
    mirror.home.run("resync", "db")
    assert port() == given
    mirror.home.run("reverse", "db", "--yes")


def test_damaged_tracking_is_named_with_what_to_do(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    mirror.source.kill()
    tracking = mirror.source.store / "tracking"
    with tracking.open("r+b") as file:
        file.write(bytes(8192))
    said = mirror.home.run("resync", "db", status=1)
    assert "the records of this end are damaged" in said
    assert "'mirrord break db' makes the other end the primary" in said
    mirror.home.run("break", "db")


def test_a_truncated_image_is_repaired_as_the_hint_says(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    mirror.home.run("serve", "db")
    qemu_io(mirror.home.uri(), "write -P 1 0 8M")
    mirror.destination.kill()
    size = mirror.destination.path.stat().st_size
    os.truncate(mirror.destination.path, size // 2)
    said = mirror.home.run("resync", "db", status=1)
    assert "restore its size" in said and "'mirrord verify db --repair'" in said
    os.truncate(mirror.destination.path, size)
    mirror.home.run("resync", "db")
    mirror.home.run("verify", "db", "--repair")
    wait_until(mirror.home.is_in_sync, "sync")
    mirror.assert_equal()


def test_an_end_that_was_replaced_by_one_of_another_mirror_is_refused(mirror: Mirror) -> None:
    """An older copy of it, of the mirror that was deleted before this one was created."""
    mirror.initialize()
    home, end = mirror.home, mirror.destination
    home.run("break", "db")
    end.kill()
    folder, older = end.path.parent, end.path.parent.with_name("older")
    subprocess.run(["cp", "-a", folder, older], check=True)
    home.run("delete", "db", "--yes")
    end.path.unlink()
    mirror.initialize()
    end.kill()
    folder.rename(folder.with_name("newest"))
    older.rename(folder)
    for words in (["resync", "db", "--yes"], ["reverse", "db", "--yes"], ["break", "db"]):
        said = home.refused(*words)
        assert f"{end.path}: the records beside the image are those of another mirror" in said
    assert "it has the records of another mirror" in home.run("status", "db")
    record = (end.store / "end.json").read_bytes()
    home.run("mode", "db", "semi-sync")
    home.run("mode", "db", "sync")
    assert (end.store / "end.json").read_bytes() == record
    home.run("serve", "db")
    assert end.pid is None, "the source is served"
    folder.rename(older)
    folder.with_name("newest").rename(folder)
    home.run("resync", "db")
    mirror.assert_equal()


def test_out_of_sync_by_the_mode_the_hint_names_the_mode(mirror: Mirror) -> None:
    mirror.initialize("--policy", "async")
    for words in (("reverse", "db", "--yes"), ("verify", "db")):
        said = mirror.home.run(*words, status=1)
        assert "out of sync (the mode is async)" in said
        assert "hint: Run 'mirrord mode db sync', and wait until " in said
    mirror.home.run("mode", "db", "sync")
    wait_until(mirror.home.is_in_sync, "sync")
    mirror.home.run("break", "db")
    said = mirror.home.run("verify", "db", status=1)
    assert "the mirror is broken off" in said and "'mirrord resync db' or 'mirrord reverse" in said
    mirror.home.run("reverse", "db", "--yes")
