"""Other hosts: adding one step by step, checking the connection, removing it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.config.definitions import Definitions
from mirrord.config.hosts import Hosts, check_host_name, checked, parse, render
from mirrord.core.endpoint import is_dataset, split_host
from mirrord.core.errors import ConfigError, MirrordError, Refused, UsageError
from mirrord.core.model import RemoteHost
from mirrord.core.results import Result
from mirrord.pausers.registry import pauser_of
from mirrord.system import clock
from mirrord.system.paths import Paths
from mirrord.system.waiting import Waiting


class Allowed(NamedTuple):
    """What the forced command at the other end allows: folders, applications that may be paused,
    and no deletion.
    """

    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    append_only: bool = False
    pause: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """The arguments of `mirrord agent`; `UsageError` for what is no absolute path and no
        dataset, or names nothing that can be paused.
        """
        words = []
        for verb, folders in (("receive", self.receive), ("send", self.send)):
            for folder in folders:
                plain = folder.isprintable() and ".." not in folder.split("/")
                named = "/" in folder and is_dataset(folder)
                if not named and not (folder.startswith("/") and plain):
                    raise UsageError(
                        f"'{folder}' is no absolute path",
                        hint=f"Write --allow-{verb} /PATH, or --allow-{verb} POOL/DATASET.",
                    )
                words += ["--allow", f"{verb}={folder}"]
        for text in self.pause:
            if not text.isprintable():
                raise UsageError(f"'{text}' is not a valid pause", hint="Write --allow-pause UNIT.")
            pauser_of(text)
            words += ["--allow", f"pause={text}"]
        return words + (["--append-only"] if self.append_only else [])


def plan(paths: Paths, name: str, wanted: dict[str, Any]) -> RemoteHost:
    """The settings that `add` will write: those of the file that is there, changed as `wanted`.

    wanted: keys of hosts.d, None for those that were not given. A host key that was pinned stays
    so as long as the address does.
    """
    hosts = Hosts(paths.hosts)
    host = hosts.load(name) if hosts.has(name) else RemoteHost(check_host_name(name), name)
    for key, value in wanted.items():
        if value is None:
            continue
        made = checked(key, value)
        if key in ("address", "port", "jump") and made != getattr(host, key):
            host = host._replace(fingerprint="")
        host = host._replace(**{key: made})
    if host.transport not in ("ssh", "openssh"):
        raise Refused(
            f"'{name}' is reached by {host.transport}, not by SSH",
            hint=f"Edit {hosts.file(name)}, or begin again with --transport ssh.",
        )
    if wanted.get("fingerprint") and not host.fingerprint.startswith("SHA256:"):
        raise UsageError(
            f"--fingerprint '{host.fingerprint}' is not that of an SSH host key",
            hint="Give it as 'ssh-keygen -l' shows it: SHA256:….",
        )
    try:
        hosts.jumps(host)
    except ConfigError as error:
        if wanted.get("jump") and error.where.startswith(str(hosts.file(name))):
            error.where = "--jump"  # the file does not have it yet
        raise
    return parse(name, render(host), str(hosts.file(name)))


def with_key(paths: Paths, host: RemoteHost) -> tuple[RemoteHost, str]:
    """The host with a private key, its own one made if it has none; and the public line."""
    from mirrord.transport import ssh_keys

    comment = f"mirrord-{host.name}"
    if host.key:
        return host, ssh_keys.public_line(str(Path(host.key).expanduser()), comment)
    file = paths.keys / host.name
    return host._replace(key=str(file)), ssh_keys.make(file, comment)


def authorized_line(host: RemoteHost, public: str, allowed: Allowed) -> str:
    """The line of authorized_keys that lets the key do just this."""
    command = shlex.join([*host.command, *allowed.words()])
    escaped = command.replace('"', '\\"')  # all that sshd takes back; a backslash is itself
    return f'restrict,command="{escaped}" {public}'


def shown_key(paths: Paths, host: RemoteHost) -> tuple[str, str]:
    """(kind, fingerprint) of the host key that the server shows, not yet confirmed."""
    from mirrord.transport.ssh import host_key

    return host_key(host, Hosts(paths.hosts).jumps(host))


def login_of(host: RemoteHost) -> tuple[str, str]:
    """(user, address) as the connection will be made, after ~/.ssh/config."""
    from mirrord.transport.target import resolve

    target = resolve(host)
    return target.user, target.address


def check(paths: Paths, authority: str) -> Result:
    """Connect to a host as mirrors do and report what it allows; raises why that fails."""
    from mirrord.link.connect import Link
    from mirrord.link.placing import place

    hosts = Hosts(paths.hosts)
    host = hosts.find(authority)
    begun_s = clock.monotonic_s()
    link, connected = Link(host, hosts.jumps(host)), False
    try:
        session, connected = link.session(Waiting()), True
        took_s = clock.monotonic_s() - begun_s
        begun_s = clock.monotonic_s()
        session.call("ping", timeout_s=10.0)
        trip_s = clock.monotonic_s() - begun_s
        there, allowed, notes = link.peer.software, link.peer.about, link.notes
    except MirrordError as error:
        place(error, authority, connected=connected)
        raise
    finally:
        link.close()
    how = "TLS beside SSH" if host.transport in ("ssh", "openssh") else host.transport.upper()
    text = (
        f"'{authority}' can be reached by {host.transport} ({took_s:.2f} s): mirrord {there}, a "
        f"round trip takes {1000 * trip_s:.1f} ms.\nThis host may use there: {allowed}."
    )
    text += "".join(f"\n{note}" for note in notes) or f"\nData is sent over {how}."
    return Result(
        "done",
        text,
        {
            "host": authority,
            "transport": host.transport,
            "took_s": round(took_s, 3),
            "software": there,
            "allowed": allowed,
            "round_trip_s": round(trip_s, 6),
            "notes": list(notes),
        },
    )


def remove(paths: Paths, name: str) -> Path:
    """Remove a host's file; `Refused` while a mirror or another host needs it. Its file."""
    hosts = Hosts(paths.hosts)
    if not hosts.has(name):
        hosts.load(name)  # says what there is instead
    for user in _users(paths, hosts, name):
        raise Refused(
            f"{user} needs the host '{name}'",
            where=str(hosts.file(name)),
            hint="Change or delete that first.",
        )
    hosts.remove(name)
    return hosts.file(name)


def _users(paths: Paths, hosts: Hosts, name: str) -> list[str]:
    """Mirrors and hosts that name this host."""
    found = []
    definitions = Definitions(paths.mirrors)
    for each in definitions.names():
        try:
            made = definitions.load_listed(each)
        except MirrordError:
            continue  # a wrong definition uses nothing
        for end in (made.source, made.destination):
            if end.host and split_host(end.host, what="the endpoint")[1] == name:
                found.append(f"the mirror '{each}'")
    for each in hosts.names():
        try:
            jump = hosts.load(each).jump
        except MirrordError:
            continue
        if jump and split_host(jump, what="'jump'")[1] == name:
            found.append(f"the host '{each}' (jump)")
    return found
