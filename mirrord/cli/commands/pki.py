"""`mirrord pki`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirrord.cli.output import Json, print_json

Peer = Annotated[str, typer.Argument(metavar="NAME", help="The peer's name, for you.")]


def init(as_json: Json = False) -> None:
    """Make this host's own small authority, once."""
    from mirrord.config.pki import Authority
    from mirrord.system import paths

    authority = Authority(paths.standard().pki)
    authority.init()
    if as_json:
        print_json({"folder": str(authority.folder)})
        return
    print(
        f"This host has an authority in {authority.folder}. Who has ca.key there can let in anyone."
    )
    print("Let a peer in: mirrord pki issue NAME --allow receive=/FOLDER")


def issue(
    name: Peer,
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow",
            metavar="VERB=/FOLDER",
            help="It may receive=/FOLDER (keep copies in it) or send=/FOLDER (have its volumes "
            "sent). Once at least.",
        ),
    ] = [],  # noqa: B006 - Typer reads it and never changes it
    append_only: Annotated[
        bool,
        typer.Option("--append-only", help="Nothing that was committed is deleted or turned back."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The bundle's file; else NAME.pem here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a certificate for a peer and let it in; writes the bundle to carry to it."""
    from mirrord.config.peers import Peers
    from mirrord.config.pki import Authority
    from mirrord.system import paths

    places = paths.standard()
    made = Authority(places.pki).issue(
        name,
        allow,
        (output or Path(f"{name}.pem")).absolute(),
        Peers(places.peers),
        append_only=append_only,
    )
    if as_json:
        print_json(_shown(made.peer) | {"file": str(made.file), "bundle": str(made.bundle)})
        return
    print(f"Carry {made.bundle} to the peer '{name}', secretly, and delete it here.")
    print(f'There, in hosts.d: transport = "tls", key = "/PATH/TO/{made.bundle.name}".')
    print(f"To shut it out again, delete {made.file}.")


def listing(as_json: Json = False) -> None:
    """Show who may connect over TLS, and what for."""
    from mirrord.config.peers import Peers
    from mirrord.system import paths

    peers = Peers(paths.standard().peers)
    found = [peers.load(name) for name in peers.names()]
    if as_json:
        print_json({"peers": [_shown(peer) for peer in found]})
        return
    width = max((len(peer.name) for peer in found), default=0)
    for peer in found:
        more = ", append-only" if peer.append_only else ""
        print(f"{peer.name:{width}}  {', '.join(peer.allow)}{more}  {peer.fingerprint[:16]}")


def _shown(peer: Any) -> dict[str, Any]:
    return {**peer._asdict(), "allow": list(peer.allow)}


#: The commands of this group.
COMMANDS = {
    "init": init,
    "issue": issue,
    "list": listing,
}
