"""One mirror with everything that its verbs need: definition, catalogue, drivers and watcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

from mirrord.catalogue.store import Catalogue, Confirmed, MirrorRow
from mirrord.core import names
from mirrord.core.errors import MIRROR, Damaged, MirrordError, NotFound, Refused
from mirrord.core.model import Definition, Role, Snapshot, VolumeFacts
from mirrord.core.relationship import Intent
from mirrord.core.results import Watcher
from mirrord.core.states import Activity, Already, Refusal, State, Verb, judge
from mirrord.drivers.contract import Driver
from mirrord.drivers.refusals import destination_replaced, other_mirror, view_replaced
from mirrord.engine import plan, preempt, relation
from mirrord.engine.members import Members
from mirrord.engine.parts import Ends, Relation, RunContext
from mirrord.engine.progress import RunFiles
from mirrord.engine.throttle import Throttle
from mirrord.engine.transfer import Route
from mirrord.system import clock, locks
from mirrord.system.waiting import Waiting

_LOCK_WAIT_S = 20.0
#: Verbs whose permission depends on whether the destination is a mirror or live.
_BY_STATE = frozenset({Verb.UPDATE, Verb.BREAK, Verb.RESYNC, Verb.REVERSE, Verb.RESTORE})
#: How a volume is created, by its kind.
_CREATING = dict.fromkeys(("btrfs", "btrfs-tree"), "btrfs subvolume create")
_CREATING |= dict.fromkeys(("zfs", "zfs-tree"), "zfs create")


def _no_room(_member: int, _need_bytes: int) -> None:
    """Nothing can be pruned."""


class Mirror:
    """An open mirror. Cheap to make; holds no locks until a verb runs."""

    __slots__ = ("context", "ends", "relation")

    def __init__(self, agreed: Relation, ends: Ends, context: RunContext) -> None:
        """Waits at both ends are part of the verb."""
        self.relation, self.ends, self.context = agreed, ends, context
        self.source.waiting = self.destination.waiting = self.waiting
        relation.fence(self)

    @property
    def definition(self) -> Definition:
        """Its definition, in the present direction."""
        return self.relation.definition

    @property
    def name(self) -> str:
        """The mirror's name."""
        return self.relation.definition.name

    @property
    def id(self) -> str:
        """The mirror's id."""
        return self.relation.definition.id

    @property
    def catalogue(self) -> Catalogue:
        """Where its operations and history are recorded."""
        return self.relation.catalogue

    @property
    def source(self) -> Members:
        """The end that is mirrored."""
        return self.ends.source

    @property
    def destination(self) -> Members:
        """The end that has the copy."""
        return self.ends.destination

    @property
    def run(self) -> RunFiles:
        """The files of the run."""
        return self.context.run

    @property
    def watcher(self) -> Watcher:
        """What receives its progress."""
        return self.context.watcher

    @property
    def waiting(self) -> Waiting:
        """How its verbs and both ends wait."""
        return self.context.waiting

    def turned(self) -> Mirror:
        """The same mirror in the other direction, which is recorded."""
        site = self.definition.destination_site
        definition = self.relation.definitions.load(self.name, site)
        self.catalogue.set_direction(self.id, site, since_ns=clock.now_ns())
        agreed = self.relation.defined(definition)
        return Mirror(agreed, Ends(self.destination, self.source), self.context)

    def routes(self, make_room: Callable[[int, int], None] = _no_room) -> list[Route]:
        """The route of each member from source to destination. The throttle applies to their sum.

        make_room: called with the member's number and the bytes to free at its destination.
        """
        pace = self.context.pace
        throttle = pace(self.definition) if pace else Throttle(check=self.run.check_abort)

        def tell(text: str) -> None:
            self.catalogue.add_event(self.id, "warning", text)

        pairs = zip(self.source.drivers, self.destination.drivers, strict=True)
        return [
            Route(
                sender,
                receiver,
                self.id,
                self.run,
                self.watcher,
                throttle,
                self.waiting,
                make_room=partial(make_room, number),
                tell=tell,
                together=self.context.together,
            )
            for number, (sender, receiver) in enumerate(pairs)
        ]

    def row(self) -> MirrorRow:
        """The mirror's row; rebuilt from its ends when the catalogue does not have it."""
        row = self.catalogue.mirror(self.id)
        if row is None:
            facts = self.destination.facts()
            if facts.role is Role.ABSENT:
                # Perhaps not mounted: nothing is known, so nothing is recorded.
                return self.row_seen(None)
            self._take_from_ends(facts)
            row = self.catalogue.mirror(self.id)
            assert row is not None
        return row

    def row_seen(self, facts: VolumeFacts | None) -> MirrorRow:
        """The same for who only looks: what is rebuilt is not recorded. facts: of the destination,
        None when it cannot be reached.
        """
        row = self.catalogue.mirror(self.id)
        if row is not None:
            return row
        if facts is None or facts.role is Role.ABSENT:
            return MirrorRow(State.UNINITIALIZED, False, 0, 0)
        snapshots = self.destination.snapshots()
        confirmed = _confirmed(facts, snapshots)
        state = self._state_at_ends(facts, snapshots)
        return MirrorRow(state, False, 0, confirmed.at_ns, confirmed_guid=confirmed.guid)

    def outdated(self, listed: list[Snapshot] | None = None) -> bool:
        """Whether the catalogue was older than the volumes (it was restored from a backup): they
        have snapshots of this mirror with later numbers. It is then brought up to date, and an
        operation in it is dropped.

        listed: what the ends have, when it is known; None: read it from the destination.
        """
        row = self.catalogue.mirror(self.id)
        if listed is None:
            listed = self.destination.snapshots()
        newest = names.last_sequence((one.name for one in listed), self.id)
        if row is None or newest <= row.sequence:
            return False
        self._take_from_ends(self.destination.facts())
        text = (
            f"the catalogue was older than the volumes (sequence number {row.sequence}, "
            f"they have {newest}): it was rebuilt from them"
        )
        self.catalogue.add_event(self.id, "warning", text)
        return True

    def reconciled(self, facts: VolumeFacts) -> bool:
        """Whether the catalogue had a live destination recorded as mirrored, or vice versa, with no
        operation that explains it; it is corrected then.
        """
        row = self.row()
        is_now = {Role.MIRROR: State.MIRRORED, Role.LIVE: State.BROKEN_OFF}.get(facts.role)
        if row.state is State.UNINITIALIZED or is_now in (None, row.state):
            return False
        if self.catalogue.operation(self.id) is not None or facts.mirror_id not in ("", self.id):
            return False
        check_there(facts, self)
        self._take_from_ends(facts)
        text = f"the catalogue had {row.state.value}, but the destination is {facts.role.value}"
        self.catalogue.add_event(self.id, "warning", text)
        return True

    def replaced(self) -> Driver | None:
        """The member of a mirrored destination in whose place is a live volume that never was its
        copy: it did not begin as a snapshot of this mirror, and has none, or none of its own: those
        that lie beside it are of the volume that was there. One that cannot be read is not taken
        for another.
        """
        row = self.catalogue.mirror(self.id)
        if row is None or row.state is not State.MIRRORED:
            return None
        for driver in self.destination.drivers:
            with suppress(MirrordError, OSError):
                facts = driver.facts()
                if facts.role is Role.LIVE:
                    listed = driver.snapshots()
                    others = bool(listed) and all(one.unrelated for one in listed)
                    if others or self._state_at_ends(facts, listed) is State.UNINITIALIZED:
                        return driver
        return None

    def adopt(self) -> None:
        """Rebuild the mirror's records from its ends, unless the destination is missing."""
        facts = self.destination.facts()
        if facts.role is not Role.ABSENT:
            self._take_from_ends(facts)

    def _state_at_ends(self, facts: VolumeFacts, snapshots: list[Snapshot]) -> State:
        """The state by what the destination has."""
        ours = [one for one in snapshots if names.sequence_of(one.name, self.id)]
        owned = facts.mirror_id in ("", self.id)
        # (Another mirror, whose source it is, may have restored it.)
        known = self.relation.known
        broken = known is not None and known.intent is Intent.BROKEN_OFF
        if facts.role is Role.LIVE and (ours or (facts.origin and (owned or broken))):
            return State.BROKEN_OFF
        if facts.role is Role.FOREIGN and ours:
            return State.MIRRORED  # its mirrord record was lost
        if facts.role is Role.MIRROR and owned and (facts.shown or ours):
            return State.MIRRORED
        return State.UNINITIALIZED

    def _take_from_ends(self, facts: VolumeFacts) -> None:
        """Rebuild the mirror's records from the destination, which has these facts."""
        snapshots = self.destination.snapshots()
        state = self._state_at_ends(facts, snapshots)
        sequence = self._last_sequence(snapshots)
        confirmed = _confirmed(facts, snapshots)
        if state is State.BROKEN_OFF:
            # Later ones were taken after the break, for mirrors that have this volume as source.
            guids = [s.guid for s in snapshots]
            at = guids.index(confirmed.guid) + 1 if confirmed.guid in guids else 0
            snapshots = snapshots[:at]
        self.catalogue.adopt(
            self.id,
            state,
            snapshots if state is not State.UNINITIALIZED else [],
            sequence=sequence,
            confirmed=confirmed,
        )

    def _last_sequence(self, there: list[Snapshot]) -> int:
        """The highest sequence number in use, as far as the ends show it."""
        try:
            here = self.source.snapshots()
        except (MirrordError, OSError):
            here = []  # it may be lost
        return names.last_sequence((one.name for one in (*here, *there)), self.id)

    @contextmanager
    def hold_here(self, verb: Verb, *, activity: Activity = Activity.IDLE) -> Iterator[ExitStack]:
        """Hold the mirror on this host only: for when the destination cannot be reached."""
        with preempt.held(self, verb, activity=activity) as stack:
            self.context.began_s = clock.monotonic_s()
            yield stack

    @contextmanager
    def hold(self, verb: Verb, *, activity: Activity = Activity.IDLE) -> Iterator[ExitStack]:
        """Hold the mirror, and the destination's volume, for one verb; `Busy` names the holder."""
        with self.hold_here(verb, activity=activity) as stack:
            if self.context.together is not None:
                shared = self.context.together.at_work(self.source, self.source.drivers)
                stack.enter_context(shared)
            # Another mirror may hold it for a moment, as its source.
            patience_s = _LOCK_WAIT_S if self.run.goes_first else 0
            purpose = f"mirrord {verb.value} {self.name}"
            with self.waiting.cancellable(self.run.check_abort):
                stack.enter_context(self._locked(self.destination, purpose, patience_s=patience_s))
                relation.enter(self, verb)
            yield stack

    def permit(self, verb: Verb) -> Already | State:
        """The table's verdict for `verb` now; raises `Refused` when it is a refusal."""
        row = self.row()
        verdict = judge(row.state, verb, quiesced=row.quiesced)
        perhaps_not = isinstance(verdict, Refusal | Already) and verb in _BY_STATE
        if perhaps_not and self.reconciled(self.destination.facts()):
            row = self.row()
            verdict = judge(row.state, verb, quiesced=row.quiesced)
        if isinstance(verdict, Refusal):
            raise Refused(
                f"'{verb.value}' is not possible now",
                where=f"mirror '{self.name}'",
                why=verdict.why,
                hint=verdict.hint.format(name=self.name),
            )
        return verdict

    def take_snapshot(self, name: str, *, alone: bool = False) -> Snapshot:
        """Take a snapshot of the source; waits for another mirror that is taking its own.

        Not `alone`: one that such a mirror has taken since this verb began is used instead, unless
        this mirror has a hook that prepares the source.
        """
        self.watcher.activity(Activity.SNAPSHOTTING, name)
        self.run.enter(Activity.SNAPSHOTTING)
        alone = alone or bool(self.definition.hooks.before_snapshot)
        together = None if alone else self.context.together
        with self.source_locked():
            if together is None:
                return self.source.take_snapshot(name)
            taken = together.offered(self.source, self.context.began_s)
            # (The mirror that took it has deleted it when its own run has failed since.)
            if taken is None or all(one.guid != taken.guid for one in self.source.snapshots()):
                began_s = clock.monotonic_s()
                taken = self.source.take_snapshot(name)
                if not together.offer(self.source, taken, began_s):
                    return taken
            # Before the lock is released: a mirror deletes nothing that another one has recorded.
            sequence = names.sequence_of(name, self.id)
            self.catalogue.add_shared(self.id, taken, sequence, str(self.source))
            return taken

    @contextmanager
    def failure_noted(self, what: str) -> Iterator[None]:
        """A failure in this block ends the block only, and is a warning in the history."""
        try:
            yield
        except (MirrordError, OSError) as error:
            self.catalogue.add_event(self.id, "warning", f"{what}: {one_line(error)}")

    def source_locked(self) -> AbstractContextManager[None]:
        """Hold the source's volume for a moment; waits up to 20 s for another holder.

        Only the wait can be aborted: nothing is transferred in that moment.
        """
        return self.locked(self.source)

    def locked(self, driver: Driver) -> AbstractContextManager[None]:
        """Hold any volume for a moment, in the same way."""
        return self._locked(driver, f"mirrord {self.name}", patience_s=_LOCK_WAIT_S)

    def _locked(
        self, driver: Driver, purpose: str, *, patience_s: float
    ) -> AbstractContextManager[None]:
        return locks.waited_for(
            lambda: driver.lock(purpose), patience_s, check=self.run.check_abort
        )


