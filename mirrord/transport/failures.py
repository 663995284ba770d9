"""Why another host cannot be used over SSH, in one wording for both ways to get there."""

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


def quoted(heard: bytes | str) -> str:
    """What was heard, in a line that a terminal can bear."""
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
    """Its name has no address."""
    return Unreachable(
        f"the name '{target.address}' has no address",
        where=target.name,
        why=why,
        hint=f"Try 'getent hosts {target.address}'; 'mirrord host add {target.name} --address …' "
        "corrects it.",
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
    """The network does not lead there."""
    return Unreachable(
        f"{target.address} cannot be reached",
        where=target.name,
        why=why,
        hint=f"Look at the network with 'ip route get {target.address}', and at its firewall.",
    )


def silent(target: Target, stage: str) -> MirrordError:
    """Nothing came in time."""
    return Unreachable(
        f"{target.address} port {target.port} does not answer within {target.connect_s:g} s",
        where=target.name,
        why=stage,
        hint="Is it up, and does its firewall let this host in? A slow link needs more: "
        f'connect = "30s" in hosts.d/{target.name}.toml.',
    )


def not_ssh(target: Target, heard: bytes | str) -> MirrordError:
    """Something else listens there, or the server hangs up before it says who it is."""
    shown = quoted(heard)
    return Unreachable(
        f"no SSH server answers on port {target.port} of {target.address}",
        where=target.name,
        why=f"it says '{shown}'" if shown else "it closes the connection without a word",
        hint=f"Correct the port (mirrord host add {target.name} --port N), or look at the log of "
        "the server there ('journalctl -u ssh').",
    )


def jump_failed(target: Target, jump: str, why: str) -> MirrordError:
    """The host in between does not get there."""
    return Unreachable(
        f"the jump host '{jump}' cannot reach {target.address} port {target.port}",
        where=target.name,
        why=why,
        hint=f"Log in at '{jump}' and try 'nc -vz {target.address} {target.port}'; its sshd needs "
        "AllowTcpForwarding.",
    )


def unknown_key(target: Target, kind: str, shown: str, *, why: str = "") -> MirrordError:
    """A host key that nobody has accepted yet. shown: its fingerprint, "" when it is not known."""
    what = f"{kind} {shown}" if shown else kind
    port = f" -p {target.port}" if target.port != 22 else ""
    accept = add_command(target, *(["--fingerprint", shown] if shown else []))
    return Untrusted(
        f"the host key of {target.address} is not known: {what}",
        where=target.name,
        why=why,
        hint="Compare it with what 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' shows on "
        f"that host; if it is the same: {accept}. (Or: ssh-keyscan{port} {target.address} >> "
        "~/.ssh/known_hosts)",
    )


def changed_key(target: Target, got: str, expected: str, place: str) -> MirrordError:
    """Another host key than the one that was accepted."""
    if place:
        name = target.alias or name_of(target.address, target.port)
        forget = shlex.join(["ssh-keygen", "-f", place.rpartition(":")[0], "-R", name])
        mend = f"{forget}, then: {add_command(target, '--fingerprint', got)}"
    else:
        mend = add_command(target, "--fingerprint", got)
    return Untrusted(
        f"the host key of {target.address} HAS CHANGED",
        where=target.name,
        why=f"it shows {got}, expected is {expected}" + (f" ({place})" if place else ""),
        hint="Somebody may be listening in. Ask who runs that host whether its key is new. Only if "
        f"it is: {mend}",
    )


def revoked_key(target: Target, got: str, place: str) -> MirrordError:
    """A host key that must not be used any more."""
    return Untrusted(
        f"the host key of {target.address} is revoked: {got}",
        where=target.name,
        why=place,
        hint="Whoever revoked it thinks that somebody else has it. That host needs a new key: "
        "ssh-keygen -A there, after removing the old one.",
    )


def login_refused(target: Target, tried: list[str], notes: list[str]) -> MirrordError:
    """None of our keys lets us in: the server does not say whether user or key is wrong."""
    why = "; ".join([*(f"tried {key}" for key in tried), *notes])
    return Untrusted(
        f"the log-in as '{target.user}' is refused",
        where=target.name,
        why=why or "there is no key to log in with",
        hint=f"The public key must stand in ~{target.user}/.ssh/authorized_keys on "
        f"{target.address}: '{add_command(target)}' prints the line. Is '{target.user}' the right "
        "user (--user)?",
    )


def key_unreadable(target: Target, file: str, why: str) -> MirrordError:
    """The private key cannot be used."""
    return Untrusted(
        f"the key {file} cannot be used",
        where=target.name,
        why=why,
        hint=f"Correct it ('ls -l {file}'; a private key belongs to its owner alone: "
        f"'chmod 600 {file}'), or name another: mirrord host add {target.name} --key FILE.",
    )


def key_locked(target: Target, file: str) -> MirrordError:
    """The key has a passphrase that nobody is there to type."""
    return Untrusted(
        f"the key {file} is protected by a passphrase",
        where=target.name,
        why="no agent holds it, and nobody is there to type it",
        hint=f"'ssh-add {file}' gives it to the agent; for a service make a key of its own: "
        f"remove the line 'key' in hosts.d/{target.name}.toml, then {add_command(target)}.",
    )


def _own_words(said: str) -> tuple[str, str] | None:
    """(error, hint) when it was mirrord that complained."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line for line in lines if line.startswith("error: ")]
    if not errors:
        return None
    hints = [line for line in lines if line.startswith("hint: ")]
    return quoted(errors[-1][7:]), hints[-1][6:] if hints else ""


def no_agent(host: RemoteHost, status: int | None, said: str, heard: bytes) -> MirrordError:
    """The program at the other end is no agent of mirrord, or ended before it said a word.

    status: how it ended, None while it runs. said: its standard error. heard: what came of it.
    """
    program, shown = shlex.join(host.command), quoted(heard)
    if status == 127 or (status == 126 and not shown):
        found = "not found" if status == 127 else "not executable"
        return Unreachable(
            f"'{host.command[0]}' is {found} there",
            where=host.name,
            why=quoted(said),
            hint=f"Install mirrord on that host, or say where it is: command = "
            f'["/opt/mirrord/bin/mirrord", "agent"] in hosts.d/{host.name}.toml.',
        )
    if "there is no command 'agent'" in said:
        return Unsupported(
            "the mirrord there is too old: it has no agent",
            where=host.name,
            hint="Install there what this host has ('mirrord --version').",
        )
    if (ours := _own_words(said)) is not None:
        what, hint = ours
        return Refused(
            "mirrord does not begin there",
            where=host.name,
            why=what,
            hint=hint or f"Look at it on that host: '{program}'.",
        )
    if shown and status is None:
        return Untrusted(
            f"'{program}' does not speak first there",
            where=host.name,
            why=f"it says '{shown}'",
            hint="If its login shell prints this, take it out of ~/.bashrc or its like there (or "
            "let it print only in a terminal); if the key has a forced command "
            "(~/.ssh/authorized_keys), that must be 'mirrord agent --allow …'.",
        )
    if shown or status is not None:
        parts = [f"it says '{shown}'"] if shown else []
        parts += [quoted(said)] if said else []
        parts += [f"it ended with status {status}"] if status is not None else []
        return Untrusted(
            "something else than mirrord's agent answers there",
            where=host.name,
            why="; ".join(parts),
            hint="Look at the forced command of the key in ~/.ssh/authorized_keys there, and at "
            f"the user's shell: it must be 'mirrord agent --allow …' or let '{program}' run.",
        )
    return LinkLost(
        "the connection ended before mirrord answered",
        where=host.name,
        why=quoted(said),
        hint=f"Run the same command again; if it stays so: mirrord host check {host.name}.",
    )
