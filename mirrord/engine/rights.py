"""Whether the hosts of both ends permit the roles that a reverse gives them, before it begins.

The protocol has no question for that, so a call is made that needs the right and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirrord.core.errors import Untrusted
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members

#: A glob that no snapshot's name matches.
_NONE = ("",)


def check_turn(source: Members, destination: Members) -> None:
    """`Untrusted` when this host may not send from the destination, or may not overwrite the source
    or make the destination writable.
    """
    for driver in _remote(destination):
        with _needed("the destination cannot become the source", "send from", driver):
            driver.own_snapshots(_NONE)
        if driver.append_only:
            raise Untrusted(
                "the destination cannot become the source",
                where=str(driver),
                why="this host has append-only access there",
                hint="Run the command on that host.",
            )
    for driver in _remote(source):
        with _needed("the source cannot become the destination", "receive into", driver):
            driver.writers(limit=1)


def _remote(end: Members) -> list[Driver]:
    return [driver for driver in end.drivers if driver.remote]


@contextmanager
def _needed(what: str, action: str, driver: Driver) -> Iterator[None]:
    try:
        yield
    except Untrusted as error:
        why = f"this host may not {action} it: {error.why}"
        raise Untrusted(what, where=str(driver), why=why, hint=error.hint) from error
