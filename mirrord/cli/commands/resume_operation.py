"""`mirrord resume-operation`."""

from __future__ import annotations

from mirrord.cli.output import Json, Name, Yes, confirm, service, show


def resume_operation(name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """What was written since the interruption is kept as a diverged snapshot. To abandon it
    instead: 'mirrord abort NAME --hard'.
    """
    with service(quiet=as_json) as built:
        result = built.resume_operation(name, yes=yes)
        if result.status == "confirmation-required":
            confirm(result, command=f"mirrord resume-operation {name}", as_json=as_json)
            result = built.resume_operation(name, yes=True)
        show(result, as_json=as_json)
