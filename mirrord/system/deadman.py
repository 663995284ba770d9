"""A program that runs only if this process ends, for any reason, before it has released it.

It thaws a briefly frozen volume when mirrord is killed. After a power failure nothing runs, and
recovery handles it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mirrord.system import command

#: Waits for a byte (released) or the end of the pipe (parent ended), then execs the program.
_WATCH = "import os, sys\nif not os.read(0, 1): os.execvp(sys.argv[1], sys.argv[1:])"


class Deadman:
    """words: the program and its arguments. keep: descriptors that it inherits.

    It waits in its own session, so that a signal to our process group does not reach it.
    """

    def __init__(self, words: Sequence[str], *, keep: Sequence[int] = ()) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process: command.Process | None = command.start(
                [sys.executable, "-I", "-S", "-c", _WATCH, *words],
                stdin=reading,
                stderr=command.NO_INPUT,
                keep=keep,
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def release(self) -> None:
        """Cancel the program. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.write(self._writing, b"r")
        except BrokenPipeError:
            pass  # it was killed
        os.close(self._writing)
        process.wait()
