"""From an endpoint on another host to its driver."""

from __future__ import annotations

from mirrord.config.hosts import Hosts
from mirrord.core.model import Endpoint
from mirrord.drivers.contract import Driver
from mirrord.link.connect import link_to
from mirrord.link.driver import RemoteDriver
from mirrord.system.paths import Paths


def remote_driver(endpoint: Endpoint, paths: Paths) -> Driver:
    """The driver of a volume on another host, over that host's one connection. `ConfigError`."""
    hosts = Hosts(paths.hosts)
    host = hosts.find(endpoint.host)
    return RemoteDriver.of(endpoint, link_to(host, hosts.jumps(host)))
