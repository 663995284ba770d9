"""`mirrord release`."""

from __future__ import annotations

from mirrord.cli.output import Json, Name, service, show


def release(name: Name, as_json: Json = False) -> None:
    with service(quiet=as_json) as built:
        show(built.release(name), as_json=as_json)
