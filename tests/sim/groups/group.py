"""A group over several hosts: an application whose integers are striped over all its members, a
coordinator that updates the mirror again and again, and what must hold whatever happens meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from mirrord.agent.rules import Rules
from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition, Endpoint, Member, Pausing, SnapshotKind
from mirrord.core.results import Silent
from mirrord.core.states import State
from mirrord.drivers.contract import Driver
from mirrord.engine import update
from mirrord.engine.mirror import Mirror
from mirrord.engine.parts import Relation, RunContext, ends_of
from mirrord.engine.progress import RunFiles
from mirrord.system import clock
from tests.sim.groups.events import Event, Fault, Turn
from tests.sim.groups.network import Connections, HostDriver, HostVolume, Net
from tests.sim.groups.pauses import KIND, Application, GuardProcess
from tests.sim.groups.processes import Host, Killed, Process
from tests.sim.volume import Volume

NAME, ID = "group", "a1b2c3d4"
HOSTS = ("", "one", "two", "three")
_KEEP_SOURCE = 2
#: A write takes so long; so do the pauses between writes while nothing is paused.
_WRITE_S = (0.0001, 0.001)
_LEISURE_S = 0.25
#: For so long after something was paused or resumed the application writes as fast as it can.
_FAST_S = 0.15
_NO_POWER_S = 15.0
#: A network in which nothing passes for longer is a cut one: heartbeats would be missed.
_SLOW_S = 1.5
_YEAR_S = 365 * 86400.0
#: No command takes longer than that; and after the last fault everything is over by then.
_ENDS_S = 300.0
_CALM_S = 60.0
_CALM_TURNS = 3
#: How a command may end when something happened to it.
_EXPECTED = frozenset({"done", "killed", "pause", "link", "unreachable", "transfer", "busy", "io"})


class Group:
    """See above. It is driven by `direct`, in a job of the simulation."""

    def __init__(self, world: Net, seed: int, folder: Path, apps: dict[str, Application]) -> None:
        chance = random.Random(f"group {seed}")
        self.world, self.folder = world, folder
        for name in HOSTS:
            world.hosts[name] = Host(
                name,
                folder,
                off_s=chance.choice((0.0, 0.5, -_YEAR_S, _YEAR_S)),
                booted_s=chance.uniform(0, 1e6),
            )
        count = chance.randint(2, 4)
        some = chance.sample(HOSTS, chance.randint(2, min(3, count)))
        sources = [*some, *chance.choices(some, k=count - len(some))]
        self.max_s = chance.choice((0.2, 1.0))
        for name in some:
            apps[name] = Application(world, world.hosts[name], self.max_s)
        self.apps = apps
        self.members = [
            Member(
                f"m{number}",
                Endpoint("memory", f"/source/{number}", host),
                Endpoint("memory", f"/copy/{number}", chance.choice(("", "", *HOSTS))),
                f"{KIND}:{host}",
            )
            for number, host in enumerate(sources)
        ]
        self.sources = [
            world.hosts[one.source.host].disk.create(one.source.location, 0) for one in self.members
        ]
        self.met: Counter[str] = Counter()
        self.finished = False
        self._definitions = Definitions(folder)
        self._coordinator: Process | None = None
        self._links: dict[str, Connections] = {}
        self._catalogue: Catalogue | None = None
        self._outcome, self._fresh = "", False
        self._pending: list[Fault] = []
        self._number = 0
        #: By the name of a set, in which turn it was taken; by turn and host, whether the pause
        #: there lasted; the turn in which each guard was started.
        self._sets: dict[str, int] = {}
        self._votes: dict[int, dict[str, bool]] = {}
        self._guards: dict[GuardProcess, int] = {}
        self._checked: set[str] = set()
        #: The last number that was acknowledged, now and when the turn began.
        self.acknowledged = self._before = 0
        self._fast_until_s = 0.0
        self._issue()

    @property
    def definition(self) -> Definition:
        """The mirror."""
        first = self.members[0]
        return Definition(
            NAME,
            ID,
            first.source,
            first.destination,
            keep_source=_KEEP_SOURCE,
            keep_destination=3,
            prune_share=1.0,
            members=tuple(self.members),
            pausing=Pausing(max_s=self.max_s),
        )

    # The application

    def _issue(self) -> None:
        """The next number is written by the host that has the next member."""
        number = self.acknowledged + 1
        app = self.apps[self.members[number % len(self.members)].source.host]
        leisure_s = 0.0 if self.world.now_s < self._fast_until_s else _LEISURE_S
        at_s = self.world.now_s + leisure_s + self.world.chance.uniform(*_WRITE_S)
        self.world.at(at_s, lambda: app.does(partial(self._write, number)))

    def _write(self, number: int) -> None:
        self.sources[number % len(self.members)].write([(number, number)])
        self.acknowledged = number
        self._issue()

    # The coordinator

    def direct(self, turns: list[Turn]) -> None:
        """All turns, and then those in which nothing happens any more."""
        for turn in turns:
            self._turn(turn)
            clock.sleep_s(random.Random(turn.seed).choice((1.0, 5.0, 20.0)))
        clock.sleep_s(_CALM_S)
        for number in range(_CALM_TURNS):
            self._turn(Turn(number, ()))
            clock.sleep_s(2.0)
        if self._outcome != "done":
            self.world.violated(f"an update does not work any more: {self._outcome}")
        self._check_end()
        self.finished = True

    def _turn(self, turn: Turn) -> None:
        self._number += 1
        self.world.chance = random.Random(f"turn {turn.seed}")
        self._before, self._pending = self.acknowledged, list(turn.faults)
        if self._coordinator is None or self._coordinator.dead or turn.seed % 3 == 0:
            if self._coordinator is not None:
                self._coordinator.end()
            self._coordinator = Process(self.world, self.world.hosts[""], "coordinator")
            self._links = {}
        self._outcome = "killed"
        over = self.world.start(self._coordinator, self._command)
        self._fire(Event.START)
        if not over.wait(_ENDS_S):
            self.world.violated("a command does not end")
        self.met[f"commands: {self._outcome}"] += 1
        if self._outcome not in _EXPECTED:
            self.world.violated(f"a command fails with '{self._outcome}', for no reason")
        self._pending.clear()
        for host in self.world.hosts.values():
            host.snapshot_s = host.pause_s = host.slow_s = 0.0
        self.check()
        if self._outcome == "done" and not self._fresh and self._shown() < self._before:
            self.world.violated("the set does not have what was acknowledged before the command")

    def _command(self) -> None:
        with closing(Catalogue(self.folder / "catalogue.sqlite")) as self._catalogue:
            try:
                mirror = self._mirror(self._catalogue)
                self._fresh = mirror.row().state is State.UNINITIALIZED
                verb = update.initialize if self._fresh else update.update
                self._outcome = verb(mirror).status
            except MirrordError as error:
                self._outcome = error.code

    def _mirror(self, catalogue: Catalogue) -> Mirror:
        definition = self.definition
        return Mirror(
            Relation(definition, self._definitions, catalogue, "c0ffee@sim"),
            ends_of(definition, self._opened),
            RunContext(RunFiles(self.folder, NAME), Silent()),
        )

    def _opened(self, endpoint: Endpoint) -> Driver:
        host, owner = self.world.hosts[endpoint.host], self._coordinator
        assert owner is not None
        if not endpoint.host:
            return HostVolume(self.world, host, endpoint.location)
        if endpoint.host not in self._links:
            rules = Rules(free=True, pause=(f"{KIND}:{endpoint.host}",))
            self._links[endpoint.host] = Connections(self.world, owner, host, rules)
        return HostDriver.of(endpoint, self._links[endpoint.host])

    # What happens

    def step(self, label: str) -> None:
        """A labelled step of any process."""
        process = self.world.process
        if process is not None and process.dead:
            raise Killed
        if label == Event.BEGIN and self._catalogue is not None:
            operation = self._catalogue.operation(ID)
            assert operation is not None
            self._sets[operation.arguments.name] = self._number
        if label == "MEMORY:COMMIT:CLEAN":
            self.world.at(self.world.now_s, self.check)
        self._fire(label)

    def observed(self, guard: GuardProcess, event: str, facts: dict[str, Any]) -> None:
        """A guard answers."""
        if event == "ready":
            self._guards[guard] = self._number
        if event == "resumed":
            lasted = not (facts["expired"] or facts["broken"])
            self._votes.setdefault(self._guards[guard], {})[guard.host.name] = lasted
            self.met["pauses that lasted" if lasted else "pauses that did not"] += 1
        self._fast_until_s = self.world.now_s + _FAST_S
        self._fire(f"GUARD:{event.upper()}")

    def _fire(self, label: str) -> None:
        for fault in [one for one in self._pending if one.at == label]:
            self._pending.remove(fault)
            self.met[f"times '{fault.kind}'"] += 1
            if fault.delay_s:
                self.world.at(self.world.now_s + fault.delay_s, partial(self._do, fault))
            else:
                self._do(fault)

    def _do(self, fault: Fault) -> None:
        world, seconds = self.world, fault.seconds
        host, app = world.hosts[fault.host], self.apps.get(fault.host)
        here = [one for one in world.processes if one.host is host]
        guards: list[Process] = [one for one in here if isinstance(one, GuardProcess)]
        agents = [one for one in here if one.name == "agent"]
        match fault.kind:
            case "cut" if host.name:
                world.cut(host, seconds)
            case "hang":
                host.hung_until_s = world.now_s + seconds
                self._hang(here, seconds)
                if app is not None:
                    app.hang(seconds)
            case "agent stops":
                self._hang(agents, seconds)
            case "guard killed" | "agent killed" | "both killed":
                if app is not None and fault.kind != "agent killed":
                    app.late_s += _ENDS_S  # its owner resumes it, or the next command
                some = {"guard killed": guards, "agent killed": agents}
                for one in some.get(fault.kind, [*guards, *agents]):
                    one.kill()
            case "slow snapshot":
                host.snapshot_s = seconds
            case "slow pause":
                host.pause_s = seconds
            case "slow network":
                host.slow_s = min(seconds, _SLOW_S)
            case "resumed" if app is not None and app.paused:
                app.resume()
            case "clock":
                host.off_s += seconds * 1e6
            case "crash" | "power":
                self._crash(silently=fault.kind == "power")

    def _hang(self, processes: Sequence[Process], seconds: float) -> None:
        for one in processes:
            one.hang(seconds)
            if one.name == "agent":
                self.world.silent(one)

    def _crash(self, *, silently: bool) -> None:
        """The coordinator is killed. silently: its host has no power, and tells nobody."""
        for host in self.world.hosts.values():
            if silently and host.name:
                self.world.cut(host, _NO_POWER_S)
        if self._coordinator is not None:
            self._coordinator.kill()

    # Rules

    def _volumes(self) -> list[Volume | None]:
        return [
            self.world.hosts[one.destination.host].disk.volumes.get(one.destination.location)
            for one in self.members
        ]

    def check(self) -> None:
        """What holds at any moment."""
        copies = [one for one in self._volumes() if one is not None]
        names = [{e.snapshot.name for e in one.entries.values()} for one in copies]
        staged = {one.request.snapshot.name for copy in copies for one in copy.staged.values()}
        for name in staged.union(*names):
            votes = self._votes.get(self._sets.get(name, 0), {})
            if set(votes) != set(self.apps) or not all(votes.values()):
                self.world.violated(f"an aborted set was transferred: {name}")
        whole = set.intersection(*names) if len(copies) == len(self.members) else set()
        for name in whole - self._checked:
            self._checked.add(name)
            self.met["sets"] += 1
            self._check_prefix(name, copies)
        for copy in copies:
            shown = copy.entries.get(copy.shown or "")
            if shown is not None and shown.snapshot.name not in whole:
                self.world.violated(f"a member shows {shown.snapshot.name}, which others lack")

    def _check_prefix(self, name: str, copies: list[Volume]) -> None:
        found = sorted(
            number
            for copy in copies
            for entry in copy.entries.values()
            if entry.snapshot.name == name
            for number in entry.blocks
        )
        if found != list(range(1, len(found) + 1)):
            gap = next(n for n, one in enumerate(found, 1) if n != one)
            self.world.violated(f"no prefix: {name} has {found[-1]}, but not {gap}")

    def _shown(self) -> int:
        """How many numbers the destination shows."""
        return sum(len(one.view()) for one in self._volumes() if one is not None)

    def _check_end(self) -> None:
        """Nothing is left over."""
        violated, copies = self.world.violated, self._volumes()
        if len({one.entries[one.shown or ""].snapshot.name for one in copies if one}) != 1:
            violated("the members show different sets")
        if any(app.paused for app in self.apps.values()):
            violated("an application is still paused")
        if any(isinstance(one, GuardProcess) for one in self.world.processes):
            violated("a guard is left over")
        if list(self.folder.rglob("*.paused")):
            violated("the record of a pause is left over")
        reference = SnapshotKind.REFERENCE
        names = [
            {e.snapshot.name for e in one.entries.values() if e.snapshot.kind is reference}
            for one in self.sources
        ]
        if any(one != names[0] for one in names) or len(names[0]) > _KEEP_SOURCE:
            violated(f"snapshots are left over: {names}")
        if any(one.staged for one in copies if one is not None):
            violated("a staging is left over")
        with closing(Catalogue(self.folder / "catalogue.sqlite")) as catalogue:
            if catalogue.operation(ID) is not None:
                violated("an operation is left over")
