"""What a peer may do here: only the permitted verbs, in the subtrees given for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from mirrord.core.endpoint import NAMED_KINDS, is_dataset
from mirrord.core.errors import Untrusted, UsageError
from mirrord.core.names import nearest
from mirrord.drivers.registry import is_copied
from mirrord.wire.methods import Right

#: Before the pauser, in a rule.
PAUSE = "pause="
_STORE = ".mirrord"
#: In the names of the datasets that the ZFS driver reserves for itself, beside a volume.
_KEPT = ".mirrord-"


class Rules(NamedTuple):
    """send, receive: absolute paths of folders, or names of datasets, each with its descendants.
    append_only: committed data must not be deleted. pause: the applications that it may pause, as
    in a definition (`KIND:ARGUMENT`).

    free: no rule was given: the peer may do all that its login user may, except pause applications.
    """

    send: tuple[str, ...] = ()
    receive: tuple[str, ...] = ()
    append_only: bool = False
    free: bool = False
    pause: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.free:
            return "everything (no --allow)"
        parts = [f"send={folder}" for folder in self.send]
        parts += [f"receive={folder}" for folder in self.receive]
        parts += [f"pause={text}" for text in self.pause]
        return ", ".join(parts) + (", append-only" if self.append_only else "")


def parse_rules(allow: Sequence[str], *, append_only: bool) -> Rules:
    """The rules of `VERB=/FOLDER`, `VERB=POOL/DATASET` or `pause=UNIT` words; none at all:
    everything. `UsageError`.
    """
    folders: dict[str, list[str]] = {"send": [], "receive": []}
    pause = list[str]()
    for word in allow:
        if word.startswith(PAUSE):
            from mirrord.pausers.registry import pauser_of  # few peers may pause anything

            pause.append(pauser_of(word.removeprefix(PAUSE)))
            continue
        verb, equals, folder = word.partition("=")
        if verb not in folders or not equals:
            near = nearest(verb, folders)
            raise UsageError(
                f"--allow '{word}' does not name a verb and a folder",
                hint=f"Did you mean {near[0]}={folder or '/FOLDER'}?"
                if near
                else "Write it as --allow receive=/backup/a or --allow send=/data, or with the "
                "name of a dataset: --allow receive=tank/backup.",
            )
        if "/" in folder and is_dataset(folder):  # never an entire pool
            folders[verb].append(folder)
            continue
        if not folder.startswith("/") or ".." in folder.split("/"):
            raise UsageError(
                f"--allow '{word}' is neither an absolute path nor the name of a dataset",
                hint="Give the full path without '..', or POOL/DATASET.",
            )
        folders[verb].append(os.path.normpath(folder))
    send, receive = tuple(folders["send"]), tuple(folders["receive"])
    return Rules(send, receive, append_only, free=not allow, pause=tuple(pause))


def demand_pause(rules: Rules, pausers: Sequence[str]) -> None:
    """`Untrusted` when the peer may not pause one of them: each needs a rule of its own, because a
    peer that pauses a service denies it to its users, and some kinds run a program.
    """
    for text in pausers:
        if text not in rules.pause:
            raise Untrusted(
                "this peer may not pause that application",
                where=text,
                why=f"it may use: {rules}",
                hint=f"Add --allow {PAUSE}{text} for it at the other end (in authorized_keys, or "
                "in peers.d).",
            )


def rights_at(rules: Rules, location: str, *, kind: str = "") -> Right:
    """What the peer may do with the volume at `location`; `Untrusted` when that is nothing.

    kind: of the volume: it determines whether locations are paths or names of datasets. Symbolic
    links are resolved: a link to a place outside of the subtree is refused.
    """
    named = kind in NAMED_KINDS if kind else not location.startswith("/")
    if named:
        return _rights_at_dataset(rules, location)
    if not location.startswith("/") or "\0" in location:
        raise Untrusted("invalid path", where=repr(location)[:200])
    parts = location.split("/")
    if ".." in parts or _STORE in parts:
        raise Untrusted(
            "the path is not allowed",
            where=location,
            why="it contains '..' or '.mirrord'",
            hint="Give the path of the volume itself.",
        )
    remove = Right.NONE if rules.append_only else Right.REMOVE
    if rules.free:
        return Right.SEND | Right.RECEIVE | remove
    real, found = _real(location), Right.NONE
    if _STORE in real.split("/"):
        raise _refused(
            rules, location, real, "it resolves to a place in a snapshot, or in mirrord's own files"
        )
    if any(_inside(real, folder) for folder in rules.send):
        found |= Right.SEND
    receiving = [folder for folder in rules.receive if _inside(real, folder)]
    # All files of a block volume are in it; those of others are beside them.
    inner = os.path.join(real, "x") if kind == "block" else real
    if any(_in_volume(inner, folder) for folder in receiving):
        raise _refused(rules, location, real, "it is inside another volume of mirrord, or a copy")
    if receiving:
        found |= Right.RECEIVE | remove
    if found:
        return found
    raise _refused(rules, location, real, "")


def _rights_at_dataset(rules: Rules, location: str) -> Right:
    """The same for a dataset: a name has no links, but it could be that of a snapshot, or of a
    dataset reserved for the driver.
    """
    if not is_dataset(location) or _KEPT in location:
        raise Untrusted(
            "the name is not that of a dataset that a peer may use", where=repr(location)[:200]
        )
    remove = Right.NONE if rules.append_only else Right.REMOVE
    if rules.free:
        return Right.SEND | Right.RECEIVE | remove
    found = Right.NONE
    if any(_below(location, one) for one in rules.send):
        found |= Right.SEND
    if any(_below(location, one) for one in rules.receive):
        found |= Right.RECEIVE | remove
    if not found:
        raise _refused(rules, location, location, "")
    return found


def _below(location: str, dataset: str) -> bool:
    return location == dataset or location.startswith(dataset + "/")


def _real(location: str) -> str:
    """The resolved path; a volume's view, a link into its own store, counts as the volume."""
    folder, name = os.path.split(os.path.normpath(location))
    plain, real = os.path.join(os.path.realpath(folder), name), os.path.realpath(location)
    own = os.path.join(os.path.dirname(plain), _STORE, name, "snapshots", "")
    return plain if name and real.startswith(own) else real


