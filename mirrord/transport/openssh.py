"""A byte stream to a program on another host through the `ssh` command, for its extra features.

ssh reads its own configuration; settings of hosts.d take precedence. It never prompts, and never
accepts a host key by itself.
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence

from mirrord.core.errors import MirrordError, Unreachable
from mirrord.core.model import RemoteHost
from mirrord.system import command
from mirrord.transport import failures
from mirrord.transport.local import ProcessStream, spawn
from mirrord.transport.target import Target, resolve

#: Exit status of ssh when ssh itself failed, not the remote program.
_SSH_FAILED = 255
_LAST_WORDS_S = 0.5

#: Prints the host key as a known_hosts line if it has the pinned fingerprint, else nothing. ssh
#: expands %f, %H, %t and %K to the key's fingerprint, the host's name, the key's type and the key.
_PINNED = '/bin/sh -c \'[ "$1" = "$2" ] && echo "$3 $4 $5"; exit 0\' sh {fingerprint} %f %H %t %K'


class OpensshStream(ProcessStream):
    """Standard input and output of the remote program, through those of ssh."""

    def __init__(self, ours: socket.socket, process: command.Process, host: RemoteHost) -> None:
        super().__init__(ours, process, host.name)
        self.host = host

    def failure(self, heard: bytes = b"") -> MirrordError:
        """Why it did not respond as mirrord's agent: ssh's message as an error of mirrord."""
        status, stderr = self.status(wait_s=_LAST_WORDS_S), self.stderr_tail()
        if status == _SSH_FAILED and not heard:
            return explained(self.host, stderr)
        return failures.no_agent(self.host, status, stderr, heard)


def open_openssh(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> OpensshStream:
    """Run the host's command there, through `jumps` (first hop first).

    ssh connects by itself: a failed connection is reported when the stream ends, by `failure`.
    """
    ours, process = spawn(
        command_line(host, jumps),
        hint='Install openssh-client, or set transport = "ssh" in hosts.d.',
    )
    return OpensshStream(ours, process, host)


def command_line(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> list[str]:
    """The command line of ssh."""
    return [*_to(host, jumps), "-T", "--", host.address, shlex.join(host.command)]


def _to(host: RemoteHost, jumps: Sequence[RemoteHost]) -> list[str]:
    """ssh with all options for a host, without the host's name."""
    words = [
        "ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
        "-o", f"ConnectTimeout={max(1, round(host.connect_s))}",
        "-o", "EscapeChar=none", "-o", "ClearAllForwardings=yes",
        "-o", "Ciphers=^aes128-gcm@openssh.com", "-o", "LogLevel=INFO",
    ]  # fmt: skip
    if host.port:
        words += ["-p", str(host.port)]
    if host.user:
        words += ["-l", host.user]
    if host.key:
        words += ["-i", host.key, "-o", "IdentitiesOnly=yes"]
    if host.fingerprint:
        words += [
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "GlobalKnownHostsFile=/dev/null",
            "-o",
            f"KnownHostsCommand={_PINNED.format(fingerprint=host.fingerprint)}",
        ]
    if jumps:
        # Not -J: each hop has its own key and its own pinned host key.
        last = jumps[-1]
        inner = shlex.join([*_to(last, jumps[:-1]), "-T"]).replace("%", "%%")
        words += ["-o", f"ProxyCommand={inner} -W '[%h]:%p' -- {shlex.quote(last.address)}"]
    return words


def explained(host: RemoteHost, stderr: str) -> MirrordError:
    """ssh's messages as the errors that the other transport raises."""
    target = _target(host)
    for pattern, make in _MEANINGS:
        found = re.search(pattern, stderr, re.IGNORECASE | re.DOTALL)
        if found is not None:
            return make(target, found, stderr)
    return Unreachable(
        "ssh failed",
        where=host.name,
        why=failures.quoted(stderr[-300:]),
        hint=f"Test the connection with: ssh -v {shlex.quote(host.address)} true",
    )


def _target(host: RemoteHost) -> Target:
    """For messages only: ssh may support configuration that mirrord does not."""
    try:
        return resolve(host)
    except MirrordError:
        return Target(
            host.name,
            host.address,
            host.port or 22,
            host.user or "you",
            host.key,
            (),
            False,
            host.fingerprint,
            "",
            (),
            host.connect_s,
        )


def _changed(target: Target, found: re.Match[str], stderr: str) -> MirrordError:
    place = re.search(r"Offending \S+ key in (\S+)", stderr)
    return failures.changed_key(
        target,
        found[1].rstrip("."),
        target.fingerprint or "a different key",
        place[1] if place else "",
    )


def _unknown(target: Target, found: re.Match[str], stderr: str) -> MirrordError:
    if target.fingerprint:
        return failures.changed_key(target, "", target.fingerprint, kind=found[1])
    return failures.unknown_key(target, found[1], "")


def _key_file(target: Target, found: re.Match[str], stderr: str) -> MirrordError:
    return failures.key_unreadable(target, target.key or found[1], failures.quoted(found[0]))


def _denied(target: Target, found: re.Match[str], stderr: str) -> MirrordError:
    if target.key:
        from mirrord.transport import ssh_keys

        try:
            ssh_keys.load(target.key)
        except ssh_keys.Locked:
            return failures.key_locked(target, target.key)
        except ssh_keys.Unusable as error:
            return failures.key_unreadable(target, target.key, str(error))
    notes = [failures.quoted(found[0])]
    return failures.login_refused(target, [target.key] if target.key else [], notes)


_MEANINGS = (
    (r"Could not resolve hostname [^:]*: ([^\r\n]*)",
     lambda target, found, stderr: failures.unresolved(target, found[1])),
    (r"connect to (?:host|address) \S+ port \d+: Connection refused",
     lambda target, found, stderr: failures.refused(target)),
    (r"Connection timed out( during banner exchange)?",
     lambda target, found, stderr: failures.silent(target, found[0].lower())),
    (r"No route to host|Network is unreachable|Host is down",
     lambda target, found, stderr: failures.no_route(target, found[0].lower())),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED.*?(SHA256:\S+)", _changed),
    (r"No (\S+) host key is known for", _unknown),
    (r"Host key \S+ .*?revoked|marked as revoked",
     lambda target, found, stderr: failures.revoked_key(target, "", failures.quoted(found[0]))),
    (r"no such identity: (\S+): [^\r\n]*", _key_file),
    (r"Permissions \d+ for '([^']*)' are too open", _key_file),
    (r"Load key \"([^\"]*)\": (?!.*incorrect passphrase)[^\r\n]*", _key_file),
    (r"(?:\S+: )?Permission denied \([^)]*\)|Too many authentication failures", _denied),
    (r"stdio forwarding failed|channel \d+: open failed: [^\r\n]*",
     lambda target, found, stderr: failures.jump_failed(target, None, found[0])),
    (r"banner line contains invalid characters|Connection (?:closed|reset) by|"
     r"Invalid SSH identification|banner exchange: .*invalid format|"
     r"kex_exchange_identification: [^\r\n]*",
     lambda target, found, stderr: failures.not_ssh(target, b"")),
)  # fmt: skip
