"""`mirrord initialize`."""

from __future__ import annotations

from mirrord.cli.output import Json, Name, service, show


def initialize(name: Name, as_json: Json = False) -> None:
    with service(quiet=as_json) as built:
        show(built.initialize(name), as_json=as_json)