def _refused(rules: Rules, location: str, real: str, why: str) -> Untrusted:
    plain = os.path.normpath(location) if location.startswith("/") else location
    # The targets of links outside of its folders are not disclosed to the peer.
    disclosed = any(_inside(plain, folder) for folder in (*rules.send, *rules.receive))
    target = f"it resolves to {real}; " if disclosed and real != plain and not why else ""
    return Untrusted(
        "this peer may not use that path",
        where=location,
        why=f"{f'{why}; ' if why else target}it may use: {rules}",
        hint="Add --allow receive=FOLDER or send=FOLDER for it at the other end (in "
        "authorized_keys, or in peers.d).",
    )


def _in_volume(real: str, folder: str) -> bool:
    """Whether `real` is inside a volume with a mirrord store, or a copy of one: its content,
    including links and what looks like records, may have been sent by a peer, and may change at any
    time.
    """
    root = os.path.realpath(folder)
    above = os.path.dirname(real)
    while _inside(above, root):
        parent, name = os.path.split(above)
        stores = [f"{parent}/{_STORE}/{name}"]
        if os.path.ismount(above):
            stores.append(f"{above}/{_STORE}/{name or 'volume'}")
        if any(map(os.path.lexists, stores)):
            return True
        if above == root:  # as its owner has made it, perhaps from a snapshot
            break
        if os.path.isdir(above) and is_copied(above):
            return True
        above = parent
    return False


def _inside(real: str, folder: str) -> bool:
    if not folder.startswith("/") or not real.startswith("/"):
        return False  # the name of a dataset is not a path
    root = os.path.realpath(folder)
    return real == root or real.startswith(root.rstrip("/") + "/")


def demand(rules: Rules, found: Right, needed: Right, what: str, where: str) -> None:
    """`Untrusted` when none of the rights in `needed` was granted."""
    if found & needed:
        return
    if needed & Right.REMOVE and rules.append_only:
        raise Untrusted(
            f"this peer may not {what}",
            where=where,
            why="it may only append: committed data cannot be deleted or rolled back by a peer",
            hint="Run the command on that host.",
        )
    verb = "send" if needed & Right.SEND else "receive"
    raise Untrusted(
        f"this peer may not {what}",
        where=where,
        why=f"it may use: {rules}",
        hint=f"Add --allow {verb}=FOLDER for it at the other end (in authorized_keys, or in "
        "peers.d).",
    )
