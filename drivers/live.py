"""The role of an image that is mirrored live: `mirrord-live` (native/live) runs at both ends.

A driver with this role alone has no snapshots. Its volume's epoch and role are not in a
relationship record but in the tracking file, where the process changes them together with what
they protect; so no method here is fenced by `Volume.fence`.
"""

from __future__ import annotations

import abc
from typing import Any, NoReturn, TypeVar

from mirrord.core.errors import Unsupported
from mirrord.core.live import ImageFacts, LiveSetup, LiveStatus, Mode
from mirrord.drivers.contract import Driver, Volume

_Class = TypeVar("_Class", bound=type)

#: A call to another host occupies a thread there for so long.
AWAIT_S_MAX = 10.0


class Live(Volume):
    """An image, and the process that keeps it equal to the one at the other end. Every method may
    be called again after a crash at any point of it.
    """

    @abc.abstractmethod
    def image_facts(self) -> ImageFacts:
        """Size and use of the image; changes nothing."""

    @abc.abstractmethod
    def live_create(self, setup: LiveSetup) -> None:
        """Create the records of this end. A replica's missing image is created. `Refused` when the
        image is missing, in use, of another size, or belongs to another mirror.
        """

    @abc.abstractmethod
    def live_start(self, link: str, peer: str) -> LiveStatus:
        """Let the process run. link: ADDRESS or ADDRESS:PORT where the other end connects to; with
        "" and without a port what was used before. peer: where the other end listens; "": as
        before. Raises what prevents it.
        """

    @abc.abstractmethod
    def live_status(self) -> LiveStatus:
        """What the process reports; changes nothing."""

    @abc.abstractmethod
    def live_serve(self, address: str, allowed: tuple[str, ...] = ()) -> str:
        """Let clients connect to `unix:PATH` or ADDRESS:PORT, also after a restart; "": a socket in
        the run folder. Returns the address. `Refused` when it is in use.

        allowed: networks, ADDRESS or ADDRESS/BITS, from which they may connect over TCP; required
        where other hosts reach the address.
        """

    @abc.abstractmethod
    def live_unserve(self) -> bool:
        """Disconnect all clients and listen no more. Returns whether it was served."""

    @abc.abstractmethod
    def live_mode(self, mode: Mode) -> None:
        """Set the mode of a primary."""

    @abc.abstractmethod
    def live_control(self, controller: str) -> None:
        """Record whose policy and settings a primary has from now on: the identity of the host that
        ran the last verb. Daemons of other hosts that have the definition do not change them.
        """

    @abc.abstractmethod
    def live_window(self, window: str) -> None:
        """Set how far a replica may be behind in semi-sync, also after a restart: bytes, or seconds
        with an `s`.
        """

    @abc.abstractmethod
    def live_answer_within(self, within_us: int, lag_bytes: int | None) -> None:
        """Let a primary in semi-sync use more of the window when a write has waited for so long; 0:
        it uses all of it, or `lag_bytes`. lag_bytes: how much it uses now; None: as it is.
        """

    @abc.abstractmethod
    def live_merge(self, merge: bool) -> None:
        """Whether a primary in semi-sync sends only the newer of two writes of one place that wait
        for the link (`live_traffic`). After a restart it does.
        """

    @abc.abstractmethod
    def live_traffic(self, merge_above_bytes: int, compress: bool, durable: bool) -> None:
        """What a primary saves on the link, and when it answers, also after a restart. In semi-sync
        at most so many bytes are under way, and what waits beyond is merged. compress: what no
        client waits for. durable: in sync a write is answered when it is durable at both ends.
        """

    @abc.abstractmethod
    def live_await_full(self, patience_s: float) -> bool:
        """Wait until writes to a primary wait because the window of semi-sync is full, at most so
        long (`AWAIT_S_MAX`); whether they do.
        """

    @abc.abstractmethod
    def live_record(self, begin: bool) -> None:
        """Let a primary begin a recording of its writes (docs/traces.md), or end it. `Refused` when
        there is one already. It ends when nobody fetches it for a minute.
        """

    @abc.abstractmethod
    def live_recorded(self) -> bytes:
        """What was recorded since the last call, at most 1 MiB of it; b"" for nothing. The last
        record says that it was ended. `Refused` when there is no recording any more.
        """

    @abc.abstractmethod
    def live_resync(self) -> None:
        """Let a primary that is out of sync copy what changed, whatever its mode."""

    @abc.abstractmethod
    def live_copy_rate(self, bytes_s: int) -> None:
        """Limit how fast this end copies while it is a primary: the first copy and each resync; 0:
        unlimited. It is kept with the end, for the next process too.
        """

    @abc.abstractmethod
    def live_verify(self, bytes_s: int) -> None:
        """Let a primary in sync compare both images, while clients write; 0: unlimited."""

    @abc.abstractmethod
    def live_verify_stop(self) -> None:
        """Let a primary end its comparison."""

    @abc.abstractmethod
    def live_repair(self) -> None:
        """Let a primary copy what the last comparison found to differ. `Refused` when it found
        nothing, out of sync, or in the mode `strict-sync`.
        """

    @abc.abstractmethod
    def live_break(self) -> None:
        """Make a secondary with a consistent image a primary of the next epoch. Returns when it is
        one, or after some seconds while the status says `breaking`: a slow disk may need longer.
        """

    @abc.abstractmethod
    def live_rejoin(self) -> None:
        """Make a fenced primary a secondary; what only it has will be overwritten."""

    @abc.abstractmethod
    def live_reclaim(self) -> None:
        """Make a fenced primary the primary of the next epoch."""

    @abc.abstractmethod
    def live_remove(self) -> None:
        """End the process and remove its records; the image is kept."""


def without_snapshots(made: _Class) -> _Class:
    """The class, where the methods of the roles `Source`, `Destination` and `Failover` that it does
    not define raise `Unsupported`.
    """
    for name in getattr(made, "__abstractmethods__", frozenset()):
        setattr(made, name, _refusing(name))
    abc.update_abstractmethods(made)
    return made


def _refusing(name: str) -> Any:
    def refuse(self: Volume, *_words: Any, **_named: Any) -> NoReturn:
        raise Unsupported(f"volumes of the kind '{self.kind}' have no snapshots", where=str(self))

    refuse.__name__ = name
    return refuse


def live_of(driver: Driver) -> Live:
    """The driver as one whose volume can be mirrored live; raises `Unsupported` otherwise."""
    if not isinstance(driver, Live):
        raise Unsupported("volumes of this kind cannot be mirrored live", where=str(driver))
    return driver
