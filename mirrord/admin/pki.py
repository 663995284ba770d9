"""A small certificate authority for hosts that talk over TLS without SSH (docs/security.md).

`pki/` in the configuration folder: `ca.key` and `ca.pem` sign and verify certificates,
`server.pem` (key and certificate) identifies this host to its peers. A peer's key is written to its
bundle only, and is not kept on this host.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrord.config.peers import Peer, Peers, check_allowed
from mirrord.core.errors import IoFailed, NotFound, Refused
from mirrord.system import clock, files

if TYPE_CHECKING:
    from cryptography import x509

#: The validity of all certificates. Access is revoked through peers.d, not by expiry.
_VALID = timedelta(days=3653)
#: How much the clocks of the two hosts may differ.
_BEFORE = timedelta(days=2)


class Issued(NamedTuple):
    """peer: as written to `file` in peers.d. bundle: the file for the peer, with its key."""

    peer: Peer
    file: Path
    bundle: Path


class Authority:
    """The certificate authority in `folder`, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate, self.key = folder / "ca.pem", folder / "ca.key"
        self.server = folder / "server.pem"

    def init(self) -> None:
        """Create keys and certificates of the authority and this host. `Refused` if they exist."""
        if self.certificate.exists():
            raise Refused(
                "this host already has a certificate authority",
                where=str(self.folder),
                why="a new one would invalidate the certificates of all peers",
                hint=f"To create a new one, move the folder {self.folder} away first.",
            )
        key, made = _new_certificate("mirrord of this host", None)
        server_key, server = _new_certificate("mirrord", (key, made), server=True)
        try:
            files.make_directory("PKI:FOLDER", self.folder, mode=0o700)
            files.write_atomic("PKI:KEY", self.key, _pem(key), mode=0o600)
            files.write_atomic(
                "PKI:SERVER", self.server, _pem(server_key) + _pem(server), mode=0o600
            )
            # Written last: anything found without it is left from an interrupted attempt.
            files.write_atomic("PKI:AUTHORITY", self.certificate, _pem(made), mode=0o600)
        except OSError as error:
            raise _failed(self.folder, error) from error

    def issue(
        self, name: str, allow: list[str], bundle: Path, peers: Peers, *, append_only: bool = False
    ) -> Issued:
        """Write a key and a certificate for a new peer to the new file `bundle`; grants it access.

        `NotFound`: there is no authority. `Refused`: the peer or the file already exists.
        """
        allowed, file = check_allowed(allow), peers.file(name)
        if file.exists():
            raise Refused(
                f"the peer '{name}' already exists",
                where=str(file),
                hint=f"To give it a new certificate, delete {file} first.",
            )
        key, made = _new_certificate(name, self._load())
        peer = Peer(name, _fingerprint(made), allowed, append_only)
        try:
            descriptor = os.open(bundle, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(_pem(key) + _pem(made) + self.certificate.read_bytes())
                opened.flush()
                os.fsync(descriptor)
            peers.write(peer)
        except FileExistsError:
            raise Refused(
                "the bundle file already exists",
                where=str(bundle),
                hint="Give another path with --output.",
            ) from None
        except OSError as error:
            raise _failed(bundle, error) from error
        return Issued(peer, file, bundle)

    def _load(self) -> tuple[Any, x509.Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        try:
            key = serialization.load_pem_private_key(self.key.read_bytes(), None)
            return key, x509.load_pem_x509_certificate(self.certificate.read_bytes())
        except FileNotFoundError:
            raise NotFound(
                "this host has no certificate authority",
                where=str(self.folder),
                hint="Run: mirrord pki init",
            ) from None
        except (OSError, ValueError) as error:
            raise _failed(self.folder, error) from error


def _failed(path: Path, error: OSError | ValueError) -> IoFailed:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return IoFailed("the keys cannot be read or written", where=str(path), why=why)


def _new_certificate(
    name: str, issuer: tuple[Any, x509.Certificate] | None, *, server: bool = False
) -> tuple[Any, x509.Certificate]:
    """A new key and its certificate. issuer None: for an authority; server: for the end that
    listens. That of a peer is valid for connecting only.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC).replace(microsecond=0)
    signer, above = issuer or (key, None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(above.subject if above else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(
            x509.BasicConstraints(ca=above is None, path_length=None if above else 0), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(authority=above is None), critical=True)
    )
    if above is not None:
        usages = x509.oid.ExtendedKeyUsageOID
        use = usages.SERVER_AUTH if server else usages.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    return key, builder.sign(signer, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(made: Any) -> bytes:
    """A key or a certificate in PEM format."""
    from cryptography.hazmat.primitives import serialization

    encoding = serialization.Encoding.PEM
    if hasattr(made, "private_bytes"):
        found: bytes = made.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    else:
        found = made.public_bytes(encoding)
    return found


def _fingerprint(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import hashes

    return certificate.fingerprint(hashes.SHA256()).hex()
