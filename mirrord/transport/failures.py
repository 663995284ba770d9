"""Errors of SSH connections, worded alike for both SSH transports."""

from __future__ import annotations

import shlex

from mirrord.core.errors import (
    LinkLost,
    MirrordError,
    Refused,
    Unreachable,
    Unsupported,
    Untrusted,
)
from mirrord.core.model import RemoteHost
from mirrord.transport.known_hosts import name_of
from mirrord.transport.target import Target

_SHOWN_MAX = 160
#: From OpenSSH 9.8 on, in place of a banner.
_PENALTY = "Not allowed at this time"


def quoted(heard: bytes | str) -> str:
    """What was received, as one line that is safe to print on a terminal."""
    text = heard.decode(errors="replace") if isinstance(heard, bytes) else heard
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    plain = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )
    return plain if len(plain) <= _SHOWN_MAX else plain[:_SHOWN_MAX] + "…"


def add_command(target: Target, *options: str) -> str:
    """`mirrord host add …` for a target."""
    words = ["mirrord", "host", "add", target.name]
    if target.address != target.name:
        words += ["--address", target.address]
    if target.port != 22:
        words += ["--port", str(target.port)]
    return shlex.join([*words, "--user", target.user, *options])


def unresolved(target: Target, why: str) -> MirrordError:
    """The host name cannot be resolved."""
    return Unreachable(
        f"cannot resolve the host name '{target.address}'",
        where=target.name,
        why=why,
        hint=f"Check with 'getent hosts {target.address}'. To correct the address: mirrord host "
        f"add {target.name} --address ADDRESS.",
    )


def refused(target: Target) -> MirrordError:
    """Nothing listens on the port."""
    return Unreachable(
        f"nothing listens on port {target.port} of {target.address}",
        where=target.name,
        why="connection refused",
        hint="Start the SSH server there ('systemctl start ssh'), or correct the port: "
        f"mirrord host add {target.name} --port N.",
    )


def no_route(target: Target, why: str) -> MirrordError:
    """There is no route to the host."""
    return Unreachable(
        f"{target.address} cannot be reached",
        where=target.name,
        why=why,
        hint=f"Check the route with 'ip route get {target.address}', and the firewalls.",
    )


def silent(target: Target, stage: str) -> MirrordError:
    """There was no response in time."""
    return Unreachable(
        f"{target.address} port {target.port} does not respond within {target.connect_s:g} s",
        where=target.name,
        why=stage,
        hint="Check that the host is running and that its firewall allows this host. For a slow "
        f'link, raise the timeout: connect = "30s" in hosts.d/{target.name}.toml.',
    )


def not_ssh(target: Target, heard: bytes | str) -> MirrordError:
    """No SSH server listens there, or it closes the connection before its banner."""
    shown = quoted(heard)
    if shown == _PENALTY:
        return Unreachable(
            f"the SSH server of {target.address} temporarily refuses connections from this host",
            where=target.name,
            why=f"received '{shown}', as after several failed logins",
            hint="Correct the login, then try again later. To exempt this host, add it to "
            "PerSourcePenaltyExemptList in sshd_config there.",
        )
    return Unreachable(
        f"no SSH server on port {target.port} of {target.address}",
        where=target.name,
        why=f"received '{shown}'" if shown else "the connection was closed without a banner",
        hint=f"Correct the port (mirrord host add {target.name} --port N), or check the log of "
        "the SSH server there ('journalctl -u ssh').",
    )


def jump_failed(target: Target, jump: str | None, why: str) -> MirrordError:
    """A jump host cannot reach the target. jump: its name; None: it is not known which one."""
    failed = "a jump host" if jump is None else f"the jump host '{jump}'"
    there = "it" if jump is None else f"'{jump}'"
    return Unreachable(
        f"{failed} cannot reach {target.address} port {target.port}",
        where=target.name,
        why=why,
        hint=f"Log in to {there} and run 'nc -vz {target.address} {target.port}'. Its sshd must "
        "have AllowTcpForwarding enabled.",
    )


def unknown_key(target: Target, kind: str, shown: str, *, why: str = "") -> MirrordError:
    """A host key that is not accepted yet. shown: its fingerprint, "" when that is not known."""
    what = f"{kind} {shown}" if shown else kind
    port = f" -p {target.port}" if target.port != 22 else ""
    accept = add_command(target, *(["--fingerprint", shown] if shown else []))
    return Untrusted(
        f"the host key of {target.address} is not known: {what}",
        where=target.name,
        why=why,
        hint="Compare it with the output of 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on "
        f"that host. If they match: {accept}. (Or: ssh-keyscan{port} {target.address} >> "
        "~/.ssh/known_hosts)",
    )


