"""The table of what OpenZFS complains of: its message, and what a person is told (failures.py).

The messages are those of OpenZFS 2.1 to 2.4, as libzfs prints them under LC_ALL=C.
tests/zfs/messages.json has them as a real machine printed them.
"""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core.errors import (
    Busy,
    CheckpointUseless,
    Damaged,
    Diverged,
    IoFailed,
    MirrordError,
    NoSpace,
    NotFound,
    PermissionMissing,
    Refused,
    TransferFailed,
    Unsupported,
)

_NOT_OURS = "mirrord will not take that away"
_AGAIN = "Nothing was applied; run the same command again."
_RESYNC = (
    "Nothing of it is touched. 'mirrord explain NAME' shows what both ends have; after a break, "
    "'mirrord resync NAME' keeps what was written and goes on."
)


class Rule(NamedTuple):
    """A message and what is made of it. In the texts {name} is the first thing that the message
    names, {pool} its pool, {verb} the subcommand, {said} the message, {found} the pattern's group.
    """

    pattern: str
    kind: type[MirrordError]
    what: str
    hint: str
    why: str = "{said}"


#: The first whose pattern is found counts.
RULES = (
    # The system
    Rule(
        r"ZFS modules (?:are not|cannot be)|/dev/zfs and /proc/self/mounts are required|"
        r"cannot open '?/dev/zfs'?: No such|Failed to initialize the libzfs library",
        Unsupported,
        "the kernel has no ZFS loaded",
        "Load it with 'modprobe zfs'; if there is none for this kernel, install zfs-dkms and the "
        "kernel's headers.",
    ),
    Rule(
        r"ZFS utilities must be run as root",
        PermissionMissing,
        "/dev/zfs may not be used by {user}",
        "Run it as root, or let everybody open it (what each may do is up to 'zfs allow'): "
        "chmod 666 /dev/zfs.",
    ),
    Rule(
        r"/dev/zfs.*version mismatch|not supported by (?:the )?zfs kernel module|"
        r"kernel modules? must be upgraded",
        Unsupported,
        "the zfs programs and the kernel's module are of different versions",
        "'zfs version' shows both: load the module that was installed last (reboot), then run the "
        "same command again.",
    ),
    Rule(
        r"I/O is currently suspended|pool is unavailable",
        IoFailed,
        "the pool '{pool}' is suspended: its disks do not answer",
        "See 'zpool status {pool}'; when its disks are back, 'zpool clear {pool}' lets it go on. "
        "Nothing that was committed is lost.",
    ),
    Rule(
        r"pool is read-only|dataset is read-only",
        Refused,
        "the pool '{pool}' is imported read-only",
        "Import it writable: 'zpool export {pool}', then 'zpool import {pool}'.",
    ),
    Rule(
        r"no such pool",
        NotFound,
        "the pool '{name}' is not here",
        "'zpool list' shows those that are; 'zpool import' those that could be.",
    ),
    # Resume tokens
    Rule(
        r"resume token is corrupt \((?P<found>[^)]*)\)",
        CheckpointUseless,
        "the resume token of the other end cannot be used",
        "Run the same command again: it begins anew.",
        "{found}",
    ),
    Rule(
        r"cannot resume send: .*(?:no longer exists|no longer the same snapshot)",
        CheckpointUseless,
        "the transfer cannot go on where it was interrupted",
        "Run the same command again: it begins anew.",
    ),
    Rule(
        r"cannot receive resume stream|Resuming recv on existing dataset|cannot resume recv",
        CheckpointUseless,
        "what an earlier try had brought to '{name}' is not there any more",
        "Run the same command again: it begins anew.",
        "{verb} takes a stream that goes on only where the beginning was received",
    ),
    Rule(
        r"does not have any resumable receive state",
        NotFound,
        "nothing half-received is there",
        "There is nothing to do.",
    ),
    Rule(
        r"contains partially-complete state",
        Busy,
        "'{name}' is being received, or was received in part",
        "Wait for the other receive ('ps -C zfs' shows it). If there is none, 'zfs receive -A "
        "{name}' drops what it left; 'mirrord abort NAME --hard' does that for a mirror.",
    ),
    # Who has it
    Rule(
        r"being held",
        Busy,
        "the snapshot '{name}' is held{holders}",
        "Whoever set that hold still needs the snapshot: 'zfs holds {name}' shows since when, "
        "'zfs release TAG {name}' ends it.",
        _NOT_OURS,
    ),
    Rule(
        r"(?:filesystem|volume) has children",
        Refused,
        "'{name}' has others below it: {below}",
        "Move or destroy them first; each needs a mirror of its own.",
        _NOT_OURS,
    ),
    Rule(
        r"more recent snapshots or bookmarks exist",
        Refused,
        "'{name}' is not the newest snapshot: {below} would be lost",
        "mirrord keeps them: use 'mirrord resync NAME' or 'mirrord restore NAME'.",
        "a rollback destroys all that is newer",
    ),
    Rule(
        r"cannot unmount '(?P<found>[^']*)': .*busy|target is busy",
        Busy,
        "'{found}' is in use, so it cannot be unmounted",
        "'fuser -vm {found}' shows by whom.",
        "a process has files or folders of it open",
    ),
    Rule(
        r"(?:dataset|pool or dataset|device) is busy",
        Busy,
        "'{name}' is in use",
        "It is sent, received, open as a device or mounted elsewhere: 'fuser -v "
        "/dev/zvol/{name}' and 'ps -C zfs' show by whom. Run the same command again then.",
    ),
    Rule(
        r"has dependent clones|snapshot is cloned|has clones",
        Busy,
        "'{name}' has clones: {below}",
        "Destroy or promote the clones first ('zfs get clones {name}' lists them).",
        _NOT_OURS,
    ),
    # Keys
    Rule(
        r"encryption key does not match",
        Diverged,
        "'{name}' was encrypted with another key than the stream",
        _RESYNC,
    ),
    Rule(
        r"inherited key must be loaded|key must be loaded|key (?:is )?not loaded|key is not loaded"
        r" or provided",
        Refused,
        "the encryption key of '{dataset}' is not loaded",
        "Load it ('zfs load-key {dataset}') and run the same command again. Sent raw, an encrypted "
        "dataset needs no key at either end, and its mirror must lie below one that is not "
        "encrypted.",
    ),
    Rule(
        r"[Ii]ncorrect key provided|Key load error",
        Refused,
        "the encryption key does not fit",
        "Load the right one: 'zfs load-key {name}'.",
    ),
    Rule(
        r"IV set guid m|uses crypto parameters not compatible|embedded data stream feature with "
        r"encrypted receive|Spill block flag missing",
        Diverged,
        "'{name}' was received in another way than this stream is sent (raw and not raw)",
        "Make the mirror anew at a place that does not exist yet; see docs/operator-guide.md on "
        "encrypted datasets.",
    ),
    # Streams
    Rule(
        r"stream has unsupported feature.*unknown flags = (?P<found>[0-9a-f]+)",
        Unsupported,
        "the OpenZFS here does not know all features of the stream (unknown: {found})",
        "Upgrade OpenZFS at the destination to the version of the source ('zfs version').",
    ),
    Rule(
        r"pool must be upgraded|unsupported version or feature|feature not enabled|"
        r"requires -L",
        Unsupported,
        "the pool '{pool}' lacks a feature that this needs",
        "'zpool upgrade' lists the pools that are behind; 'zpool upgrade {pool}' enables what "
        "this OpenZFS has. An older one can then not import it any more.",
    ),
    Rule(
        r"most recent snapshot of (?P<found>\S+) does not\s+match incremental source",
        Diverged,
        "the newest snapshot of '{found}' is not the base of this update",
        _RESYNC,
        "somebody took or deleted snapshots there, or the dataset was made anew under its name",
    ),
    Rule(
        r"destination (?P<found>\S+) has been modified",
        Diverged,
        "'{found}' was written to since its newest snapshot",
        _RESYNC,
        "a destination must stay read-only ('zfs get readonly {found}')",
    ),
    Rule(
        r"destination '(?P<found>[^']+)' exists|destination already exists",
        Refused,
        "'{name}' is there already",
        "Give a dataset that does not exist yet: it is made by the first transfer.",
        "mirrord never overwrites one (it never uses 'zfs receive -F')",
    ),
    Rule(
        r"cannot receive incremental stream: destination '(?P<found>[^']+)' does not exist",
        Diverged,
        "the destination '{found}' is not there any more, or is of another kind",
        "Make the mirror anew ('mirrord delete NAME', 'mirrord create', 'mirrord initialize').",
        "an update needs the dataset with its base snapshot",
    ),
    Rule(
        r"not an earlier snapshot from the same fs",
        Diverged,
        "the base is not an earlier snapshot of '{name}'",
        "'mirrord explain NAME' shows which snapshots both ends still have.",
        "it was deleted and taken again, or belongs to another dataset",
    ),
    Rule(
        r"incomplete stream|failed to read from stream|signal received|invalid backup stream",
        TransferFailed,
        "the stream ended before its end",
        "The next try goes on from what arrived. " + _AGAIN,
        "the source, or the connection to it, stopped sending",
    ),
    Rule(
        r"checksum mismatch|bad magic number|invalid stream|incorrect header checksum",
        Damaged,
        "the stream is damaged",
        _AGAIN,
    ),
    # Space
    Rule(
        r"(?:destination (?P<found>\S+) space )?quota exceeded",
        NoSpace,
        "the quota of '{name}' is too small",
        "'zfs get quota,refquota,available {name}' shows it; 'zfs set quota=SIZE' on the dataset "
        "that has one (it may be one above) raises it. Nothing that was committed is lost.",
    ),
    Rule(
        r"out of space|[Nn]o space left|Disk quota exceeded",
        NoSpace,
        "no space is left for '{name}' in the pool '{pool}' (or a quota or limit is reached)",
        "'zfs list -o space -r {pool}' shows what holds it, 'zfs get -r quota,snapshot_limit,"
        "filesystem_limit {pool}' the limits. Nothing that was committed is lost.",
    ),
    # Names and places
    Rule(
        r"(?:dataset )?name is too long|name too long",
        Refused,
        "the name is too long for ZFS",
        "Dataset and snapshot together may have 255 characters: give the dataset a shorter name, "
        "or one higher up.",
    ),
    Rule(
        r"invalid (?:character|name|dataset name)|missing '@' delimiter|empty component",
        Refused,
        "ZFS does not take that name",
        "Letters, digits and '-_.:' are allowed, and '/' between datasets.",
    ),
    Rule(
        r"cannot mount '(?P<found>[^']*)': directory is not empty",
        Refused,
        "the mountpoint '{found}' is not empty",
        "Empty it, or give the dataset another one: 'zfs set mountpoint=PATH DATASET'. The mirror "
        "goes on without being mounted.",
        "what is in it would be hidden",
    ),
    Rule(
        r"cannot mount '(?P<found>[^']*)': (?:filesystem already mounted|mountpoint or dataset is "
        r"busy)|already mounted",
        Busy,
        "'{found}' is mounted already",
        "'zfs get mounted,mountpoint {found}' and 'findmnt' show where.",
    ),
    Rule(
        r"legacy mountpoint|no mountpoint set|'canmount' property is set to 'off'",
        Refused,
        "'{name}' cannot be mounted as it is set",
        "'zfs get mountpoint,canmount {name}' shows why; 'zfs set mountpoint=PATH {name}' "
        "changes it.",
    ),
    Rule(
        r"not applicable to datasets of this type|does not apply to datasets of this type|Cannot "
        r"diff an unmounted snapshot",
        Unsupported,
        "that cannot be done with '{name}'",
        "Files are known of file systems that are mounted only.",
    ),
    Rule(
        r"no such tag on this dataset",
        NotFound,
        "there is no such hold on '{name}'",
        "'zfs holds {name}' shows which there are.",
    ),
    Rule(
        r"tag already exists",
        Refused,
        "that hold is on '{name}' already",
        "'zfs holds {name}' shows which there are.",
    ),
    Rule(
        r"parent does not exist",
        NotFound,
        "the dataset above '{name}' is not there",
        "Make it: 'zfs create -p' with its name.",
    ),
    Rule(
        r"could not find any snapshots|(?:dataset|snapshot|bookmark) does not exist|"
        r"no datasets available|no such dataset",
        NotFound,
        "'{name}' does not exist",
        "'zfs list -t all' shows what does. Snapshots that somebody else deletes are lost to a "
        "mirror: 'mirrord explain NAME' shows what both ends still have.",
    ),
    Rule(
        r"already exists|dataset exists",
        Refused,
        "'{name}' exists already",
        "Give another name.",
    ),
    Rule(
        r"I/O error|Input/output error|insufficient replicas",
        Damaged,
        "'{name}' cannot be read: its blocks are damaged",
        "See 'zpool status -v {pool}'; 'zpool scrub {pool}' looks at all of it.",
    ),
)  # fmt: skip
