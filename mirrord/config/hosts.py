"""Other hosts in `hosts.d/NAME.toml`: how each is reached (docs/config.md describes each key).

A host without a file is reached by its name with the default settings.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirrord.config import strict
from mirrord.config.writing import quoted
from mirrord.core.endpoint import split_host
from mirrord.core.errors import ConfigError, NotFound, UsageError
from mirrord.core.model import RemoteHost
from mirrord.core.names import MIRROR_NAME, check_name, did_you_mean
from mirrord.system import files

TRANSPORTS = ("ssh", "openssh", "tls", "unix")
#: Data connections of a session: the agent accepts no more.
SOCKETS_MAX = 16


def address(value: Any) -> str:
    """A host's name or IP address, or the path of a socket."""
    found = strict.text(value).strip("[]")
    if re.search(r"[\s\0@]", found) or found.startswith("-"):
        raise ValueError("expected the name or the IP address of a host, and nothing else")
    return found


def _command(value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(word, str) and word and "\0" not in word for word in value)
    ):
        raise ValueError('expected a list of words, for example ["/opt/bin/mirrord", "agent"]')
    return tuple(value)


def _compress(value: Any) -> str:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"auto|off|[1-9]|1[0-9]", text):
        raise ValueError('expected "auto", "off", or a zstd level from 1 to 19')
    return text


_SSH_FINGERPRINT = r"SHA256:[A-Za-z0-9+/]{43}"
_TLS_FINGERPRINT = r"[0-9A-Fa-f]{2}(?::?[0-9A-Fa-f]{2}){31}"

