"""Show a mirror at work in under a minute, and clean up.

Panel: Other 3

Shows a mirror on temporary volumes that it removes afterwards: btrfs as root, block volumes
otherwise. With `--remote` the destination is on another host: as root a network namespace with a
separate sshd, otherwise an sshd on loopback.
"""

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
