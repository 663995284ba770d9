"""`mirrord config`."""

from __future__ import annotations

import typer

from mirrord.cli.output import Json, service, show


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    group = typer.Typer(help="The definitions in mirrors.d/*.toml.", no_args_is_help=True)
    group.command("check")(check)
    app.add_typer(group, name=name, rich_help_panel=panel)


def check(as_json: Json = False) -> None:
    """Read all definitions strictly; says file and line of the first that is wrong."""
    with service(quiet=True) as built:
        show(built.check(), as_json=as_json)
