"""Continue from another source that has the base snapshot.

Panel: Failover and failback 6

Continues a mirror from another source that has its base: in a cascade A → B → C, C continues from A
when B is lost. The next update is incremental. When the base is missing, the command is refused and
changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mirrord.control.command import Argument, MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.core.states import Verb

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror


@command(Right.ACT)
def change_source(
    service: Service,
    name: MirrorName,
    source: Annotated[str, Argument("SOURCE", "The new source: KIND:PATH.")],
) -> Result:
    from mirrord.config.together import check_together
    from mirrord.core.endpoint import parse_endpoint
    from mirrord.engine import cascade

    endpoint = parse_endpoint(source, what="source")
    definition = service.definition(name)
    cascade.refuse_members(definition)
    others = [one for one in service.definitions.all() if one.name != name]
    check_together([*others, definition._replace(source=endpoint)])

    def change(mirror: Mirror) -> Result:
        with service.attached(endpoint) as driver:
            return cascade.change_source(mirror, endpoint, driver)

    return service.verb(Verb.CHANGE_SOURCE, name, change)