def check_source(
    facts: VolumeFacts, where: str, mirror_id: str, *, initialized: bool = False
) -> None:
    """Raise `Refused` when there is nothing to mirror. initialized: the destination has a copy."""
    if facts.role is Role.LIVE:
        return
    note = facts.notes[0] if facts.notes else ""
    if facts.role is Role.ABSENT:
        creating = _CREATING.get(facts.kind, "mirrord volume create")
        hint = f"'{creating}' creates a new one."
        if initialized:
            hint = f"If it is lost, 'mirrord restore {MIRROR} --all' creates it again."
        raise Refused(
            "there is no volume at the source",
            where=where,
            why=note or "nothing is at that path",
            hint=f"Check the path, and that its file system is mounted. {hint}",
        )
    if is_half_restored(facts, mirror_id):
        raise Refused(
            "the source is read-only: it is the destination of this same mirror",
            where=where,
            why="a 'restore --all' was given up before it had finished, or the catalogue is from "
            "before the mirror was reversed",
            hint=f"If a 'restore --all' was given up, run it again: 'mirrord restore {MIRROR} "
            "--all'. If the mirror was reversed, and neither end has a relationship record, record "
            f"which site is the source: 'mirrord takeover {MIRROR} --source SITE'.",
        )
    if facts.role is Role.MIRROR and facts.shown:
        return  # a cascade: what it shows is replicated
    if facts.role is Role.MIRROR:
        raise Refused(
            "the source is the destination of another mirror, and shows nothing yet",
            where=where,
            why=f"it belongs to the mirror with the id {facts.mirror_id}",
            hint="Initialize that mirror first.",
        )
    raise Refused(
        "the source is not a volume that can be mirrored",
        where=where,
        why=note,
        hint=f"If another mirror was deleted that had it as its destination: 'mirrord restore "
        f"{MIRROR} --all' makes it a volume again, from the destination."
        if initialized
        else "To convert a folder, use 'btrfs subvolume create NEW' and 'cp -a --reflink'; to "
        "create a block volume, use 'mirrord volume create'.",
    )


