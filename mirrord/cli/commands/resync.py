"""`mirrord resync`."""

from __future__ import annotations

from mirrord.cli.output import Force, Json, Name, Yes, confirm, service, show


def resync(name: Name, yes: Yes = False, force: Force = False, as_json: Json = False) -> None:
    """Shows first what would be lost; that is kept as a diverged snapshot."""
    with service(quiet=as_json) as built:
        result = built.resync(name, yes=yes, force=force)
        if result.status == "confirmation-required":
            confirm(result, command=f"mirrord resync {name}", as_json=as_json)
            result = built.resync(name, yes=True, force=force)
        show(result, as_json=as_json)
