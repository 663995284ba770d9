"""`break` and `abort` go first, whatever the daemon does, has to do or waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, Busy, MirrordError
from mirrord.core.results import Result
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.verbs import Service
from tests.support.world import NAME

EVERY_SECOND = "every 1s"


class Later:
    """A call in a thread, and how it ended."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except MirrordError as error:
            self.error = error

    def end(self, timeout_s: float = 60) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()


def quick_mirror(served: Served) -> None:
    """A schedule that is always due, and something to carry each time."""
    served.lab.change(served.lab.source(), 0)
    served.initialized(schedule=EVERY_SECOND, throttle="1MB/s")


def test_twenty_breaks_in_a_row_while_runs_are_due_each_second(served: Served) -> None:
    quick_mirror(served)
    longest_s = 0.0
    for number in range(20):
        served.lab.change(served.lab.source(), number)
        until(lambda: served.row()["running"] is not None)
        began_s = time.monotonic()
        assert served.service.break_off(NAME).status == "done"
        longest_s = max(longest_s, time.monotonic() - began_s)
        row = served.row()
        assert row["state"] == "broken-off" and not row["waiting"]
        # A run that was due meanwhile may look just now whether it may begin: it may not.
        until(lambda: served.row()["running"] is None)
        assert served.row()["state"] == "broken-off"
        assert row["problems"] == [] or all("transfer" in text for text in row["problems"])
        assert "failure" not in served.alarms()
        served.service.resync(NAME, yes=True)
    assert longest_s < 20


def test_a_break_from_a_process_beside_the_daemon(served: Served) -> None:
    quick_mirror(served)
    beside = Service(served.paths)

    def updated() -> bool:
        with suppress(MirrordError):
            return served.service.update(NAME).status in ("done", "unchanged")
        return False

    try:
        for number in range(5):
            served.lab.change(served.lab.source(), number)
            until(lambda: served.row()["running"] is not None)
            assert beside.break_off(NAME).status == "done"
            assert beside.status(NAME)[0].state == "broken-off"
            beside.resync(NAME, yes=True)
            until(updated)  # pauses grow with each run in a row that was ended
    finally:
        beside.close()


def test_nothing_begins_between_the_end_of_a_run_and_the_break(
    served: Served, tmp_path: Path
) -> None:
    """The break waits for a hook that does not answer at once; what comes meanwhile is refused."""
    script = tmp_path / "slow"
    go_on = tmp_path / "go-on"
    script.write_text(f"#!/bin/sh\nwhile [ ! -e {go_on} ]; do sleep 0.1; done\n")
    script.chmod(0o755)
    served.initialized(schedule=EVERY_SECOND)
    file = served.paths.mirrors / f"{NAME}.toml"
    text = file.read_text()
    hooks = f'\n[site.primary.hooks]\nafter_snapshot = ["{script}"]\n'
    file.write_text(text + hooks)
    served.service.reload()
    served.lab.change(served.lab.source(), 1)
    until(lambda: (served.row()["running"] or {}).get("activity") == "snapshotting")
    breaking = Later(lambda: served.service.break_off(NAME))

    def is_refused() -> bool:
        with pytest.raises(Busy) as refused:
            served.service.update(NAME)
        return "break" in str(refused.value)

    until(is_refused)
    go_on.touch()
    breaking.end()
    assert isinstance(breaking.result, Result) and breaking.result.status == "done"
    assert served.row()["state"] == "broken-off"


@pytest.mark.parametrize("verb", ["break", "abort"])
def test_it_ends_a_slow_transfer_while_the_next_is_due(served: Served, verb: str) -> None:
    """The daemon is in the middle of it, and the schedule has long called for another one."""
    served.lab.change(served.lab.source(), 0)
    served.initialized(schedule=EVERY_SECOND, throttle="60kB/s")
    served.lab.change(served.lab.source(), 1)
    until(lambda: (served.row()["running"] or {}).get("activity") == "transferring")
    time.sleep(2.5)
    began_s = time.monotonic()
    if verb == "break":
        assert served.service.break_off(NAME).status == "done"
        assert served.row()["state"] == "broken-off"
    else:
        assert served.service.abort(NAME, hard=False).status == "done"
    assert time.monotonic() - began_s < 10


def test_an_abort_ends_a_hook_that_hangs(served: Served, tmp_path: Path) -> None:
    marker, script = tmp_path / "begun", tmp_path / "hangs"
    script.write_text(f"#!/bin/sh\ntouch {marker}\nsleep 50\n")
    script.chmod(0o755)
    served.initialized()
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text() + f'\n[site.primary.hooks]\nbefore_snapshot = ["{script}"]\n')
    served.service.reload()
    served.lab.change(served.lab.source(), 1)
    updating = Later(lambda: served.service.update(NAME))
    until(marker.exists)
    began_s = time.monotonic()
    assert served.service.abort(NAME, hard=False).status == "done"
    assert time.monotonic() - began_s < 10
    updating.end()
    assert isinstance(updating.error, Aborted)
    assert "failure" not in served.alarms()


def test_an_abort_ends_the_wait_for_the_source(served: Served) -> None:
    served.initialized()
    served.lab.change(served.lab.source(), 1)
    with served.lab.source().lock("somebody"):
        updating = Later(lambda: served.service.update(NAME))
        until(lambda: (served.row()["running"] or {}).get("activity") == "snapshotting")
        assert served.service.abort(NAME, hard=False).status == "done"
        updating.end()
    assert isinstance(updating.error, Aborted)


@pytest.mark.parametrize("method", ["abort", "break_off"])
def test_a_verb_that_waits_for_its_turn_is_not_begun(served: Served, method: str) -> None:
    served.initialized()
    served.service.throttle(NAME, "10kB/s")
    ends = [f"block:{served.home}/s2", f"block:{served.home}/d2"]
    assert served.cli("volume", "create", f"{served.home}/s2", "16M").returncode == 0
    served.service.create("other", *ends)
    served.service.initialize("other")
    served.settings("[limits]\ntransfers = 1\n")
    served.lab.change(served.lab.source(), 1)
    holding = Later(lambda: served.service.update(NAME))
    until(lambda: (served.row()["running"] or {}).get("activity") == "transferring")
    waiting = Later(lambda: served.service.update("other"))
    until(lambda: served.row("other")["waiting"])
    words = {"hard": False} if method == "abort" else {}
    assert getattr(served.service, method)("other", **words).status == "done"
    waiting.end(20)
    assert isinstance(waiting.error, Aborted) and "was cancelled" in str(waiting.error)
    assert not served.row("other")["waiting"]
    served.service.abort(NAME, hard=False)
    holding.end()


def test_a_break_that_fails_lets_the_schedule_go_on(served: Served) -> None:
    served.initialized(schedule=EVERY_SECOND)
    gate = served.paths.run / f"{NAME}.gate"
    until(gate.exists)
    gate.unlink()
    gate.mkdir()
    with pytest.raises(MirrordError):
        served.service.break_off(NAME)
    gate.rmdir()
    until(lambda: served.alarms().get("verb") == "error")
    before_ns = served.row()["confirmed_ns"]
    until(lambda: served.row()["confirmed_ns"] > before_ns)
    assert "the last break failed" in "\n".join(served.row()["problems"])
    assert served.cli("monitor").returncode == 2
    served.service.break_off(NAME)
    until(lambda: served.alarms() == {})
