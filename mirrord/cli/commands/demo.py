"""`mirrord demo`."""

from __future__ import annotations

import typer


def demo(
    remote: bool = typer.Option(
        False, "--remote", help="With a second host: a network namespace with its own sshd."
    ),
) -> None:
    if remote:
        from mirrord.cli.demo.remote import play
    else:
        from mirrord.cli.demo.story import play
    play()
