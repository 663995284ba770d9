"""The place of an error at another host."""

from __future__ import annotations

from mirrord.core.endpoint import split_host
from mirrord.core.errors import MirrordError


def place(error: MirrordError, host: str, *, connected: bool) -> None:
    """Let the error's `where` begin with the host. host: as in an endpoint. connected: otherwise a
    path in `where` is one of this host (a key, a configuration).
    """
    short = split_host(host, what="the endpoint")[1]
    where = error.where
    # (A path there may contain the name of the host.)
    named = where == host or where.startswith(f"{host}: ") or f"://{host}/" in where
    if where in ("", short):
        error.where = host
    elif where.startswith(f"{short}: "):
        error.where = f"{host}: {where.removeprefix(f'{short}: ')}"
    elif not named and (connected or not where.startswith("/")):
        error.where = f"{host}: {where}"
