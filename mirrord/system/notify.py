"""Notifies systemd of the daemon's state (sd_notify): datagrams to the socket that it names."""

from __future__ import annotations

import os
import socket
import time


def tell(*lines: str, patience_s: float = 2.0) -> None:
    """Send lines such as READY=1; nothing when systemd did not start this process.

    The receive queue is limited: after `patience_s` a datagram is dropped.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(patience_s)
        try:
            sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return  # systemd notices the missing notification itself


def reloading() -> None:
    """The configuration is being reloaded; `tell("READY=1")` ends that."""
    tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
