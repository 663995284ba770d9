"""The programs of docs/hooks.md hold a database still: they are run as they stand there."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from tests.support.btrfs import filesystem, make_subvolume
from tests.support.unit import OWN, ROOT, environment

TEXT = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")


def program(folder: Path, name: str) -> Path:
    """One of the two programs, keeping its note in `folder` instead of /run."""
    found = re.search(rf"^`/usr/local/sbin/{name}`:\n\n```\w+\n(.*?)^```", TEXT, re.M | re.DOTALL)
    assert found
    path = folder / name
    path.write_text(
        found[1].replace("/run/", f"{folder}/").replace("/usr/bin/python3", sys.executable)
    )
    path.chmod(0o755)
    return path


def write(book: sqlite3.Connection, over: threading.Event, waits: list[float]) -> None:
    """A writer whose transactions last, and who notices how long it has to wait for the next."""
    while not over.is_set():
        began_s = time.monotonic()
        book.execute("BEGIN IMMEDIATE")
        waits.append(time.monotonic() - began_s)
        for number in range(20):
            book.execute("INSERT INTO entry VALUES (?, randomblob(5000))", (number,))
            time.sleep(0.001)
        book.execute("COMMIT")
        time.sleep(0.12)  # SQLite's locks are not fair: who waits looks every 0.1 s


def test_the_database_is_held_still_for_the_snapshot(tmp_path: Path) -> None:
    freeze, thaw = program(tmp_path, "freeze"), program(tmp_path, "thaw")
    with filesystem(size_mib=512) as disk, filesystem(size_mib=512) as backup:
        database = make_subvolume(disk / "home") / "orders.db"
        over, waits = threading.Event(), list[float]()
        with closing(
            sqlite3.connect(database, timeout=30, isolation_level=None, check_same_thread=False)
        ) as book:
            book.execute("CREATE TABLE entry (number INTEGER, text BLOB)")
            writer = threading.Thread(target=write, args=(book, over, waits))
            writer.start()
            try:
                _mirror(tmp_path, disk, backup, [freeze, thaw, database])
            finally:
                over.set()
                writer.join()
        assert not list(tmp_path.glob("frozen.*"))
        # No transaction was under way: the copy needs no recovery, and has whole ones only.
        assert not (backup / "home/current/orders.db-journal").exists()
        with closing(
            sqlite3.connect(f"file:{backup}/home/current/orders.db?immutable=1", uri=True)
        ) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT count(*) % 20 FROM entry").fetchone() == (0,)
        assert len(waits) > 3


def _mirror(home: Path, disk: Path, backup: Path, words: list[Path]) -> None:
    def run(*arguments: str) -> None:
        done = subprocess.run(
            [OWN, *arguments], env=environment(home), capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr

    freeze, thaw, database = words
    run("create", "home", f"btrfs:{disk}/home", f"btrfs:{backup}/home")
    definition = home / "etc/mirrors.d/home.toml"
    definition.write_text(
        definition.read_text() + "[site.primary.hooks]\n"
        f'before_snapshot = ["{freeze}", "{database}"]\n'
        f'after_snapshot = ["{thaw}", "{database}"]\n'
    )
    run("initialize", "home")
    for _ in range(3):
        time.sleep(0.1)
        run("update", "home")