def is_half_restored(facts: VolumeFacts, mirror_id: str) -> bool:
    """Whether a source is what a `restore --all` has left that did not finish."""
    given_up = not facts.mirror_id and not facts.shown
    return facts.role is Role.MIRROR and (facts.mirror_id == mirror_id or given_up)


def _confirmed(facts: VolumeFacts, snapshots: list[Snapshot]) -> Confirmed:
    """What the destination shows, or was made writable from, and when the source was like that."""
    shown = facts.shown or facts.origin or ""
    taken = {one.guid: one.taken_at_ns for one in snapshots}
    return Confirmed(shown, taken.get(shown, 0))


def check_destination(facts: VolumeFacts, mirror: Mirror) -> None:
    """Raise `Refused` when the destination is missing (perhaps not mounted), or belongs to another
    mirror; `Damaged` when it is not known to which mirror it belongs.
    """
    check_there(facts, mirror)
    if facts.role is Role.MIRROR and not facts.mirror_id:
        raise Damaged(
            "the destination's record is damaged",
            where=str(mirror.destination),
            why="; ".join(facts.notes) or "it does not name the mirror that it belongs to",
            hint=f"Its snapshots are not affected: 'mirrord break {mirror.name}' makes the newest "
            f"writable, 'mirrord resync {mirror.name}' mirrors again from there.",
        )


