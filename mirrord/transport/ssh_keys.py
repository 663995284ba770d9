"""Private keys for SSH: reading them, finding them in the agent, generating one."""

from __future__ import annotations

import base64
import io
import os
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirrord.core.errors import MirrordError, Refused
from mirrord.system import files
from mirrord.transport import failures
from mirrord.transport.target import Target

_OPENSSH_MAGIC = b"openssh-key-v1\0"


class Locked(Exception):
    """A key with a passphrase. blob: its public part, b"" when that is unknown."""

    def __init__(self, blob: bytes) -> None:
        super().__init__("locked")
        self.blob = blob


class Unusable(Exception):
    """A key file that cannot be read, or is not a key; the text gives the reason."""


def load(file: str) -> Any:
    """The Paramiko key in `file`, with its certificate if there is one; `Locked`, `Unusable`."""
    try:
        found = os.stat(file)
        data = Path(file).read_bytes()
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from None
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        raise Unusable(f"it is readable by others (mode {found.st_mode & 0o777:04o})")
    if b"PRIVATE KEY" not in data:
        raise Unusable("it is not a private key")
    locked, blob = _lock(file, data)
    if locked:
        raise Locked(blob)
    try:
        key = _parsed(data)
        if os.path.exists(f"{file}-cert.pub"):
            key.load_certificate(f"{file}-cert.pub")
    except Exception as error:  # the libraries raise many types for a damaged key
        raise Unusable(f"it is damaged, or of an unsupported type: {error}") from None
    return key


def _parsed(data: bytes) -> Any:
    """A private key without passphrase: PEM or OpenSSH's own format."""
    import paramiko
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    own = b"BEGIN OPENSSH" in data
    read = serialization.load_ssh_private_key if own else serialization.load_pem_private_key
    found = read(data, None)
    if isinstance(found, rsa.RSAPrivateKey):
        return paramiko.RSAKey(key=found)
    if isinstance(found, ec.EllipticCurvePrivateKey):
        # Paramiko's own reader of this type rejects what ssh-keygen writes.
        return paramiko.ECDSAKey(vals=(found, found.public_key()))
    if isinstance(found, ed25519.Ed25519PrivateKey):
        text = found.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ).decode()
        return paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    raise ValueError(type(found).__name__)


def _lock(file: str, data: bytes) -> tuple[bool, bytes]:
    """Whether a key has a passphrase, and its public part, b"" when that is unknown."""
    body = b"".join(line for line in data.splitlines() if not line.startswith(b"-----"))
    try:
        raw = base64.b64decode(body, validate=True)
    except ValueError:
        raw = b""
    if raw.startswith(_OPENSSH_MAGIC):
        try:
            strings = _strings(raw, len(_OPENSSH_MAGIC))
            cipher, _method, _options = (next(strings) for _ in range(3))
            start = len(_OPENSSH_MAGIC) + 16 + len(cipher) + len(_method) + len(_options)
            return cipher != b"none", next(_strings(raw, start))
        except (struct.error, StopIteration):
            return False, b""
    if b"ENCRYPTED" not in data:
        return False, b""
    try:
        return True, base64.b64decode(Path(f"{file}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return True, b""


def _strings(raw: bytes, at: int) -> Iterator[bytes]:
    """The consecutive strings of an SSH structure."""
    while at < len(raw):
        (length,) = struct.unpack_from(">I", raw, at)
        yield raw[at + 4 : at + 4 + length]
        at += 4 + length


class Agent:
    """The keys of the agent at SSH_AUTH_SOCK, read when they are needed; none without an agent.

    Open until `close`, because the agent signs with them.
    """

    def __init__(self) -> None:
        self._agent: Any = None

    def keys(self) -> dict[bytes, Any]:
        """Its keys by their public parts."""
        if not os.environ.get("SSH_AUTH_SOCK"):
            return {}
        import paramiko

        try:
            self._agent = self._agent or paramiko.Agent()
            return {key.asbytes(): key for key in self._agent.get_keys()}
        except (paramiko.SSHException, OSError):
            return {}

    def close(self) -> None:
        """Close the connection to the agent."""
        if self._agent is not None:
            self._agent.close()


def candidates(target: Target, agent: Agent, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """(description, key) of each key to try, in order; unusable keys are listed in `notes`.

    If hosts.d names a key, it is the only one: `Untrusted` when it cannot be used.
    """
    if target.key:
        yield _named(target, agent)
        return
    held = agent.keys()
    own: list[tuple[str, Any]] = []
    offered: set[bytes] = set()
    for file in target.keys:
        try:
            key = load(file)
            own.append((file, key))
            offered.add(key.asbytes())
        except Locked as locked:
            if locked.blob in held:
                own.append((f"{file} (agent)", held[locked.blob]))
                offered.add(locked.blob)
            else:
                notes.append(
                    f"{file} has a passphrase and is not in the agent (ssh-add {shlex.quote(file)})"
                )
        except Unusable as error:
            if os.path.lexists(file):
                notes.append(f"{file} cannot be used: {error}")
    if not target.only:
        for blob, key in held.items():
            if blob not in offered:
                yield "key of the agent", key
    yield from own


def _named(target: Target, agent: Agent) -> tuple[str, Any]:
    try:
        return target.key, load(target.key)
    except Locked as locked:
        held = agent.keys().get(locked.blob)
        if held is None:
            raise failures.key_locked(target, target.key) from None
        return f"{target.key} (agent)", held
    except Unusable as error:
        raise failures.key_unreadable(target, target.key, str(error)) from None


def make(file: Path, comment: str) -> str:
    """Generate an ed25519 key in `file` (0600), unless the file exists; its public line."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if not file.exists():
        private = ed25519.Ed25519PrivateKey.generate()
        data = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        files.make_directory("HOST:KEYS", file.parent, mode=0o700)
        files.write_atomic("HOST:KEY", file, data, mode=0o600)
    return public_line(str(file), comment)


def public_line(file: str, comment: str) -> str:
    """`ssh-ed25519 AAAA… comment` of a private key; `Refused` when the key cannot be used."""
    try:
        key = load(file)
        kind, blob = key.get_name(), key.asbytes()
    except Locked as locked:
        if not locked.blob:
            raise _no_public(file, f"it has a passphrase, and {file}.pub does not exist") from None
        blob = locked.blob
        kind = next(_strings(blob, 0)).decode()
    except Unusable as error:
        raise _no_public(file, str(error)) from None
    return f"{kind} {base64.b64encode(blob).decode()} {comment}"


def _no_public(file: str, why: str) -> MirrordError:
    return Refused(
        f"the key {file} cannot be used",
        why=why,
        hint="Use another key with --key, or omit --key; mirrord then generates one.",
    )
