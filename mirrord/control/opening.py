"""Opens mirrors by name, and records the outcome of verbs on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from mirrord.catalogue.base import IN_MEMORY
from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions, of_record
from mirrord.config.host import Host
from mirrord.config.host import load as load_host
from mirrord.config.writing import render
from mirrord.control.shared import Shared
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, IoFailed, MirrordError, Refused
from mirrord.core.model import Definition, Endpoint, Pace
from mirrord.core.results import Result, Silent, Watcher, has_acted
from mirrord.core.states import Verb
from mirrord.drivers.contract import Driver
from mirrord.engine import direction
from mirrord.engine.direction import Turned
from mirrord.engine.mirror import Mirror
from mirrord.engine.parts import Relation, RunContext, ends_of
from mirrord.engine.progress import RunFiles
from mirrord.system import identity
from mirrord.system.explain import explained
from mirrord.system.paths import Paths, local_zone

if TYPE_CHECKING:
    from mirrord.engine.limits import Limits
    from mirrord.live.mirror import LiveMirror

T = TypeVar("T")


class Opener:
    """What a verb or a report needs: the catalogue, this host's settings, and open mirrors."""

    def __init__(
        self, paths: Paths, watcher: Watcher | None = None, shared: Shared | None = None
    ) -> None:
        """shared: with the other services of this process; None: there is no other one."""
        self.paths = paths
        self.shared = shared or Shared()
        self._is_brief = shared is None
        self.definitions = Definitions(paths.mirrors, self._source_of)
        self._watcher = watcher or Silent()
        self._catalogue: Catalogue | None = None
        self._host: Host | None = None
        self._limits: Limits | None = None
        self.shared.drivers.btrfs_receiver = lambda: self.host.btrfs_receiver
        #: Whether a mirror's promise will break at the rate of its running transfer.
        self.rpo_at_risk: Callable[[str], bool] = lambda _name: False
        #: Raises when a verification is to end.
        self.may_verify: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Close the catalogue."""
        if self._catalogue is not None:
            self._catalogue.close()
            self._catalogue = None

    def refresh(self) -> None:
        """Open the catalogue again at its next use, if it was removed or replaced, or should not be
        used any more.
        """
        try:
            self.shared.check_state()
        except IoFailed:
            self.close()
        if self._catalogue is not None and self._catalogue.is_replaced():
            self.close()

    @contextmanager
    def without_catalogue(self) -> Iterator[None]:
        """In this block a fresh catalogue stands in for one that cannot be used; it is not kept."""
        self.close()
        self._catalogue = Catalogue(IN_MEMORY)
        try:
            yield
        finally:
            self.close()

    @contextmanager
    def by_record(self, name: str, invalid: ConfigError) -> Iterator[None]:
        """In this block a mirror with an invalid definition has that which the catalogue's copy of
        its relationship record says; raises `invalid` when no record has the id in the file. What
        is not known of this host's settings is the default.
        """
        words = re.findall(r"\w+", self.definitions.read(name))
        found = [one for one in self.catalogue.relationships() if one.mirror_id in words]
        if len(found) != 1:
            raise invalid
        ends = [found[0].site(source=is_source).endpoints for is_source in (True, False)]
        pairs = [
            (parse_endpoint(one), parse_endpoint(other)) for one, other in zip(*ends, strict=True)
        ]
        self._host = self._host or Host()  # its file may be what is invalid
        self.definitions.instead[name] = render(of_record(found[0], pairs, name))
        try:
            yield
        finally:
            del self.definitions.instead[name]

    def share(self, host: Host, limits: Limits) -> None:
        """Use these settings and buckets, shared with the daemon's other workers."""
        self._host, self._limits = host, limits

    @contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        """Report the progress of verbs in this block to `watcher`."""
        before, self._watcher = self._watcher, watcher
        try:
            yield
        finally:
            self._watcher = before

    @property
    def host(self) -> Host:
        """The settings of this host."""
        if self._host is None:
            self._host = load_host(self.paths.host, zone=local_zone)
        return self._host

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue, opened at first use."""
        if self._catalogue is None:
            self.shared.check_state()
            self.paths.make()
            self._catalogue = Catalogue(
                self.paths.catalogue, self.shared.turn, brief=self._is_brief
            )
        return self._catalogue

    @cached_property
    def _controller(self) -> str:
        return identity.controller(self.paths.config)

    def _source_of(self, mirror_id: str) -> str:
        if self._catalogue is None and not self.paths.catalogue.exists():
            return ""
        return direction.source_of(self.catalogue, mirror_id)

    def definition(self, name: str) -> Definition:
        """A mirror's definition, for the present direction: as the catalogue says it, or else the
        ends, which is recorded then. `Refused` when neither can tell.
        """
        both = self.definitions.both(name)
        definition = next(iter(both.values()))
        recorded = both.get(direction.source_of(self.catalogue, definition.id))
        if recorded is not None:
            return recorded
        ends = direction.look_at(definition, self.driver)
        source = direction.find(definition, ends)
        if source is None:
            return definition
        self.catalogue.set_direction(definition.id, source)
        return self.definitions.load(name, source)

    def _limits_for(self, definition: Definition) -> Limits | None:
        """The buckets, where there is anything to limit. (A start without is quicker.)"""
        if self._limits is None:
            host = self.host
            if definition.pace == Pace() and not host.throttle and not host.transfer_throttle:
                return None
            from mirrord.engine.limits import Limits

            self._limits = Limits(host)
        return self._limits

    def opened(self, definition: Definition) -> Mirror:
        """The mirror of a definition; `Refused` when it is a live one."""
        if definition.is_live:
            raise Refused(
                "this command is for mirrors by snapshots",
                where=f"mirror '{definition.name}'",
                why="each write of a live mirror is mirrored, there are no snapshots",
                hint="docs/live-modes.md has the commands for live mirrors.",
            )
        self.paths.make(state=False)
        name, limits = definition.name, self._limits_for(definition)
        run = RunFiles(self.paths.run, name)
        pace = None
        if limits is not None:
            pace = partial(
                limits.throttle,
                definitions=self.definitions,
                check=run.check_abort,
                danger=lambda: self.rpo_at_risk(name),
            )
        catalogue, zone = self.catalogue, self.host.zone
        return Mirror(
            Relation(definition, self.definitions, catalogue, self._controller, zone=zone),
            ends_of(definition, self.driver),
            RunContext(run, self._watcher, pace=pace, together=self.shared.together),
        )

    def driver(self, endpoint: Endpoint) -> Driver:
        """The driver of an endpoint, wherever that is."""
        if not endpoint.host:
            return self.shared.drivers.open(endpoint)
        from mirrord.config.hosts import Hosts

        return self.shared.links.driver(endpoint, Hosts(self.paths.hosts))

    @contextmanager
    def attached(self, endpoint: Endpoint) -> Iterator[Driver]:
        """The driver of an endpoint for this block, after which its session may end."""
        driver = self.driver(endpoint)
        try:
            yield driver
        finally:
            driver.detach()

    def look(
        self,
        name: str,
        work: Callable[[Mirror], T],
        *,
        live: Callable[[LiveMirror], T] | None = None,
    ) -> T:
        """Do `work` with the mirror of that name, without recording it as a verb. live: what is
        done with a live mirror; None: it is refused.
        """
        with explained():
            try:
                definition = self.definition(name)
                if live is not None and definition.is_live:
                    return self._at_live(definition, live)
                try:
                    return self.at(definition, work)
                except Turned:
                    return self.at(self.definition(name), work)
            except MirrordError as error:
                error.mirror = name
                raise

    def look_live(self, name: str, work: Callable[[LiveMirror], T]) -> T:
        """Do `work` with the live mirror of that name; `Refused` when it is none."""

        def refuse(mirror: Mirror) -> T:
            raise Refused(
                "this is not a live mirror",
                where=f"mirror '{mirror.name}'",
                why=f"{mirror.source} is mirrored by snapshots",
                hint="Only images can be mirrored live (docs/live-modes.md).",
            )

        return self.look(name, refuse, live=work)

    def opened_live(self, definition: Definition) -> LiveMirror:
        """The live mirror of a definition."""
        from mirrord.config.hosts import Hosts
        from mirrord.live.mirror import Book, opened

        self.paths.make(state=False)
        hosts, zone = Hosts(self.paths.hosts), self.host.zone
        book = Book(self.definitions, self.catalogue, hosts, zone, self._controller)
        run = RunFiles(self.paths.run, definition.name)
        return opened(definition, self.driver, book, run, self._watcher)

    def _at_live(self, definition: Definition, work: Callable[[LiveMirror], T]) -> T:
        mirror = self.opened_live(definition)
        try:
            return work(mirror)
        finally:
            mirror.source.detach()
            mirror.destination.detach()

    def at(self, definition: Definition, work: Callable[[Mirror], T]) -> T:
        """Do `work` with the mirror of a definition."""
        mirror = self.opened(definition)
        try:
            return work(mirror)
        finally:
            mirror.ends.detach()

    def verb(
        self,
        verb: Verb,
        name: str,
        work: Callable[[Mirror], Result],
        *,
        kind: str = "",
        live: Callable[[LiveMirror], Result] | None = None,
    ) -> Result:
        """A verb, with a record of its failure until one of its kind succeeds. live: see `look`.

        By the id that the name has before: afterwards the definition may be gone.
        """
        with explained():
            known = next(iter(self.definitions.both(name).values()))
            if verb is not Verb.BREAK:
                self.definitions.check_id(known)
        if known.is_live and live is None:
            return self.look(name, work)  # it is refused, and no failure of the mirror
        with self.recorded(verb, known, kind) as done:
            result = self.look(name, work, live=live)
            done(result)
        return result

    @contextmanager
    def recorded(
        self, verb: Verb, definition: Definition, kind: str = ""
    ) -> Iterator[Callable[[Result], None]]:
        """Record how a verb ends; what is yielded is called with its result."""
        from mirrord.engine import failures

        results: list[Result] = []
        try:
            yield results.append
        except MirrordError as error:
            try:
                with explained():
                    failures.failed(self.catalogue, definition.id, verb, error, kind=kind)
            except MirrordError as second:
                if str(second) != str(error):
                    error.add_note(f"the failure could not be recorded: {second}")
            raise
        if not all(has_acted(result.status) for result in results):
            return
        # The verb has succeeded, whether or not the failure before it can be cleared.
        with suppress(MirrordError), explained():
            failures.succeeded(self.catalogue, definition.id, verb, kind=kind)