def check_there(facts: VolumeFacts, mirror: Mirror) -> None:
    """The same for a destination whose record need not name its mirror."""
    where = str(mirror.destination)
    if facts.role is Role.ABSENT:
        raise Refused(
            "the destination is missing",
            where=where,
            why=facts.notes[0] if facts.notes else "nothing is at that path",
            hint="Check that its file system is mounted; nothing was changed. If it is lost: "
            f"'mirrord delete {MIRROR} --yes', then create the mirror again.",
        )
    if facts.role is Role.FOREIGN and facts.mirror_id == mirror.id:
        raise view_replaced(facts.view)
    if facts.role is Role.MIRROR and facts.mirror_id not in ("", mirror.id):
        raise other_mirror(where, facts.mirror_id)
    if facts.role is Role.LIVE:
        refuse_replaced(mirror)


def refuse_replaced(mirror: Mirror) -> None:
    """`Refused` when another live volume has taken the place of the destination."""
    strange = mirror.replaced()
    if strange is not None:
        raise destination_replaced(str(strange))


def pick_snapshot(mirror: Mirror, wanted: str | None) -> Snapshot:
    """The destination's snapshot of that name or guid; None: the one it shows or began as, or
    the newest intact one when that is gone.
    """
    listed = mirror.destination.snapshots()
    if wanted is None:
        facts = mirror.destination.facts()
        chosen = facts.shown or facts.origin
        for snapshot in listed:
            if snapshot.guid == chosen:
                return snapshot
        left = [snapshot for snapshot in listed if plan.usable(snapshot)]
        if left:
            return left[-1]
        check_there(facts, mirror)  # a missing destination is the better explanation
        raise NotFound("the destination has no snapshot to restore from", where=mirror.name)
    found = [s for s in listed if wanted in (s.name, s.guid)]
    if not found:
        found = [s for s in listed if wanted in s.name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(s.name for s in listed[-5:]) or "none"
    raise NotFound(
        f"'{wanted}' matches {'no snapshot' if not found else 'several snapshots'}",
        where=str(mirror.destination),
        hint=f"'mirrord snapshots {mirror.name}' lists them; the newest: {known}.",
    )


def one_line(error: BaseException) -> str:
    """An error as one line for history and events."""
    if isinstance(error, MirrordError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def tolerated(work: Callable[[], object]) -> list[str]:
    """Run it; a failure becomes a list of one line."""
    try:
        work()
    except (MirrordError, OSError) as error:
        return [one_line(error)]
    return []