def changed_key(
    target: Target, got: str, expected: str, place: str = "", *, kind: str = "ed25519"
) -> MirrordError:
    """The host key differs from the accepted one. got: its fingerprint; "" when only its kind is
    known.
    """
    accept = add_command(target, "--fingerprint", got or "FINGERPRINT")
    if not got:
        file = f"/etc/ssh/ssh_host_{kind.lower()}_key.pub"
        accept += (
            f", with the FINGERPRINT that 'ssh-keygen -lf {shlex.quote(file)}' shows on that host"
        )
    fix = accept
    if place:
        name = target.alias or name_of(target.address, target.port)
        forget = shlex.join(["ssh-keygen", "-f", place.rpartition(":")[0], "-R", name])
        fix = f"{forget}, then: {accept}"
    return Untrusted(
        f"the host key of {target.address} HAS CHANGED",
        where=target.name,
        why=f"received {got or f'another {kind} key'}, expected {expected}"
        + (f" ({place})" if place else ""),
        hint="This may be a man-in-the-middle attack. Ask the administrator of that host whether "
        f"its key was replaced. Only if it was: {fix}",
    )


def revoked_key(target: Target, got: str, place: str) -> MirrordError:
    """The host key is marked as revoked."""
    return Untrusted(
        f"the host key of {target.address} is revoked: {got}",
        where=target.name,
        why=place,
        hint="A revoked key may be known to others. That host needs a new key: remove the old one "
        "there, then run 'ssh-keygen -A'.",
    )


def login_refused(target: Target, tried: list[str], notes: list[str]) -> MirrordError:
    """The server accepts none of our keys. It does not tell whether user or key is wrong."""
    why = "; ".join([*(f"tried {key}" for key in tried), *notes])
    return Untrusted(
        f"the login as '{target.user}' is refused",
        where=target.name,
        why=why or "there is no private key to log in with",
        hint=f"The public key must be in ~{target.user}/.ssh/authorized_keys on "
        f"{target.address}: '{add_command(target)}' prints the line. Check also that "
        f"'{target.user}' is the right user (--user).",
    )


def key_unreadable(target: Target, file: str, why: str) -> MirrordError:
    """The private key cannot be used."""
    return Untrusted(
        f"the key {file} cannot be used",
        where=target.name,
        why=why,
        hint=f"Check it with 'ls -l {shlex.quote(file)}' (only its owner may have access: "
        f"'chmod 600 {shlex.quote(file)}'), or use another key: mirrord host add "
        f"{target.name} --key FILE.",
    )


def key_locked(target: Target, file: str) -> MirrordError:
    """The key has a passphrase, and there is no one to enter it."""
    return Untrusted(
        f"the key {file} is protected by a passphrase",
        where=target.name,
        why="it is not loaded in an SSH agent, and mirrord does not prompt for passphrases",
        hint=f"Load it into the agent with 'ssh-add {shlex.quote(file)}'. For the daemon, use a "
        f"separate key: remove the line 'key' from hosts.d/{target.name}.toml, then "
        f"{add_command(target)}.",
    )


def _mirrord_error(stderr: str) -> tuple[str, str] | None:
    """(error, hint) if the output is an error of mirrord itself."""
    lines = [line.strip() for line in stderr.splitlines()]
    errors = [line for line in lines if line.startswith("error: ")]
    if not errors:
        return None
    hints = [line for line in lines if line.startswith("hint: ")]
    return quoted(errors[-1][7:]), hints[-1][6:] if hints else ""


def no_agent(host: RemoteHost, status: int | None, stderr: str, heard: bytes) -> MirrordError:
    """The remote program is not mirrord's agent, or ended before it sent anything.

    status: its exit status, None while it runs. stderr: its standard error. heard: its output.
    """
    program, shown = shlex.join(host.command), quoted(heard)
    if status == 127 or (status == 126 and not shown):
        found = "not found" if status == 127 else "not executable"
        return Unreachable(
            f"'{host.command[0]}' is {found} on the remote host",
            where=host.name,
            why=quoted(stderr),
            hint=f"Install mirrord on that host, or set its path: command = "
            f'["/opt/mirrord/bin/mirrord", "agent"] in hosts.d/{host.name}.toml.',
        )
    if "there is no command 'agent'" in stderr:
        return Unsupported(
            "the remote mirrord is too old: it has no agent",
            where=host.name,
            hint="Install the version of this host there ('mirrord --version').",
        )
    if (ours := _mirrord_error(stderr)) is not None:
        what, hint = ours
        return Refused(
            "the remote mirrord does not start",
            where=host.name,
            why=what,
            hint=hint or f"Check on that host: '{program}'.",
        )
    if shown and status is None:
        return Untrusted(
            f"unexpected output before the greeting of '{program}'",
            where=host.name,
            why=f"received '{shown}'",
            hint="If the login shell prints this, remove it from ~/.bashrc or similar files there "
            "(or print it only on a terminal). If the key has a forced command "
            "(~/.ssh/authorized_keys), it must be 'mirrord agent --allow …'.",
        )
    if shown or status is not None:
        parts = [f"received '{shown}'"] if shown else []
        parts += [quoted(stderr)] if stderr else []
        parts += [f"exit status {status}"] if status is not None else []
        return Untrusted(
            "the remote program is not mirrord's agent",
            where=host.name,
            why="; ".join(parts),
            hint="Check the forced command of the key in ~/.ssh/authorized_keys there, and the "
            f"user's shell: it must be 'mirrord agent --allow …', or allow '{program}'.",
        )
    return LinkLost(
        "the connection ended before mirrord responded",
        where=host.name,
        why=quoted(stderr),
        hint=f"Run the same command again. If it fails again: mirrord host check {host.name}.",
    )
