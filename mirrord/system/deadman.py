"""A program that runs only if this process ends before it has released it, however it ends.

It is how a volume that was frozen for a moment does not stay so when mirrord is killed. The power
failing is another matter: then nothing runs, and recovery looks after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mirrord.system import command

#: Waits for a byte (released) or the end of the pipe (we are dead), then becomes the program.
_WATCH = "import os, sys\nif not os.read(0, 1): os.execvp(sys.argv[1], sys.argv[1:])"


class Deadman:
    """words: the program and its arguments. keep: descriptors that it inherits.

    It waits in a session of its own, so that a signal to our group does not reach it.
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
        """It will not run. May be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.write(self._writing, b"r")
        except BrokenPipeError:
            pass  # somebody killed it
        os.close(self._writing)
        process.wait()