_KEYS: strict.Keys = {
    "address": address,
    "port": strict.integer(1, 65535),
    "user": strict.matching(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*", "expected the name of a user"),
    "transport": strict.one_of(*TRANSPORTS),
    "key": strict.matching(r"(?s)[/~].*", "expected the absolute path of a private key file"),
    "fingerprint": strict.matching(
        rf"{_SSH_FINGERPRINT}|{_TLS_FINGERPRINT}",
        "expected a fingerprint as 'ssh-keygen -l' shows it: SHA256:…; or, for transport = "
        "\"tls\", as 'openssl x509 -noout -fingerprint -sha256' shows it: 64 hexadecimal digits",
    ),
    "jump": strict.text,
    "command": _command,
    "data": strict.one_of("auto", "ssh"),
    "sockets": strict.integer(0, SOCKETS_MAX),
    "compress": _compress,
    "connect": strict.duration,
}


def checked(key: str, value: Any) -> Any:
    """The value of one key, which an option gave; `UsageError` when it is invalid."""
    check: Any = _KEYS[key]
    try:
        return check(value)
    except ValueError as error:
        raise UsageError(f"--{key} '{value}' is not a valid {key}", why=str(error)) from None


def check_host_name(name: str) -> str:
    """`name` when it can name a host's file; `UsageError` otherwise."""
    hint = "Choose a short name, and give what reaches it with --address."
    return check_name(name, "a host", hint)


def parse(name: str, text: str, file: str) -> RemoteHost:
    """The host that `text` describes; `ConfigError` with file and line when it is invalid."""
    values = strict.read(text, file, _KEYS)
    if "connect" in values:
        values["connect_s"] = values.pop("connect")
    transport, pinned = values.get("transport", "ssh"), values.get("fingerprint", "")
    if transport == "unix" and not values.get("address", "").startswith("/"):
        why = 'transport = "unix" needs the absolute path of a socket'
        raise _invalid("address", file, text, why)
    if pinned and (transport == "tls") == pinned.startswith("SHA256:"):
        shown = (
            "openssl x509 -noout -fingerprint -sha256" if transport == "tls" else "ssh-keygen -l"
        )
        why = f"transport = \"{transport}\" needs it as '{shown}' shows it"
        raise _invalid("fingerprint", file, text, why)
    return RemoteHost(**{"name": name, "address": name, **values})


def _invalid(key: str, file: str, text: str, why: str) -> ConfigError:
    where = f"{file}:{strict.line_of(text, key)}"
    return ConfigError(f"'{key}' is invalid", where=where, why=why)


def render(host: RemoteHost) -> str:
    """The text of a host's file: the settings that differ from the defaults."""
    usual = RemoteHost(host.name, "")
    lines = [
        f"# The host '{host.name}'. Keys: docs/config.md. Test: mirrord host check {host.name}"
    ]
    for key in _KEYS:
        field = "connect_s" if key == "connect" else key
        value = getattr(host, field)
        if value == getattr(usual, field):
            continue
        if key == "connect":
            lines.append(f'connect = "{value:g}s"')
        elif isinstance(value, tuple):
            lines.append(f"{key} = [{', '.join(quoted(word) for word in value)}]")
        else:
            lines.append(f"{key} = {value if isinstance(value, int) else quoted(value)}")
    return "\n".join(lines) + "\n"


class Hosts:
    """The folder of other hosts' settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """The path of a host's file, which may not exist."""
        return self.folder / f"{check_host_name(name)}.toml"

    def names(self) -> list[str]:
        """The names of all hosts that have a file, valid or not."""
        return sorted(path.stem for path in self.folder.glob("[!.]*.toml"))

    def has(self, name: str) -> bool:
        """Whether there is a file for that name."""
        return MIRROR_NAME.fullmatch(name) is not None and os.path.lexists(self.file(name))

    def load(self, name: str) -> RemoteHost:
        """The settings in a host's file; `NotFound` with the closest name otherwise."""
        path = self.file(name)
        try:
            text = strict.source_of(path, "the settings file of the host")
        except FileNotFoundError:
            hint = f"Create it with 'mirrord host add {name} --address …'."
            raise NotFound(
                f"no host is called '{name}'",
                where=str(path),
                hint=did_you_mean(name, self.names(), hint),
            ) from None
        return parse(name, text, str(path))

    def find(self, authority: str) -> RemoteHost:
        """The host of an endpoint, `[user@]name[:port]`: the settings of its file, or the defaults.

        User and port that are given here override those of the file.
        """
        said_user, name, said_port = split_host(authority, what="the endpoint")
        host = self.load(name) if self.has(name) else RemoteHost(name, name.strip("[]"))
        return host._replace(user=said_user or host.user, port=said_port or host.port)

    def jumps(self, host: RemoteHost) -> tuple[RemoteHost, ...]:
        """The jump hosts, first hop first; `ConfigError` when they form a loop."""
        found: list[RemoteHost] = []
        seen = [host.name]
        while host.jump:
            file = self.folder / f"{seen[-1]}.toml"
            try:
                host = self.find(host.jump)
            except UsageError as error:
                raise ConfigError(
                    f"'jump' is invalid: {error.what}", where=str(file), hint=error.hint
                ) from None
            if host.name in seen:
                raise ConfigError(
                    "the jump hosts form a loop",
                    where=_place_of_jump(file),
                    why=" → ".join([*seen, host.name]),
                    hint="Remove one 'jump'.",
                )
            if host.transport not in ("ssh", "openssh"):
                raise ConfigError(
                    f"'{host.name}' cannot be a jump host",
                    where=_place_of_jump(file),
                    why=f"it is reached by {host.transport}, not by SSH",
                )
            seen.append(host.name)
            found.insert(0, host)
        return tuple(found)

    def all(self) -> list[RemoteHost]:
        """All hosts, checked with their jump hosts; `ConfigError` at the first invalid one."""
        found = []
        for name in self.names():
            try:
                found.append(self.load(name))
            except UsageError as error:
                raise ConfigError(error.what, where=str(self.folder / f"{name}.toml")) from None
        for host in found:
            self.jumps(host)
        return found

    def add(self, host: RemoteHost) -> Path:
        """Write a host's file, replacing an existing one unless the settings are the same."""
        path, text = self.file(host.name), render(host)
        with suppress(ConfigError, NotFound):  # there was none, or an invalid one
            if self.load(host.name) == host:
                return path
        parse(host.name, text, str(path))  # never write what cannot be read back
        files.make_directory("HOST:FOLDER", self.folder, mode=0o700)
        files.write_atomic("HOST:ADD", path, text.encode())
        return path

    def remove(self, name: str) -> None:
        """Remove a host's file; `NotFound` when there is none."""
        if not self.has(name):
            self.load(name)
        files.remove_file("HOST:REMOVE", self.file(name))


def _place_of_jump(file: Path) -> str:
    try:
        return f"{file}:{strict.line_of(file.read_text(encoding='utf-8'), 'jump')}"
    except OSError:
        return str(file)
