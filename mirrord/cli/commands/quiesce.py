"""`mirrord quiesce`."""

from __future__ import annotations

from mirrord.cli.output import Json, Name, service, show


def quiesce(name: Name, as_json: Json = False) -> None:
    with service(quiet=as_json) as built:
        show(built.quiesce(name), as_json=as_json)
