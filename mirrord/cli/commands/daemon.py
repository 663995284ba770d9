"""`mirrord daemon`."""

from __future__ import annotations


def daemon() -> None:
    from mirrord.daemon.build import serve

    serve()
