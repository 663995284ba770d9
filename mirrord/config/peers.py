"""`peers.d/NAME.toml`: the peers that may connect over TLS, and their permissions
(docs/security.md).

The file is the only record of a peer: deleting it revokes the peer's access.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.config import strict
from mirrord.config.writing import quoted
from mirrord.core.endpoint import is_dataset
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.names import check_name
from mirrord.system import files
from mirrord.system.descriptors import are_exhausted


class Peer(NamedTuple):
    """name: of the file, without `.toml`. fingerprint: SHA-256 of its certificate (DER), hex.

    allow: `receive=/FOLDER` and `send=/FOLDER`, or with the name of a dataset, and `pause=UNIT`; at
    least one.
    append_only: the peer may not delete or roll back anything that was committed here.
    """

    name: str
    fingerprint: str
    allow: tuple[str, ...]
    append_only: bool = False


def check_allowed(words: Sequence[str]) -> tuple[str, ...]:
    """Rules as in `Peer.allow`; `UsageError` when one is invalid, or there are none."""
    if not words:
        raise UsageError(
            "a peer needs at least one permission",
            hint="Give --allow receive=/FOLDER or --allow send=/FOLDER.",
        )
    for word in words:
        verb, _, folder = word.partition("=")
        if verb == "pause" and folder.isprintable():
            from mirrord.pausers.registry import pauser_of  # few peers may pause anything

            pauser_of(folder)
            continue
        path = folder.startswith("/") and ".." not in folder.split("/")
        plain = path or ("/" in folder and is_dataset(folder))
        if verb not in ("receive", "send") or not plain or not folder.isprintable():
            raise UsageError(
                f"'{word}' is not a permission of a peer",
                hint="Write receive=/FOLDER or send=/FOLDER, with the absolute path, or the name "
                "of a dataset: receive=POOL/DATASET; and pause=UNIT for an application.",
            )
    return tuple(words)


def _fingerprint(value: Any) -> str:
    found = strict.text(value).lower()
    if len(found) != 64 or set(found) - set("0123456789abcdef"):
        raise ValueError("expected 64 hexadecimal digits: SHA-256 of the certificate")
    return found


_KEYS: strict.Keys = {
    "fingerprint": _fingerprint,
    "allow": lambda value: check_allowed(strict.texts(value)),
    "append_only": strict.boolean,
}


class Peers:
    """The files in `folder`, which are read at each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, name: str) -> Path:
        """The path of a peer's file, which may not exist."""
        return self._folder / f"{check_name(name, 'a peer')}.toml"

    def names(self) -> list[str]:
        """The names of all files, valid or not; `OSError` when the folder cannot be listed now."""
        # Not `glob`: in newer versions of Python it finds nothing where an error prevents it.
        try:
            found = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        return sorted(
            each.removesuffix(".toml")
            for each in found
            if each.endswith(".toml") and not each.startswith(".")
        )

    def load(self, name: str) -> Peer:
        """A peer by name. `ConfigError` with file and line."""
        try:
            file = self.file(name)
        except UsageError as error:
            raise ConfigError(error.what, where=str(self._folder / f"{name}.toml")) from None
        try:
            source = strict.source_of(file, "the peer")
        except FileNotFoundError as error:
            raise ConfigError("the peer cannot be read", where=str(file), why=str(error)) from error
        values = strict.read(source, str(file), _KEYS)
        for key in ("fingerprint", "allow"):
            if key not in values:
                raise ConfigError(f"'{key}' is missing", where=str(file))
        return Peer(name, values["fingerprint"], values["allow"], values.get("append_only", False))

    def of(self, fingerprint: str) -> Peer | None:
        """The peer with that certificate; None: it has no access.

        An invalid file gives no access, and does not affect other peers. `OSError` when the folder
        cannot be read, or no more files can be opened: that says nothing about a peer.
        """
        for name in self.names():
            try:
                found = self.load(name)
            except (ConfigError, UsageError) as error:
                if isinstance(error.__cause__, OSError) and are_exhausted(error.__cause__):
                    raise error.__cause__ from None
                continue
            if found.fingerprint == fingerprint:
                return found
        return None

    def write(self, peer: Peer) -> Path:
        """Create the file of a new peer; returns its path."""
        allowed = "\n".join(f"    {quoted(word)}," for word in peer.allow)
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
