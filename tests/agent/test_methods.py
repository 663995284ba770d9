"""The table of methods: whole, and kept by the agent, entry by entry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.agent.rules import Rules, rights_at
from mirrord.agent.serve import _GUARDS, Agent
from mirrord.core.errors import Busy, MirrordError, Refused, Untrusted
from mirrord.core.model import Endpoint, Name
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.owner import Volume as BlockVolume
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.contract import (
    Capability,
    Clones,
    Destination,
    Driver,
    Failover,
    Pool,
    Source,
    Volume,
)
from mirrord.drivers.live import Live
from mirrord.drivers.registry import open_driver
from mirrord.drivers.verification import Verification
from mirrord.link.driver import RemoteDriver
from mirrord.link.session import Session
from mirrord.wire.methods import METHODS, PeerLock, PeerPause
from tests.link.test_session import pair
from tests.support.agents import agents
from tests.support.calls import CALLS
from tests.support.service import PATIENCE_S

PEER_ROLES = (PeerLock, PeerPause)
ROLES = (Volume, Source, Destination, Failover, Clones, Pool, Verification, Live, *PEER_ROLES)
#: What a driver has for those who hold it, and what no other end is asked for.
LOCAL = {
    (Volume, name)
    for name in ("append_only", "begin_delete", "detach", "lock", "pins", "demand_fence")
} | {(Pool, "is_beside")}
#: Rules that leave out some right, with a kind of volume that such a peer can open.
LIMITED = {
    "send": (Rules(send=("/",)), "block"),
    "receive": (Rules(receive=("/",)), "block"),
    "append": (Rules(receive=("/",), append_only=True), "btrfs"),
}
NAMES = {
    ("set_fence", "mirror_id"),
    ("pin", "mirror_id"),
    ("relationship", "mirror_id"),
    ("unrelate", "mirror_id"),
    ("make_ready", "name"),
    ("take_snapshot", "name"),
    ("take_together", "name"),
    ("prepare", "mirror_id"),
    ("commit", "transfer_id"),
    ("discard", "transfer_id"),
    ("rollback", "mirror_id"),
    ("rollback", "keep_as"),
    ("reinstate", "name"),
}
FORBIDDEN = [
    (rule, name)
    for rule, (rules, kind) in LIMITED.items()
    for name, method in METHODS.items()
    if not rights_at(rules, "/v", kind=kind) & method.rights
]


def test_each_entry_is_a_method_of_its_role() -> None:
    for name, method in METHODS.items():
        assert name == method.name
        assert method.role in ROLES
        assert inspect.isfunction(vars(method.role)[name])
    assert _GUARDS.keys() <= METHODS.keys()


def test_each_method_of_the_contract_is_in_the_table() -> None:
    found = {
        (role, name)
        for role in ROLES
        for name, member in vars(role).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    assert found - LOCAL == {(method.role, method.name) for method in METHODS.values()}
    assert found >= LOCAL


def test_a_driver_has_every_role_but_those_that_not_every_kind_has() -> None:
    assert all(issubclass(Driver, role) for role in ROLES[:4])
    assert not any(issubclass(Driver, role) for role in ROLES[4:])


def test_only_a_pool_takes_several_volumes() -> None:
    taking = {
        (method.role, method.name)
        for method in METHODS.values()
        for word in method.signature.parameters.values()
        if any(
            re.search(rf"\b{role.__name__}\b", str(word.annotation)) for role in (*ROLES, Driver)
        )
    }
    assert taking == {(Pool, "take_together")}


def test_a_remote_driver_has_every_method() -> None:
    assert not RemoteDriver.__abstractmethods__
    for name, method in METHODS.items():
        if method.role not in PEER_ROLES:
            assert getattr(RemoteDriver, name) is not getattr(method.role, name)


def test_what_is_to_name_something() -> None:
    """The agent checks a word as a name where the signature says that it is one, so here it is."""
    assert {
        (name, word)
        for name, method in METHODS.items()
        for word, kind in method.kinds.items()
        if kind == Name
    } == NAMES


@contextmanager
def opened(rules: Rules, volume: Path, kind: str = "block") -> Iterator[tuple[Session, int]]:
    """A peer's session with an agent in this process, and its number of the volume."""
    agent = Agent(rules, open_driver)
    with pair(agent.handle) as (client, _server):
        yield client, client.call("open", kind, str(volume), timeout_s=PATIENCE_S)[0]
    agent.close()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    with BlockVolume.create(tmp_path / "v", 1 << 20) as made:
        made.write(0, b"x" * 8192)
    return tmp_path / "v"


