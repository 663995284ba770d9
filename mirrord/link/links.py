"""The connections that all mirrors of one process share: one to each host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrord.core.model import RemoteHost

if TYPE_CHECKING:
    # Loaded with the first link: who has no other host does without it.
    from mirrord.link.connect import Link


class Links:
    """Given to all who open a volume on another host."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._links: dict[RemoteHost, Link] = {}

    def to(self, host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> Link:
        """The one link to that host."""
        from mirrord.link.connect import Link

        with self._guard:
            found = self._links.get(host)
            if found is None:
                found = self._links[host] = Link(host, jumps)
            return found

    def all(self) -> list[Link]:
        """Those that were made."""
        with self._guard:
            return list(self._links.values())

    def close(self) -> None:
        """End all connections; new ones may be made."""
        with self._guard:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()
