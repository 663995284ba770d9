"""Manage other hosts in hosts.d/*.toml (docs/hosts.md).

Panel: Hosts 1

NAME is a host's name here. Each step and each failure is described in [hosts.md](hosts.md).

`mirrord host add NAME` adds another host: a separate key, the expected host key, its
[settings](config.md#other-hosts), the line for its `authorized_keys`, and a connection test. Run
it again to continue or to change something. Without a terminal it needs `--fingerprint`.

`mirrord host check NAME` connects to a host and reports what it finds, or what prevents the
connection. NAME may also be `USER@HOST:PORT`, as in an endpoint. `mirrord host list` lists the
hosts that have settings. `mirrord host remove NAME` removes the settings of one that no mirror
and no other host needs; its key stays.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer

from mirrord.admin import hosts
from mirrord.admin.hosts import Allowed
from mirrord.cli.options import Json
from mirrord.cli.output import answer, show
from mirrord.config.hosts import Hosts
from mirrord.core.errors import MirrordError, Refused, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.system import paths

Host = Annotated[str, typer.Argument(metavar="NAME", help="The host's name.")]
Folders = list[str] | None


def add(
    name: Host,
    address: Annotated[
        str | None, typer.Option(metavar="HOST", help="Its name or IP address; default: NAME.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="The user to log in as.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="The port of its SSH server.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="A private key; default: a new one is made.")
    ] = None,
    jump: Annotated[str | None, typer.Option(metavar="HOST", help="A jump host.")] = None,
    transport: Annotated[
        str | None, typer.Option(metavar="ssh|openssh", help="Paramiko, or the program ssh.")
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256:…",
            help="Fingerprint of its host key, if known; skips the confirmation.",
        ),
    ] = None,
    allow_receive: Annotated[
        Folders,
        typer.Option(
            metavar="DIR",
            help="A folder or dataset there for copies of this host; may be repeated.",
        ),
    ] = None,
    allow_send: Annotated[
        Folders,
        typer.Option(
            metavar="DIR",
            help="A folder or dataset there that this host may read; may be repeated.",
        ),
    ] = None,
    allow_pause: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UNIT",
            help="A unit (or KIND:ARGUMENT) there that this host may pause; may be repeated.",
        ),
    ] = None,
    append_only: Annotated[
        bool,
        typer.Option("--append-only", help="This host may not delete or roll back anything there."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Add another host: key, host key, authorized_keys line, and a test connection.

    May be run again, to continue or to change a setting.
    """
    wanted = {
        "address": address, "user": user, "port": port, "key": _absolute(key), "jump": jump,
        "transport": transport, "fingerprint": fingerprint,
    }  # fmt: skip
    folders = tuple(allow_receive or ()), tuple(allow_send or ())
    allowed = Allowed(*folders, append_only, tuple(allow_pause or ()))
    _walk(name, wanted, allowed, as_json=as_json)


def _walk(name: str, wanted: dict[str, Any], allowed: Allowed, *, as_json: bool) -> None:
    """Step by step; what already exists is kept."""
    found = paths.standard()
    say = (lambda _text: None) if as_json else print
    host = hosts.plan(found, name, wanted)
    host, public = hosts.with_key(found, host)
    line = hosts.authorized_line(host, public, allowed)
    say(f"1. The key {host.key}: {public.split()[0]}.")
    if not host.fingerprint:
        shown = hosts.shown_key(found, host)
        host = host._replace(fingerprint=_accepted(host, shown, _again(name, wanted, allowed)))
    say(f"2. Its host key, the only one accepted from now on: {host.fingerprint}.")
    file = Hosts(found.hosts).add(host)
    say(f"3. Its settings: {file}.")
    login, at = hosts.login_of(host)
    say(f"4. Add this line to ~{login}/.ssh/authorized_keys on {at}:\n\n{line}\n")
    if not (allowed.receive or allowed.send or allowed.pause):
        say("   It restricts no folder: use --allow-receive DIR and --allow-send DIR.")
    facts = {
        "host": name, "file": str(file), "key": host.key, "fingerprint": host.fingerprint,
        "authorized_keys": line, "user": login,
    }  # fmt: skip
    try:
        result = hosts.check(found, name)
    except MirrordError as error:
        error.data.update(facts)
        if isinstance(error, Untrusted) and error.what.endswith("is refused"):
            # The usual hint would print a line without the bounds of this one.
            error.hint = f"Append the line above to ~{login}/.ssh/authorized_keys on {at}."
        error.add_note(f"once that is fixed: mirrord host check {name}")
        sys.stdout.flush()
        raise
    document = {"status": result.status, **facts, **result.data}
    answer(document, [f"5. {result.text}"], as_json=as_json)


def _again(name: str, wanted: dict[str, Any], allowed: Allowed) -> list[str]:
    """The command that was given, word by word."""
    words = ["mirrord", "host", "add", name]
    words += [word for key, value in wanted.items() if value for word in (f"--{key}", str(value))]
    rules = ("receive", allowed.receive), ("send", allowed.send), ("pause", allowed.pause)
    for verb, values in rules:
        words += [word for value in values for word in (f"--allow-{verb}", value)]
    return words + (["--append-only"] if allowed.append_only else [])


def _absolute(key: str | None) -> str | None:
    """A key's file by its absolute path: the daemon's working folder is another."""
    return None if key is None else os.path.abspath(os.path.expanduser(key))


def _accepted(host: RemoteHost, shown: tuple[str, str], again: list[str]) -> str:
    """The fingerprint that a person has confirmed. again: the command that was given."""
    kind, fingerprint = shown
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(
            f"there is no terminal to confirm the host key of {host.address}",
            where=host.name,
            why=f"that host presented {kind} {fingerprint}",
            hint="Compare it with what 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' shows on "
            f"that host; if it is the same: {shlex.join([*again, '--fingerprint', fingerprint])}",
        )
    print(
        f"   {host.address} shows the host key {kind}\n   {fingerprint}\n"
        "   Compare it on that host with: "
        "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
    )
    typer.confirm("   Do they match?", abort=True)
    return fingerprint


def listing(as_json: Json = False) -> None:
    """List the hosts."""
    found = Hosts(paths.standard().hosts).all()
    width = max((len(host.name) for host in found), default=0)
    lines = [f"{host.name:{width}}  {host.transport:7}  {_reached(host)}" for host in found]
    answer(
        {"hosts": [host._asdict() for host in found]},
        lines or ["No hosts. Add one with 'mirrord host add NAME'."],
        as_json=as_json,
    )


def _reached(host: RemoteHost) -> str:
    """`USER@ADDRESS port PORT through JUMP`."""
    login = f"{host.user}@{host.address}" if host.user else host.address
    port = f" port {host.port}" if host.port else ""
    jump = f" through {host.jump}" if host.jump else ""
    return f"{login}{port}{jump}"


def check(name: Host, as_json: Json = False) -> None:
    """Connect to a host and report what it allows, or why that fails."""
    show(hosts.check(paths.standard(), name), as_json=as_json)


def remove(name: Host, as_json: Json = False) -> None:
    """Remove a host's settings; the key file is kept."""
    found = paths.standard()
    file = hosts.remove(found, name)
    lines = [f"The settings of '{name}' are removed."]
    if (found.keys / name).exists():
        lines.append(
            f"The key is kept: {found.keys / name}. To revoke access, remove its line from "
            "authorized_keys there."
        )
    answer({"status": "done", "removed": str(file)}, lines, as_json=as_json)


#: The commands of this group.
COMMANDS = {
    "add": add,
    "check": check,
    "remove": remove,
    "list": listing,
}
