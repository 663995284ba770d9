"""`mirrord host`: from nothing to a connection, each step said, each failure explained."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirrord.admin.hosts import Allowed, authorized_line
from mirrord.agent.rules import parse_rules
from mirrord.cli.main import run
from mirrord.core.errors import UsageError
from mirrord.transport.ssh import open_ssh
from tests.support.definitions import two_sites
from tests.support.sshd import USER, Sshd
from tests.transport.echo import read_all

ROOT = Path(__file__).parents[2]


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path / "mirrord"))
    return tmp_path / "mirrord/etc"


def words(sshd: Sshd, *more: str) -> list[str]:
    return [
        "host",
        "add",
        "dr",
        "--address",
        sshd.address,
        "--port",
        str(sshd.port),
        "--user",
        USER,
        *more,
    ]


def line_of(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("restrict,"))


def test_from_nothing_to_a_connection(
    sshd: Sshd, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = ["--allow-receive", "/backup/a", "--allow-send", "/data/a b", "--append-only"]
    # Nobody is there to confirm the key.
    assert run(words(sshd, *bounds)) == 1
    said = capsys.readouterr()
    assert "there is no terminal to confirm the host key of 127.0.0.1" in said.err
    assert not list((etc / "hosts.d").glob("*"))
    # The hint is the command to go on with; the log-in is refused until the line is in place.
    command = said.err.partition("if it is the same: ")[2].splitlines()[0]
    assert sshd.fingerprint in command
    assert run(shlex.split(command)[1:]) == 1
    said = capsys.readouterr()
    assert f"the login as '{USER}' is refused" in said.err and "mirrord host check dr" in said.err
    assert f"hint: Append the line above to ~{USER}/.ssh/authorized_keys on" in said.err
    line = line_of(said.out)
    public = line.partition('" ')[2]
    assert line == (
        'restrict,command="mirrord agent --allow receive=/backup/a '
        f"--allow 'send=/data/a b' --append-only\" {public}"
    )
    assert public.startswith("ssh-ed25519 AAAA") and public.endswith(" mirrord-dr")
    key = etc / "keys/dr"
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent.stat().st_mode & 0o777 == 0o700
    # In place, but without mirrord there.
    sshd.authorized.write_text(line.replace("mirrord agent", "no-mirrord agent") + "\n")
    assert run(["host", "check", "dr"]) == 1
    assert "'mirrord' is not found on the remote host" in capsys.readouterr().err
    # With a program that runs; running it again keeps key, pin and settings.
    file = etc / "hosts.d/dr.toml"
    agent = ["env", f"MIRRORD_HOME={etc.parent}/there", sys.executable, "-m", "mirrord", "agent"]
    file.write_text(file.read_text() + f"command = {json.dumps(agent)}\n")
    assert run(["host", "add", "dr", *bounds]) == 1
    again = line_of(capsys.readouterr().out)
    assert again.startswith(f'restrict,command="{shlex.join(agent)} --allow receive=/backup/a')
    sshd.authorized.write_text(again + "\n")
    assert run(["host", "add", "dr", *bounds]) == 0
    said = capsys.readouterr()
    assert public in said.out and "5. 'dr' can be reached by ssh" in said.out
    assert run(["host", "check", "dr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "done" and found["took_s"] < 5
    assert found["allowed"] == "send=/data/a b, receive=/backup/a, append-only"
    # What fails there is told as of there.
    there = etc.parent / "there/run"
    shutil.rmtree(there)
    there.touch()
    assert run(["host", "check", "dr"]) == 1
    assert f"error: dr: {there}: a file operation failed" in capsys.readouterr().err


def test_the_forced_command_is_quoted_as_sshd_takes_it(sshd: Sshd) -> None:
    allowed = Allowed(('/a "b"', "/it's"), ("/$HOME/*;\\",))
    host = sshd.host(command=("printf", "%s\\n"))
    public = Path(f"{sshd.key}.pub").read_text().strip()
    sshd.authorized.write_text(authorized_line(host, public, allowed) + "\n")
    stream = open_ssh(host._replace(command=("mirrord", "agent", "--allow", "send=/")))
    said = read_all(stream).decode().splitlines()
    stream.close()
    assert said[1::2] == ['receive=/a "b"', "receive=/it's", "send=/$HOME/*;\\"]


def test_applications_that_may_be_paused(sshd: Sshd) -> None:
    """The words are those that an agent takes."""
    allowed = Allowed(send=("/data",), pause=("db.service", "hook:/usr/bin/pause-db orders"))
    line = authorized_line(sshd.host(command=("mirrord", "agent")), "ssh-ed25519 AAAA", allowed)
    assert "--allow pause=db.service --allow 'pause=hook:/usr/bin/pause-db orders'" in line
    words = [word for word in allowed.words() if word != "--allow"]
    rules = parse_rules(words, append_only=False)
    assert rules.pause == ("cgroup:db.service", "hook:/usr/bin/pause-db orders")
    for wrong in ("hook:pause-db", "hokk:/x", "db\nx.service"):
        with pytest.raises(UsageError):
            Allowed(pause=(wrong,)).words()


def test_host_add_takes_applications(
    sshd: Sshd, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(sshd, "--allow-pause", "db.service")) == 1  # nobody confirms the host key
    command = capsys.readouterr().err.partition("if it is the same: ")[2].splitlines()[0]
    assert run(shlex.split(command)[1:]) == 1  # the line is not in place
    said = capsys.readouterr().out
    assert '"mirrord agent --allow pause=db.service"' in said and "restricts no folder" not in said


def test_a_person_confirms_the_host_key(sshd: Sshd, etc: Path) -> None:
    for answer in ("n", "y"):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrord", *words(sshd, "--key", str(sshd.key))],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        said = ""
        deadline_s = time.monotonic() + 90
        while "Do they match?" not in said:
            assert time.monotonic() < deadline_s, said
            said += os.read(ours, 4096).decode()
        assert sshd.fingerprint in said and "ssh-keygen -lf" in said
        os.write(ours, f"{answer}\n".encode())
        while True:
            try:
                said += os.read(ours, 4096).decode()
            except OSError:
                break
        process.wait(90)
        os.close(ours)
        pinned = (etc / "hosts.d/dr.toml").exists()
        assert pinned is (answer == "y"), said
    assert sshd.fingerprint in (etc / "hosts.d/dr.toml").read_text()


def test_a_changed_address_needs_a_new_look_at_the_key(
    sshd: Sshd, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["--key", str(sshd.key)]
    run(words(sshd, *key, "--fingerprint", sshd.fingerprint))
    run(["host", "add", "dr", "--address", "localhost"])
    assert "there is no terminal to confirm the host key of localhost" in capsys.readouterr().err
    assert 'address = "127.0.0.1"' in (etc / "hosts.d/dr.toml").read_text()


def test_a_changed_host_key_is_mended_by_the_command_that_is_named(
    sshd: Sshd, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["--key", str(sshd.key)]
    assert run(words(sshd, *key, "--fingerprint", "SHA256:" + "A" * 43)) == 1
    said = capsys.readouterr().err
    assert "HAS CHANGED" in said
    command = said.partition("Only if it was: ")[2].splitlines()[0].split()
    run(command[1:])
    assert "HAS CHANGED" not in capsys.readouterr().err
    assert sshd.fingerprint in (etc / "hosts.d/dr.toml").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fingerprint", "SHA256:short"], "is not a valid fingerprint"),
        (["--fingerprint", "ab" * 32], "--fingerprint 'abababab"),
        (["--port", "70000"], "is not a valid port"),
        (["--transport", "telnet"], "is not a valid transport"),
        (["--key", "/no/such/key"], "the key /no/such/key cannot be used"),
        (["--allow-send", "data"], "'data' is no absolute path"),
        (["--allow-receive", "/backup/../etc"], "'/backup/../etc' is no absolute path"),
        (["--jump", "dr"], "--jump: the jump hosts form a loop"),
        (["--jump", "a b"], "--jump: 'jump' is invalid"),
    ],
)
def test_bad_options_change_nothing(
    sshd: Sshd, etc: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert run(words(sshd, *more)) in (1, 2)
    error = capsys.readouterr().err
    assert said in error and "dr.toml:" not in error, error
    assert not (etc / "hosts.d").exists()


def test_listing_and_removing(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["host", "list"]) == 0
    assert "No hosts." in capsys.readouterr().out
    (etc / "hosts.d").mkdir(parents=True)
    (etc / "mirrors.d").mkdir()
    (etc / "hosts.d/dr.toml").write_text("address = 'dr.example.org'\njump = 'me@gate'\n")
    (etc / "hosts.d/gate.toml").write_text("port = 2222\n")
    assert run(["host", "list"]) == 0
    said = capsys.readouterr().out
    assert "dr    ssh      dr.example.org through me@gate" in said and "gate port 2222" in said
    assert run(["host", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["hosts"]] == ["dr", "gate"]
    assert run(["host", "remove", "gate"]) == 1
    assert "the host 'dr' (jump) needs the host 'gate'" in capsys.readouterr().err
    (etc / "mirrors.d/home.toml").write_text(two_sites("block:/a", "block://root@dr:7/b"))
    assert run(["host", "remove", "dr"]) == 1
    assert "the mirror 'home' needs the host 'dr'" in capsys.readouterr().err
    (etc / "mirrors.d/home.toml").unlink()
    assert run(["host", "remove", "dr"]) == 0
    assert run(["host", "remove", "dr"]) == 1
    assert "no host is called 'dr'" in capsys.readouterr().err


def test_a_wrong_file_is_said_by_config_check(
    etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (etc / "hosts.d").mkdir(parents=True)
    (etc / "hosts.d/dr.toml").write_text("\nport = 0\n")
    for command in (["config", "check"], ["host", "list"], ["host", "check", "dr"]):
        assert run(command) == 2
        assert f"{etc}/hosts.d/dr.toml:2: 'port' is invalid" in capsys.readouterr().err
