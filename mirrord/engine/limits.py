"""The token buckets of this process: for the host, each link and each mirror."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

from mirrord.config.definitions import Definitions
from mirrord.config.host import Host
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition
from mirrord.engine.throttle import Backoff, Bucket, Rate, Throttle
from mirrord.schedules.rates import Rates, parse_rates
from mirrord.system import clock, files


@lru_cache(maxsize=1024)
def _parsed(text: str, zone: str) -> Rates:
    return parse_rates(text, zone=zone)


def _at(text: str, zone: str, moment_ns: int) -> float | None:
    return _parsed(text, zone).at(moment_ns) if text else None


def rate_of(definition: Definition, zone: str, moment_ns: int) -> int:
    """What its `throttle` says at that moment, bytes per second; 0: unlimited. zone: without one of
    its own.
    """
    return round(_at(definition.pace.throttle, definition.timing.zone or zone, moment_ns) or 0)


class Limits:
    """Makes the throttle of each transfer. Thread-safe."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._shared: dict[str, Bucket] = {}

    def configure(self, host: Host) -> None:
        """Apply other settings from now on, to running transfers too."""
        self._host = host

    def throttle(
        self,
        definition: Definition,
        definitions: Definitions,
        *,
        check: Callable[[], None],
        danger: Callable[[], bool] = lambda: False,
    ) -> Throttle:
        """What a transfer of this mirror has to pass.

        danger: whether the mirror will miss its RPO at the present rate; it may then borrow.
        """
        pace = definition.pace
        own = _OwnRate(definition, definitions, lambda: self._host.zone, danger)
        buckets = [
            self._bucket("host", lambda: self._at(self._host.throttle)),
            Bucket("transfer", lambda: self._at(self._host.transfer_throttle)),
            # A mirror has one transfer at a time, so its bucket need not outlive that.
            Bucket("mirror", own),
        ]
        if pace.link:
            name = pace.link
            buckets.append(
                self._bucket(f"link {name}", lambda: self._at(self._host.links.get(name, "")))
            )
        backoff = Backoff(pace.io_pressure) if pace.io_pressure is not None else None
        return Throttle(buckets, backoff=backoff, check=check)

    def _at(self, text: str) -> float | None:
        return _at(text, self._host.zone, clock.now_ns())

    def _bucket(self, name: str, rate: Rate) -> Bucket:
        with self._lock:
            return self._shared.setdefault(name, Bucket(name, rate))


class _OwnRate:
    """A mirror's own rate, from its present definition: a changed file applies at once."""

    def __init__(
        self,
        definition: Definition,
        definitions: Definitions,
        zone: Callable[[], str],
        danger: Callable[[], bool],
    ) -> None:
        self._definition, self._definitions = definition, definitions
        self._zone, self._danger = zone, danger
        self._seen = files.stamp(definition.file)

    def __call__(self) -> float | None:
        stamp = files.stamp(self._definition.file)
        if stamp is None or stamp != self._seen:
            self._seen = stamp
            try:
                known = self._definition
                self._definition = self._definitions.load(known.name, known.source_site)
            except MirrordError:
                pass  # an invalid or missing file does not affect a running transfer
        pace, zone = self._definition.pace, self._definition.timing.zone or self._zone()
        rate = _at(pace.throttle, zone, clock.now_ns())
        if rate is not None and pace.borrow > 1 and self._danger():
            return rate * pace.borrow
        return rate
