"""Check or migrate the definitions in mirrors.d/*.toml.

Panel: Other 1

`mirrord config migrate` rewrites definitions of an
[older version](config.md#definitions-of-an-older-version), all of them or the named ones. Comments
are kept, and the old file is kept as `NAME.toml.before-migrate`. Nothing is written unless all of
them can be rewritten.
"""

from __future__ import annotations

from mirrord.control.command import Right, Service, command
from mirrord.core.results import Result
from mirrord.core.units import counted
from mirrord.system.explain import explained


@command(Right.READ, words="config check")
def check(service: Service) -> Result:
    """Check all definitions; reports file and line of the first error."""
    from mirrord.config.host import check_links, load
    from mirrord.config.hosts import Hosts

    with explained():
        found = service.definitions.all()
        either = [one for each in found for one in service.definitions.both(each.name).values()]
        check_links(either, load(service.paths.host), str(service.paths.host))
        Hosts(service.paths.hosts).all()
        if any(definition.timing.rules for definition in either):
            from mirrord.config.schedules import Schedules

            schedules = Schedules(service.paths.schedules)
            for definition in either:
                schedules.of(definition)
    count = len(found)
    return Result(
        "done",
        f"{counted(count, 'definition')} in {service.definitions.folder}: "
        f"{'all ' if count > 1 else ''}valid."
        if count
        else f"No mirrors are defined in {service.definitions.folder}.",
        {"mirrors": [definition.name for definition in found]},
    )
