"""Any kind of volume as three members of a mirror: a driver's promises hold for their sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.model import Member
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members
from tests.contract.lab import Lab
from tests.support.labs import open_lab

NAMES = ("data", "log", "spare")


class SetLab:
    """See `tests.contract.lab.Lab`: each end has the volumes of three labs of one kind."""

    def __init__(self, labs: Sequence[Lab]) -> None:
        self.kind = labs[0].kind
        self.labs = tuple(labs)

    def source(self) -> Members:
        return Members([lab.source() for lab in self.labs], NAMES)

    def destination(self) -> Members:
        return Members([lab.destination() for lab in self.labs], NAMES)

    def foreign(self) -> Driver:
        """One of three is foreign."""
        places = [lab.destination() for lab in self.labs]
        return Members([*places[:1], self.labs[1].foreign(), *places[2:]], NAMES)

    def pairs(self) -> list[Member]:
        """As a definition has them."""
        ends = [
            (parse_endpoint(str(lab.source())), parse_endpoint(str(lab.destination())))
            for lab in self.labs
        ]
        return [Member(name, *pair) for name, pair in zip(NAMES, ends, strict=True)]

    def change(self, driver: Driver, seed: int) -> None:
        for number, (lab, one) in enumerate(self._each(driver)):
            lab.change(one, seed * 3 + number)

    def change_much(self, driver: Driver, seed: int) -> None:
        for lab, one in self._each(driver):
            lab.change_much(one, seed)

    def overwrite(self, driver: Driver, seed: int) -> None:
        for lab, one in self._each(driver):
            lab.overwrite(one, seed)

    def writing(self, driver: Driver) -> AbstractContextManager[Callable[[int], bool]]:
        """Of the last member."""
        *_, (lab, one) = self._each(driver)
        return lab.writing(one)

    def written(self, driver: Driver, guid: str | None = None) -> set[int]:
        *_, (lab, one) = self._each(driver)
        return lab.written(one, guid.split("+")[-1] if guid else None)

    def freeze_and_die(self, driver: Driver) -> None:
        for lab, one in self._each(driver):
            lab.freeze_and_die(one)

    def content(self, driver: Driver) -> str:
        return " ".join(lab.content(one) for lab, one in self._each(driver))

    def snapshot_content(self, driver: Driver, guid: str) -> str:
        parts = guid.split("+")
        return " ".join(
            lab.snapshot_content(one, part)
            for (lab, one), part in zip(self._each(driver), parts, strict=True)
            if part
        )

    def own_snapshot(self, driver: Driver, name: str) -> None:
        for lab, one in self._each(driver):
            lab.own_snapshot(one, name)

    def sound(self, driver: Driver) -> None:
        for lab, one in self._each(driver):
            lab.sound(one)

    def _each(self, driver: Driver) -> list[tuple[Lab, Driver]]:
        assert isinstance(driver, Members)
        return list(zip(self.labs, driver.drivers, strict=True))


@contextmanager
def three(name: str, folder: Path, *, large: bool = False) -> Iterator[SetLab]:
    """Three labs of that module."""
    with ExitStack() as stack:
        labs = []
        for member in NAMES:
            place = folder / member
            place.mkdir()
            labs.append(stack.enter_context(open_lab(name, place, large=large)))
        yield SetLab(labs)
