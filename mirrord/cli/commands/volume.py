"""Manage block volumes: create, read, write, import, export, check.

Panel: Other 2

VOLUME is the directory of a block volume; SIZE is `4096`, `512M` or `10G`. A created volume uses
space only as it is written. `write` is durable when it returns. `import` makes the content equal
to a raw image; a folder, or with `--tar` a tar stream, is stored as a tar stream, which `export
--tar` writes again, unpacked when TARGET is a folder. `trim` makes a range read as zeroes and
frees its space. `promote` makes the destination of a deleted mirror a live volume again. `check`
verifies every block and every map and changes nothing; its exit status is 1 on errors.

The destination of a mirror can be read, exported and checked, not written; of its snapshots those
can be deleted that a user took there. Without `--snapshot`, `read` and `export` end with an error
when the content that they began with was replaced: use a snapshot of a volume that is written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mirrord.admin import volumes
from mirrord.cli.options import Json
from mirrord.cli.output import answer
from mirrord.cli.progress import ProgressLine
from mirrord.core.errors import NotFound
from mirrord.core.units import format_size, parse_size
from mirrord.system import clock

Volume = Annotated[Path, typer.Argument(metavar="VOLUME", help="The volume's folder.")]
Offset = Annotated[
    str, typer.Option("--offset", help="Offset in bytes, or with a unit, such as 64K or 1G.")
]
Snapshot = Annotated[
    str | None,
    typer.Option("--snapshot", metavar="NAME", help="Read a snapshot; default: the live volume."),
]


def create(
    volume: Volume,
    size: Annotated[
        str, typer.Argument(metavar="SIZE", help="Size, such as 512M or 10G; at most 16T.")
    ],
    as_json: Json = False,
) -> None:
    """Create an empty volume; space is allocated as it is written."""
    made = volumes.create(volume, parse_size(size))
    line = f"The volume {volume} ({format_size(made['size_bytes'])}) was created."
    answer(made, [line], as_json=as_json)


def info(volume: Volume, as_json: Json = False) -> None:
    """Show information about a volume."""
    found = volumes.info(volume)
    lines = [
        f"{found['path']}: {found['role']}",
        f"  size         {format_size(found['size_bytes'])}",
        f"  in use       {format_size(found['allocated_bytes'])}",
        f"  on disk      {format_size(found['disk_bytes'])}",
        f"  snapshots    {found['snapshots']}",
        f"  identity     {found['identity']}",
    ]
    if found["mirror_id"]:
        lines.append(f"  mirror       {found['mirror_id']}")
    answer(found, lines, as_json=as_json)


def read(
    volume: Volume,
    offset: Offset = "0",
    length: Annotated[
        str | None, typer.Option("--length", help="Length; default: to the end.")
    ] = None,
    snapshot: Snapshot = None,
) -> None:
    """Write the content to standard output."""
    wanted = None if length is None else parse_size(length)
    for piece in volumes.read(volume, parse_size(offset), wanted, snapshot):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def write(
    volume: Volume,
    offset: Offset = "0",
    source: Annotated[
        str, typer.Option("--from", metavar="FILE", help="A file, or - for standard input.")
    ] = "-",
) -> None:
    """Write standard input, or a file, to the volume; durable on return."""
    if source == "-":
        length = volumes.write(volume, parse_size(offset), sys.stdin.buffer)
    else:
        with _existing(source).open("rb") as stream:
            length = volumes.write(volume, parse_size(offset), stream)
    print(f"{format_size(length)} written to {volume}.")


def trim(
    volume: Volume,
    offset: Offset,
    length: Annotated[str, typer.Option("--length", help="Length in bytes, or with a unit.")],
) -> None:
    """Discard a range: it reads as zeroes and its space is freed."""
    volumes.trim(volume, parse_size(offset), parse_size(length))
    print(f"{format_size(parse_size(length))} trimmed in {volume}.")


def take_snapshot(
    volume: Volume,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the snapshot.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete this snapshot instead.")] = False,
) -> None:
    """Take a user snapshot, or delete one."""
    if delete:
        volumes.delete_snapshot(volume, name)
        print(f"The snapshot {name} of {volume} is deleted.")
    else:
        volumes.take_snapshot(volume, name)
        print(f"The snapshot {name} of {volume} is taken.")


def snapshots(volume: Volume, as_json: Json = False) -> None:
    """List all snapshots of a volume, oldest first."""
    found = volumes.snapshots(volume)
    lines = (
        f"{clock.format_moment(entry['taken_ns'])}  {entry['kind']:9}  {entry['name']}"
        for entry in found
    )
    answer({"snapshots": found}, lines, as_json=as_json)


def import_(
    volume: Volume,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="An image, a folder, or - for standard input.")
    ],
    tar: Annotated[bool, typer.Option("--tar", help="SOURCE is a tar stream.")] = False,
) -> None:
    """Replace the content with a raw image, or with a tar stream of a folder."""
    what = sys.stdin.buffer if source == "-" else _existing(source)
    length = volumes.import_(volume, what, tar=tar)
    print(f"{format_size(length)} imported into {volume}.")


def export(
    volume: Volume,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A file; with --tar also a folder.")
    ],
    snapshot: Snapshot = None,
    tar: Annotated[bool, typer.Option("--tar", help="Export the imported tar stream.")] = False,
) -> None:
    """Write the content as a sparse raw image, or unpack the stored tar stream."""
    length = volumes.export(volume, target, snapshot=snapshot, tar=tar)
    print(f"{format_size(length)} exported to {target}.")


def promote(volume: Volume) -> None:
    """Make the destination of a deleted mirror a writable volume."""
    volumes.promote(volume)
    print(f"{volume} is a live volume.")


def check(volume: Volume, as_json: Json = False) -> None:
    """Verify every block and map, read-only; exit status 1 if damaged."""
    with ProgressLine(quiet=as_json) as progress:
        found = volumes.check(volume, progress.verifying)
    verdict = f"{len(found['findings'])} findings" if found["findings"] else "no errors"
    verified = f"{found['images']} images, {found['blocks']} blocks verified"
    lines = [*found["findings"], f"{volume}: {verified}: {verdict}."]
    answer(found, lines, as_json=as_json)
    if found["findings"]:
        raise typer.Exit(1)


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists():
        raise NotFound("there is no such file", where=source)
    return path


#: The commands of this group.
COMMANDS = {
    "create": create,
    "info": info,
    "read": read,
    "write": write,
    "trim": trim,
    "snapshots": snapshots,
    "check": check,
    "promote": promote,
    "snapshot": take_snapshot,
    "import": import_,
    "export": export,
}
