"""Any lab with both ends behind an agent: what a driver promises holds over a link, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from mirrord.core.model import Endpoint
from mirrord.drivers.contract import Driver
from mirrord.link.driver import RemoteDriver
from tests.contract.lab import Lab
from tests.support.agents import Agents, agents
from tests.support.labs import open_lab


class RemoteLab:
    """See `tests.contract.lab.Lab`: the places are the inner lab's."""

    def __init__(self, inner: Lab, others: Agents) -> None:
        self.kind = inner.kind
        self._inner = inner
        self.others = others

    def _remote(self, local: Driver) -> Driver:
        return RemoteDriver.of(Endpoint(local.kind, local.location, "there"), self.others)

    def source(self) -> Driver:
        return self._remote(self._inner.source())

    def destination(self) -> Driver:
        return self._remote(self._inner.destination())

    def foreign(self) -> Driver:
        return self._remote(self._inner.foreign())

    def change(self, driver: Driver, seed: int) -> None:
        self._inner.change(self._local(driver), seed)

    def change_much(self, driver: Driver, seed: int) -> None:
        self._inner.change_much(self._local(driver), seed)

    def overwrite(self, driver: Driver, seed: int) -> None:
        self._inner.overwrite(self._local(driver), seed)

    def writing(self, driver: Driver) -> AbstractContextManager[Callable[[int], bool]]:
        return self._inner.writing(self._local(driver))

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        return self._inner.written(self._local(driver), guid)

    def freeze_and_die(self, driver: Driver) -> None:
        self._inner.freeze_and_die(self._local(driver))

    def content(self, driver: Driver) -> str:
        return self._inner.content(self._local(driver))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        return self._inner.snapshot_content(self._local(driver), guid)

    def own_snapshot(self, driver: Driver, name: str) -> None:
        self._inner.own_snapshot(self._local(driver), name)

    def sound(self, driver: Driver) -> None:
        self._inner.sound(self._local(driver))

    def _local(self, driver: Driver) -> Driver:
        every = (self._inner.source(), self._inner.destination(), self._inner.foreign())
        found = [one for one in every if one.location == driver.location]
        return found[0] if found else type(every[0])(driver.location)


@contextmanager
def remote(name: str, folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with open_lab(name, folder, large=large) as inner, agents(folder / "there") as others:
        yield RemoteLab(inner, others)
