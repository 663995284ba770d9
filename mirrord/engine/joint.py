"""Several drivers that are used as one: their common capabilities, locks, fences and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from mirrord.core.errors import MirrordError, Unsupported
from mirrord.core.model import Role
from mirrord.core.pause import PauseReport
from mirrord.core.relationship import Fence
from mirrord.core.sets import parts_of
from mirrord.drivers.contract import Capability, Driver
from mirrord.system.waiting import Waiting

T = TypeVar("T")
#: Capabilities that need one volume at one path.
_OF_ONE_VOLUME = Capability.COPY | Capability.FILES


class Joint(Driver):
    """What is common to all members of an end. names: the members', for people; not needed for a
    single member.
    """

    kind: str  # type: ignore[misc]  # of all members

    def __init__(self, drivers: Sequence[Driver], names: Sequence[str] = ()) -> None:
        self.drivers = tuple(drivers)
        self.names = tuple(names) or ("",) * len(self.drivers)
        self._labels = [f"{name}: " if name else "" for name in self.names]
        #: Before the paths of files.
        self._folders = [f"{name}/" if name else "" for name in self.names]
        self._others = self.drivers[1:]
        #: The names of snapshots seen so far, by the number of the member and the identity.
        self._seen: dict[tuple[int, str], str] = {}
        #: Of the sets that were taken here.
        self._spread_ms: dict[str, int] = {}
        #: How long taking the last snapshot of each member took.
        self.took_s: list[float] = []
        #: Of sets that were taken here while applications were paused.
        self.pauses: dict[str, PauseReport] = {}
        self.kind = self.drivers[0].kind
        super().__init__(", ".join(driver.location for driver in self.drivers))

    def __str__(self) -> str:
        return ", ".join(map(str, self.drivers))

    # What holds for all members

    @property
    def waiting(self) -> Waiting:
        """How each of them waits."""
        return self.drivers[0].waiting

    @waiting.setter
    def waiting(self, waiting: Waiting) -> None:
        for driver in self.drivers:
            driver.waiting = waiting

    @property
    def fence(self) -> Fence | None:
        """The fence of each."""
        return self.drivers[0].fence

    @fence.setter
    def fence(self, fence: Fence | None) -> None:
        for driver in self.drivers:
            driver.fence = fence

    def demand_fence(self) -> None:
        """Each member compares the epoch itself."""

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """What all of them can do; with several, not what needs one volume at one path."""
        found = self.drivers[0].capabilities
        for driver in self._others:
            found &= driver.capabilities & ~_OF_ONE_VOLUME
        return found

    @property
    def remote(self) -> bool:  # type: ignore[override]
        """Whether any of them is on another host."""
        return any(driver.remote for driver in self.drivers)

    @property
    def append_only(self) -> bool:
        """See `Volume.append_only`: where any host refuses that."""
        return any(driver.append_only for driver in self.drivers)

    def detach(self) -> None:
        """See `Volume.detach`."""
        self._all(lambda driver: driver.detach())

    def roles(self) -> list[Role]:
        """The role of each member now."""
        return [driver.facts().role for driver in self.drivers]

    def parts(self, guid: str) -> list[str]:
        """The identity of a set's snapshot at each member; "" where it has none."""
        return parts_of(guid, len(self.drivers))

    def _all(self, work: Callable[[Driver], object]) -> None:
        """Do it at every member, even after a failure at one, which is raised at the end."""
        failure: BaseException | None = None
        for driver in self.drivers:
            try:
                work(driver)
            except (MirrordError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _only(self, what: str) -> Driver:
        """The only member's driver; `Unsupported` where there are several."""
        if self._others:
            raise Unsupported(
                f"{what} for a mirror with several members",
                where=str(self),
                hint="This requires a mirror of a single volume: create one for each volume.",
            )
        return self.drivers[0]

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        """Lock all volumes in the order of their locations, not in the mirror's: two mirrors of the
        same volumes cannot deadlock.
        """
        with ExitStack() as stack:
            for driver in sorted(self.drivers, key=str):
                stack.enter_context(driver.lock(purpose))
            yield all(driver.locked for driver in self.drivers)


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all at the same time; what each returned."""
    if len(works) == 1:
        return [works[0]()]
    from mirrord.engine.crew import Crew  # slow to load

    return Crew(len(works)).run(works)


def deletions(works: Sequence[tuple[Driver, str]]) -> list[Callable[[], None]]:
    """Functions that delete one snapshot each, to be called in this order; the first is begun."""
    begun = [driver.begin_delete(guid) for driver, guid in works[:1]]
    return [*begun, *(partial(driver.delete_snapshot, guid) for driver, guid in works[1:])]
