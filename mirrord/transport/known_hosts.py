"""OpenSSH's files of known host keys: plain, hashed and wildcard names, `@revoked` keys."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class KnownKey(NamedTuple):
    """A known host key: its type, its public part, and its place (file:line)."""

    kind: str
    blob: bytes
    place: str


class Known(NamedTuple):
    """The entries of one host.

    keys: accepted keys. revoked: revoked keys. authority: there is a `@cert-authority` entry.
    unreadable: files that could not be read, with the cause.
    """

    keys: tuple[KnownKey, ...]
    revoked: tuple[KnownKey, ...]
    authority: bool
    unreadable: tuple[str, ...]


def fingerprint(blob: bytes) -> str:
    """`SHA256:…` of the public part of a key, as ssh-keygen -l shows it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def name_of(address: str, port: int) -> str:
    """How the files name a server that listens on a port."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def look_up(files: Sequence[Path], name: str) -> Known:
    """All entries of `files` for `name` (see `name_of`). Missing files are skipped."""
    keys: list[KnownKey] = []
    revoked: list[KnownKey] = []
    unreadable: list[str] = []
    authority = False
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unreadable.append(f"{file}: {error.strerror}")
            continue
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            marker = words.pop(0) if words[0].startswith("@") else ""
            if len(words) < 3 or not _matches(words[0], name):
                continue
            try:
                key = KnownKey(
                    words[1], base64.b64decode(words[2], validate=True), f"{file}:{number}"
                )
            except (binascii.Error, ValueError):
                continue  # as ssh does: a malformed line is ignored
            if marker == "@revoked":
                revoked.append(key)
            elif marker == "@cert-authority":
                authority = True
            elif not marker:
                keys.append(key)
    return Known(tuple(keys), tuple(revoked), authority, tuple(unreadable))


def _matches(names: str, name: str) -> bool:
    """Whether a line's names match `name`; a line with `!name` never does."""
    if names.startswith("|1|"):
        return _matches_hash(names, name)
    found = False
    for pattern in names.lower().split(","):
        negated = pattern.startswith("!")
        # '[' stands for itself here, as in [dr.example.org]:2222.
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, plain):
            if negated:
                return False
            found = True
    return found


def _matches_hash(hashed: str, name: str) -> bool:
    """HMAC-SHA1 of the name under the salt: `|1|SALT|HASH`."""
    try:
        salt, digest = (base64.b64decode(word, validate=True) for word in hashed[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
