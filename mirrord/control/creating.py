"""The arguments of `create`: the volumes of a mirror, and the names of its sites."""

from __future__ import annotations

from mirrord.config.members import parse_pairs
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import UsageError
from mirrord.core.model import Member
from mirrord.core.names import check_site_name


def two_sites(names: list[str]) -> tuple[str, str]:
    """The names, if they are valid for a mirror's sites; `UsageError` otherwise."""
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(
            "the two sites of a mirror need different names",
            why=f"given: {', '.join(names) or '-'}",
            hint="Write the source's first, for example --sites berlin,dr.",
        )
    return check_site_name(names[0]), check_site_name(names[1])


def pairs(
    source: str, destination: str, members: tuple[str, ...], *, beside: bool
) -> tuple[Member, ...]:
    """The members of a new mirror: those that are given, or its source and destination as the only
    one. beside: there are options that are not possible with members.
    """
    way = "mirrord create NAME SOURCE DESTINATION"
    if members and (source or destination or beside):
        raise UsageError(
            "--member cannot be combined with SOURCE, DESTINATION, --recursive, --nested "
            "or --snapshots",
            hint=f"Either '{way}', or '--member SOURCE=DESTINATION' for each volume.",
        )
    if members:
        return parse_pairs(members)
    for name, value in (("SOURCE", source), ("DESTINATION", destination)):
        if not value:
            raise UsageError(
                f"missing argument '{name}'",
                hint=f"Write '{way}', or give --member SOURCE=DESTINATION for each volume.",
            )
    ends = parse_endpoint(source, what="source"), parse_endpoint(destination, what="destination")
    return (Member("", *ends),)
