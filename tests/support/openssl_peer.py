"""TLS 1.3 by Python's own module, OpenSSL: another implementation at the other end of ours."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple


class Session(NamedTuple):
    """TLS over two memory buffers: what came from the peer, and what is to go to it."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


def context(*, server: bool, certificate: str, key: str, trusted: str) -> ssl.SSLContext:
    """TLS 1.3 only, the peer must show a certificate that `trusted` (PEM) vouches for."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=trusted)
    descriptor = os.memfd_create("key")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write((key + certificate).encode())
        made.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return made


def session(prepared: ssl.SSLContext, *, server: bool) -> Session:
    """A session in which nothing has happened yet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return Session(prepared.wrap_bio(incoming, outgoing, server_side=server), incoming, outgoing)


def advance(tls: Session) -> bool:
    """Go on with the handshake as far as what came allows; True when it is done.

    What is to be sent lies in `outgoing` afterwards, also when it fails. Raises `ssl.SSLError`.
    """
    try:
        tls.tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
