"""The client of the helper process worker.py: starts it when that pays, uses it, abandons it.

Nothing depends on it. Where it cannot run (no such library, another Python, missing permissions)
or cannot do a command, `zfs` is run instead.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path

from mirrord.core.errors import IoFailed
from mirrord.system import command
from mirrord.system.command import Result

#: The helper takes as long to start as several `zfs` programs: it is started in a process that has
#: run this many commands, as more will follow.
_PAYS_AFTER = 24
_DOES = frozenset(("hold", "release", "destroy", "set", "inherit", "program", "get", "list"))
_SCRIPT = Path(__file__).with_name("worker.py")


class Helper:
    """One helper process, and its pending commands."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._guard = threading.Lock()
        self._asked: dict[int, Future[list[object]]] = {}
        self._number = 0
        #: Whether it has ever answered, and whether it no longer will.
        self.able = self.over = False
        self._process = command.start(
            [sys.executable, "-I", "-S", str(_SCRIPT)], stdin=command.PIPE, stdout=command.PIPE,
            stderr=command.NO_INPUT,
        )  # fmt: skip
        threading.Thread(target=self._read, name="zfs helper", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, *said = json.loads(line)
            if number == "ready":
                self.able = True
                continue
            with self._guard:
                waiting = self._asked.pop(number, None)
            if waiting is not None:
                waiting.set_result(said)
        with self._guard:
            self.over = True
            left, self._asked = self._asked, {}
        for waiting in left.values():
            waiting.set_result([])
        self._process.wait()

    def ask(self, words: Sequence[str], given: str | None, *, timeout_s: float) -> Result | None:
        """The result that `zfs` would have had; None: run `zfs` (also when the helper ended during
        the command: each step may be repeated, as after a crash). `IoFailed` when it takes longer
        than `timeout_s`.
        """
        waiting: Future[list[object]] = Future()
        with self._guard:
            if not self.able or self.over:
                return None
            self._number += 1
            number = self._number
            self._asked[number] = waiting
        line = json.dumps([number, list(words), given]).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            with self._guard:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except OSError:
            return None  # it ended before it got this
        try:
            said = waiting.result(timeout_s)
        except TooLate:
            self.give_up()
            raise IoFailed(f"'{' '.join(words[:2])}' did not end within {timeout_s:g} s") from None
        return Result(*said) if said else None  # type: ignore[arg-type]

    def give_up(self) -> None:
        """Abandon a process that hangs in the kernel; the next command may start another one."""
        self.over = True
        self._process.kill()


_guard = threading.Lock()
_helper: Helper | None = None
_wished = 0


def attempt(words: Sequence[str], given: bytes | None, *, timeout_s: float) -> Result | None:
    """See `Helper.ask`."""
    if words[0] != "zfs" or words[1] not in _DOES:
        return None
    helper = _current()
    if helper is None:
        return None
    return helper.ask(words, None if given is None else given.decode(), timeout_s=timeout_s)


def _current() -> Helper | None:
    global _helper, _wished
    with _guard:
        _wished += 1
        if _helper is not None and _helper.owner != os.getpid():
            _helper, _wished = None, 0  # it belongs to the parent process
        if _helper is not None and _helper.over and _helper.able:
            _helper, _wished = None, 0  # (one that never worked is not replaced)
        if _helper is None and _wished > _PAYS_AFTER:
            _helper = Helper()
        return _helper
