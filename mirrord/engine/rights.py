"""Whether the hosts of both ends permit the roles that a reverse gives them, before it begins.

The protocol has no question for that, so a call is made that needs the right and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mirrord.core.errors import Unsupported, Untrusted
from mirrord.drivers.contract import Driver, Volume
from mirrord.drivers.live import Live
from mirrord.engine.members import Members

#: A glob that no snapshot's name matches.
_NONE = ("",)
_NO_SOURCE = "the destination cannot become the source"
_NO_DESTINATION = "the source cannot become the destination"


def check_turn(source: Members, destination: Members) -> None:
    """`Untrusted` when this host may not send from the destination, or may not overwrite the source
    or make the destination writable.
    """
    for driver in _remote(destination.drivers):
        with _needed(_NO_SOURCE, "send from", driver):
            driver.own_snapshots(_NONE)
        _may_remove(_NO_SOURCE, driver)
    for driver in _remote(source.drivers):
        with _needed(_NO_DESTINATION, "receive into", driver):
            driver.writers(limit=1)


def check_live_turn(source: Live, destination: Live) -> None:
    """The same for images, whose roles are changed where they are."""
    for what, end in ((_NO_SOURCE, destination), (_NO_DESTINATION, source)):
        for driver in _remote([end]):
            _may_remove(what, driver)
            with _needed(what, "receive into", driver), suppress(Unsupported):
                driver.writers(limit=1)


def _remote(end: Sequence[Volume]) -> list[Driver]:
    return [driver for driver in end if isinstance(driver, Driver) and driver.remote]


def _may_remove(what: str, driver: Driver) -> None:
    if driver.append_only:
        raise Untrusted(
            what,
            where=str(driver),
            why="this host has append-only access there",
            hint="Run the command on that host.",
        )


@contextmanager
def _needed(what: str, action: str, driver: Driver) -> Iterator[None]:
    try:
        yield
    except Untrusted as error:
        why = f"this host may not {action} it: {error.why}"
        raise Untrusted(what, where=str(driver), why=why, hint=error.hint) from error
