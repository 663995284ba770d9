"""The error messages of OpenZFS, and the mirrord error for each (failures.py applies the table).

The messages are those of OpenZFS 2.1 to 2.4, as libzfs prints them under LC_ALL=C.
tests/zfs/messages.json holds messages recorded on a real machine.
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

_NOT_OURS = "mirrord does not remove what it did not create"
_AGAIN = "Nothing was applied; run the same command again."
_RESYNC = (
    "Nothing was changed. 'mirrord explain {mirror}' shows the snapshots of both ends; after a "
    "break, 'mirrord resync {mirror}' keeps what was written and continues the mirror."
)


class Rule(NamedTuple):
    """A message pattern and the error for it. In the texts {name} is the first dataset that the
    message names, {pool} its pool, {verb} the subcommand, {said} the message, {found} the pattern's
    group, and {mirror} the mirror's name.
    """

    pattern: str
    kind: type[MirrordError]
    what: str
    hint: str
    why: str = "{said}"


#: The first rule whose pattern matches applies.
RULES = (
    # The system
    Rule(
        r"ZFS modules (?:are not|cannot be)|/dev/zfs and /proc/self/mounts are required|"
        r"cannot open '?/dev/zfs'?: No such|Failed to initialize the libzfs library",
        Unsupported,
        "the ZFS kernel module is not loaded",
        "Load it with 'modprobe zfs'; if there is no module for this kernel, install zfs-dkms and "
        "the kernel headers.",
    ),
    Rule(
        r"ZFS utilities must be run as root",
        PermissionMissing,
        "the user {user} may not open /dev/zfs",
        "Run it as root, or let all users open it (their permissions are still set by 'zfs "
        "allow'): chmod 666 /dev/zfs.",
    ),
    Rule(
        r"/dev/zfs.*version mismatch|not supported by (?:the )?zfs kernel module|"
        r"kernel modules? must be upgraded",
        Unsupported,
        "the zfs programs and the kernel module have different versions",
        "'zfs version' shows both. Reboot to load the installed module, then run the same command "
        "again.",
    ),
    Rule(
        r"I/O is currently suspended|pool is unavailable",
        IoFailed,
        "the pool '{pool}' is suspended: its disks do not respond",
        "See 'zpool status {pool}'; when its disks are available again, resume I/O with 'zpool "
        "clear {pool}'. No committed data is lost.",
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
        "the pool '{name}' is not imported",
        "'zpool list' shows the imported pools, 'zpool import' those that can be imported.",
    ),
    # Resume tokens
    Rule(
        r"resume token is corrupt \((?P<found>[^)]*)\)",
        CheckpointUseless,
        "the resume token of the other end is not valid",
        "Run the same command again: the transfer starts from the beginning.",
        "{found}",
    ),
    Rule(
        r"cannot resume send: .*(?:no longer exists|no longer the same snapshot)",
        CheckpointUseless,
        "the interrupted transfer cannot be resumed",
        "Run the same command again: the transfer starts from the beginning.",
    ),
    Rule(
        r"cannot receive resume stream|Resuming recv on existing dataset|cannot resume recv",
        CheckpointUseless,
        "'{name}' has no partially received state to resume from",
        "Run the same command again: the transfer starts from the beginning.",
        "{verb} accepts a resumed stream only where its first part was received",
    ),
    Rule(
        r"does not have any resumable receive state",
        NotFound,
        "there is no partially received state",
        "No action is needed.",
    ),
    Rule(
        r"contains partially-complete state",
        Busy,
        "'{name}' is being received, or was partially received",
        "Wait for the other receive ('ps -C zfs' shows it). If there is none, 'zfs receive -A "
        "{name}' deletes what it left; 'mirrord abort {mirror} --hard' does that for a mirror.",
    ),
    # In use
    Rule(
        r"being held",
        Busy,
        "the snapshot '{name}' is held{holders}",
        "Another program needs the snapshot: 'zfs holds {name}' shows the tag and the time of each "
        "hold, 'zfs release TAG {name}' removes one.",
        _NOT_OURS,
    ),
    Rule(
        r"(?:filesystem|volume) has children",
        Refused,
        "'{name}' has children: {below}",
        "Move or destroy them first; each needs a separate mirror.",
        _NOT_OURS,
    ),
    Rule(
        r"more recent snapshots or bookmarks exist",
        Refused,
        "'{name}' is not the newest snapshot: {below} would be lost",
        "To keep them, use 'mirrord resync {mirror}' or 'mirrord restore {mirror}'.",
        "a rollback destroys all newer snapshots",
    ),
    Rule(
        r"cannot unmount '(?P<found>[^']*)': .*busy|target is busy",
        Busy,
        "'{found}' is in use and cannot be unmounted",
        "'fuser -vm {found}' shows the processes that use it.",
        "a process has open files or directories in it",
    ),
    Rule(
        r"(?:dataset|pool or dataset|device) is busy",
        Busy,
        "'{name}' is in use",
        "It is being sent or received, open as a device, or mounted elsewhere: 'fuser -v "
        "/dev/zvol/{name}' and 'ps -C zfs' show the processes. When they have ended, run the same "
        "command again.",
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
        "'{name}' and the stream were encrypted with different keys",
        _RESYNC,
    ),
    Rule(
        r"inherited key must be loaded|key must be loaded|key (?:is )?not loaded|key is not loaded"
        r" or provided",
        Refused,
        "the encryption key of '{dataset}' is not loaded",
        "Load it ('zfs load-key {dataset}') and run the same command again. An encrypted dataset "
        "that is sent raw needs no key at either end; the parent of its mirror must not be "
        "encrypted.",
    ),
    Rule(
        r"[Ii]ncorrect key provided|Key load error",
        Refused,
        "the encryption key is incorrect",
        "Load the correct key: 'zfs load-key {name}'.",
    ),
    Rule(
        r"IV set guid m|uses crypto parameters not compatible|embedded data stream feature with "
        r"encrypted receive|Spill block flag missing",
        Diverged,
        "'{name}' and this stream cannot be combined: one of them is raw, the other is not",
        "Create the mirror again with a destination that does not exist yet; see "
        "docs/operator-guide.md on encrypted datasets.",
    ),
    # Streams
    Rule(
        r"stream has unsupported feature.*unknown flags = (?P<found>[0-9a-f]+)",
        Unsupported,
        "this OpenZFS does not support all features of the stream (unknown flags: {found})",
        "Upgrade OpenZFS at the destination to the version of the source ('zfs version').",
    ),
    Rule(
        r"pool must be upgraded|unsupported version or feature|feature not enabled|"
        r"requires -L",
        Unsupported,
        "the pool '{pool}' lacks a required feature",
        "'zpool upgrade' lists the pools without all features; 'zpool upgrade {pool}' enables all "
        "that this OpenZFS supports. An older OpenZFS can then no longer import the pool.",
    ),
    Rule(
        r"most recent snapshot of (?P<found>\S+) does not\s+match incremental source",
        Diverged,
        "the newest snapshot of '{found}' is not the base of this update",
        _RESYNC,
        "another program or user took or deleted snapshots there, or the dataset was recreated",
    ),
    Rule(
        r"destination (?P<found>\S+) has been modified",
        Diverged,
        "'{found}' was modified since its newest snapshot",
        _RESYNC,
        "a destination must stay read-only ('zfs get readonly {found}')",
    ),
    Rule(
        r"destination '(?P<found>[^']+)' exists|destination already exists",
        Refused,
        "'{name}' already exists",
        "Give a dataset that does not exist yet: the first transfer creates it.",
        "mirrord never overwrites a dataset (it never uses 'zfs receive -F')",
    ),
    Rule(
        r"cannot receive incremental stream: destination '(?P<found>[^']+)' does not exist",
        Diverged,
        "the destination '{found}' no longer exists, or is of another type",
        "Create the mirror again ('mirrord delete {mirror}', 'mirrord create', 'mirrord "
        "initialize').",
        "an update needs the dataset with its base snapshot",
    ),
    Rule(
        r"not an earlier snapshot from the same fs",
        Diverged,
        "the base is not an earlier snapshot of '{name}'",
        "'mirrord explain {mirror}' shows which snapshots both ends still have.",
        "the base was deleted and taken again, or belongs to another dataset",
    ),
    Rule(
        r"incomplete stream|failed to read from stream|signal received|invalid backup stream",
        TransferFailed,
        "the stream is incomplete",
        "The next attempt resumes from what was received. " + _AGAIN,
        "the source stopped sending, or the connection to it was lost",
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
        "the quota of '{name}' is exceeded",
        "'zfs get quota,refquota,available {name}' shows it; raise it with 'zfs set quota=SIZE' on "
        "the dataset that has the quota (it may be a parent). No committed data is lost.",
    ),
    Rule(
        r"out of space|[Nn]o space left|Disk quota exceeded",
        NoSpace,
        "no space is left for '{name}' in the pool '{pool}' (or a quota or limit is reached)",
        "'zfs list -o space -r {pool}' shows what uses it, 'zfs get -r quota,snapshot_limit,"
        "filesystem_limit {pool}' the limits. No committed data is lost.",
    ),
    # Names and places
    Rule(
        r"(?:dataset )?name is too long|name too long",
        Refused,
        "the name is too long for ZFS",
        "Dataset and snapshot names together may have 255 characters: shorten the name of the "
        "dataset or of a parent.",
    ),
    Rule(
        r"invalid (?:character|name|dataset name)|missing '@' delimiter|empty component",
        Refused,
        "the name is not valid in ZFS",
        "Letters, digits and '-_.:' are allowed, and '/' between datasets.",
    ),
    Rule(
        r"cannot mount '(?P<found>[^']*)': directory is not empty",
        Refused,
        "the mountpoint '{found}' is not empty",
        "Empty it, or give the dataset another one: 'zfs set mountpoint=PATH DATASET'. The mirror "
        "is updated even when it is not mounted.",
        "its contents would be hidden",
    ),
    Rule(
        r"cannot mount '(?P<found>[^']*)': (?:filesystem already mounted|mountpoint or dataset is "
        r"busy)|already mounted",
        Busy,
        "'{found}' is already mounted",
        "'zfs get mounted,mountpoint {found}' and 'findmnt' show where.",
    ),
    Rule(
        r"legacy mountpoint|no mountpoint set|'canmount' property is set to 'off'",
        Refused,
        "the properties of '{name}' do not allow mounting it",
        "'zfs get mountpoint,canmount {name}' shows why; 'zfs set mountpoint=PATH {name}' "
        "changes it.",
    ),
    Rule(
        r"not applicable to datasets of this type|does not apply to datasets of this type|Cannot "
        r"diff an unmounted snapshot",
        Unsupported,
        "the operation is not supported for '{name}'",
        "Files can be compared only in a mounted file system.",
    ),
    Rule(
        r"no such tag on this dataset",
        NotFound,
        "'{name}' has no hold with that tag",
        "'zfs holds {name}' lists its holds.",
    ),
    Rule(
        r"tag already exists",
        Refused,
        "'{name}' already has a hold with that tag",
        "'zfs holds {name}' lists its holds.",
    ),
    Rule(
        r"parent does not exist",
        NotFound,
        "the parent of '{name}' does not exist",
        "Create it with 'zfs create -p PARENT'.",
    ),
    Rule(
        r"could not find any snapshots|(?:dataset|snapshot|bookmark) does not exist|"
        r"no datasets available|no such dataset",
        NotFound,
        "'{name}' does not exist",
        "'zfs list -t all' shows what exists. If another program deleted a snapshot that a mirror "
        "needs, 'mirrord explain {mirror}' shows what both ends still have.",
    ),
    Rule(
        r"already exists|dataset exists",
        Refused,
        "'{name}' already exists",
        "Give another name.",
    ),
    Rule(
        r"I/O error|Input/output error|insufficient replicas",
        Damaged,
        "'{name}' cannot be read: its blocks are damaged",
        "See 'zpool status -v {pool}'; 'zpool scrub {pool}' checks all data in the pool.",
    ),
)  # fmt: skip
