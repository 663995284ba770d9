"""The helper process of worker.py, from this side: started when it pays, asked, and given up.

Nothing depends on it. Where there is none (no such library, another's Python, a user who may not)
or it says that it cannot, `zfs` is run as if it did not exist.
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

#: It takes as long to start as some of these programs do: a process that has asked for so many
#: will ask for more.
_PAYS_AFTER = 24
_DOES = frozenset(("hold", "release", "destroy", "set", "inherit", "program", "get", "list"))
_SCRIPT = Path(__file__).with_name("worker.py")


class Helper:
    """One process, and what was asked of it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._guard = threading.Lock()
        self._asked: dict[int, Future[list[object]]] = {}
        self._number = 0
        #: Whether it ever answered, and whether it never will again.
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
        """What `zfs` would have said; None: it has to be asked (also when the helper ended in the
        middle: each step bears to be done twice, as a crash may want it). `IoFailed` when it takes
        longer than that.
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
        """It hangs in the kernel: leave it there. The next process is another one."""
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
            _helper, _wished = None, 0  # that is its parent's
        if _helper is not None and _helper.over and _helper.able:
            _helper, _wished = None, 0  # (one that never was able: it would not be the next time)
        if _helper is None and _wished > _PAYS_AFTER:
            _helper = Helper()
        return _helper
