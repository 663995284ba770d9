"""One family of errors: what failed, where, why, and what to do next.

Messages are lower case, without a full stop, and quote the value they are about; hints are
sentences that name the exact command to run. The CLI prints them as `error:` and `hint:`.
Each class has a stable `code`: docs/errors.md lists them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from mirrord.core.text import harmless

#: In a hint, in place of the mirror's name, which drivers do not know: `MirrordError.mirror`.
MIRROR = "\0"


class MirrordError(Exception):
    """What failed, where and why, and what to do next.

    what: the failure, lower case, no full stop.
    where: mirror, endpoint or path it concerns, or "".
    why: the cause, as near to the root as it is known, or "".
    hint: a sentence (or more) that says what to do next, or ""; it may contain `MIRROR`.
    mirror: the name of the mirror that it concerns, set by whoever knows it.
    """

    code = "internal"
    exit_status = 1
    #: Every error with a code of its own, by that code.
    by_code: ClassVar[dict[str, type[MirrordError]]] = {}
    #: Whether the same command may succeed later without any action by the user.
    retryable = False

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):
            MirrordError.by_code[cls.code] = cls

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint
        self.mirror = ""
        #: More data for machines: added to the error document of `--json`.
        self.data: dict[str, object] = {}

    @property
    def hint(self) -> str:
        """For users: with the mirror's name, or NAME while it is not known."""
        return self._hint.replace(MIRROR, self.mirror or "NAME")

    @hint.setter
    def hint(self, text: str) -> None:
        self._hint = text

    def prepend_hint(self, text: str) -> None:
        """Say this before the present hint."""
        self._hint = f"{text} {self._hint}"

    def __str__(self) -> str:
        """In one line, for a terminal, a log and the history; names in it are escaped."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return harmless(f"{text}: {self.why}" if self.why else text)

    def as_dict(self) -> dict[str, object]:
        """The error as `--json` prints it (docs/cli-json.md)."""
        return {
            "error": self.code,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "hint": self.hint,
            "retryable": self.retryable,
            **self.data,
        }


class UsageError(MirrordError):
    """An invalid command line or argument."""

    code = "usage"
    exit_status = 2


class ConfigError(MirrordError):
    """A definition that is wrong; `where` is file and line."""

    code = "config"
    exit_status = 2


class Refused(MirrordError):
    """The verb does not fit the state; nothing was done."""

    code = "refused"


class Undecided(Refused):
    """An interrupted verb cannot be finished without touching changes that are newer than its
    confirmation; nothing was done, and recovery does not finish it by itself.
    """

    code = "undecided"


class Fenced(Refused):
    """A command of a past epoch, or of a former controller; nothing was done."""

    code = "fenced"


class NotFound(MirrordError):
    """A mirror, snapshot, volume or file does not exist."""

    code = "not-found"


class Unsupported(MirrordError):
    """The kernel, file system or driver cannot do this."""

    code = "unsupported"


class PermissionMissing(MirrordError):
    """A privilege is missing; `hint` names it."""

    code = "permission"


class Busy(MirrordError):
    """Another process holds the mirror or the volume."""

    code = "busy"
    retryable = True


class NoSpace(MirrordError):
    """A file system is full, or would be."""

    code = "no-space"


class Diverged(MirrordError):
    """The two ends have no common base, or the destination was changed."""

    code = "diverged"


class Damaged(MirrordError):
    """Stored data or a stream fails its checksum or is malformed."""

    code = "damaged"


class TransferFailed(MirrordError):
    """A transfer was interrupted; the destination is as it was."""

    code = "transfer"
    retryable = True


class CheckpointUseless(TransferFailed):
    """The checkpoint of an earlier attempt cannot be resumed: it differs from what the source sends
    now, or cannot be read. The data item `shortened` is set when the part before the fault, or
    another checkpoint, can be resumed.
    """

    code = "checkpoint"


class PartLost(CheckpointUseless):
    """The destination no longer has the base of a part of the volume: the next attempt, which must
    be given the staging's checkpoint, sends that part in full.
    """

    code = "part-lost"


class Aborted(MirrordError):
    """A transfer was aborted on request."""

    code = "aborted"


class IoFailed(MirrordError):
    """An operating-system call failed."""

    code = "io"


class HookFailed(MirrordError):
    """A hook program that runs before a snapshot or a transfer failed."""

    code = "hook"


class PauseFailed(MirrordError):
    """The application could not be paused, or not for as long as the snapshots took."""

    code = "pause"
    retryable = True


class Unreachable(MirrordError):
    """The daemon, or another host, does not answer."""

    code = "unreachable"
    retryable = True


class LinkLost(MirrordError):
    """The connection to another host broke or timed out."""

    code = "link"
    retryable = True


class Untrusted(MirrordError):
    """The peer has the wrong identity, or does not accept this host's: a retry does not help."""

    code = "untrusted"


class ProtocolError(MirrordError):
    """The peer speaks another version of the protocol, or sent malformed data."""

    code = "protocol"


class InvariantError(MirrordError):
    """A bug in mirrord: an invariant does not hold."""

    code = "bug"

    def __init__(self, what: str) -> None:
        super().__init__(what, hint="This is a bug in mirrord: please report it, with --debug.")


#: Characters of each text of an error from elsewhere, and how many notes it has: in a variable of a
#: hook's environment all of it must fit into 128 KiB, also with each one escaped.
_TEXT_MAX = 3000
_NOTES_MAX = 20


def pack_error(error: MirrordError) -> dict[str, object]:
    """An error with all of its text for users, for JSON or msgpack.

    hint_parts: the hint where the mirror's name belongs between its parts, which only the other end
    knows.
    """
    packed = {**error.as_dict(), "notes": list(getattr(error, "__notes__", []))}
    if MIRROR in error._hint and not error.mirror:
        packed["hint_parts"] = error._hint.split(MIRROR)
    return packed


def unpack_error(packed: Mapping[str, Any]) -> MirrordError:
    """The same error, of the same class; its text is shortened to what one line may be."""
    kind = MirrordError.by_code.get(str(packed.get("error")), MirrordError)
    error = MirrordError.__new__(kind)
    parts = packed.get("hint_parts")
    hint = MIRROR.join(map(str, parts)) if isinstance(parts, list) else packed.get("hint", "")
    what, where, why = (str(packed.get(key, ""))[:_TEXT_MAX] for key in ("what", "where", "why"))
    MirrordError.__init__(error, what, where=where, why=why, hint=str(hint)[:_TEXT_MAX])
    known = {"error", "what", "where", "why", "hint", "hint_parts", "retryable", "notes"}
    error.data = {str(key): value for key, value in packed.items() if key not in known}
    notes = packed.get("notes", ())
    for note in notes[:_NOTES_MAX] if isinstance(notes, list | tuple) else ():
        error.add_note(str(note)[:_TEXT_MAX])
    return error


def copy_of(error: MirrordError) -> MirrordError:
    """The same error for another thread to raise: each needs a traceback of its own."""
    return copy.deepcopy(error)
