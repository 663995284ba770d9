"""What zfs and zpool complain of, as a real machine printed it, and what a person is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.errors import Busy, MirrordError, PermissionMissing, Unsupported
from mirrord.drivers.zfs.commands import failures
from mirrord.drivers.zfs.commands.error_messages import RULES
from mirrord.drivers.zfs.commands.permissions import granted, needed_by

MESSAGES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("messages.json").read_text(encoding="utf-8")
)

ALLOWED = """\
---- Permissions on here/home/fs -----------------------------------------
Permission sets:
\t@copy send,hold
Local permissions:
\tuser tester @copy
\tgroup staff release
Descendent permissions:
\tuser tester destroy
---- Permissions on here/home --------------------------------------------
Local permissions:
\tuser tester rollback
Local+Descendent permissions:
\tuser tester snapshot
\tuser other create
\teveryone diff
"""


def translated(message: dict[str, Any]) -> MirrordError:
    return failures.translate("zfs:X", message["arguments"], message["stderr"], user="tester")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["label"]))
def test_a_zfs_message_becomes_the_error_of_the_table(message: dict[str, Any]) -> None:
    error = translated(message)
    assert (error.code, error.what) == (message["error"], message["what"])
    assert error.where == "zfs:X" and error.why
    for text in (error.what, error.why, error.hint):
        assert text.isprintable() and "{" not in text and "'-F'" not in text
    assert not error.what.endswith(".")
    assert "usage" not in error.why and "must specify -F" not in error.why


def test_every_message_in_the_table_was_recorded_or_is_in_the_sources_of_openzfs() -> None:
    heard = {translated(message).hint.split(" ")[0] for message in MESSAGES}
    assert len(heard) > 20
    assert len(RULES) > 40


@pytest.mark.parametrize(
    "said",
    [
        "The ZFS modules are not loaded.\nTry running 'modprobe zfs' as root to load them.\n",
        "The ZFS modules cannot be auto-loaded.\nTry running 'modprobe zfs' as root to manually "
        "load them.\n",
        "/dev/zfs and /proc/self/mounts are required.\nTry running 'udevadm trigger' and 'mount -t "
        "proc proc /proc' as root.\n",
        "Failed to initialize the libzfs library.\n",
    ],
)
def test_a_module_that_is_not_loaded_is_named(said: str) -> None:
    error = failures.translate("zfs:X", ["zfs", "list"], said)
    assert isinstance(error, Unsupported)
    assert error.what == "the ZFS kernel module is not loaded" and "modprobe zfs" in error.hint


def test_a_hint_can_be_pasted_into_a_shell_whatever_the_name() -> None:
    """A name may have spaces."""
    said = "cannot mount 'here/my data': encryption key not loaded\n"
    error = failures.translate("zfs:X", ["zfs", "mount", "here/my data"], said)
    assert "'here/my data' is not loaded" in error.what and "load-key 'here/my data'" in error.hint
    error = failures.translate("zfs:X", ["zfs", "odd", "here/my data"], "odd\n")
    assert error.hint.endswith("zfs odd 'here/my data'")


def test_a_held_snapshot_says_who_holds_it() -> None:
    said = (
        "cannot destroy snapshot here/a@one: it's being held. Run 'zfs holds -r here/a@one' to see "
        "holders.\n"
    )
    asked: list[list[str]] = []

    def ask(words: Any) -> str:
        asked.append(list(words))
        return "here/a@one\tbackup job\tSat\nhere/a@one\tzrepl\tSat\n"

    error = failures.translate("zfs:X", ["zfs", "destroy", "here/a@one"], said, ask=ask)
    assert isinstance(error, Busy) and error.retryable
    assert error.what == "the snapshot 'here/a@one' is held by 'backup job', 'zrepl'"
    assert asked == [["zfs", "holds", "-H", "here/a@one"]]


def test_the_missing_permission_is_named() -> None:
    words = ["zfs", "recv", "-s", "-u", "-o", "readonly=on", "-o", "mirrord:x=1", "here/home/new"]
    said = "cannot receive new filesystem stream: permission denied\n"
    given = ALLOWED.replace("user other create", "user tester create,mount,readonly")
    error = failures.translate("zfs:X", words, said, user="tester", ask=lambda _words: given)
    assert isinstance(error, PermissionMissing)
    assert error.what == "the user tester lacks 'receive' and 'userprop' on 'here/home'"
    assert "zfs allow -u tester receive,userprop here/home" in error.hint


def test_what_was_delegated_is_read_with_sets_groups_and_from_above() -> None:
    assert granted(ALLOWED, "here/home/fs", "tester") == {"send", "hold", "snapshot", "diff"}
    with_group = granted(ALLOWED, "here/home/fs", "tester", ["staff"])
    assert with_group == {"send", "hold", "snapshot", "diff", "release"}
    assert granted(ALLOWED, "here/home/fs", "nobody") == {"diff"}


def test_a_command_needs_what_it_needs() -> None:
    assert needed_by(["zfs", "set", "mirrord:a=1", "readonly=on", "tank"]) == (
        "userprop",
        "readonly",
    )
    assert needed_by(["zfs", "inherit", "mirrord:a", "tank"]) == ("userprop",)
    assert needed_by(["zfs", "mount", "tank"]) == ()
    assert needed_by(["zpool", "sync", "tank"]) == ()


def test_what_nobody_knows_is_passed_on_in_one_line() -> None:
    error = failures.translate("zfs:X", ["zfs", "list"], "something\n  else \x1b[31mhappened\n", 3)
    assert error.code == "io" and "something else" in error.why and "\x1b" not in error.why
    silent = failures.translate("zfs:X", ["zfs", "list"], "", 3)
    assert "status 3" in silent.why
