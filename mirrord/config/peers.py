"""`peers.d/NAME.toml`: who may connect over TLS, and what for (docs/security.md).

A file there is the whole of it: who deletes it shuts the peer out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.config import strict
from mirrord.core.endpoint import is_dataset
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.names import check_name
from mirrord.system import files


class Peer(NamedTuple):
    """name: of the file, without `.toml`. fingerprint: SHA-256 of its certificate (DER), hex.

    allow: `receive=/FOLDER` and `send=/FOLDER`, or with the name of a dataset, one at least.
    append_only: nothing that was committed here may be deleted or turned back by it.
    """

    name: str
    fingerprint: str
    allow: tuple[str, ...]
    append_only: bool = False


def check_allowed(words: Sequence[str]) -> tuple[str, ...]:
    """Rules as `Peer.allow` has them; `UsageError` when one is none, or there is not one."""
    if not words:
        raise UsageError(
            "a peer needs at least one permission",
            hint="Give --allow receive=/FOLDER or --allow send=/FOLDER.",
        )
    for word in words:
        verb, _, folder = word.partition("=")
        path = folder.startswith("/") and ".." not in folder.split("/")
        plain = path or ("/" in folder and is_dataset(folder))
        if verb not in ("receive", "send") or not plain or not folder.isprintable():
            raise UsageError(
                f"'{word}' is not a permission of a peer",
                hint="Write receive=/FOLDER or send=/FOLDER, with the absolute path, or the name "
                "of a dataset: receive=POOL/DATASET.",
            )
    return tuple(words)


def _allow(value: Any) -> tuple[str, ...]:
    return check_allowed(strict.texts(value))


def _fingerprint(value: Any) -> str:
    found = strict.text(value).lower()
    if len(found) != 64 or set(found) - set("0123456789abcdef"):
        raise ValueError("expected 64 hexadecimal digits: SHA-256 of the certificate")
    return found


def _yes(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


_KEYS: strict.Keys = {"fingerprint": _fingerprint, "allow": _allow, "append_only": _yes}


class Peers:
    """The files in `folder`; each question reads them anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, name: str) -> Path:
        """Where a peer of that name is, or would be."""
        return self._folder / f"{check_name(name, 'a peer')}.toml"

    def names(self) -> list[str]:
        """Of all files, right or wrong."""
        if not self._folder.is_dir():
            return []
        return sorted(each.stem for each in self._folder.glob("[!.]*.toml"))

    def load(self, name: str) -> Peer:
        """One of them. `ConfigError` with file and line."""
        file = self.file(name)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("the peer cannot be read", where=str(file), why=str(error)) from error
        values = strict.read(source, str(file), _KEYS)
        for key in ("fingerprint", "allow"):
            if key not in values:
                raise ConfigError(f"'{key}' is missing", where=str(file))
        return Peer(name, values["fingerprint"], values["allow"], values.get("append_only", False))

    def of(self, fingerprint: str) -> Peer | None:
        """Whose certificate that is; None: nobody's who may come in.

        A file that is wrong lets nobody in, and keeps nobody else out.
        """
        for name in self.names():
            try:
                found = self.load(name)
            except (ConfigError, UsageError):
                continue
            if found.fingerprint == fingerprint:
                return found
        return None

    def write(self, peer: Peer) -> Path:
        """Make the file of a new peer; returns its path."""
        allowed = "\n".join(f"    {_quoted(word)}," for word in peer.allow)
        text = (
            f"# The peer '{peer.name}'. Delete this file to revoke its access; its sessions end\n"
            "# as well. Keys: docs/config.md.\n"
            f'fingerprint = "{peer.fingerprint}"\n'
            f"allow = [\n{allowed}\n]\n"
            f"append_only = {'true' if peer.append_only else 'false'}\n"
        )
        file = self.file(peer.name)
        files.make_directory("PKI:PEERS", self._folder, mode=0o700)
        files.write_atomic("PKI:PEER", file, text.encode(), mode=0o600)
        return file


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
