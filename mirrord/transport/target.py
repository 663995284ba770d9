"""Address and credentials of an SSH connection: from hosts.d, and ~/.ssh/config for the rest."""

from __future__ import annotations

import getpass
import glob
import re
from os.path import expanduser
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.core.errors import ConfigError, Unsupported
from mirrord.core.model import RemoteHost
from mirrord.core.units import is_port

_DEPTH_MAX = 16
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")


class Target(NamedTuple):
    """The resolved parameters of a connection to one server.

    name: in messages. key: the only private key to use, or "" for those of the agent and `keys`.
    only: do not use keys of the agent other than `keys`. alias: its name in known_hosts. jumps:
    the jump hosts of ~/.ssh/config.
    """

    name: str
    address: str
    port: int
    user: str
    key: str
    keys: tuple[str, ...]
    only: bool
    fingerprint: str
    alias: str
    known_hosts: tuple[Path, ...]
    connect_s: float
    jumps: tuple[RemoteHost, ...] = ()


def resolve(host: RemoteHost) -> Target:
    """The target of `host`; `ConfigError` for an ssh configuration that cannot be parsed."""
    found = _configured(host.address)
    address = found.get("hostname", host.address)
    usual = RemoteHost("", "").connect_s
    connect_s = host.connect_s
    if connect_s == usual and str(found.get("connecttimeout", "")).isdecimal():
        connect_s = float(found["connecttimeout"]) or usual
    if found.get("proxycommand") and not host.jump:
        raise Unsupported(
            "~/.ssh/config has a ProxyCommand for this host",
            where=host.name,
            hint=f'Use ProxyJump there, or set transport = "openssh" in hosts.d/{host.name}.toml.',
        )
    files = [expanduser(word) for word in str(found.get("userknownhostsfile", "")).split()]
    shared = [expanduser(word) for word in str(found.get("globalknownhostsfile", "")).split()]
    named = tuple(expanduser(name) for name in found.get("identityfile", ()) if name != "none")
    return Target(
        name=host.name,
        address=address,
        port=host.port or _port(found, host),
        user=host.user or found.get("user") or getpass.getuser(),
        key=expanduser(host.key) if host.key else "",
        keys=named or tuple(expanduser(name) for name in _DEFAULT_KEYS),
        only=str(found.get("identitiesonly", "no")).lower() == "yes",
        fingerprint=host.fingerprint,
        alias=str(found.get("hostkeyalias", "")).lower(),
        known_hosts=tuple(
            Path(name)
            for name in (
                *(files or [expanduser("~/.ssh/known_hosts"), expanduser("~/.ssh/known_hosts2")]),
                *(shared or ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]),
            )
        ),
        connect_s=connect_s,
        jumps=_jumps(str(found.get("proxyjump", "none"))),
    )


def _port(found: Any, host: RemoteHost) -> int:
    text = str(found.get("port", 22))
    if not is_port(text) or not int(text):
        raise ConfigError(f"~/.ssh/config has an invalid port: '{text}'", where=host.name)
    return int(text)


def _jumps(text: str) -> tuple[RemoteHost, ...]:
    """The hosts of a ProxyJump line: `[user@]host[:port]`, separated by commas."""
    if text.lower() == "none":
        return ()
    jumps = []
    for word in text.split(","):
        parts = re.fullmatch(
            r"(?:ssh://)?(?:([^@]+)@)?(\[[^]]+\]|[^:]+)(?::(\d+))?/?", word.strip()
        )
        if parts is None:
            raise ConfigError(f"~/.ssh/config has an invalid ProxyJump: '{word}'")
        address = parts[2].strip("[]")
        jumps.append(RemoteHost(address, address, port=int(parts[3] or 0), user=parts[1] or ""))
    return tuple(jumps)


def _configured(address: str) -> Any:
    """The settings of ~/.ssh/config, then ssh_config, for an address (keys in lower case)."""
    own = Path(expanduser("~/.ssh/config"))
    text = _read(own, own.parent, 0) + "\nHost *\n" + _read(_SYSTEM_CONFIG, Path("/etc/ssh"), 0)
    if not re.search(r"(?im)^\s*[a-z]", text.replace("Host *", "")):
        return {}
    import paramiko

    try:
        return paramiko.SSHConfig.from_text(text).lookup(address)
    except (paramiko.SSHException, KeyError, ValueError, ImportError) as error:
        raise ConfigError(
            "~/.ssh/config cannot be parsed",
            why=str(error) or type(error).__name__,
            hint=f"'ssh -G {address}' shows how ssh reads it; or set transport = "
            '"openssh" in hosts.d.',
        ) from None


def _read(file: Path, folder: Path, depth: int) -> str:
    """A configuration with its `Include` lines replaced by the included files."""
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the file cannot be read", where=str(file), why=str(error)) from None
    if depth > _DEPTH_MAX:
        raise ConfigError("the file includes itself, or too many others", where=str(file))
    lines, block = [], "Host *"
    for line in text.splitlines():
        words = line.strip().replace("=", " ", 1).split()
        if words and words[0].lower() in ("host", "match"):
            block = line
        if not words or words[0].lower() != "include":
            lines.append(line)
            continue
        for pattern in words[1:]:
            path = folder / expanduser(pattern.strip('"'))
            for name in sorted(glob.glob(str(path))):
                included = _read(Path(name), folder, depth + 1)
                if block != "Host *" and re.search(r"(?im)^\s*(host|match)\b", included):
                    raise ConfigError(
                        f"'{block.strip()}' includes a file with its own Host or Match blocks",
                        where=str(file),
                        hint="Include it before the first Host line, or set transport = "
                        '"openssh" in hosts.d.',
                    )
                lines += [included, block]
    return "\n".join(lines)
