"""Manage certificates for TLS without SSH (docs/security.md).

Panel: Hosts 3

For hosts that connect over TLS without SSH, see [security.md](security.md#tls-without-ssh).

`mirrord pki init` creates this host's certificate authority, once. `mirrord pki issue NAME`
creates a key and a certificate for the peer NAME, grants it access, and writes the bundle to copy
to it: `NAME.pem`, or the new file given by `--output`. `--allow receive=/FOLDER` (it may keep
copies there), `--allow send=/FOLDER` (it may read volumes there) and `--allow pause=UNIT` (it may
pause that application) set its rights; at least one is needed. `mirrord pki list` lists the peers
that may connect over TLS, and their rights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirrord.admin.pki import Authority
from mirrord.cli.options import Json
from mirrord.cli.output import answer
from mirrord.config.peers import Peers
from mirrord.system import paths

Peer = Annotated[str, typer.Argument(metavar="NAME", help="A name for the peer.")]


def init(as_json: Json = False) -> None:
    """Create this host's certificate authority, once."""
    authority = Authority(paths.standard().pki)
    authority.init()
    lines = [
        f"The certificate authority of this host is in {authority.folder}. Keep ca.key there "
        "secret: it can issue certificates for any peer.",
        "Next: mirrord pki issue NAME --allow receive=/FOLDER",
    ]
    answer({"folder": str(authority.folder)}, lines, as_json=as_json)


def issue(
    name: Peer,
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow",
            metavar="VERB=FOLDER",
            help="It may receive=FOLDER (keep copies in it), send=FOLDER (read volumes in it) or "
            "pause=UNIT; at least one, may be repeated.",
        ),
    ] = [],  # noqa: B006 - Typer reads it and never changes it
    append_only: Annotated[
        bool,
        typer.Option("--append-only", help="Committed data cannot be deleted or rolled back."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="The bundle's file; default: NAME.pem in this folder."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Issue a certificate for a peer; writes a bundle to copy to it."""
    places = paths.standard()
    made = Authority(places.pki).issue(
        name,
        allow,
        (output or Path(f"{name}.pem")).absolute(),
        Peers(places.peers),
        append_only=append_only,
    )
    lines = [
        f"Carry {made.bundle} to the peer '{name}', over a secure channel, then delete it here.",
        f'There, in hosts.d: transport = "tls", key = "/PATH/TO/{made.bundle.name}".',
        f"To revoke access, delete {made.file}.",
    ]
    document = {**_shown(made.peer), "file": str(made.file), "bundle": str(made.bundle)}
    answer(document, lines, as_json=as_json)


def listing(as_json: Json = False) -> None:
    """List the peers that may connect over TLS, and their rights."""
    peers = Peers(paths.standard().peers)
    found = [peers.load(name) for name in peers.names()]
    width = max((len(peer.name) for peer in found), default=0)
    lines = [
        f"{peer.name:{width}}  {', '.join(peer.allow)}{', append-only' if peer.append_only else ''}"
        f"  {peer.fingerprint[:16]}"
        for peer in found
    ] or ["No peers. Add one with 'mirrord pki issue NAME --allow receive=/FOLDER'."]
    answer({"peers": [_shown(peer) for peer in found]}, lines, as_json=as_json)


def _shown(peer: Any) -> dict[str, Any]:
    return {**peer._asdict(), "allow": list(peer.allow)}


#: The commands of this group.
COMMANDS = {
    "init": init,
    "issue": issue,
    "list": listing,
}