def record(volume: Path) -> bytes:
    return (volume / "root").read_bytes()


def test_what_changes_is_forbidden_to_somebody() -> None:
    """But to give space back, which whoever may delete anything may do; and to pin, which depends
    on the mirror (tests/security/test_subtree.py).
    """
    forbidden = {name for _rule, name in FORBIDDEN}
    assert {name for name, method in METHODS.items() if method.changes} - forbidden == {
        "pin",
        "relate",
        "reclaim",
    }


@pytest.mark.parametrize(("rule", "name"), FORBIDDEN)
def test_a_peer_without_the_right_is_refused(volume: Path, rule: str, name: str) -> None:
    before = record(volume)
    rules, kind = LIMITED[rule]
    with opened(rules, volume, kind) as (client, number), pytest.raises(Untrusted) as caught:
        client.call(name, number, *CALLS[name], timeout_s=PATIENCE_S)
    assert caught.value.what == f"this peer may not {METHODS[name].what}"
    assert record(volume) == before


@pytest.mark.parametrize("name", METHODS)
def test_what_changes_runs_under_the_lock(volume: Path, name: str) -> None:
    before = record(volume)
    with opened(Rules(free=True), volume) as (client, number), BlockDriver(str(volume)).lock("me"):
        try:
            client.call(name, number, *CALLS[name], timeout_s=PATIENCE_S)
            busy = False
        except MirrordError as error:
            busy = isinstance(error, Busy)
    assert busy is (METHODS[name].changes or name == "lock")
    assert record(volume) == before


@pytest.mark.parametrize(("name", "word"), [*sorted(NAMES), ("writers", "kept")])
def test_a_name_is_no_path(volume: Path, name: str, word: str) -> None:
    words = list(CALLS[name])
    words[list(METHODS[name].kinds).index(word)] = "../x"
    with (
        opened(Rules(free=True), volume) as (client, number),
        pytest.raises(Refused, match="invalid name"),
    ):
        client.call(name, number, *words, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("append_only", [False, True])
def test_a_peer_knows_that_it_may_only_append(tmp_path: Path, append_only: bool) -> None:
    """It prunes nothing there. What the driver can do is no other thing than on its own host."""
    allow = ["--allow", f"receive={tmp_path}", *(["--append-only"] if append_only else [])]
    with agents(tmp_path / "home", *allow) as others:
        there = RemoteDriver.of(Endpoint("btrfs", str(tmp_path / "copy"), "there"), others)
        assert there.append_only is append_only
        assert there.capabilities == BtrfsDriver.capabilities
    assert not BtrfsDriver(str(tmp_path / "copy")).append_only


def test_the_numbers_of_capabilities_stay() -> None:
    """They travel: a number that changes is another capability to a peer of another version."""
    assert {one.name: one.value for one in Capability} == {
        "RESUME": 1,
        "FILES": 2,
        "BLOCK_FOR_BLOCK": 4,
        "COPY": 32,
        "SHOW_LATER": 64,
        "POOL": 128,
        "VERIFY": 256,
        "REPAIR": 512,
        "VERIFY_RECEIVED": 1024,
    }
    assert Capability(1 << 40 | 16 | 2) is Capability.FILES  # of a newer peer
