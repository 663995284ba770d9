"""What answers is no mirrord, or one that misbehaves: one clear line that names the host, soon."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support import liar
from tests.support.remote import MIB, Remote, one_error

SAID = {
    "garbage": "error: dr: the other end does not use mirrord's protocol",
    "later-garbage": "error: dr: a frame does not begin with the magic bytes",
    "huge": "error: dr: a frame of 4294967295 bytes exceeds the limit",
    "nothing": "error: dr: the remote mirrord does not respond: no greeting within 8 s",
    "nonsense": "error: block://dr/",
    "bomb": "error: dr: malformed frame body",
    "newer": "error: dr: the two ends have no common version of the protocol",
    "older": "error: dr: the two ends have no common version of the protocol",
}


@pytest.mark.parametrize("word", SAID)
def test_who_is_no_agent_is_told_apart(site: Remote, word: str) -> None:
    source = site.volume(data_bytes=MIB)
    site.set_host(
        command=(*site.prefix, sys.executable, str(Path(liar.__file__)), word),
        connect_s=8.0 if word == "nothing" else 120.0,
    )
    began_s = time.monotonic()
    done = site.cli("create", "home", f"block:{source}", f"block://dr{site.folder}/copy")
    assert time.monotonic() - began_s < 60
    assert done.returncode == 1
    error, hint = one_error(done.stderr)
    print(word, done.stderr)
    assert error.startswith(SAID[word])
    assert len(error) < 300
    if word in ("newer", "older"):
        assert "mirrord 9.1.0 there supports 7, 8" in error or "0.0.1 there supports 0" in error
        assert "same version" in hint


def test_who_says_next_to_nothing_after_the_greeting_is_left(site: Remote) -> None:
    """One byte now and then is no sign of life. With the real patience."""
    source = site.volume(data_bytes=MIB)
    site.set_host(command=(*site.prefix, sys.executable, str(Path(liar.__file__)), "trickle"))
    began_s = time.monotonic()
    done = site.cli("create", "home", f"block:{source}", f"block://dr{site.folder}/copy")
    assert 10 < time.monotonic() - began_s < 60
    assert done.returncode == 1
    error, _hint = one_error(done.stderr)
    assert "dr: the connection is lost: nothing was received for 12 s" in error


@pytest.mark.parametrize(
    ("command", "said", "hinted"),
    [
        (
            ("mirrord-is-not-here", "agent"),
            "'mirrord-is-not-here' is not found on the remote host",
            "command =",
        ),
        (("echo", "welcome to dr"), "received 'welcome to dr'", "agent"),
        (("false",), "exit status 1", "agent"),
        (
            ("sh", "-c", "echo 'error: there is no command '\"'agent'\" >&2; exit 2"),
            "the remote mirrord is too old",
            "mirrord --version",
        ),
    ],
    ids=["not found", "a word", "it fails", "old"],
)
def test_no_mirrord_there(site: Remote, command: tuple[str, ...], said: str, hinted: str) -> None:
    source = site.volume(data_bytes=MIB)
    site.set_host(command=command, connect_s=120.0)
    began_s = time.monotonic()
    done = site.cli("create", "home", f"block:{source}", f"block://dr{site.folder}/copy")
    assert time.monotonic() - began_s < 60
    error, hint = one_error(done.stderr)
    assert error.startswith("error: dr: ") and said in error and hinted in hint


def test_an_agent_that_cannot_begin_says_why(site: Remote) -> None:
    source = site.volume(data_bytes=MIB)
    site.set_host(command=(*site.command, "--allow", "recieve=/backup"))
    done = site.cli("create", "home", f"block:{source}", f"block://dr{site.folder}/copy")
    error, hint = one_error(done.stderr)
    assert "the remote mirrord does not start: --allow 'recieve=/backup'" in error
    assert "Did you mean receive=/backup?" in hint


def test_an_agent_that_was_started_wrongly_leaves_nothing(site: Remote) -> None:
    source = site.volume(data_bytes=MIB)
    # (The name of the host is also in the path.)
    site.there_home = site.folder / "drawer"
    home = f"MIRRORD_HOME={site.there_home}"
    site.set_host(command=("exec", "env", home, *site.command[3:]))
    site.there_home.write_text("no folder")
    done = site.cli("create", "home", f"block:{source}", f"block://dr{site.folder}/copy")
    error, _hint = one_error(done.stderr)
    assert error.startswith("error: dr: ")
    site.there_home.unlink()
