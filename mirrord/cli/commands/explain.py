"""`mirrord explain`."""

from __future__ import annotations

from mirrord.cli.output import Json, Name, service, show


def explain(name: Name, as_json: Json = False) -> None:
    with service(quiet=as_json) as built:
        show(built.explain(name), as_json=as_json)
