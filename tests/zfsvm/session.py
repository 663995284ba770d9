"""The machines of one run of the tests: started when first needed, ended with the run.

What hinders the first start is kept and raised again at once for every further test, and
`summary` tells it at the end of the run (tests/conftest.py).
"""

from __future__ import annotations

import os
import time

import pytest

from tests.zfsvm.guest import Guest
from tests.zfsvm.machine import Machine
from tests.zfsvm.qemu import NoMachine


class _Kept:
    """One machine of the run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.guest: Guest | None = None
        self.hindered = ""
        self.versions = ""
        self.lost: list[str] = []

    def get(self) -> Guest:
        """The running machine; `NoMachine` when there can be none."""
        if self.hindered:
            raise NoMachine(self.hindered)
        if self.guest is not None and self.guest.lost:
            self.lost.append(self.guest.lost)  # the test that saw it has failed; the others go on
            self.close()
        if self.guest is None:
            try:
                self.guest = self._start()
            except (NoMachine, AssertionError, OSError) as error:
                self.hindered = str(error)
                raise NoMachine(self.hindered) from error
        return self.guest

    def _start(self) -> Guest:
        begun = time.monotonic()
        machine = Machine(name=self.name).start()
        try:
            machine.make_pools()
            guest = Guest(machine).start()
        except BaseException:
            machine.stop()
            raise
        said = " ".join(machine.ssh("zfs", "version").stdout.decode().split())
        self.versions = f"{said}, ready after {time.monotonic() - begun:.0f} s"
        return guest

    def close(self) -> None:
        """End it."""
        if self.guest is not None:
            guest, self.guest = self.guest, None
            guest.stop()
            guest.machine.stop()


_first = _Kept("zfsvm")
_second = _Kept("zfsvm-second")


def guest() -> Guest:
    """The machine of this run; `NoMachine` says why there is none."""
    return _or_skip(_first)


def second() -> Guest:
    """Another one: what goes from the one to the other crosses two hosts."""
    return _or_skip(_second)


def _or_skip(kept: _Kept) -> Guest:
    """Without a machine the test fails; it is skipped only where somebody said that it may be."""
    try:
        return kept.get()
    except NoMachine:
        if os.environ.get("MIRRORD_TEST_UNPRIVILEGED") == "1":
            pytest.skip("no virtual machine with OpenZFS: see the end of the report")
        raise


def close() -> None:
    """The run is over."""
    _first.close()
    _second.close()


def summary() -> tuple[bool, list[str]]:
    """Whether all went well, and what a person is to know; [] when no machine was asked for."""
    lines = []
    for kept in (_first, _second):
        if kept.hindered:
            lines.append(f"REAL OPENZFS WAS NOT TESTED, no virtual machine: {kept.hindered}")
        elif kept.versions:
            lines.append(f"{kept.name}: {kept.versions}")
        lines += [f"{kept.name} was lost and restarted: {why}" for why in kept.lost]
    return not (_first.hindered or _second.hindered), lines
