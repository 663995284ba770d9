"""Show a mirror at work in under a minute, and clean up.

Panel: Other 3

Shows a mirror on temporary volumes that it removes afterwards: btrfs as root, block volumes
otherwise. With `--remote` the destination is on another host: as root a network namespace with a
separate sshd, otherwise an sshd on loopback. With `--live` it creates a live mirror of two
images with the policy `dynamic`, slows the link down and restores it, kills the primary, and checks
that the replica has every acknowledged write; it needs 400 MiB in `$TMPDIR`.
"""

from __future__ import annotations

import typer

from mirrord.core.errors import UsageError


def demo(
    remote: bool = typer.Option(
        False, "--remote", help="With a second host: a network namespace with its own sshd."
    ),
    live: bool = typer.Option(
        False, "--live", help="A live mirror on a link that slows down and recovers."
    ),
) -> None:
    if live and remote:
        raise UsageError(
            "--live and --remote cannot be combined",
            hint="Run the demo twice, once with each option.",
        )
    if live:
        from mirrord.cli.demo.live import play
    elif remote:
        from mirrord.cli.demo.remote import play
    else:
        from mirrord.cli.demo.story import play
    play()
