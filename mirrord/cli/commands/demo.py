"""`mirrord demo`."""

from __future__ import annotations

import typer


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    app.command(name, rich_help_panel=panel)(demo)


def demo(
    remote: bool = typer.Option(
        False, "--remote", help="With another host: a network namespace with an sshd of its own."
    ),
) -> None:
    """Show a mirror at work, in under a minute; cleans up after itself."""
    if remote:
        from mirrord.cli.demo.remote import play
    else:
        from mirrord.cli.demo.story import play
    play()
