"""The program that pauses and resumes. It is a process of its own: when the one that coordinates
the snapshots is killed or hangs, this one resumes.

`python -m mirrord.pausers.guard JSON`, where JSON is an `Order`. Commands are lines on its standard
input, answers are lines of JSON on its standard output: `ready`; after `pause`, `paused`; after
`resume`, at the end of the input, or after `max_s`, `resumed`. `failed` ends it at any time, with
everything resumed.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import MirrordError, PauseFailed, pack_error
from mirrord.core.pause import LeftPaused
from mirrord.pausers.applock import lock
from mirrord.pausers.contract import Pauser
from mirrord.pausers.record import check, recorded
from mirrord.pausers.registry import open_pauser
from mirrord.system import clock

#: How long to wait for another mirror's pause of the same application.
LOCK_WAIT_S = 20.0
#: The share of the time after which a pauser gives up by itself: it knows the reason.
_OWN_LIMIT = 0.9


class Order(NamedTuple):
    """What to pause. max_s: for how long at most. written: paths that the coordinator writes to.
    record: the file that exists while something is paused.
    """

    pausers: Sequence[str]
    max_s: float
    written: Sequence[str]
    record: str


def main() -> int:
    """The program."""
    order = Order(**json.loads(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its input
    with suppress(OSError):  # the last process to be killed when memory is short
        Path("/proc/self/oom_score_adj").write_text("-1000")
    return run(order)


def run(order: Order) -> int:
    """Prepare the pause, and pause once it is requested; returns the exit status."""
    try:
        with ExitStack() as stack:
            pausers = [open_pauser(text) for text in order.pausers]
            for one in pausers:
                one.max_s = order.max_s
            places = [one.lock_path() for one in pausers]
            held = {one: lock(one, stack, LOCK_WAIT_S) for one in sorted({*filter(None, places)})}
            for one, place in zip(pausers, places, strict=True):
                one.held_lock = held[place] if place else None
            for one in pausers:
                one.check([Path(path) for path in order.written])
            paused = [LeftPaused(str(one), one.mark()) for one in pausers]
            check(Path(order.record), paused)
            _say("ready")
            if _asked(None) == b"p":
                _pause(pausers, paused, order)
    except (MirrordError, OSError) as error:
        _say("failed", error=pack_error(_as_failure(error)))
        return 1
    return 0


class _Pause:
    """One pause of everything. Times are in seconds since it began."""

    def __init__(self, pausers: Sequence[Pauser], max_s: float) -> None:
        self._pausers, self._max_s = pausers, max_s
        # One thread each: an application is resumed after its pause has returned, never before.
        self._threads = [ThreadPoolExecutor(1) for _ in pausers]
        self._pausing: list[Future[float]] = []
        self._began_s = clock.monotonic_s()

    def _all(self, work: Callable[[Pauser], None]) -> list[Future[float]]:
        def timed(pauser: Pauser) -> float:
            work(pauser)
            return clock.monotonic_s() - self._began_s

        pairs = zip(self._threads, self._pausers, strict=True)
        return [thread.submit(timed, one) for thread, one in pairs]

    def begin(self) -> None:
        """Pause everything at the same time."""
        self._pausing = self._all(lambda one: one.pause(_OWN_LIMIT * self._max_s))
        done, late = wait(self._pausing, self._max_s, FIRST_EXCEPTION)
        for future in done:
            future.result()
        if late:
            found = zip(self._pausers, self._pausing, strict=True)
            raise PauseFailed(
                f"the application was not paused within {self._max_s:g} s",
                where=", ".join(str(one) for one, future in found if future in late),
                hint="Set a greater 'pause_max', or find out what keeps it from pausing.",
            )
        _say("paused", confirm_s=[future.result() for future in self._pausing])

    def hold(self) -> dict[str, object]:
        """Wait for the coordinator, as long as the pause may last; returns how that ended."""
        asked = _asked(self._began_s + self._max_s)
        broken = [str(one) for one in self._pausers if not _still(one)] if asked else []
        return {"expired": not asked, "broken": broken}

    def end(self) -> tuple[dict[str, object], list[str]]:
        """Resume everything; returns the times, and for each pauser why that failed, or "".

        Every attempt to pause has returned then.
        """
        asked_s = clock.monotonic_s() - self._began_s
        resuming = self._all(lambda one: one.resume())
        wait(resuming)
        now_s = clock.monotonic_s() - self._began_s
        pause_s = [now_s if one.exception() else one.result() for one in resuming]
        times: dict[str, object] = {
            "pause_s": pause_s,
            "resume_s": [one - asked_s for one in pause_s],
        }
        return times, [str(one.exception() or "") for one in resuming]

    def reason(self) -> BaseException | None:
        """After the end: why a pauser did not pause, which may be known only later."""
        return next((error for one in self._pausing if (error := one.exception())), None)


def _pause(pausers: Sequence[Pauser], paused: Sequence[LeftPaused], order: Order) -> None:
    """From the request to pause to the end of the pause."""
    outcome, failure = dict[str, object](), None
    with recorded(Path(order.record), paused) as (left, before):
        pause = _Pause(pausers, order.max_s)
        try:
            pause.begin()
            outcome = pause.hold()
        except Exception as error:  # whatever it is: everything is resumed first
            failure = error
        times, problems = pause.end()
        left += [one._replace(why=why) for one, why in zip(paused, problems, strict=True) if why]
        # What was paused already, perhaps by an earlier pause of this mirror, is not resumed.
        others = {str(pauser) for pauser in pausers if pauser.others}
        left += [one for one in before if one.pauser in others]
    if failure is not None:
        raise pause.reason() or failure
    _say("resumed", **outcome, **times, problems=[one.why for one in left])


def _as_failure(error: MirrordError | OSError) -> MirrordError:
    if isinstance(error, MirrordError):
        return error
    where, why = error.filename or "", error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "Free space there, and run the same command again." if full else ""
    return PauseFailed("the application cannot be paused", where=str(where), why=why, hint=hint)


def _still(pauser: Pauser) -> bool:
    try:
        return pauser.is_paused()
    except (MirrordError, OSError):
        return False


def _asked(until_s: float | None) -> bytes:
    """The first letter of the next command; "e" at the end of the input, nothing after the time."""
    watch = select.poll()
    watch.register(0, select.POLLIN)
    left_ms = None if until_s is None else max(0, until_s - clock.monotonic_s()) * 1000
    if not watch.poll(left_ms):
        return b""
    return os.read(0, 1) or b"e"


def _say(event: str, **facts: object) -> None:
    """An answer; nobody may be there to read it."""
    with suppress(OSError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
