"""`mirrord config`."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrord.cli.options import Json
from mirrord.cli.output import show


def migrate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Mirrors; default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes as a diff; write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rewrite definitions of an older version, keeping their comments and a copy."""
    from mirrord.control.migrating import migrate as migrate_files
    from mirrord.system import paths

    show(migrate_files(paths.standard(), names or [], dry_run=dry_run), as_json=as_json)


#: The commands of this group.
COMMANDS = {
    "migrate": migrate,
}
