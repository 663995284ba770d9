"""Places next to those of a lab, and places that are not there for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.core.endpoint import parse_endpoint
from mirrord.drivers.contract import Driver
from mirrord.drivers.registry import open_driver
from tests.contract.lab import Lab
from tests.contract.lab_set_zfs import ZfsSetLab
from tests.contract.zfs import ZfsLab


def beside(driver: Driver, name: str) -> str:
    """The endpoint of that name next to the driver's place."""
    return f"{str(driver).rpartition('/')[0]}/{name}"


def driver_at(lab: Lab, place: str) -> Driver:
    """A driver on a further place, beside those of the lab."""
    endpoint = parse_endpoint(place)
    return (
        lab.driver(endpoint.location)
        if isinstance(lab, ZfsLab | ZfsSetLab)
        else open_driver(endpoint)
    )


@contextmanager
def away(lab: Lab, driver: Driver) -> Iterator[None]:
    """The place is not there, as when what it lies on is not mounted."""
    if isinstance(lab, ZfsLab):
        aside = f"{driver.location}-away"
        lab.guest.run("zfs", "rename", driver.location, aside)
        try:
            yield
            assert driver.location not in lab.guest.run("zfs", "list", "-Ho", "name").split()
        finally:
            lab.guest.run("zfs", "rename", aside, driver.location)
        return
    place = Path(driver.location)
    kept = place.rename(place.with_name("away"))
    try:
        yield
        assert not place.exists()
    finally:
        kept.rename(place)
