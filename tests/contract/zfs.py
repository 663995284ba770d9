"""OpenZFS in the virtual machine, both ends behind an agent there: file systems and volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirrord.core.model import Endpoint, RemoteHost
from mirrord.drivers.contract import Driver
from mirrord.link.driver import RemoteDriver
from tests.support.files import WRITTEN
from tests.zfsvm import session
from tests.zfsvm.agents import GuestAgents, guest_agents, new_home, ssh_host
from tests.zfsvm.guest import Guest, GuestError

#: The host that the endpoints name.
HOST = "there"


class ZfsLab:
    """See `tests.contract.lab.Lab`: a file system `here/NAME/home`, a place `there/NAME/backup`.

    host: how the product reaches the machine by its own means.
    """

    kind = "zfs"

    def __init__(self, guest: Guest, name: str, others: GuestAgents) -> None:
        self.guest, self.name, self.others = guest, name, others
        self.host: RemoteHost = ssh_host(guest, new_home(), name=HOST)
        self._source, self._destination = f"here/{name}/home", f"there/{name}/backup"
        self._foreign = f"there/{name}/foreign"
        self._make()

    def _make(self) -> None:
        self.guest.run(*self._creating(), self._source)
        self.guest.user("fill", f"/{self._source}", 0)

    def _creating(self) -> list[str]:
        return ["zfs", "create"]

    def replace(self, driver: Driver) -> None:
        """Somebody renames the dataset, and makes an empty one of its name."""
        self.guest.run("zfs", "rename", driver.location, f"{driver.location}.old")
        self.guest.run(*self._creating(), driver.location)

    def beside(self, driver: Driver) -> list[str]:
        """The dataset, and those that mirrord made of it beside it."""
        above = driver.location.rpartition("/")[0]
        words = ["zfs", "list", "-Hd1", "-t", "filesystem,volume", "-o", "name", above]
        start = f"{driver.location}.mirrord-"
        return [
            name
            for name in self.guest.run(*words).split()
            if name == driver.location or name.startswith(start)
        ]

    def driver(self, location: str) -> Driver:
        """A fresh driver object on a dataset."""
        return RemoteDriver.of(Endpoint(self.kind, location, HOST), self.others)

    def source(self) -> Driver:
        return self.driver(self._source)

    def destination(self) -> Driver:
        return self.driver(self._destination)

    def foreign(self) -> Driver:
        """What another program has half received."""
        self.guest.user("half_received", f"here/{self.name}/other", self._foreign)
        return self.driver(self._foreign)

    def change(self, driver: Driver, seed: int) -> None:
        self.guest.user("change", driver.facts().view, seed)

    def change_much(self, driver: Driver, seed: int) -> None:
        self.guest.user("change_much", driver.facts().view, seed)

    def overwrite(self, driver: Driver, seed: int) -> None:
        try:
            self.guest.user("overwrite", driver.facts().view, seed)
        except GuestError as error:
            raise OSError(str(error)) from error

    def _writable(self, driver: Driver) -> str:
        return f"{driver.facts().view}/{WRITTEN}"

    @contextmanager
    def writing(self, driver: Driver) -> Iterator[Callable[[int], bool]]:
        path = self._writable(driver)
        self.guest.user("begin_writing", path)
        try:
            yield lambda number: bool(self.guest.user("write_number", path, _WRITTEN_AT, number))
        finally:
            self.guest.user("end_writing", path)

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        path = driver.facts().view if guid is None else self._snapshot_path(driver, guid)
        return set(self.guest.user("written", path))

    def freeze_and_die(self, driver: Driver) -> None:
        self.guest.user("freeze_and_die", driver.location)

    def content(self, driver: Driver) -> str:
        return str(self.guest.user("digest", driver.facts().view))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        return str(self.guest.user("digest", self._snapshot_path(driver, guid)))

    @staticmethod
    def _snapshot_path(driver: Driver, guid: str) -> str:
        every = [*driver.snapshots(), *driver.own_snapshots(("*",))]
        [path] = {snapshot.path for snapshot in every if snapshot.guid == guid}
        return path

    def own_snapshot(self, driver: Driver, name: str) -> None:
        self.guest.run("zfs", "snapshot", f"{driver.location}@{name}")

    def sound(self, driver: Driver) -> None:
        """No pool has found damage, and every kept snapshot is still what it was."""
        pool = driver.location.partition("/")[0]
        assert "is healthy" in self.guest.run("zpool", "status", "-x", pool)
        assert all(snapshot.intact for snapshot in driver.snapshots())


SIZE_BYTES = 16 << 20
LARGE_BYTES = 64 << 20
#: Where programs that write to a volume have a byte for each number.
_WRITTEN_AT = 15 << 20


class ZvolLab(ZfsLab):
    """The same with a volume, a block device, at each end."""

    def __init__(self, guest: Guest, name: str, others: GuestAgents, *, large: bool) -> None:
        self._size_bytes = LARGE_BYTES if large else SIZE_BYTES
        super().__init__(guest, name, others)

    def _make(self) -> None:
        self.guest.run(*self._creating(), self._source)
        self.guest.user("volume_change", f"/dev/zvol/{self._source}", -1, SIZE_BYTES)

    def _creating(self) -> list[str]:
        # Small blocks: a change stays small.
        return ["zfs", "create", "-s", "-b", "8K", "-V", str(self._size_bytes)]

    def change(self, driver: Driver, seed: int) -> None:
        self.guest.user("volume_change", driver.facts().view, seed, SIZE_BYTES)

    def change_much(self, driver: Driver, seed: int) -> None:
        self.guest.user("volume_change_much", driver.facts().view, seed, self._size_bytes)

    def content(self, driver: Driver) -> str:
        return str(self.guest.user("volume_digest", driver.facts().view))

    def overwrite(self, driver: Driver, seed: int) -> None:
        try:
            self.guest.user("volume_overwrite", driver.facts().view, seed)
        except GuestError as error:
            raise OSError(str(error)) from error

    def _writable(self, driver: Driver) -> str:
        return driver.facts().view

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        if guid is None:
            return set(self.guest.user("volume_written", driver.facts().view, _WRITTEN_AT))
        with self._snapshot_device(driver, guid) as device:
            return set(self.guest.user("volume_written", device, _WRITTEN_AT))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        with self._snapshot_device(driver, guid) as device:
            return str(self.guest.user("volume_digest", device))

    @contextmanager
    def _snapshot_device(self, driver: Driver, guid: str) -> Iterator[str]:
        """(A volume's snapshots are devices only where the owner wishes to see them.)"""
        pool = driver.location.partition("/")[0]
        listed = self.guest.run(
            "zfs", "list", "-Hpr", "-t", "snapshot", "-o", "guid,name", f"{pool}/{self.name}"
        )
        names = dict(line.split("\t") for line in listed.splitlines())
        dataset = names[guid].partition("@")[0]
        self.guest.run("zfs", "set", "snapdev=visible", dataset)
        try:
            yield f"/dev/zvol/{names[guid]}"
        finally:
            self.guest.run("zfs", "inherit", "snapdev", dataset)


@contextmanager
def zfs_lab(*, volume: bool, large: bool) -> Iterator[ZfsLab]:
    """A fresh lab in the machine of this run."""
    guest = session.guest()
    with guest.datasets() as name, guest_agents(guest) as others:
        yield ZvolLab(guest, name, others, large=large) if volume else ZfsLab(guest, name, others)
