"""Failed commands: which ones are recorded, and what clears them. Recorded where commands are
dispatched, so that commands that failed before they held the mirror are included.
"""

from __future__ import annotations

from mirrord.catalogue.store import Catalogue
from mirrord.core.errors import (
    Aborted,
    Busy,
    MirrordError,
    NotFound,
    Refused,
    Unsupported,
    UsageError,
)
from mirrord.core.records import FailureRecord
from mirrord.core.states import Refusal, State, Verb, judge
from mirrord.system import clock

#: A failure is cleared when a verb of the same kind succeeds. Verbs that end with an update are of
#: one kind.
UPDATE = Verb.UPDATE.value
_UPDATES = frozenset({Verb.INITIALIZE, Verb.UPDATE, Verb.RESYNC, Verb.REVERSE})


def kind_of(verb: Verb) -> str:
    """The kind of a verb."""
    return UPDATE if verb in _UPDATES else verb.value


def failed(
    book: Catalogue, mirror_id: str, verb: Verb, error: MirrordError, *, kind: str = ""
) -> None:
    """Record a failure. Not recorded: aborted commands, usage errors, commands that the state or
    the kind of volume does not permit or that name something missing, a new source that cannot be
    one, and updates that found the mirror busy.
    """
    if isinstance(error, Aborted | UsageError):
        return
    kind = kind or kind_of(verb)
    if isinstance(error, Busy if kind == UPDATE else NotFound | Unsupported):
        return
    # (More special refusals, as of a stale epoch, are about the mirror.)
    if verb is Verb.CHANGE_SOURCE and type(error) is Refused:
        return
    row = book.mirror(mirror_id)
    if isinstance(error, Refused):
        # (A definition that was written by hand has no row before it is initialized.)
        state, quiesced = (row.state, row.quiesced) if row else (State.UNINITIALIZED, False)
        if isinstance(judge(state, verb, quiesced=quiesced), Refusal):
            return
    book.add_failure(
        mirror_id, FailureRecord(kind, verb.value, clock.now_ns(), error.code, str(error))
    )
    if row is not None:
        book.add_event(mirror_id, "error", f"{verb.value} failed: {error}")


def succeeded(book: Catalogue, mirror_id: str, verb: Verb, *, kind: str = "") -> None:
    """Clear failures after a verb has succeeded. A break clears failed updates, too; an abort
    and a resume-operation clear all.
    """
    kind = kind or kind_of(verb)
    kinds = {kind, UPDATE} if kind == Verb.BREAK.value else {kind}
    if verb in (Verb.ABORT, Verb.RESUME_OPERATION):
        kinds = {failure.kind for failure in book.failures(mirror_id)}
    book.clear_failures(mirror_id, kinds)
