"""`mirrord reload`."""

from __future__ import annotations

from mirrord.cli.output import Json, service, show


def reload(as_json: Json = False) -> None:
    with service(quiet=True) as built:
        show(built.reload(), as_json=as_json)
