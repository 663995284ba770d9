"""Answers of another host that have the right types, and values that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mirrord.core.errors import ProtocolError, Refused
from mirrord.core.model import Endpoint, Snapshot, SnapshotKind, Staging
from mirrord.core.relationship import EPOCH_MAX, Fence, Relationship, SiteRecord
from mirrord.core.verification import VerifyRequest
from mirrord.engine.compare import Descent
from mirrord.link.driver import RemoteDriver
from mirrord.link.exchange import Exchange
from mirrord.link.session import Session
from mirrord.system import command
from mirrord.system.waiting import Waiting
from mirrord.wire.methods import Opened
from mirrord.wire.values import pack
from tests.link.test_session import pair

RECORD = Relationship(
    "m1",
    "home",
    1,
    "primary",
    (SiteRecord("primary", ("block:/v",)), SiteRecord("secondary", ("block://dr/copy",))),
    controller="c0ffee",
)


class Connected:
    """See `Sessions`."""

    notes: tuple[str, ...] = ()

    def __init__(self, session: Session) -> None:
        self._session = session

    def session(self, _waiting: Waiting) -> Session:
        return self._session


@contextmanager
def answering(**answers: Any) -> Iterator[RemoteDriver]:
    """A volume at a host that gives these answers, by the names of methods."""

    def handler(_exchange: Exchange, method: str, _words: list[Any]) -> Any:
        return pack({"open": Opened(1, 0, append_only=False), **answers}.get(method))

    with pair(handler) as (client, _server):
        yield RemoteDriver.of(Endpoint("block", "/copy", "dr"), Connected(client))


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"epoch": EPOCH_MAX}, True),
        ({"epoch": EPOCH_MAX + 1}, False),
        ({"epoch": 2**63 - 1}, False),
        ({"epoch": 0}, False),
        ({"epoch": -5}, False),
        (
            {"sites": (RECORD.sites[0], SiteRecord("secondary", ("block:/c\u00a0d\u200be",)))},
            True,
        ),
        ({"sites": (RECORD.sites[0], SiteRecord("secondary", ("block:/c\nd",)))}, False),
        ({"sites": ()}, False),
        ({"sites": RECORD.sites[:1]}, False),
        ({"sites": (SiteRecord("primary", ()), SiteRecord("secondary", ()))}, False),
        ({"source": "elsewhere"}, False),
        ({"controller": "../x\n"}, False),
        ({"mirror_id": "m2"}, False),
    ],
)
def test_a_relationship_record_that_no_mirrord_writes_is_damaged(
    changes: dict[str, Any], *, valid: bool
) -> None:
    record = RECORD._replace(**changes)
    with answering(relationship=record, relationships={"m1": record}) as driver:
        assert driver.relationship("m1") == (record if valid else None)
        if "mirror_id" not in changes:
            assert driver.relationships() == {"m1": record if valid else None}


@pytest.mark.parametrize("letter", ["x", "\ue000"])
def test_an_error_is_no_longer_than_a_variable_of_the_environment(letter: str) -> None:
    """A hook and the program for alarms get it there: without it they cannot be started."""

    def handler(_exchange: Exchange, _method: str, _words: list[Any]) -> Any:
        text = letter * 80_000
        error = Refused(text, where=text, why=text, hint=text)
        for _ in range(100):
            error.add_note("a note")
        raise error

    with pair(handler) as (client, _server):
        driver = RemoteDriver.of(Endpoint("block", "/copy", "dr"), Connected(client))
        with pytest.raises(Refused) as caught:
            driver.stagings()
    told = command.run(["/bin/true"], timeout_s=9, environment={"TOLD": str(caught.value)})
    assert told.status == 0
    assert len(caught.value.hint) < 10_000 and len(caught.value.__notes__) < 100


def test_a_tree_without_a_root_is_an_error() -> None:
    with answering(verify_nodes=[]) as driver, pytest.raises(ProtocolError, match="no root"):
        list(Descent(driver, driver, VerifyRequest("g1")).differences())


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_checkpoint_may_have_any_address(number: int) -> None:
    one = Snapshot("g1", "s1", SnapshotKind.REFERENCE, 1, 1)
    staged = Staging("t1", None, one, complete=False, checkpoint={"address": number, "digest": "d"})
    with answering(stagings=[staged]) as driver:
        assert driver.stagings() == [staged]


@pytest.mark.parametrize(
    ("call", "order"),
    [
        (lambda driver: driver.stagings(), ["stagings", "fenced"]),
        (lambda driver: driver.pin("m1", []), ["fenced", "pin"]),
    ],
    ids=["reads", "changes"],
)
def test_only_a_call_that_changes_the_volume_waits_for_the_fence(
    call: Callable[[RemoteDriver], object], order: list[str]
) -> None:
    """The other end answers the fence only when the next call has arrived, or does not come."""
    seen, arrived = list[str](), threading.Event()

    def handler(_exchange: Exchange, method: str, _words: list[Any]) -> Any:
        if method == "open":
            return pack(Opened(1, 0, append_only=False))
        if method == "set_fence":
            arrived.wait(1 if order[-1] == "pin" else 30)
            method = "fenced"
        seen.append(method)
        arrived.set()
        return pack({"stagings": []}.get(method))

    with pair(handler) as (client, _server):
        driver = RemoteDriver.of(Endpoint("block", "/copy", "dr"), Connected(client))
        driver.fence = Fence("m1", 7)
        call(driver)
        driver.stagings()  # (which has the answer to the fence first)
    assert seen[:2] == order
