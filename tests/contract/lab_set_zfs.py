"""The lab of mirrors with three members that are OpenZFS file systems of one pool, in the virtual
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mirrord.core.model import RemoteHost
from mirrord.drivers.contract import Driver
from tests.contract.lab import Lab
from tests.contract.sets import NAMES, SetLab
from tests.contract.zfs import ZfsLab
from tests.zfsvm import session
from tests.zfsvm.agents import GuestAgents, guest_agents
from tests.zfsvm.guest import Guest


class ZfsSetLab(SetLab):
    """See `SetLab`. All members are reached over one connection."""

    def __init__(self, guest: Guest, names: list[str], others: GuestAgents) -> None:
        self.members = [ZfsLab(guest, name, others) for name in names]
        super().__init__(self.members)
        self.guest = guest
        self.host: RemoteHost = self.members[0].host

    def driver(self, location: str) -> Driver:
        """A fresh driver object on a dataset."""
        return self.members[0].driver(location)


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    guest = session.guest()
    with ExitStack() as stack:
        others = stack.enter_context(guest_agents(guest))
        names = [stack.enter_context(guest.datasets()) for _name in NAMES]
        yield ZfsSetLab(guest, names, others)
