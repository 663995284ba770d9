"""The connections shared by all mirrors of one process: one to each host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrord.core.model import Endpoint, RemoteHost

if TYPE_CHECKING:
    # Loaded with the first link: not needed without remote hosts.
    from mirrord.config.hosts import Hosts
    from mirrord.link.connect import Link
    from mirrord.link.driver import RemoteDriver


_Settings = tuple[RemoteHost, tuple[RemoteHost, ...]]


class Links:
    """Provides the link of each host to those that open a volume there."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        #: By the host and the jump hosts: settings of either may change.
        self._links: dict[_Settings, Link] = {}
        #: The last settings of each host, as endpoints call it.
        self._last: dict[str, _Settings] = {}

    def to(self, name: str, host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> Link:
        """The link to that host, made at the first call. name: of the host in an endpoint."""
        from mirrord.link.connect import Link

        settings = host, tuple(jumps)
        with self._guard:
            before = self._last.get(name)
            self._last[name] = settings
            found = self._links.get(settings)
            if found is None:
                found = self._links[settings] = Link(*settings)
            # (Two names may have had the same settings.)
            outdated = before is not None and before not in self._last.values()
            former = self._links.pop(before) if before is not None and outdated else None
        if former is not None:
            former.retire()
        return found

    def driver(self, endpoint: Endpoint, hosts: Hosts) -> RemoteDriver:
        """The driver of a volume on another host. `ConfigError`."""
        from mirrord.link.driver import RemoteDriver

        host = hosts.find(endpoint.host)
        return RemoteDriver.of(endpoint, self.to(endpoint.host, host, hosts.jumps(host)))

    def close(self) -> None:
        """Close all connections; new ones may be made."""
        with self._guard:
            links = list(self._links.values())
            self._links.clear()
            self._last.clear()
        for link in links:
            link.close()
