"""From an endpoint on another host to its driver."""

from __future__ import annotations

from mirrord.config.hosts import Hosts
from mirrord.core.model import Endpoint
from mirrord.drivers.contract import Driver
from mirrord.link.driver import RemoteDriver
from mirrord.link.links import Links
from mirrord.system.paths import Paths


def remote_driver(endpoint: Endpoint, paths: Paths, links: Links) -> Driver:
    """The driver of a volume on another host, over the one link to that host. `ConfigError`."""
    hosts = Hosts(paths.hosts)
    host = hosts.find(endpoint.host)
    return RemoteDriver.of(endpoint, links.to(endpoint.host, host, hosts.jumps(host)))
