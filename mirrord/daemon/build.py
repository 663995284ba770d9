"""Builds the service that the CLI talks to."""

from __future__ import annotations

from mirrord.control.api import Service
from mirrord.core.results import Watcher
from mirrord.system import paths


def local_service(watcher: Watcher | None = None) -> Service:
    """The service in this very process."""
    return Service(paths.standard(), watcher)
