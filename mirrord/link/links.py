"""The connections shared by all mirrors of one process: one to each host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrord.core.model import RemoteHost

if TYPE_CHECKING:
    # Loaded with the first link: not needed without remote hosts.
    from mirrord.link.connect import Link


class Links:
    """Provides the link of each host to those that open a volume there."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        #: By the host and the jump hosts: settings of either may change.
        self._links: dict[tuple[RemoteHost, tuple[RemoteHost, ...]], Link] = {}

    def to(self, host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> Link:
        """The link to that host, made at the first call."""
        from mirrord.link.connect import Link

        key = host, tuple(jumps)
        with self._guard:
            found = self._links.get(key)
            if found is None:
                found = self._links[key] = Link(*key)
            return found

    def close(self) -> None:
        """Close all connections; new ones may be made."""
        with self._guard:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()
