"""The life cycle of a mirror: one pure table, (state, verb) -> new state or a refusal.

    uninitialized --initialize--> mirrored --break--> broken-off --resync--> mirrored
                                   |  ^                   |
                                   |  +--reverse----------+   (the sites change roles)
                                   +-- update, quiesce, resume, abort, restore: unchanged

`quiesced` is a flag separate from the state: it survives restarts and refuses new transfers.
Semantics as SnapMirror's: see docs/architecture.md, "The life cycle".
"""

import enum
from typing import NamedTuple


class State(enum.Enum):
    """The state of a mirror."""

    UNINITIALIZED = "uninitialized"
    MIRRORED = "mirrored"
    BROKEN_OFF = "broken-off"


class Activity(enum.Enum):
    """What a mirror is doing."""

    IDLE = "idle"
    SNAPSHOTTING = "snapshotting"
    TRANSFERRING = "transferring"
    VERIFYING = "verifying"
    COMMITTING = "committing"
    ABORTING = "aborting"
    QUIESCED = "quiesced"
    RESYNCING = "resyncing"


class Verb(enum.Enum):
    """The operations on an existing mirror."""

    INITIALIZE = "initialize"
    UPDATE = "update"
    ABORT = "abort"
    QUIESCE = "quiesce"
    RESUME = "resume"
    BREAK = "break"
    RESYNC = "resync"
    REVERSE = "reverse"
    RESTORE = "restore"
    PRUNE = "prune"
    CHANGE_SOURCE = "change-source"
    RESUME_OPERATION = "resume-operation"
    TAKEOVER = "takeover"
    RELEASE = "release"
    DELETE = "delete"


#: Verbs that move data and are therefore refused while the mirror is quiesced.
TRANSFERS = frozenset({Verb.INITIALIZE, Verb.UPDATE, Verb.RESYNC, Verb.REVERSE})

#: Verbs on live volumes, by name: recovery may leave them for a person to decide.
LIVE_VERBS = frozenset(verb.value for verb in (Verb.BREAK, Verb.RESYNC, Verb.REVERSE, Verb.RESTORE))


class Refusal(NamedTuple):
    """Why a verb is refused, and which command to run. `{name}` stands for the mirror."""

    why: str
    hint: str


class Already(NamedTuple):
    """The verb's work is already done: success, nothing to do."""

    status: str


Verdict = State | Refusal | Already

_NOT_YET = Refusal(
    "it was never initialized", "Run 'mirrord initialize {name}' for the first transfer."
)
_NEVER_BROKEN = Refusal(
    "it was never initialized, so there is no copy to make writable",
    "Run 'mirrord initialize {name}' for the first transfer.",
)
_USE_RESYNC = Refusal(
    "it is broken off: the destination is a live volume",
    "'mirrord resync {name}' continues from the newest common snapshot (it first shows what the "
    "destination would lose); 'mirrord reverse {name}' makes the destination the source.",
)

_U, _M, _B = State.UNINITIALIZED, State.MIRRORED, State.BROKEN_OFF

TABLE: dict[tuple[State, Verb], Verdict] = {
    (_U, Verb.INITIALIZE): _M,
    (_M, Verb.INITIALIZE): Refusal(
        "it is already initialized", "'mirrord update {name}' transfers what has changed."
    ),
    (_B, Verb.INITIALIZE): _USE_RESYNC,
    (_U, Verb.UPDATE): _NOT_YET,
    (_M, Verb.UPDATE): _M,
    (_B, Verb.UPDATE): _USE_RESYNC,
    (_U, Verb.ABORT): _U,
    (_M, Verb.ABORT): _M,
    (_B, Verb.ABORT): _B,
    (_U, Verb.QUIESCE): _U,
    (_M, Verb.QUIESCE): _M,
    (_B, Verb.QUIESCE): _B,
    (_U, Verb.RESUME): _U,
    (_M, Verb.RESUME): _M,
    (_B, Verb.RESUME): _B,
    (_U, Verb.BREAK): _NEVER_BROKEN,
    (_M, Verb.BREAK): _B,
    (_B, Verb.BREAK): Already("already_broken-off"),
    (_U, Verb.RESYNC): _NOT_YET,
    (_M, Verb.RESYNC): _M,
    (_B, Verb.RESYNC): _M,
    (_U, Verb.REVERSE): _NOT_YET,
    (_M, Verb.REVERSE): _M,
    (_B, Verb.REVERSE): _M,
    (_U, Verb.RESTORE): _NOT_YET,
    (_M, Verb.RESTORE): _M,
    (_B, Verb.RESTORE): _B,
    (_U, Verb.PRUNE): _U,
    (_M, Verb.PRUNE): _M,
    (_B, Verb.PRUNE): _B,
    (_U, Verb.RESUME_OPERATION): _U,
    (_M, Verb.RESUME_OPERATION): _M,
    (_B, Verb.RESUME_OPERATION): _B,
    (_U, Verb.TAKEOVER): _U,
    (_M, Verb.TAKEOVER): _M,
    (_B, Verb.TAKEOVER): _B,
    (_U, Verb.CHANGE_SOURCE): _NOT_YET,
    (_M, Verb.CHANGE_SOURCE): _M,
    (_B, Verb.CHANGE_SOURCE): _B,
    (_U, Verb.RELEASE): _U,
    (_M, Verb.RELEASE): Refusal(
        "the mirror still needs its base snapshot at the source",
        "Run 'mirrord break {name}' first; a released mirror cannot be continued.",
    ),
    (_B, Verb.RELEASE): _U,
    (_U, Verb.DELETE): _U,
    (_M, Verb.DELETE): Refusal(
        "it is not broken off",
        "Run 'mirrord break {name}' first, or 'mirrord delete {name} --yes' to leave the "
        "destination read-only as it is.",
    ),
    (_B, Verb.DELETE): _B,
}

_QUIESCED = Refusal(
    "it is quiesced: no transfer may start", "Run 'mirrord resume {name}' to allow transfers again."
)


def judge(state: State, verb: Verb, *, quiesced: bool) -> Verdict:
    """What `verb` does to a mirror in `state`: the new state, `Already`, or a `Refusal`."""
    verdict = TABLE[state, verb]
    if quiesced and verb in TRANSFERS and not isinstance(verdict, Refusal):
        return _QUIESCED
    if verb is Verb.QUIESCE and quiesced:
        return Already("already_quiesced")
    if verb is Verb.RESUME and not quiesced:
        return Already("already_resumed")
    return verdict
