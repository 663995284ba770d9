"""`at_step MODE NUMBER WORDS…`: mirrord, to which something happens at its labelled step NUMBER.

Modes: `kill` (kill -9), `eio`, `enospc` (the step fails so), `slow` (each step from that one on
takes a while: others get in between). The label is told on descriptor 2, so that histories name it.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from mirrord.cli.main import main
from mirrord.system import steps

_SLOW_S = 0.08


def _observe(mode: str, number: int) -> None:
    count = 0

    def seen(label: str) -> None:
        nonlocal count
        count += 1
        if mode == "slow" and count >= number:
            time.sleep(_SLOW_S)
        elif count == number:
            os.write(2, f"[{mode} at step {count}, {label}]\n".encode())
            if mode == "kill":
                os.kill(os.getpid(), 9)
            raise OSError(getattr(errno, mode.upper()), os.strerror(getattr(errno, mode.upper())))

    steps.observe(seen)


if __name__ == "__main__":
    _observe(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["mirrord", *sys.argv[3:]]
    main()
