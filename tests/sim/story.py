"""Stories of one mirror: all verbs, people who write between their steps, crashes, lost and older
catalogues, swapped and lost volumes. (tests/sim/events.py has what happens, telling.py plays it.)

The engine and the catalogue are the real ones, the volumes are in memory. A line that people write
is a block of its own, so that it must be found for ever: nothing overwrites it.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mirrord.catalogue.store import Catalogue
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition, Endpoint, Role, SnapshotKind
from mirrord.core.results import Result, Silent
from mirrord.core.states import State, Verb
from mirrord.engine import failover, prune, recovery, restore, simple, update
from mirrord.engine.direction import Turned
from mirrord.engine.mirror import Mirror
from mirrord.engine.parts import Relation, RunContext, ends_of
from mirrord.engine.progress import RunFiles
from mirrord.system import clock, steps
from tests.sim.checks import Violation
from tests.sim.events import ASKED, EXPECTED, VERBS, Event
from tests.sim.faults import Crash
from tests.sim.memory import MemoryDriver
from tests.sim.roles import Roles
from tests.sim.volume import Body, Disk, Volume

NAME = "home"
SOURCE, DESTINATION = "/source", "/destination"
_WAYS = 10
_NAMED = re.compile(r"mirrord (initialize|resync|reverse|restore|break|abort|resume-operation)\b")


class Over(Exception):
    """The owner gives this mirror up: all is there, and he makes another one."""


def _in_snapshots(volume: Volume) -> set[int]:
    return {block for entry in volume.entries.values() for block in entry.blocks}


class Story:
    """A mirror in a world of its own. `lines` are the acknowledged ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = Disk()
        self.disk.create(SOURCE, 20)
        (folder / "etc").mkdir()
        self._roles = Roles(folder / "etc", folder / "catalogue.sqlite", self.disk)
        self.definitions = self._roles.definitions
        self.definitions.add(
            Definition(
                name=NAME,
                id="a1b2c3d4",
                source=Endpoint("block", SOURCE),
                destination=Endpoint("block", DESTINATION),
                keep_source=2,
                keep_destination=4,
            )
        )
        self.lines = set(self.disk.volumes[SOURCE].live)
        self.met: Counter[str] = Counter()
        self.history: list[str] = []
        self._kept: dict[int, bool] = {}
        #: A source that was moved away, with the place where it was.
        self._moved: list[tuple[str, Volume]] = []
        #: Volumes that people keep elsewhere for good.
        self._attic: list[Volume] = []
        self._held: list[Body] = []
        self._backups: list[Path] = []
        self._chance = random.Random(0)
        #: Live content that people wrote to since the owner last confirmed anything.
        self._later: set[int] = set()
        self._states: set[int] = set()
        self._run("initialize")
        self.check()
        self._back_up()

    # What happens

    def play(self, event: Event) -> None:
        """One event, and what holds after each."""
        self._chance = random.Random(event.seed)
        self.history.append(event.kind)
        getattr(self, "_" + event.kind.replace(" ", "_"))()
        self.check()

    def _write(self) -> None:
        for volume in self._live():
            for _ in range(self._chance.randint(1, 3)):
                self._line(volume.body, volume)

    def _line(self, body: Body, volume: Volume | None = None) -> None:
        """Somebody writes a line, and it is acknowledged."""
        block = self.disk.draw()
        if volume is not None:
            volume.write([(block, block)])
        else:
            body.write([(block, block)])
        self.lines.add(block)
        self._later.add(body.number)

    def _live(self) -> list[Volume]:
        return [
            volume
            for location, volume in self.disk.volumes.items()
            if volume.role is Role.LIVE and not volume.frozen and location not in self.disk.full
        ]

    def _verb(self) -> None:
        self._run(self._a_verb(), force=self._chance.random() < 0.5)

    def _failing_verb(self) -> None:
        fault = self._chance.choice(("crash", "crash", "eio", "enospc"))
        # (0: where a volume is switched, which is a narrow place)
        at = self._chance.randint(1, 16) if self._chance.random() < 0.6 else 0
        self._run(self._a_verb(), fault, at, force=self._chance.random() < 0.5)
        if self._chance.random() < 0.7:
            self._write()
        if self._chance.random() < 0.2:
            self._back_up()
        if self._chance.random() < 0.5:
            self._run(self._chance.choice(("recover", "update")))

    def _verb_with_writers(self) -> None:
        if self._chance.random() < 0.4:
            self._hold()
        self._run(self._a_verb(), writers=True, force=self._chance.random() < 0.5)

    def _daemon(self) -> None:
        fault = self._chance.choice(("", "", "crash"))
        self._run("recover", fault, self._chance.randint(1, 8))

    def _hold(self) -> None:
        for volume in self._live()[:1]:
            volume.body.writers += 1
            self._held.append(volume.body)

    def _held_write(self) -> None:
        for body in self._held:
            self._line(body)

    def _release(self) -> None:
        for body in self._held:
            body.writers -= 1
        self._held.clear()

    def _lose_catalogue(self) -> None:
        self._forget_catalogue()

    def _forget_catalogue(self) -> None:
        for path in self.folder.glob("catalogue.sqlite*"):
            path.unlink()

    def _backup(self) -> None:
        self._back_up()

    def _back_up(self) -> None:
        to = self.folder / f"backup{len(self._backups)}"
        to.mkdir()
        for path in [*self.folder.glob("catalogue.sqlite*"), self.definitions.file(NAME)]:
            shutil.copy(path, to)
        self._backups.append(to)

    def _old_catalogue(self) -> None:
        self._forget_catalogue()
        for path in self._chance.choice(self._backups).glob("catalogue.sqlite*"):
            shutil.copy(path, self.folder)

    def _old_definition(self) -> None:
        file = self.definitions.file(NAME)
        shutil.copy(self._chance.choice(self._backups) / file.name, file)

    def _swap_volume(self) -> None:
        """The source is moved away, an empty one takes its place, and the schedule goes on."""
        source = self._definition().source.location
        volume = self.disk.volumes.get(source)
        if self._moved or volume is None or volume.role is not Role.LIVE:
            return
        copies = self.disk.volumes.get(self._definition().destination.location)
        if copies is None:
            return
        before = _in_snapshots(copies)
        self._moved.append((source, volume))
        fresh = Volume(volume.identity, Role.LIVE)
        # The snapshots lie beside the volume, and stay there.
        fresh.entries, fresh.next_order = volume.entries, volume.next_order
        fresh.body = Body(self.disk.draw())
        self.disk.volumes[source] = fresh
        self._states.add(fresh.digest)
        for _ in range(5):
            self._line(fresh.body, fresh)
            self._run("update")
        gone = before - _in_snapshots(copies)
        if gone:
            raise Violation(f"copies of a volume that was moved away are gone: {sorted(gone)[:9]}")

    def _lose_source(self) -> None:
        """The disk dies; what only it had is gone with it."""
        source = self._definition().source.location
        if self._moved or self.disk.volumes.get(source) is None:
            return
        dead = self.disk.volumes.pop(source)
        self._held = [body for body in self._held if body not in dead.bodies()]
        self.lines &= self._found().keys()

    def _delete_shown(self) -> None:
        destination = self.disk.volumes.get(self._definition().destination.location)
        if destination is not None and destination.role is Role.MIRROR and destination.shown:
            destination.entries.pop(destination.shown, None)

    def _full(self) -> None:
        self.disk.full.add(self._chance.choice((SOURCE, DESTINATION)))

    def _room(self) -> None:
        self.disk.full.clear()

    # Verbs

    def _a_verb(self) -> str:
        return self._chance.choices(list(VERBS), list(VERBS.values()))[0]

    def _definition(self) -> Definition:
        return self._roles.definition(NAME)

    def _run(
        self, verb: str, fault: str = "", at: int = 0, *, writers: bool = False, force: bool = False
    ) -> MirrordError | None:
        """Run a verb in a process of its own; the error by which it was refused."""
        clock.sleep_s(1.0)  # names have the second in them
        asked = verb.split()[0] in ASKED
        live = {v.body.number: v for v in self.disk.volumes.values() if v.role is Role.LIVE}
        passed, met, dead = 0, False, False

        def step(label: str) -> None:
            nonlocal passed, met, dead
            passed += 1
            if dead:
                raise Crash(label)
            if writers and self._chance.random() < 0.5:
                steps.observe(None)
                self._write()
                self._held_write()
                steps.observe(step)
            if fault and (passed == at or (not at and not met and label.endswith("SWITCH"))):
                met = True
                self.met[f"{fault} at {label}"] += 1
                if fault == "crash":
                    dead = True
                    raise Crash(label)
                number = getattr(errno, fault.upper())
                raise OSError(number, os.strerror(number))

        later = frozenset(self._later)
        before = self._planned_reverse(verb, force=force)
        code, error = "", None
        steps.observe(step)
        try:
            code = self._call(verb, force).status
        except MirrordError as caught:
            code, error = caught.code, caught
        except OSError as caught:
            code = {errno.EIO: "io", errno.ENOSPC: "no-space"}.get(caught.errno or 0, "os")
            error = MirrordError(str(caught))
        except Crash:
            code, error = "crash", MirrordError("it crashed")
        finally:
            steps.observe(None)
            for volume in self.disk.volumes.values():
                volume.frozen = False
        self.history.append(f"  {verb}{f' ({fault} at {at})' if met else ''}: {code} {error or ''}")
        self.met[f"{verb} {code}"] += 1
        expected = EXPECTED[fault if met else ""] | (EXPECTED["full"] if self.disk.full else set())
        if error is not None and code not in expected:
            raise Violation(f"{verb} failed with '{code}', which nothing explains: {error}")
        if asked:
            self._later.clear()
        else:
            self._check_untouched(verb, {n: live[n] for n in live.keys() & later})
        if before is not None and error is None:
            self._check_reverse(before)
        return error

    def _call(self, verb: str, force: bool) -> Result:
        catalogue = Catalogue(self.folder / "catalogue.sqlite")
        try:
            try:
                return self._work(verb, self._mirror(catalogue), force)
            except Turned:
                if verb == "reverse":
                    return Result("done", "an interrupted reverse was finished")
                return self._work(verb, self._mirror(catalogue), force)
        finally:
            catalogue.close()

    def _mirror(self, catalogue: Catalogue) -> Mirror:
        definition = self._definition()
        return Mirror(
            Relation(definition, self.definitions, catalogue, "c0ffee@sim"),
            ends_of(definition, lambda endpoint: MemoryDriver(self.disk, endpoint.location)),
            RunContext(RunFiles(self.folder, NAME), Silent()),
        )

    def _work(self, verb: str, mirror: Mirror, force: bool) -> Result:
        older = self._older(mirror) if verb.endswith("older") else None
        calls: dict[str, Callable[[], Result]] = {
            "initialize": lambda: update.initialize(mirror),
            "update": lambda: update.update(mirror),
            "break": lambda: failover.break_off(mirror, snapshot=older),
            "resync": lambda: failover.resync(mirror, yes=True, force=force),
            "reverse": lambda: failover.reverse(mirror, yes=True, force=force),
            "restore": lambda: restore.restore_all(mirror, snapshot=older, yes=True, force=force),
            "abort": lambda: simple.abort(mirror, hard=True),
            "resume-operation": lambda: simple.resume_operation(mirror, yes=True),
            "prune": lambda: prune.prune_now(mirror, dry_run=False, accept=True),
            "recover": lambda: self._recover(mirror),
        }
        return calls[verb.split()[0]]()

    def _recover(self, mirror: Mirror) -> Result:
        """What the daemon does with a mirror when it starts."""
        if mirror.catalogue.operation(mirror.id) is None:
            return Result("unchanged", "")
        with mirror.hold(Verb.ABORT):
            recovery.recover(mirror)
        return Result("done", "")

    def _older(self, mirror: Mirror) -> str | None:
        found = [s.name for s in mirror.destination.snapshots() if s.kind is SnapshotKind.REFERENCE]
        return self._chance.choice(found) if found else None

    # Rules

    def check(self) -> None:
        """What holds at any moment."""
        found = self._found()
        lost = sorted(line for line in self.lines if line not in found)
        aged = [line for line in lost if self._kept.get(line) is False]
        if len(lost) > len(aged):
            raise Violation(f"acknowledged lines are nowhere: {sorted({*lost} - {*aged})[:9]}")
        # They were in reference snapshots only, and those were pruned.
        self.lines.difference_update(aged)
        self._kept = found
        for volume in self.disk.volumes.values():
            for entry in volume.entries.values():
                if entry.transfer == "" and entry.snapshot.kind is SnapshotKind.REFERENCE:
                    self._states.add(entry.digest)
        for location, volume in self.disk.volumes.items():
            shown = volume.entries.get(volume.shown or "")
            mirrored = volume.role is Role.MIRROR and shown is not None
            if mirrored and shown is not None and shown.digest not in self._states:
                raise Violation(f"{location} shows what no source ever was")

    def _found(self) -> dict[int, bool]:
        """Each line that is somewhere: whether it is anywhere else than in a reference snapshot."""
        kept: set[int] = set()
        referenced: set[int] = set()
        moved = [volume for _place, volume in self._moved]
        for volume in [*self.disk.volumes.values(), *moved, *self._attic]:
            bodies = [*volume.aside.values()]
            if volume.role is Role.LIVE:
                bodies.append(volume.body)
            for body in bodies:
                kept |= body.blocks.keys()
            for entry in volume.entries.values():
                diverged = entry.snapshot.kind is SnapshotKind.DIVERGED
                (kept if diverged else referenced).update(entry.blocks)
        return dict.fromkeys(referenced, False) | dict.fromkeys(kept, True)

    def _check_untouched(self, verb: str, live: dict[int, Volume]) -> None:
        """What nobody asked for touches no volume that people wrote to since they last did."""
        for number, volume in live.items():
            still = volume.role is Role.LIVE and volume.body.number == number
            if not still:
                raise Violation(f"{verb} set aside a volume with later work, unasked")

    def _planned_reverse(self, verb: str, *, force: bool) -> Body | None:
        """The content of the source, when a reverse of a mirror that works begins."""
        if verb != "reverse" or force or self.disk.full:
            return None
        definition = self._definition()
        source = self.disk.volumes.get(definition.source.location)
        destination = self.disk.volumes.get(definition.destination.location)
        if source is None or destination is None or destination.role is not Role.MIRROR:
            return None
        return source.body if source.role is Role.LIVE else None

    def _check_reverse(self, before: Body) -> None:
        """A planned reverse leaves nothing behind that was acknowledged before the freeze."""
        now = self.disk.volumes[self._definition().source.location]
        if now.body is before:
            return  # it was an interrupted one that was settled
        behind = before.blocks.keys() & self.lines - now.live.keys()
        if behind:
            raise Violation(f"a planned reverse left lines behind: {sorted(behind)[:9]}")

    # Peace

    def _calm(self) -> None:
        """What disturbs is over. By the ways that its messages name, the mirror works again."""
        self._release()
        self._room()
        self._break_works()
        gone: Counter[str] = Counter()
        heard = ""
        error = self._run("update")
        while error is not None:
            ways = _NAMED.findall(f"{error} {error.hint}")
            heard += f"{error} {error.hint}\n"
            way = min(ways, key=lambda each: (gone[each], self._chance.random()), default="")
            if (not way or gone[way]) and self._by_hand(heard):
                gone.clear()
                way = heard = ""
            elif not way or sum(gone.values()) > _WAYS:
                raise Violation(f"no way on works ({', '.join(gone)}): {heard}")
            gone[way] += 1
            error = (self._run(way) if way else None) or self._run("update")
        self._check_in_step()

    def _by_hand(self, heard: str) -> bool:
        """What people do who read that; whether there was anything to do."""
        definition = self._definition()
        ends = definition.source.location, definition.destination.location
        source, destination = (self.disk.volumes.get(end) for end in ends)
        if "record which site is the source" in heard:
            self._roles.adopt(definition)
            return True
        if self._moved and self._moved[0][0] in self.disk.volumes:
            place, back = self._moved.pop()
            self._attic.append(self.disk.volumes[place])
            self.disk.volumes[place] = back
            return True
        if destination is None:
            raise Over  # that disk died: the owner mirrors to another one
        if source is None and (destination.role is Role.LIVE or "never initialized" in heard):
            raise Over  # the owner works on at the destination, and mirrors it to another place
        if source is None and not destination.entries and not destination.aside:
            raise Over  # somebody deleted the last snapshot, and that disk died: nothing is left
        mirrored = source is not None and source.role is Role.MIRROR
        if "mirrord did not make that" in heard and mirrored:
            self._roles.adopt(definition)
            return True
        if "Rename the source volume" in heard and source is not None:
            self._attic.append(self.disk.volumes.pop(ends[0]))
            return True
        if "A full transfer is required" in heard:
            raise Over
        return False

    def _break_works(self) -> None:
        """`break` works where one snapshot is intact, whatever else is wrong."""
        location = self._definition().destination.location
        volume = self.disk.volumes.get(location)
        if volume is None or volume.role is not Role.MIRROR or self._chance.random() < 0.7:
            return
        kinds = [entry.snapshot.kind for entry in volume.entries.values()]
        error = self._run("break")
        if error is not None and SnapshotKind.REFERENCE in kinds:
            raise Violation(f"break does not work, though a snapshot is intact: {error}")

    def _check_in_step(self) -> None:
        definition = self._definition()
        source = self.disk.volumes[definition.source.location]
        destination = self.disk.volumes[definition.destination.location]
        if source.role is not Role.LIVE or destination.view() != source.live:
            raise Violation("after an update that went well, the destination is not as the source")
        for location, volume in self.disk.volumes.items():
            if volume.aside or volume.staged:
                raise Violation(f"something half done is left over at {location}")
        catalogue = Catalogue(self.folder / "catalogue.sqlite")
        try:
            row = catalogue.mirror(definition.id)
            if catalogue.operation(definition.id) is not None:
                raise Violation("an operation is left over")
            if row is None or row.state is not State.MIRRORED:
                raise Violation("it is not recorded as mirrored")
        finally:
            catalogue.close()
